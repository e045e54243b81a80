"""LoraSettings: adapters of low rank that are trained in place of all weights."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from scalewright.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Each product W of a layer becomes W + (alpha / rank) B A, of which only A and B are trained.

    Source  hu2021 (arXiv:2106.09685), section 4.1
    """

    rank: int = 16
    """Rows of A and columns of B."""
    alpha: float = 32.0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"LoRA rank is {self.rank}: give 1 or more, or train all weights")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ConfigError(f"LoRA alpha is {self.alpha}: give a finite number above 0, such as twice the rank")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def document(self) -> dict[str, Any]:
        return asdict(self)
