"""Plan of a stage that is no single training step: the fewest devices it fits on, the fastest ways on those given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scalewright.catalog.library import Catalog
from scalewright.costs.machine import Machine
from scalewright.planner.answer import Change, model_document
from scalewright.planner.context import check_stage_context
from scalewright.planner.energy_use import facility_of
from scalewright.planner.generation import generation_of, parse_generate
from scalewright.planner.plan import details_document, what_if_body
from scalewright.planner.question import (
    AUTO,
    Question,
    resolve_place,
    resolve_recipe,
    resolve_spec,
    resolve_stack,
)
from scalewright.planner.request import PlanOptions, check_top, parse_counts
from scalewright.planner.search.space import parse_fixed
from scalewright.planner.stages.minimum_gpus import MinimumGpus, fewest_by_mode, native_weights
from scalewright.planner.stages.stage_search import (
    StageChoice,
    check_batch,
    generation_choices,
    mini_batch,
    rl_choices,
)
from scalewright.records.documents import document
from scalewright.workload.language_run import shape_document
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.rl import named_parts, parse_rl
from scalewright.workload.training import FULL, TrainingMode, training_mode


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
    choices: tuple[StageChoice, ...] = ()
    """Ways to run it on the devices, the fastest first; none for distillation, or where nothing fits."""
    request: str = ""
    """What is run: the step or the requests, as `predict` takes them."""
    change: Change | None = None
    precision: str = ""
    """Name of the trainer's recipe, or of the server's."""

    @property
    def fits(self) -> bool:
        """Whether the devices suffice in the mode that was chosen; true where no number was given."""
        if self.choices:
            return True
        needed = [row.num_gpus for row in self.minimum if row.mode_name in (self.mode.name, "serve")]
        return self.num_gpus is None or (bool(needed) and self.num_gpus >= max(needed))

    def document(self) -> dict[str, Any]:
        """The `stage-plan/1` document."""
        return document(
            "stage-plan",
            {
                "stage": self.stage,
                "model": self.spec.id,
                **model_document(self.spec, uses_seq=not self.request),
                "system": self.machine.name,
                "mode": str(self.mode),
                "num_gpus": self.num_gpus,
                "fits": self.fits,
                "input": {
                    "shape": shape_document(self.spec.transformer),
                    "precision": self.precision,
                    "gpus_per_node": self.machine.gpus_per_node,
                    "model_details": details_document(self.spec.details),
                },
                "minimum_gpus": [row.as_dict() for row in self.minimum],
                **(
                    {"request": self.request, "choices": [choice.as_dict() for choice in self.choices]}
                    if self.request
                    else {}
                ),
                **({} if self.change is None else {"what_if": what_if_body(self.change)}),
            },
        )


def plan_stage(
    catalog: Catalog, system: str, options: PlanOptions, *, teacher: str | None = None, what_if: str | None = None
) -> StagePlan:
    """The fewest devices for stage rl, generate or distill, and the fastest ways on the devices given.

    `teacher` is the model that generates in distillation.
    """
    check_top(options.top)
    spec, mode = resolve_spec(catalog, options.model), training_mode(options.mode)
    place = resolve_place(
        catalog, system, partition=options.partition, network=options.network, num_ranks=options.gpus or 1
    )
    machine = place.machine
    recipe, stack = (
        resolve_recipe(options.precision, machine),
        resolve_stack(options.stack, catalog, Layout(zero=3), machine),
    )
    seq = options.seq or spec.transformer.seq
    longest = parse_rl(options.rl).longest_sequence if options.stage == "rl" and options.rl else seq
    fewest = partial(
        fewest_by_mode, spec=spec, machine=machine, stage_name=options.stage, seq=longest, recipe=recipe,
        serves_native=options.precision == AUTO,
        teacher=None if teacher is None else resolve_spec(catalog, teacher),
    )  # fmt: skip
    minimum = fewest(stack=stack)
    if options.stage == "rl" and options.stack == AUTO and spec.transformer.moe is not None:
        # The search splits experts over devices as well, with the stack that shards weights and does so.
        split = {row.mode_name: row for row in fewest(stack=catalog.stack("compiled"))}
        minimum = [min(row, split.get(row.mode_name, row), key=lambda one: one.num_gpus) for row in minimum]
    is_counted = options.nodes is not None or options.gpus is not None
    plan = StagePlan(
        stage=options.stage, spec=spec, machine=machine, mode=mode, minimum=tuple(minimum), precision=recipe.name,
        num_gpus=max(parse_counts(options.nodes, options.gpus, machine)) if is_counted else None,
    )  # fmt: skip
    if options.stage == "distill":
        return plan
    base = Question(
        spec=spec, machine=machine, layout=Layout(), recipe=recipe, stack=stack, mode=mode, catalog=catalog,
        facility=facility_of(catalog, place.system, machine.accelerator.id) if place.system else None,
        system=place.system, basis=place.basis,
    )  # fmt: skip
    return _with_choices(plan, base, options, seq=seq, what_if=what_if)


def _with_choices(plan: StagePlan, base: Question, options: PlanOptions, *, seq: int, what_if: str | None) -> StagePlan:
    num_gpus = plan.num_gpus or _fewest(plan)
    if num_gpus is None:
        return plan
    if plan.stage == "rl":
        request = options.rl or _usual_step(seq, options.global_batch)
        step = parse_rl(request)
        check_stage_context(base.spec, step)
        batch = mini_batch(step, options.global_batch)
        check_batch(step, batch)
        is_paced = bool(step.lag or step.staleness_frac or step.rollout_gpus)
        choices = rl_choices(
            replace(base, stage=step), num_gpus=num_gpus, batch=batch, fixed=parse_fixed(options.fix),
            stack=options.stack, is_paced=is_paced, is_retained="retention" in named_parts(request),
        )  # fmt: skip
    else:
        request = options.generate or _usual_requests(seq)
        lengths, batch = parse_generate(request), options.global_batch or num_gpus * USUAL_PROMPTS
        assert base.catalog is not None
        stage = generation_of(base.catalog, lengths)
        if options.precision == AUTO and lengths.weights is None:
            stage = replace(stage, weights=native_weights(base.spec))
        check_stage_context(base.spec, stage)
        choices = generation_choices(replace(base, layout=Layout(gbs=batch), stage=stage, mode=FULL), num_gpus=num_gpus)
    change = choices[0].prediction.what_if(what_if) if what_if is not None and choices else None
    return replace(plan, choices=tuple(choices[: options.top]) if choices else (), request=request, change=change)


USUAL_PROMPTS = 64
"""Prompts of a device, where none are given."""


def _usual_step(seq: int, batch: int | None) -> str:
    """A step that fills the sequence length: an eighth for the prompt, half of the rest for the mean answer."""
    prompt = max(seq // 8, 1)
    longest = max(seq - prompt, 2)
    return (
        f"prompts={max((batch or 512) // 16, 1)},samples=16,prompt={prompt},response={longest // 2},longest={longest}"
    )


def _usual_requests(seq: int) -> str:
    return f"prompt={max(seq // 2, 1)},response={max(seq // 4, 1)}"


def _fewest(plan: StagePlan) -> int | None:
    """The fewest devices in the mode that was chosen."""
    rows = [row.num_gpus for row in plan.minimum if row.mode_name in (plan.mode.name, "serve")]
    return max(rows) if rows else None
