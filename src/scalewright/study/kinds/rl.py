"""One step of reinforcement learning on a system: its parts, and what a token budget gives."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright.catalog.library import Catalog
from scalewright.here.place import HERE, place_of
from scalewright.planner.answer import Answer, answer
from scalewright.planner.limits import term_times
from scalewright.planner.question import ask
from scalewright.records.study_report import Number
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome, PredictedOnly
from scalewright.study.kinds.options import STRICT, parse_options
from scalewright.study.kinds.training import system_facts
from scalewright.workload.named import resolve_model
from scalewright.workload.rl import parse_rl


@checked(frozen=True, kw_only=True, config=STRICT)
class RlPoint:
    """Options of a point of this kind, as `predict --rl` takes them."""

    model: str
    layout: str
    """Of the trainer."""
    rl: str
    """The step."""
    system: str = HERE
    partition: str = ""
    precision: str = "bf16"
    stack: str = "auto"


_OPTIONS: TypeAdapter[RlPoint] = TypeAdapter(RlPoint)


class RlKind(PredictedOnly):
    what = "a step of reinforcement learning"
    metrics: tuple[str, ...] = (
        "num_gpus", "step_time_s", "rollout_time_s", "sync_time_s", "rollout_gain", "step_gain", "wasted_frac",
    )  # fmt: skip

    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        point = parse_options(_OPTIONS, options, where=where)
        resolve_model(catalog, point.model)
        parse_rl(point.rl)
        if point.system != HERE:
            place_of(catalog, point.system, partition=point.partition or None)

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Value]:
        return system_facts(catalog, values)

    def predict(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome:
        point = parse_options(_OPTIONS, options, where=where)
        question = ask(
            catalog, model=point.model, system=point.system, partition=point.partition or None, layout=point.layout,
            precision=point.precision, stack=point.stack, rl=point.rl,
        )  # fmt: skip
        return _outcome(answer(question))


def _outcome(prediction: Answer) -> Outcome:
    figures, low, high = prediction.rl, *prediction.interval_s
    numbers = {
        "num_gpus": Number(value=float(prediction.question.num_gpus)),
        "step_time_s": Number(value=prediction.time_s, low=low, high=high),
        "rollout_time_s": Number(value=figures.part("rollout").whole_s),
        "sync_time_s": Number(value=figures.part("weight_sync").whole_s),
        "tokens_per_s": Number(value=prediction.rate_per_s),
        "memory_bytes": Number(value=prediction.memory_bytes),
    }
    if figures.budget is not None and figures.step_gain is not None:
        numbers["rollout_gain"] = Number(value=figures.budget.gain.ratio)
        numbers["step_gain"] = Number(value=figures.step_gain)
        numbers["wasted_frac"] = Number(value=figures.budget.simulated.wasted_frac)
    parts = {name.replace("_", " "): seconds / prediction.time_s for name, seconds in term_times(prediction.time)}
    return Outcome(
        numbers=numbers,
        limit=next(iter(parts), ""),
        why=""
        if prediction.fits
        else "it does not fit: raise the devices of the trainer or the split of the generator",
        parts=parts,
        notes=prediction.warnings,
    )


KIND = RlKind()
