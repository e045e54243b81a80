"""What a trainer minimises: the loss of written answers (SFT), or of rewarded ones (reinforcement learning)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from scalewright.run.reasoning.batches import SequenceBatch
from scalewright.run.reasoning.losses import SUMS, LossSums, PolicyLossResult, loss_weight, policy_loss
from scalewright.workload.reasoning.policy_loss import PolicyLoss


class Objective(Protocol):
    """A loss over the micro-batches of one update, which divides by one number for all ranks and micro-batches."""

    def weight(self, number: int, batch: SequenceBatch) -> float:
        """What this micro-batch adds to the number that the loss is divided by."""
        ...

    def __call__(
        self, number: int, batch: SequenceBatch, log_probs_NR: Tensor, entropy_NR: Tensor, *, denominator: float
    ) -> PolicyLossResult: ...


class ResponseLoss:
    """Mean negative log-probability of response tokens, over all of them: the loss of supervised fine-tuning."""

    def weight(self, number: int, batch: SequenceBatch) -> float:
        del number
        return float(sum(batch.num_counted))

    def __call__(
        self, number: int, batch: SequenceBatch, log_probs_NR: Tensor, entropy_NR: Tensor, *, denominator: float
    ) -> PolicyLossResult:
        del number
        mask_NR = batch.mask_NR
        values = dict.fromkeys(SUMS, torch.zeros((), dtype=torch.float64, device=mask_NR.device))
        values["num_tokens"] = mask_NR.sum().double()
        values["num_sequences"] = mask_NR.any(dim=-1).sum().double()
        values["entropy"] = entropy_NR.masked_fill(~mask_NR, 0.0).double().sum()
        loss = -log_probs_NR.masked_fill(~mask_NR, 0.0).sum() / denominator
        return PolicyLossResult(loss=loss, sums=LossSums(torch.stack(list(values.values()))))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyData:
    """What is known of a micro-batch's answers before the update, each aligned to its batch."""

    advantages_N: Tensor
    engine_log_probs_NR: Tensor
    old_log_probs_NR: Tensor | None = None
    """Of the trainer before this step's first update; None: this is the first, and those of the update are taken."""
    reference_log_probs_NR: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    """The policy loss of rewarded answers."""

    settings: PolicyLoss
    data: Sequence[PolicyData]
    max_response: int
    budget_per_sequence: float = 0.0
    """The token budget of this update over its answers, for a loss that divides by it."""

    def weight(self, number: int, batch: SequenceBatch) -> float:
        del number
        return loss_weight(
            self.settings, batch.num_counted, max_response=self.max_response,
            budget_per_sequence=self.budget_per_sequence,
        )  # fmt: skip

    def __call__(
        self, number: int, batch: SequenceBatch, log_probs_NR: Tensor, entropy_NR: Tensor, *, denominator: float
    ) -> PolicyLossResult:
        known = self.data[number]
        old_NR = log_probs_NR.detach() if known.old_log_probs_NR is None else known.old_log_probs_NR
        return policy_loss(
            self.settings,
            log_probs_BL=log_probs_NR,
            old_log_probs_BL=old_NR,
            engine_log_probs_BL=known.engine_log_probs_NR,
            reference_log_probs_BL=known.reference_log_probs_NR,
            advantages_B=known.advantages_N,
            mask_BL=batch.mask_NR,
            entropy_BL=entropy_NR,
            denominator=denominator,
        )
