"""Everything that the report of a pipeline shows beyond its points: stages, curves and answers to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from scalewright.records.hybrid_report import HybridShown

StageState = Literal["finished", "failed", "skipped", "unfinished", "waiting"]
"""unfinished: it has begun, and runs or was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedFigure:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofPoint:
    """Where one kind of work of a stage lies under the roofs of the device."""

    name: str
    """prefill, decode, training or log_probs."""
    flop_per_byte: float
    flop_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShown:
    """An answer to read."""

    step: int
    prompt: str
    answer: str
    reward: float
    is_correct: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShown:
    """One seed of one stage."""

    name: str
    stage: str
    seed: int
    point: str
    state: StageState
    reason: str = ""
    """Why it has no figures."""
    follows: tuple[str, ...] = ()
    """Stages whose weights or answers it uses."""
    model: str = ""
    num_params: int = 0
    num_ranks: int = 0
    layout: str = ""
    precision: str = ""
    device: str = ""
    num_steps: int = 0
    num_samples: int = 0
    num_tokens: int = 0
    took_s: float | None = None
    """Steps, evaluation and checkpoints."""
    predicted_s: BoundedFigure | None = None
    """Predicted time of the steps."""
    seconds_by_part: dict[str, float] = field(default_factory=dict)
    predicted_by_part: dict[str, float] = field(default_factory=dict)
    """Predicted seconds of the same parts, without evaluation and checkpoints."""
    accuracy: BoundedFigure | None = None
    """Greedy."""
    pass_at_k: dict[int, BoundedFigure] = field(default_factory=dict)
    num_problems: int = 0
    marks: str = ""
    """Which of the test problems are solved, one character each; empty: not known."""
    gate: str = ""
    """What its gate says; empty without one."""
    passes_gate: bool | None = None
    communication_frac: float | None = None
    utilisation_frac: float | None = None
    rank_gap_frac: float | None = None
    kv_occupancy_frac: float | None = None
    host_bytes: float | None = None
    device_bytes: float | None = None
    energy_j: float | None = None
    cost_usd: float | None = None
    cost_usd_per_thousand_samples: float | None = None
    kl_engines: float | None = None
    masked_frac: float | None = None
    effective_sample_frac: float | None = None
    roofline: tuple[RoofPoint, ...] = ()
    peak_flop_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    """Roofs of its device; None: unknown."""
    curve: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Figures of the steps by name; `step` has their numbers."""
    answers: tuple[AnswerShown, ...] = ()
    notes: tuple[str, ...] = ()
    hybrid: HybridShown | None = None
    """Rollouts and training over time; None: it trains on no answers of its own."""

    @property
    def energy_by_part(self) -> dict[str, float]:
        """Energy of each part, by its share of the time: the counters do not tell parts apart."""
        total_s = sum(self.seconds_by_part.values())
        if self.energy_j is None or not total_s:
            return {}
        return {name: self.energy_j * seconds / total_s for name, seconds in self.seconds_by_part.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShown:
    """A pipeline, ready to be drawn."""

    profile: str
    sentence: str = ""
    """What a budget made smaller."""
    stages: tuple[StageShown, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stage.name for stage in self.stages))

    @property
    def has_seeds(self) -> bool:
        return len(self.names) < len(self.stages)
