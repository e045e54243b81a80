"""A stage of reasoning-model training: the fewest devices that it fits on, and its time, energy and cost on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError
from scalewright.here.place import HERE, Place, place_of
from scalewright.planner.answer import Answer, answer
from scalewright.planner.engine_stack import named_stack
from scalewright.planner.generation import GenerateRequest
from scalewright.planner.limits import term_times, used_frac
from scalewright.planner.question import Question, ask, resolve_recipe
from scalewright.planner.stages.minimum_gpus import MinimumGpus, minimum_gpus
from scalewright.records.study_report import Number
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome, PredictedOnly
from scalewright.study.kinds.options import STRICT, parse_options
from scalewright.study.kinds.training import system_facts
from scalewright.workload.layout import Layout
from scalewright.workload.lengths import fixed
from scalewright.workload.named import resolve_model
from scalewright.workload.rl import RlStep
from scalewright.workload.training import ModeName


@checked(frozen=True, kw_only=True, config=STRICT)
class StagePoint:
    """Options of a point of this kind."""

    stage: Literal["sft", "rl", "generate"]
    model: str
    system: str = HERE
    partition: str = ""
    mode: ModeName = "full"
    precision: str = "bf16"
    stack: str = "eager"
    prompt: int = 512
    response: int = 1024
    batch: int = 256
    """Sequences of a training step, or of a mini-batch in RL; prompts at once in generation."""
    prompts: int = 1024
    """Of one RL step."""
    answers: int = 5
    """For each prompt of an RL step."""
    work: int = 1000
    """Steps of training or RL; batches of generation."""


_OPTIONS: TypeAdapter[StagePoint] = TypeAdapter(StagePoint)


class StageKind(PredictedOnly):
    what = "the fewest devices for a stage"
    metrics: tuple[str, ...] = (
        "num_gpus",
        "training_time_s",
        "gpu_time_s",
        "energy_j",
        "cost_usd",
        "carbon_kgco2e",
        "memory_bytes",
    )

    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        point = parse_options(_OPTIONS, options, where=where)
        resolve_model(catalog, point.model)
        if point.system != HERE:
            place_of(catalog, point.system, partition=point.partition or None)

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Value]:
        return system_facts(catalog, values)

    def predict(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome:
        point = parse_options(_OPTIONS, options, where=where)
        place = place_of(catalog, point.system, partition=point.partition or None)
        spec = resolve_model(catalog, point.model)
        try:
            fewest = minimum_gpus(
                spec=spec, machine=place.machine, stack=named_stack(point.stack, catalog, place.machine),
                recipe=resolve_recipe(point.precision, place.machine), stage_name=point.stage,
                seq=point.prompt + point.response, mode=point.mode,
            )  # fmt: skip
        except ConfigError as error:
            return Outcome(problem=str(error))
        return _outcome(point, fewest, answer(_question(catalog, point, place, fewest)))


def _question(catalog: Catalog, point: StagePoint, place: Place, fewest: MinimumGpus) -> Question:
    """One step on the fewest devices, with everything sharded over them and at least one sequence per device."""
    n, tp = fewest.num_gpus, fewest.tp
    batch = max(point.batch // n, 1) * n
    layout = Layout(dp=n, mbs=1, gbs=batch, zero=3, recompute="full")
    common = partial(
        ask, catalog, model=point.model, system=place, precision=point.precision, stack=point.stack
    )  # fmt: skip
    if point.stage == "sft":
        return common(layout=layout, seq=point.prompt + point.response, mode=point.mode)
    if point.stage == "generate":
        lengths = GenerateRequest(prompt=fixed(point.prompt), response=fixed(point.response))
        return common(layout=Layout(tp=tp, dp=n // tp, gbs=point.batch), generate=lengths)
    step = RlStep(
        num_prompts=point.prompts, num_responses=point.answers, prompt_len=point.prompt, response_len=point.response,
        rollout_tp=tp,
    )  # fmt: skip
    num_sequences = point.prompts * point.answers
    whole = layout if num_sequences % batch == 0 else replace(layout, gbs=num_sequences)
    return common(layout=whole, rl=step, mode=point.mode)


def _outcome(point: StagePoint, fewest: MinimumGpus, prediction: Answer) -> Outcome:
    step_s, used = prediction.time_s, prediction.footprint
    # In RL the tokens of the responses count, not those of the prompts.
    tokens = point.prompts * point.answers * point.response if point.stage == "rl" else prediction.num_units
    total_s = step_s * point.work
    numbers = {
        "num_gpus": fewest.num_gpus,
        "step_time_s": step_s,
        "training_time_s": total_s,
        "gpu_time_s": total_s * fewest.num_gpus,
        "tokens_per_s": tokens / step_s,
        "memory_bytes": float(fewest.memory.total),
    }
    if used is not None:
        numbers["energy_j"] = float(used.energy.total) * point.work
        if used.cost_usd is not None:
            numbers["cost_usd"] = used.cost_usd * point.work
        if used.carbon_kgco2e is not None:
            numbers["carbon_kgco2e"] = used.carbon_kgco2e * point.work
    parts = {name.replace("_", " "): seconds / step_s for name, seconds in term_times(prediction.time)}
    if point.stage == "generate":
        numbers["utilisation_frac"] = used_frac(prediction.time)
    return Outcome(
        numbers={name: Number(value=float(value)) for name, value in numbers.items()},
        words={"how": f"{fewest.mode_name}: {fewest.assumption}"},
        limit=next(iter(parts), ""),
        why=f"half as many devices: {fewest.limit}",
        parts=parts,
    )


KIND = StageKind()
