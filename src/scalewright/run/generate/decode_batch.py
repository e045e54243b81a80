"""The sequences of one decode step as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.run.generate.pages import CachedTokens
from scalewright.run.generate.sampler import SamplerKind, sampler_kind, uniforms
from scalewright.run.generate.sequences import Sequence

ON_DEVICE = -1
"""Stands for a token that the device computed and the host does not know yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBatch:
    """One row for each sequence; its input token is the last one of the sequence."""

    tokens: np.ndarray
    slots: np.ndarray
    positions: np.ndarray
    cached: list[CachedTokens]
    """Where the keys and values of each sequence are."""
    temperature: np.ndarray
    top_p: np.ndarray
    top_k: np.ndarray
    uniform: np.ndarray
    kind: SamplerKind

    @property
    def num_context_tokens(self) -> int:
        return int(self.positions.sum()) + len(self.positions)

    def by_length(self) -> tuple[DecodeBatch, np.ndarray]:
        """The rows from the shortest to the longest, and where each row is among them."""
        order = np.argsort(self.positions, kind="stable")
        columns = ("tokens", "slots", "positions", "temperature", "top_p", "top_k", "uniform")
        rows = {name: getattr(self, name)[order] for name in columns}
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return DecodeBatch(**rows, cached=[self.cached[row] for row in order.tolist()], kind=self.kind), places

    @classmethod
    def of(cls, sequences: list[Sequence]) -> DecodeBatch:
        samplings = [s.group.request.sampling for s in sequences]
        positions = [s.length - 1 for s in sequences]
        kind = sampler_kind(samplings)
        is_random = kind != "greedy"
        return cls(
            tokens=np.array([ON_DEVICE if s.num_in_flight else s.tokens[-1] for s in sequences], dtype=np.int64),
            slots=np.array([s.slot for s in sequences], dtype=np.int64),
            positions=np.array(positions, dtype=np.int64),
            cached=[s.span for s in sequences if s.span is not None],
            temperature=np.array([p.temperature for p in samplings], dtype=np.float32),
            top_p=np.array([p.top_p for p in samplings], dtype=np.float32),
            top_k=np.array([p.top_k for p in samplings], dtype=np.int64),
            uniform=uniforms([s.stream for s in sequences], [s.length - s.num_prompt for s in sequences])
            if is_random
            else np.ones(len(sequences), dtype=np.float32),
            kind=kind,
        )
