"""Plan of a stage that is no single training step: the fewest devices it fits on, and whether those given suffice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalewright.catalog.library import Catalog
from scalewright.costs.machine import Machine
from scalewright.planner.question import resolve_place, resolve_recipe, resolve_spec, resolve_stack
from scalewright.planner.request import PlanOptions, parse_counts
from scalewright.planner.stages.minimum_gpus import MinimumGpus, fewest_by_mode
from scalewright.records.documents import document
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.training import TrainingMode, training_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """The fewest devices for a stage, in each mode."""

    stage: str
    spec: ModelSpec
    machine: Machine
    mode: TrainingMode
    num_gpus: int | None
    """Devices that the user has; None where no number was given."""
    minimum: tuple[MinimumGpus, ...]

    @property
    def fits(self) -> bool:
        """Whether the devices suffice in the mode that was chosen; true where no number was given."""
        needed = [row.num_gpus for row in self.minimum if row.mode_name in (self.mode.name, "serve")]
        return self.num_gpus is None or (bool(needed) and self.num_gpus >= max(needed))

    def document(self) -> dict[str, Any]:
        """The `stage-plan/1` document."""
        return document(
            "stage-plan",
            {
                "stage": self.stage,
                "model": self.spec.id,
                "system": self.machine.name,
                "mode": str(self.mode),
                "num_gpus": self.num_gpus,
                "fits": self.fits,
                "minimum_gpus": [row.as_dict() for row in self.minimum],
            },
        )


def plan_stage(catalog: Catalog, system: str, options: PlanOptions, *, teacher: str | None = None) -> StagePlan:
    """The fewest devices for stage rl, generate or distill. `teacher` is the model that generates in distillation."""
    spec, mode = resolve_spec(catalog, options.model), training_mode(options.mode)
    machine = resolve_place(
        catalog, system, partition=options.partition, network=options.network, num_ranks=options.gpus or 1
    ).machine
    minimum = fewest_by_mode(
        spec=spec, machine=machine, stage_name=options.stage, seq=options.seq or spec.transformer.seq,
        stack=resolve_stack(options.stack, catalog, Layout(zero=3), machine),
        recipe=resolve_recipe(options.precision, machine),
        teacher=None if teacher is None else resolve_spec(catalog, teacher),
    )  # fmt: skip
    is_counted = options.nodes is not None or options.gpus is not None
    return StagePlan(
        stage=options.stage, spec=spec, machine=machine, mode=mode, minimum=tuple(minimum),
        num_gpus=max(parse_counts(options.nodes, options.gpus, machine)) if is_counted else None,
    )  # fmt: skip
