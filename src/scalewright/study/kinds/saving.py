"""The cost of failures and checkpoints over a whole run, with the best layout on a number of nodes."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Storage
from scalewright.errors import ConfigError
from scalewright.here.place import Place, place_of
from scalewright.planner.search.pareto import why_none
from scalewright.planner.whole_run import WholeRun, step_work, storage_of, whole_run
from scalewright.records.study_report import Number
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome, PredictedOnly
from scalewright.study.kinds.options import STRICT, parse_options
from scalewright.study.kinds.plan import SearchPoint, searched
from scalewright.study.kinds.training import system_facts
from scalewright.workload.named import resolve_model


@checked(frozen=True, kw_only=True, config=STRICT)
class SavingPoint(SearchPoint):
    """Options of a point of this kind."""

    tokens: str = "300B"
    storage: str = ""
    """Storage of the checkpoints; empty: the first of the system."""
    checkpoint: str = "async"


_OPTIONS: TypeAdapter[SavingPoint] = TypeAdapter(SavingPoint)


class SavingKind(PredictedOnly):
    what = "a whole run's failures and checkpoints"
    metrics: tuple[str, ...] = ("lost_frac", "save_interval_s", "save_time_s", "gpu_time_s", "training_time_s")

    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        point = parse_options(_OPTIONS, options, where=where)
        resolve_model(catalog, point.model)
        units.parse(point.tokens, units.COUNT)
        if point.checkpoint not in ("sync", "async"):
            raise ConfigError(f"{where}: key 'point.checkpoint': {point.checkpoint!r} is not sync or async")
        place = place_of(catalog, point.system, partition=point.partition or None)
        _storage(catalog, place, point)

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Value]:
        return system_facts(catalog, values)

    def predict(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome:
        point = parse_options(_OPTIONS, options, where=where)
        place = place_of(catalog, point.system, partition=point.partition or None)
        plain = SearchPoint(**{name: getattr(point, name) for name in SearchPoint.__dataclass_fields__})
        result, best = searched(catalog, plain)
        if best is None:
            return Outcome(problem=why_none(result))
        run = whole_run(
            work=step_work(best),
            storage_entry=_storage(catalog, place, point),
            num_tokens=units.parse(point.tokens, units.COUNT),
            checkpoint="async" if point.checkpoint == "async" else "sync",
            is_campaign=False,
        )
        return _outcome(run, best.question.layout.brief)


def _storage(catalog: Catalog, place: Place, point: SavingPoint) -> Storage:
    """The named storage, or else the machine's own, which a calibration may have measured."""
    own = place.storage_of(catalog, num_gpus=point.nodes * place.machine.gpus_per_node)
    if own is not None and not point.storage:
        return own
    return storage_of(catalog, place.system, point.storage or None)


def _outcome(run: WholeRun, layout: str) -> Outcome:
    total = float(run.time.total)
    parts = {part.name.replace("_", " "): float(part.total) / total for part in run.time.parts if float(part.total) > 0}
    ordered = dict(sorted(parts.items(), key=lambda item: -item[1]))
    lost = {name: share for name, share in ordered.items() if name != "steps"}
    limit = next(iter(lost), "steps")
    numbers = {
        "lost_frac": 1.0 - run.goodput_frac,
        "save_interval_s": run.every_s,
        "save_time_s": run.saving.write_s,
        "training_time_s": run.time_s,
        "gpu_time_s": run.device_time_s * (1.0 - run.goodput_frac),
        "num_gpus": run.work.num_gpus,
        "step_time_s": run.work.step_time_s,
    }
    if run.energy is not None:
        numbers["energy_j"] = float(run.energy.total)
    return Outcome(
        numbers={name: Number(value=float(value)) for name, value in numbers.items()},
        words={"layout": layout, "checkpoints go to": run.storage_id},
        limit=limit,
        why=f"{run.num_failures:,.0f} failures expected; a save stops every device for {run.saving.stall_s:.3g} s",
        parts=ordered,
        notes=run.notes,
    )


KIND = SavingKind()
