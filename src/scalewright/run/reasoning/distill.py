"""On-policy distillation: the student writes answers, and the teacher's probabilities of them say what to change.

Distillation on a teacher's answers is supervised fine-tuning, see `sft.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scalewright.records.hybrid import HybridStep
from scalewright.records.reasoning import CurvePoint
from scalewright.run.reasoning.batches import SequenceBatch, TokenSequence
from scalewright.run.reasoning.losses import SUMS, LossSums, PolicyLossResult
from scalewright.run.reasoning.session import failures_of
from scalewright.run.reasoning.training_stage import TrainingStage
from scalewright.workload.reasoning.stage_run import DistillSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseKl:
    """Gradient of the divergence of student from teacher, on tokens that the student drew.

    Equation  L = (1/n) sum_t stop(log pi_s - log pi_t) log pi_s;  its gradient is that of KL(pi_s || pi_t)
    Source    agarwal2024 (arXiv:2306.13649), equation 4, with the score-function gradient of one sample a token
    Assumes   the effect of a token on the states after it is left out, as there
    Checked   tests/run/reasoning/test_distill.py: the gradient is that of the exact divergence, in the mean
    """

    teacher: Sequence[Tensor]
    """Log-probabilities of each micro-batch under the teacher."""

    def weight(self, number: int, batch: SequenceBatch) -> float:
        del number
        return float(sum(batch.num_counted))

    def __call__(
        self, number: int, batch: SequenceBatch, log_probs_NR: Tensor, entropy_NR: Tensor, *, denominator: float
    ) -> PolicyLossResult:
        mask_NR = batch.mask_NR
        gap_NR = (log_probs_NR.detach() - self.teacher[number]).masked_fill(~mask_NR, 0.0)
        loss = (gap_NR * log_probs_NR.masked_fill(~mask_NR, 0.0)).sum() / denominator
        values = dict.fromkeys(SUMS, torch.zeros((), dtype=torch.float64, device=mask_NR.device))
        values["num_tokens"] = mask_NR.sum().double()
        values["num_sequences"] = mask_NR.any(dim=-1).sum().double()
        values["kl_reference"] = gap_NR.double().sum()
        values["entropy"] = entropy_NR.masked_fill(~mask_NR, 0.0).double().sum()
        return PolicyLossResult(loss=loss, sums=LossSums(torch.stack(list(values.values()))))


class OnPolicyDistillStage(TrainingStage):
    """One rank's part."""

    writes_answers = True

    @property
    def settings(self) -> DistillSettings:
        assert isinstance(self.config.settings, DistillSettings)
        return self.config.settings

    def prepare(self) -> None:
        settings = self.settings
        assert settings.teacher_shape is not None
        self._teacher = self.open_frozen(settings.teacher_shape, settings.teacher_id, settings.teacher)
        self.open_engine(num_sequences=settings.num_prompts)

    def conclude(self) -> None:
        """Any divergence is a result."""

    def step(self, step: int) -> CurvePoint:
        session, num = self.session, self.settings.num_prompts
        with session.clock.part("data"):
            problems = self.problems_at(step * num, num)
        rollouts = session.answers(problems, num_answers=1, sampling=session.sampling(), label=f"{step}")
        session.totals.add("num_samples", len(rollouts))
        session.count_rewards(rollouts)
        outcomes = session.take_reward_outcomes()
        num_tokens = sum(len(one.rollout.tokens) for one in rollouts)
        session.totals.add("num_tokens", num_tokens)
        gbs, results = int(self.config.layout.gbs), []
        for start in range(0, num, gbs):
            with session.clock.part("data"):
                chosen = [one.rollout for one in rollouts[start : start + gbs]]
                sequences = [TokenSequence(one.problem.prompt, one.tokens) for one in chosen]
                batches = self.micro_batches(sequences, packs=False)
            teacher = self.log_probs(self._teacher, batches)
            results.append(self.update(batches, ReverseKl(teacher=teacher)))
        self.sync_weights()
        if self.iterations is not None:
            self.iterations.write(
                HybridStep(
                    step=step, version=step, num_finished=num, num_trained_by_staleness={0: num},
                    num_decoded_tokens=num_tokens, num_trained_tokens=num_tokens, sandbox_outcomes=outcomes,
                )
            )  # fmt: skip
        if self.rollouts is not None and self.rollouts.due(step):
            self.rollouts.write(step, rollouts, num=self.config.num_read)
        mean = len(results)
        return CurvePoint(
            step=step, loss=sum(r.numbers["kl_reference"] for r in results) / mean,
            grad_norm=sum(float(r.grad_norm) for r in results) / mean,
            kl_reference=sum(r.numbers["kl_reference"] for r in results) / mean,
            entropy=sum(r.numbers["entropy"] for r in results) / mean,
            reward_mean=sum(one.score.reward for one in rollouts) / num,
            correct_frac=sum(one.score.is_correct for one in rollouts) / num, length_mean=num_tokens / num,
            truncated_frac=sum(one.rollout.is_cut_off for one in rollouts) / num, num_tokens=num_tokens,
            reward_failures=failures_of(outcomes),
        )  # fmt: skip
