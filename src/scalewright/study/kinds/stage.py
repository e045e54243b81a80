"""A stage of reasoning-model training: the fewest devices it fits, and time, energy and money of its work on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright.catalog.library import Catalog
from scalewright.costs.breakdown import Breakdown
from scalewright.errors import ConfigError
from scalewright.here.place import HERE, Place, place_of
from scalewright.planner.energy_use import Footprint, facility_of
from scalewright.planner.predict import predict, resolve_recipe
from scalewright.planner.stages.generation_rl import predict_rl
from scalewright.planner.stages.memory import MinimumGpus, minimum_gpus
from scalewright.planner.stages.serving import predict_generation
from scalewright.planner.whatif import term_times
from scalewright.records.study_report import Number
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome, PredictedOnly
from scalewright.study.kinds.training import STRICT, read_as, system_facts
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.named import resolve_model
from scalewright.workload.precision import Recipe
from scalewright.workload.training import ModeName, training_mode


@checked(frozen=True, kw_only=True, config=STRICT)
class StageTold:
    """What a point of this kind is told."""

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


_TOLD: TypeAdapter[StageTold] = TypeAdapter(StageTold)
Timed = tuple[Breakdown, Footprint | None, float]
"""Time of one step, what it uses, and the tokens that it trains on or writes."""


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

    def check(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> None:
        asked = read_as(_TOLD, told, where=where)
        resolve_model(catalog, asked.model)
        if asked.system != HERE:
            place_of(catalog, asked.system, partition=asked.partition or None)

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Any]:
        return system_facts(catalog, values)

    def predict(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> Outcome:
        asked = read_as(_TOLD, told, where=where)
        place = place_of(catalog, asked.system, partition=asked.partition or None)
        spec = resolve_model(catalog, asked.model)
        recipe = resolve_recipe(asked.precision, place.machine)
        try:
            fewest = minimum_gpus(
                spec=spec, machine=place.machine, stack=catalog.stack(asked.stack), recipe=recipe,
                stage_name=asked.stage, seq=asked.prompt + asked.response, mode=asked.mode,
            )  # fmt: skip
        except ConfigError as error:
            return Outcome(problem=str(error))
        time, used, tokens = _timed(catalog, asked, place, spec, recipe, fewest)
        return _outcome(asked, fewest, time, used, tokens)


def _timed(
    catalog: Catalog, asked: StageTold, place: Place, spec: ModelSpec, recipe: Recipe, fewest: MinimumGpus
) -> Timed:
    """One step on the fewest devices, everything sharded over them; at least one sequence a device."""
    n, machine, stack = fewest.num_gpus, place.machine, catalog.stack(asked.stack)
    facility = facility_of(catalog, place.system, machine.accelerator.id)
    around: dict[str, Any] = {"facility": facility}
    batch = max(asked.batch // n, 1) * n
    layout = Layout(dp=n, mbs=1, gbs=batch, zero=3, recompute="full")
    common: dict[str, Any] = {"machine": machine, "stack": stack, "recipe": recipe, **around}
    if asked.stage == "sft":
        seq = asked.prompt + asked.response
        step = predict(spec=spec.with_seq(seq), layout=layout, mode=training_mode(asked.mode), **common)
        return step.cost.time, step.footprint, batch * seq
    if asked.stage == "generate":
        found = predict_generation(
            spec=spec, num_gpus=n, tp=fewest.tp, batch=asked.batch, prompt_len=asked.prompt,
            response_len=asked.response, **common,
        )  # fmt: skip
        return found.time, found.footprint, asked.batch * asked.response
    sequences = asked.prompts * asked.answers
    whole = layout if sequences % batch == 0 else replace(layout, gbs=sequences)
    turn = predict_rl(
        spec=spec, layout=whole, rollout_recipe=recipe, rollout_tp=fewest.tp, num_prompts=asked.prompts,
        num_responses=asked.answers, prompt_len=asked.prompt, response_len=asked.response, mode=asked.mode, **common,
    )  # fmt: skip
    return turn.time, turn.footprint, sequences * asked.response


def _outcome(asked: StageTold, fewest: MinimumGpus, time: Breakdown, used: Footprint | None, tokens: float) -> Outcome:
    step_s = float(time.total)
    total_s = step_s * asked.work
    numbers = {
        "num_gpus": fewest.num_gpus,
        "step_time_s": step_s,
        "training_time_s": total_s,
        "gpu_time_s": total_s * fewest.num_gpus,
        "tokens_per_s": tokens / step_s,
        "memory_bytes": float(fewest.memory.total),
    }
    if used is not None:
        numbers["energy_j"] = float(used.energy.total) * asked.work
        if used.cost_usd is not None:
            numbers["cost_usd"] = used.cost_usd * asked.work
        if used.carbon_kgco2e is not None:
            numbers["carbon_kgco2e"] = used.carbon_kgco2e * asked.work
    parts = {name.replace("_", " "): seconds / step_s for name, seconds in term_times(time)}
    return Outcome(
        numbers={name: Number(value=float(value)) for name, value in numbers.items()},
        words={"how": f"{fewest.mode_name}: {fewest.assumption}"},
        limit=next(iter(parts), ""),
        why=f"half as many devices: {fewest.limit}",
        parts=parts,
    )


KIND = StageKind()
