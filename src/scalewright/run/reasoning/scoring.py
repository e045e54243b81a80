"""Log-probabilities of chosen tokens from hidden states, without the scores of a whole batch in fp32.

Hidden states go through the output product some rows at a time. The backward pass needs each row's softmax again: the
scores are kept in the type of the product while they are few, and else computed a second time. Under tensor
parallelism each rank scores its own rows of the vocabulary, and ranks exchange three numbers per token.

Tensors carry their dimensions in capitals: T tokens, D hidden, V vocabulary on this rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional

from scalewright import units
from scalewright.run.language.model import Head

CHUNK_BYTES = {"cpu": 16 * units.MIB, "cuda": 512 * units.MIB}
"""Scores of this size are worked on at once."""
ROW_MULTIPLE = 256
"""Large pieces have a multiple of this many rows, as products like it."""
KEPT_BYTES = {"cpu": 256 * units.MIB, "cuda": 4 * units.GIB}
"""Scores up to this size stay in memory until the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyRanks:
    """Ranks that share the rows of the output product; None: one rank has them all."""

    group: dist.ProcessGroup | None = None
    first_row: int = 0

    def sum(self, x: Tensor) -> Tensor:
        if self.group is not None:
            dist.all_reduce(x, group=self.group)
        return x

    def largest(self, x: Tensor) -> Tensor:
        if self.group is not None:
            dist.all_reduce(x, op=dist.ReduceOp.MAX, group=self.group)
        return x


def scored(
    head: Head,
    x_BLD: Tensor,
    slots_T: Tensor,
    targets_T: Tensor,
    *,
    temperature: float,
    group: dist.ProcessGroup | None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target after the token in its slot, and the entropy there, which has no gradient."""
    x_TD = head.norm(x_BLD.flatten(0, 1)[slots_T])
    weight_VD = head.output.weight
    ranks = VocabularyRanks()
    if isinstance(weight_VD, DTensor):
        weight_VD = weight_VD.to_local()
        if group is not None and dist.get_world_size(group) > 1:
            ranks = VocabularyRanks(group=group, first_row=dist.get_rank(group) * weight_VD.shape[0])
    log_probs_T, entropy_T = _Scored.apply(x_TD, weight_VD, targets_T, 1.0 / temperature, ranks)  # type: ignore[no-untyped-call]
    return log_probs_T, entropy_T


class _Scored(torch.autograd.Function):
    """Forward and backward of the output product and the softmax together, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, scale: float, ranks: VocabularyRanks
    ) -> tuple[Tensor, Tensor]:
        own_T = targets_T - ranks.first_row
        outputs = x_TD.new_empty(3, x_TD.shape[0], dtype=torch.float32)
        needs_grad = any(ctx.needs_input_grad[:2])
        size_bytes = x_TD.shape[0] * weight_VD.shape[0] * x_TD.element_size()
        keeps = needs_grad and size_bytes <= KEPT_BYTES[x_TD.device.type]
        kept = []
        for rows in _chunks(x_TD, weight_VD):
            scores_TV = functional.linear(x_TD[rows], weight_VD)
            largest_T = ranks.largest(_largest(scores_TV, scale))
            sums_3T = ranks.sum(_sums(scores_TV, own_T[rows], largest_T, scale))
            log_sum_T = largest_T + sums_3T[0].log()
            outputs[0, rows] = sums_3T[1] - log_sum_T
            outputs[1, rows] = log_sum_T - sums_3T[2] / sums_3T[0]
            outputs[2, rows] = log_sum_T
            kept += [scores_TV] if keeps else []
        ctx.save_for_backward(x_TD, weight_VD, own_T, outputs[2], *kept)
        ctx.scale, ctx.ranks = scale, ranks
        entropy_T = outputs[1]
        ctx.mark_non_differentiable(entropy_T)
        return outputs[0], entropy_T

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_VD, own_T, log_sum_T, *kept = ctx.saved_tensors
        grad_x_TD = torch.empty_like(x_TD)
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for number, rows in enumerate(_chunks(x_TD, weight_VD)):
            scores_TV = kept[number] if kept else functional.linear(x_TD[rows], weight_VD)
            grad_TV = _score_grads(scores_TV, own_T[rows], log_sum_T[rows], grad_T[rows].float(), ctx.scale)
            grad_x_TD[rows] = grad_TV @ weight_VD
            if grad_weight_VD is not None:
                grad_weight_VD += grad_TV.t() @ x_TD[rows]
        ctx.ranks.sum(grad_x_TD)
        return grad_x_TD, None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype), None, None, None


def _chunks(x_TD: Tensor, weight_VD: Tensor) -> Iterator[slice]:
    each = max(CHUNK_BYTES[x_TD.device.type] // (weight_VD.shape[0] * x_TD.element_size()), 1)
    each -= each % ROW_MULTIPLE if each > ROW_MULTIPLE else 0
    for start in range(0, x_TD.shape[0], each):
        yield slice(start, min(start + each, x_TD.shape[0]))


def _plain_largest(scores_TV: Tensor, scale: float) -> Tensor:
    return scores_TV.amax(dim=-1).float() * scale


def _plain_sums(scores_TV: Tensor, own_T: Tensor, largest_T: Tensor, scale: float) -> Tensor:
    """Sum of e^(s - m), score of the target if this rank has it, and sum of s e^(s - m)."""
    scaled_TV = scores_TV.float() * scale
    powers_TV = (scaled_TV - largest_T[:, None]).exp()
    has_T = (own_T >= 0) & (own_T < scores_TV.shape[1])
    chosen_T = scores_TV.gather(1, torch.where(has_T, own_T, 0)[:, None])[:, 0].float() * scale
    weighted_TV = torch.where(powers_TV > 0.0, scaled_TV * powers_TV, 0.0)
    return torch.stack((powers_TV.sum(dim=-1), torch.where(has_T, chosen_T, 0.0), weighted_TV.sum(dim=-1)))


def _plain_score_grads(scores_TV: Tensor, own_T: Tensor, log_sum_T: Tensor, grad_T: Tensor, scale: float) -> Tensor:
    """Equation  d log p_target / d s_v = scale ([v = target] - p_v)."""
    probabilities_TV = (scores_TV.float() * scale - log_sum_T[:, None]).exp()
    is_target_TV = own_T[:, None] == torch.arange(scores_TV.shape[1], device=scores_TV.device)[None, :]
    return ((is_target_TV.float() - probabilities_TV) * (grad_T * scale)[:, None]).to(scores_TV.dtype)


_COMPILED: dict[str, Any] = {}


def _call(function: Any, *arguments: Any) -> Tensor:
    """Compiled on GPUs: one kernel that reads the scores once."""
    if arguments[0].device.type != "cuda":
        result: Tensor = function(*arguments)
        return result
    if function.__name__ not in _COMPILED:
        _COMPILED[function.__name__] = torch.compile(function)
    compiled: Tensor = _COMPILED[function.__name__](*arguments)
    return compiled


def _largest(*arguments: Any) -> Tensor:
    return _call(_plain_largest, *arguments)


def _sums(*arguments: Any) -> Tensor:
    return _call(_plain_sums, *arguments)


def _score_grads(*arguments: Any) -> Tensor:
    return _call(_plain_score_grads, *arguments)
