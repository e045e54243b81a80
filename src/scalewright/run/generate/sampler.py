"""The next token from scores, and its log-probability under the distribution that it was drawn from.

A draw inverts the cumulative distribution at one uniform number, which depends on the answer and the position alone.
So neither batching nor preemption changes an answer, beyond the rounding of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from scalewright.run.generate.requests import Sampling

SamplerKind = Literal["greedy", "plain", "filtered"]
GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of the generator splitmix64, by Steele, Lea and Flood (2014)."""


@dataclass(frozen=True, slots=True)
class SamplerRows:
    """Sampling of each row of a batch, on the device."""

    temperature_R: Tensor
    top_p_R: Tensor
    top_k_R: Tensor
    uniform_R: Tensor
    """Above 0 and at most 1."""


def sampler_kind(samplings: Rows[Sampling]) -> SamplerKind:
    """The least work that serves every row."""
    if any(sampling.is_filtered for sampling in samplings):
        return "filtered"
    return "greedy" if all(sampling.is_greedy for sampling in samplings) else "plain"


def uniforms(streams: Rows[int], positions: Rows[int]) -> np.ndarray:
    """One number in (0, 1] for each stream and position: splitmix64's output number `position` of the stream."""
    with np.errstate(over="ignore"):
        x = np.array(streams, dtype=np.uint64) + np.uint64(GOLDEN) * (
            np.array(positions, dtype=np.uint64) + np.uint64(1)
        )
        x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX_1)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX_2)
        x = x ^ (x >> np.uint64(31))
    numbers: np.ndarray = ((x >> np.uint64(40)).astype(np.float32) + np.float32(1.0)) * np.float32(2.0**-24)
    return numbers


def sample(logits_RV: Tensor, rows: SamplerRows, kind: SamplerKind) -> tuple[Tensor, Tensor]:
    """Tokens and log-probabilities. A row with a score that is not a number has a log-probability that is none."""
    logits_RV = logits_RV.float()
    if kind == "greedy":
        tokens_R = logits_RV.argmax(dim=-1)
        return tokens_R, _log_prob(logits_RV, tokens_R)
    is_greedy_R = rows.temperature_R == 0.0
    scaled_RV = logits_RV / torch.where(is_greedy_R, 1.0, rows.temperature_R)[:, None]
    if kind == "plain":
        drawn_R = _draw(scaled_RV.softmax(dim=-1), rows.uniform_R)
        tokens_R = torch.where(is_greedy_R, logits_RV.argmax(dim=-1), drawn_R)
        return tokens_R, _log_prob(scaled_RV, tokens_R)
    return _filtered(scaled_RV, is_greedy_R, rows)


def _log_prob(scores_RV: Tensor, tokens_R: Tensor) -> Tensor:
    chosen_R = scores_RV.gather(1, tokens_R[:, None])[:, 0]
    return chosen_R - scores_RV.logsumexp(dim=-1)


def _draw(probabilities_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """The first token at which the running sum reaches the uniform number's share of the whole."""
    sums_RV = probabilities_RV.cumsum(dim=-1)
    reached_R = torch.searchsorted(sums_RV, (uniform_R * sums_RV[:, -1])[:, None])[:, 0]
    return reached_R.clamp(max=probabilities_RV.shape[-1] - 1)  # only rows that are not numbers come that far


def _filtered(scaled_RV: Tensor, is_greedy_R: Tensor, rows: SamplerRows) -> tuple[Tensor, Tensor]:
    sorted_RV, order_RV = scaled_RV.sort(dim=-1, descending=True, stable=True)
    num_tokens = scaled_RV.shape[-1]
    ranks_V = torch.arange(num_tokens, device=scaled_RV.device)
    top_k_R = torch.where(rows.top_k_R == 0, num_tokens, rows.top_k_R)
    top_k_R = torch.where(is_greedy_R, num_tokens, top_k_R)
    sorted_RV = sorted_RV.masked_fill(ranks_V[None, :] >= top_k_R[:, None], -torch.inf)
    probabilities_RV = sorted_RV.softmax(dim=-1)
    before_RV = probabilities_RV.cumsum(dim=-1) - probabilities_RV
    beyond_RV = (before_RV >= torch.where(is_greedy_R, 2.0, rows.top_p_R)[:, None]) & (ranks_V[None, :] > 0)
    kept_RV = sorted_RV.masked_fill(beyond_RV, -torch.inf)
    drawn_R = torch.where(is_greedy_R, 0, _draw(kept_RV.softmax(dim=-1), rows.uniform_R))
    return order_RV.gather(1, drawn_R[:, None])[:, 0], _log_prob(kept_RV, drawn_R)
