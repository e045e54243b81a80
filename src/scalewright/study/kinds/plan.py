"""A point that is a search: the best layout of a model on a number of nodes, and what each knob contributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright.catalog.library import Catalog
from scalewright.here.place import HERE, place_of
from scalewright.planner.answer import Answer
from scalewright.planner.request import PlanOptions, resolve_request
from scalewright.planner.search.losers import losers
from scalewright.planner.search.pareto import why_none
from scalewright.planner.search.search import SearchResult, search
from scalewright.planner.search.space import parse_fixed
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome, PredictedOnly
from scalewright.study.kinds.options import STRICT, parse_options
from scalewright.study.kinds.training import outcome_of, system_facts
from scalewright.workload.named import resolve_model
from scalewright.workload.training import TEXT

MAX_KNOBS = 8


@checked(frozen=True, kw_only=True, config=STRICT)
class SearchPoint:
    """Options of a point of this kind."""

    model: str
    nodes: int
    global_batch: int
    system: str = HERE
    partition: str = ""
    network: str = ""
    """quiet or shared: whether other jobs use the fabric; empty: as the system's entry says."""
    precision: str = "auto"
    stack: str = "auto"
    seq: int = 0
    fix: str = ""
    """Knobs that the search may not turn: `cp=1,sp=0,vpp=1,recompute=full`."""

    @property
    def options(self) -> PlanOptions:
        """The point as a plan is asked for."""
        return PlanOptions(
            model=self.model, nodes=str(self.nodes), global_batch=self.global_batch, partition=self.partition or None,
            network=self.network or None, precision=self.precision, stack=self.stack, seq=self.seq or None,
            fix=self.fix,
        )  # fmt: skip


_OPTIONS: TypeAdapter[SearchPoint] = TypeAdapter(SearchPoint)


class PlanKind(PredictedOnly):
    what = "a search"
    metrics: tuple[str, ...] = ("flop_per_s_per_gpu", "mfu_frac", "step_time_s", "memory_bytes")

    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        point = parse_options(_OPTIONS, options, where=where)
        resolve_model(catalog, point.model)
        parse_fixed(point.fix)
        if point.system != HERE:
            place_of(catalog, point.system, partition=point.partition or None)

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Value]:
        return system_facts(catalog, values)

    def predict(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome:
        result, best = searched(catalog, parse_options(_OPTIONS, options, where=where))
        if best is None:
            return Outcome(problem=why_none(result))
        outcome = outcome_of(best)
        counts = f"{result.considered:,} layouts, {result.feasible:,} fit"
        return replace(
            outcome, words={"layout": best.question.layout.brief, "searched": counts},
            notes=(*(loser.sentence for loser in losers(result, best)[:MAX_KNOBS]), *outcome.notes),
        )  # fmt: skip


def searched(catalog: Catalog, point: SearchPoint) -> tuple[SearchResult, Answer | None]:
    """The search and its fastest layout. Points of other kinds share the same search."""
    return catalog.derived(("search", point), lambda: _search(catalog, point))


def _search(catalog: Catalog, point: SearchPoint) -> tuple[SearchResult, Answer | None]:
    request = resolve_request(catalog, point.system, point.options, feed=TEXT)
    result = search(request.space(catalog, request.counts[0]))
    ranked = result.best(1, "time", facility=request.facility)
    return result, ranked[0] if ranked else None


KIND = PlanKind()
