"""DecodeRun: decode steps and prompts of our engine on one device, over batch and context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from scalewright.errors import ConfigError
from scalewright.records.documents import document
from scalewright.records.loader import stored
from scalewright.workload.generate_run import EngineExecution, WeightPrecision
from scalewright.workload.micro_run import check_choices, check_common
from scalewright.workload.run_options import DeviceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRun:
    """One model: a step of every batch at every context, and prompts of every length."""

    KIND: ClassVar[str] = "decode-run"
    model_id: str
    shape: dict[str, Any]
    """As `language_run.shape_document` writes it."""
    precisions: tuple[WeightPrecision, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    """Tokens that a decoded token attends to."""
    prompts: tuple[int, ...]
    """Lengths of prompts that are read."""
    execution: EngineExecution = "auto"
    device: DeviceKind = "auto"
    budget_s: float

    def __post_init__(self) -> None:
        check_choices("precision", self.precisions, WeightPrecision)
        check_common(self.device, self.budget_s)
        for name in ("batches", "contexts", "prompts"):
            values = getattr(self, name)
            if not values or min(values) < 1:
                raise ConfigError(f"{name} {list(values)}: give one or more numbers of 1 or more")

    def document(self) -> dict[str, Any]:
        return document(self.KIND, stored(self))
