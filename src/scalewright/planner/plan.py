"""Plan: the layouts worth taking for a request, why the others lost, and what the whole run costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from scalewright import __version__, units
from scalewright.errors import ConfigError, LayoutError
from scalewright.planner.answer import Answer, Change
from scalewright.planner.critical_batch import BatchVerdict, batch_verdict
from scalewright.planner.question import resolve_recipe
from scalewright.planner.request import BUDGETS, PlanRequest, check_request
from scalewright.planner.search.constraints import NO_HOST_MEMORY, NO_TENSOR_GROUP, reasons
from scalewright.planner.search.fewest import Fewest, fewest_gpus
from scalewright.planner.search.losers import Loser, losers
from scalewright.planner.search.pareto import (
    Recommended,
    ScalingRow,
    counts_around,
    recommended,
    scaling,
    search_counts,
    why_none,
)
from scalewright.planner.search.search import Objective, SearchResult, objective_value, search, search_each
from scalewright.planner.search.smallest_change import Fix, fixes
from scalewright.planner.search.space import KNOBS, Fixed, Space, parse_fixed
from scalewright.planner.whole_run import WholeRun, step_work, storage_of, whole_run
from scalewright.records.documents import digest, document
from scalewright.workload.grammar import assignments, whole_number
from scalewright.workload.layout import COLUMNS, KEYS, Layout

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog

SCALING_ROWS_MIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One system of a comparison."""

    request: PlanRequest
    num_gpus: int
    best: Answer | None
    run: WholeRun | None
    reason: str
    """Why there is no best."""

    def as_dict(self) -> dict[str, Any]:
        machine = self.request.machine
        body: dict[str, Any] = {
            "system": self.request.system,
            "accelerator": machine.accelerator.id,
            "num_gpus": self.num_gpus,
            "num_nodes": machine.num_nodes_for(self.num_gpus),
            "fits": self.best is not None,
        }
        if self.best is None:
            return body | {"reason": self.reason}
        body["best"] = prediction_body(self.best)
        return body | ({} if self.run is None else {"whole_run": self.run.as_dict()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a request gives. `best` is None where nothing fits; `fixes` then says what would."""

    request: PlanRequest
    result: SearchResult
    best: Answer | None
    run: WholeRun | None
    batch: BatchVerdict
    minimum: tuple[Fewest, ...]
    notes: tuple[str, ...]
    alternatives: tuple[Answer, ...] = ()
    losers: tuple[Loser, ...] = ()
    rows: tuple[ScalingRow, ...] = ()
    recommended: Recommended | None = None
    fixes: tuple[Fix, ...] = ()
    reason: str = ""
    """Why nothing fits."""

    @property
    def id(self) -> str:
        return digest(self.request.resolved())

    @property
    def fits(self) -> bool:
        return self.best is not None

    def as_document(self) -> dict[str, Any]:
        result, machine = self.result, self.request.machine
        searched = [k for k in KNOBS if k not in self.request.fixed.values and (k != "ep" or result.space.shape.moe)]
        return document(
            "plan",
            {
                "id": self.id,
                "scalewright": __version__,
                "request": self.request.resolved(),
                "system": machine.name,
                "accelerator": machine.accelerator.id,
                "device_memory_bytes": machine.memory_bytes,
                "num_gpus": result.space.num_gpus,
                "num_nodes": result.space.num_nodes,
                "fits": self.fits,
                "best": None if self.best is None else prediction_body(self.best),
                "alternatives": [prediction_body(p) for p in self.alternatives],
                "searched": searched,
                "considered": result.considered,
                "feasible": result.feasible,
                "costed": result.costed,
                "rejected": result.rejected,
                "why_others_lost": [loser.as_dict() for loser in self.losers],
                "scaling": [row.as_dict() for row in self.rows],
                "recommended": None if self.recommended is None else self.recommended.as_dict(),
                "whole_run": None if self.run is None else self.run.as_dict(),
                "batch": self.batch.as_dict(),
                "minimum_gpus": [m.as_dict() for m in self.minimum],
                "reason": self.reason,
                "fixes": [fix.as_dict() for fix in self.fixes],
                "warnings": list(self.notes),
            },
        )


def prediction_body(prediction: Answer) -> dict[str, Any]:
    """A `prediction/1` object with its layout in sight."""
    layout = prediction.question.layout
    return prediction.document() | {"layout": layout.as_dict(), "layout_text": layout.brief}


def what_if_body(change: Change) -> dict[str, Any]:
    """The best layout under another condition, beside the plan's own."""
    return {
        "change": change.name,
        "step_time_difference_s": change.after.time_s - change.before.time_s,
        "memory_difference_bytes": change.memory_difference_bytes,
        "terms_s": dict(change.terms),
        "best": prediction_body(change.after),
    }


def make_plan(catalog: Catalog, request: PlanRequest) -> Plan:
    """Search every node count of the request, choose by the objective, and explain."""
    check_request(request)
    results = search_each([request.space(catalog, count) for count in request.counts])
    if request.feed.async_checkpoint and not any(r.feasible for r in results) and _lacks_host_memory(results):
        # A checkpoint that is written beside training keeps a copy on the hosts: without it something may fit.
        plan = make_plan(catalog, replace(request, feed=replace(request.feed, async_checkpoint=False)))
        return plan if plan.best is None else replace(plan, notes=(*plan.notes, NO_COPY_ON_HOSTS))
    if not any(len(result.split) for result in results):
        check_divides_at_all(results[-1], condition=f"fix {request.fixed}" if request.fixed.values else "")
    chosen = choose(catalog, request, results)
    best, notes = chosen.prediction, chosen.notes
    batch = batch_verdict(request.spec, global_batch=request.global_batch, num_tokens=request.work.num_tokens)
    if batch.warning is not None:
        notes = (*notes, batch.warning)
    plan = Plan(
        request=request, result=chosen.result, best=best, run=chosen.run, batch=batch, notes=notes,
        minimum=tuple(fewest_gpus(chosen.result.space)),
    )  # fmt: skip
    if best is None:
        return replace(plan, fixes=tuple(fixes(chosen.result.space)), reason=why_none(chosen.result))
    rows = _rows(results, chosen.result, best, request)
    ranked = chosen.result.best(request.top, request.objective, facility=request.facility)
    return replace(
        plan, alternatives=tuple(ranked[1:]), losers=tuple(losers(chosen.result, best)), rows=tuple(rows),
        recommended=recommended(rows),
    )  # fmt: skip


NO_COPY_ON_HOSTS = "the hosts have no room for a copy of the state: training stops while a checkpoint is written"


def _lacks_host_memory(results: Sequence[SearchResult]) -> bool:
    return any(NO_HOST_MEMORY in result.rejected for result in results)


def _rows(
    results: Sequence[SearchResult], chosen: SearchResult, best: Answer, request: PlanRequest
) -> list[ScalingRow]:
    counts = request.counts if len(request.counts) >= SCALING_ROWS_MIN else tuple(counts_around(chosen.space))
    around = search_counts(_free(chosen.space), counts, results)
    return scaling(around, best, objective=request.objective, facility=request.facility)


def _free(space: Space) -> Space:
    """Other node counts cannot keep a fixed number of copies."""
    return replace(space, fixed=Fixed(values={k: v for k, v in space.fixed.values.items() if k != "dp"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class BestLayout:
    """The best layout of one number of devices."""

    result: SearchResult
    prediction: Answer | None = None
    """None where nothing fits."""
    run: WholeRun | None = None
    notes: tuple[str, ...] = ()

    def value(self, objective: Objective) -> float:
        return np.inf if self.prediction is None else objective_value(self.prediction, objective)


def choose(catalog: Catalog, request: PlanRequest, results: Sequence[SearchResult]) -> BestLayout:
    """The node count and layout with the least of the objective that keep to the budget."""
    within_budget: list[BestLayout] = []
    over_budget: list[tuple[float, str]] = []
    for result in results:
        for best in result.best(1, request.objective, facility=request.facility):
            run, notes = run_of(catalog, request, best)
            exceeded = [] if run is None else request.budget.broken(run)
            if exceeded:
                reason = _over_budget(request, best, exceeded[0])
                over_budget.append((objective_value(best, request.objective), reason))
            else:
                within_budget.append(BestLayout(result=result, prediction=best, run=run, notes=notes))
    if within_budget:
        return min(within_budget, key=lambda layout: layout.value(request.objective))
    if over_budget:
        raise ConfigError(min(over_budget)[1])
    return BestLayout(result=results[-1])


def _over_budget(request: PlanRequest, best: Answer, exceeded: tuple[str, float]) -> str:
    name, needs = exceeded
    dimension = BUDGETS[name]
    unit = " GPU-hours" if name == "gpu-hours" else ""
    limit, value = (units.format(v, dimension) + unit for v in (request.budget.limits[name], needs))
    tokens = units.format(request.work.num_tokens, units.COUNT)
    return (
        f"budget {name} of {limit} and {tokens} tokens conflict: the best choice, {best.question.num_nodes} nodes "
        f"with {best.question.layout.brief}, needs {value}; train on fewer tokens or raise the budget"
    )


def run_of(catalog: Catalog, request: PlanRequest, best: Answer) -> tuple[WholeRun | None, tuple[str, ...]]:
    """The whole run with a layout; None, and a note, where the system has no storage to save to."""
    work = request.work
    try:
        entry = request.feed.storage or storage_of(catalog, request.system)
    except ConfigError as error:
        if request.budget.limits:
            raise
        return None, (f"whole run left out: {error}",)
    run = whole_run(
        work=step_work(best), storage_entry=entry, limit_s=request.limit_s,
        checkpoint="async" if request.feed.async_checkpoint else "sync",
        num_tokens=None if work.num_steps is not None else work.num_tokens, num_steps=work.num_steps,
    )  # fmt: skip
    return run, ()


def check_divides_at_all(result: SearchResult, *, condition: str = "") -> None:
    """Refuse a search without any layout that divides: name the condition (`fix tp=16`) and the rule it breaks."""
    if len(result.split):
        return
    space = result.space
    devices = f"{space.num_gpus} devices with a global batch of {space.global_batch}"
    what = f"{condition} and {space.spec.id} on {devices}" if condition else f"{space.spec.id} and {devices}"
    raise LayoutError(f"{what} conflict: {_rule_broken(result)}; change one of them")


def _rule_broken(result: SearchResult) -> str:
    """The first reason against the fixed knobs by themselves, or the rule that most layouts fall to."""
    space, fixed = result.space, result.space.fixed.values
    plain = {k: int(v) for k, v in fixed.items() if k in COLUMNS and k != "gbs"}
    if "pp" in plain or "vpp" not in plain:  # interleaving is judged with its pipeline only
        copies = max(space.num_gpus // math.prod(plain.get(k, 1) for k in ("tp", "pp", "cp")), 1)
        problems = reasons(replace(Layout(dp=copies), **plain, gbs=space.global_batch), space)  # type: ignore[arg-type]
        if problems:
            return problems[0].partition(";")[0]
    fallen = {k: v for k, v in result.rejected.items() if k != NO_TENSOR_GROUP}
    return f"no layout divides, mostly because {max(fallen, key=lambda k: fallen[k])}" if fallen else "nothing is left"


WHAT_IF_KEYS = (*KEYS, "precision", "stack", "nodes")


def what_if(catalog: Catalog, plan: Plan, text: str) -> Change:
    """The best layout with some knobs, precision, stack or nodes set otherwise; everything else is searched again."""
    written = assignments(text, allowed=WHAT_IF_KEYS, what="what-if")
    best, request = plan.best, plan.request
    if best is None:
        raise ConfigError(f"what-if {text} has nothing to differ from: no layout of the plan fits")
    count = plan.result.space.num_gpus
    if "nodes" in written:
        count = whole_number(written["nodes"], key="nodes", what="what-if") * request.machine.gpus_per_node
    knobs = parse_fixed(",".join(f"{k}={v}" for k, v in written.items() if k in KEYS))
    other = replace(
        request,
        fixed=Fixed(values={**request.fixed.values, **knobs.values}),
        stack=written.get("stack", request.stack),
        counts=(count,),
        global_batch=int(knobs.values.get("gbs", request.global_batch)),
    )
    if "precision" in written:
        other = replace(other, recipes=(resolve_recipe(written["precision"], request.machine),))
    check_request(other)
    result = search(other.space(catalog, count))
    check_divides_at_all(result, condition=f"what-if {text}")
    ranked = result.best(1, request.objective, facility=request.facility)
    if not ranked:
        raise ConfigError(f"what-if {text} does not fit: it {why_none(result)}")
    return Change(name=text, before=best, after=ranked[0])


def compare(catalog: Catalog, requests: Sequence[PlanRequest]) -> list[Compared]:
    """Each request's best on its own system, the fastest first, those that do not fit last."""
    return sorted((_compared(catalog, request) for request in requests), key=_rank)


def _compared(catalog: Catalog, request: PlanRequest) -> Compared:
    def nothing(reason: str) -> Compared:
        return Compared(request=request, num_gpus=request.counts[0], best=None, run=None, reason=reason)

    try:
        check_request(request)
        results = search_counts(request.space(catalog, request.counts[0]), request.counts)
        chosen = choose(catalog, request, results)
    except LayoutError as error:
        return nothing(str(error))
    if chosen.prediction is None:
        return nothing(why_none(chosen.result))
    return Compared(
        request=request, num_gpus=chosen.result.space.num_gpus, best=chosen.prediction, run=chosen.run, reason=""
    )  # fmt: skip


def _rank(compared: Compared) -> tuple[bool, float]:
    best = compared.best
    return (True, 0.0) if best is None else (False, objective_value(best, compared.request.objective))
