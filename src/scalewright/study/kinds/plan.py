"""A point that is a search: the best layout for a model on so many nodes, and what each knob is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright.catalog.library import Catalog
from scalewright.costs.machine import Machine
from scalewright.here.place import HERE, place_of
from scalewright.planner.answer import Answer
from scalewright.planner.energy_use import facility_of
from scalewright.planner.question import resolve_recipe
from scalewright.planner.search.losers import losers
from scalewright.planner.search.pareto import why_none
from scalewright.planner.search.search import SearchResult, search
from scalewright.planner.search.space import Space, parse_fixed, stacks_by_zero
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome, PredictedOnly
from scalewright.study.kinds.options import STRICT, parse_options
from scalewright.study.kinds.training import outcome_of, system_facts
from scalewright.workload.named import resolve_model

MAX_KNOBS = 8


@checked(frozen=True, kw_only=True, config=STRICT)
class Search:
    """What a point of this kind is told."""

    model: str
    nodes: int
    global_batch: int
    system: str = HERE
    partition: str = ""
    precision: str = "auto"
    stack: str = "auto"
    seq: int = 0
    fix: str = ""
    """Knobs that the search may not turn: `cp=1,sp=0,vpp=1,recompute=full`."""


_TOLD: TypeAdapter[Search] = TypeAdapter(Search)


class PlanKind(PredictedOnly):
    what = "a search"
    metrics: tuple[str, ...] = ("flop_per_s_per_gpu", "mfu_frac", "step_time_s", "memory_bytes")

    def check(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> None:
        asked = parse_options(_TOLD, told, where=where)
        resolve_model(catalog, asked.model)
        parse_fixed(asked.fix)
        if asked.system != HERE:
            place_of(catalog, asked.system, partition=asked.partition or None)

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Any]:
        return system_facts(catalog, values)

    def predict(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> Outcome:
        result, best = searched(catalog.folders, parse_options(_TOLD, told, where=where))
        if best is None:
            return Outcome(problem=why_none(result))
        found = outcome_of(best)
        seen = f"{result.considered:,} layouts, {result.feasible:,} fit"
        return replace(
            found, words={"layout": best.question.layout.brief, "searched": seen},
            notes=(*(loser.sentence for loser in losers(result, best)[:MAX_KNOBS]), *found.notes),
        )  # fmt: skip


@lru_cache(maxsize=64)
def searched(folders: tuple[Path, ...], asked: Search) -> tuple[SearchResult, Answer | None]:
    """The search and its fastest layout; kept, because points that differ in what follows share it."""
    catalog = Catalog(folders)
    place = place_of(catalog, asked.system, partition=asked.partition or None)
    facility = facility_of(catalog, place.system, place.machine.accelerator.id)
    result = search(space_of(catalog, asked, place.machine))
    ranked = result.best(1, "time", facility=facility)
    return result, ranked[0] if ranked else None


def space_of(catalog: Catalog, asked: Search, machine: Machine) -> Space:
    """Every layout of the point's model on its nodes."""
    spec = resolve_model(catalog, asked.model)
    return Space(
        spec=spec.with_seq(asked.seq) if asked.seq else spec,
        machine=machine,
        num_gpus=asked.nodes * machine.gpus_per_node,
        global_batch=asked.global_batch,
        recipes=(resolve_recipe(asked.precision, machine),),
        stack_of=stacks_by_zero(asked.stack, catalog, machine),
        fixed=parse_fixed(asked.fix),
    )


KIND = PlanKind()
