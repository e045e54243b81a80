"""Plan: the layouts worth taking for a request, why the others lost, and what the whole run costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from scalewright import __version__, units
from scalewright.catalog.model_details import ModelDetails
from scalewright.errors import ConfigError, LayoutError
from scalewright.planner.answer import Answer, Change, model_document
from scalewright.planner.critical_batch import BatchVerdict, batch_verdict
from scalewright.planner.question import resolve_recipe
from scalewright.planner.request import PlanRequest, check_request
from scalewright.planner.search.chosen_layout import ChosenLayout, chosen_layout
from scalewright.planner.search.constraints import NO_HOST_MEMORY, NO_TENSOR_GROUP, reasons
from scalewright.planner.search.fewest import Fewest, fewest_gpus
from scalewright.planner.search.losers import Loser, losers
from scalewright.planner.search.pareto import (
    PlannedCount,
    ScalingRow,
    counts_around,
    open_counts,
    run_value,
    scaling,
    search_counts,
    why_none,
)
from scalewright.planner.search.recommended import Recommended, most_nodes_of, recommended
from scalewright.planner.search.search import SearchResult, search, search_each
from scalewright.planner.search.smallest_change import Fix, fixes
from scalewright.planner.search.space import KNOBS, Fixed, Space, parse_fixed
from scalewright.planner.whole_run import WholeRun, step_work, storage_of, whole_run
from scalewright.records.documents import digest, document
from scalewright.sites.job_limits import most_nodes
from scalewright.workload.grammar import assignments, whole_number
from scalewright.workload.layout import COLUMNS, KEYS, Layout

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog


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
    choice: ChosenLayout | None = None
    """Why the best layout is recommended, and the fastest beside it."""
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
                "model_details": details_document(self.request.spec.details),
                **model_document(self.request.spec),
                "system": machine.name,
                "accelerator": machine.accelerator.id,
                "device_memory_bytes": machine.memory_bytes,
                "num_gpus": result.space.num_gpus,
                "num_nodes": result.space.num_nodes,
                "fits": self.fits,
                "best": None if self.best is None else prediction_body(self.best),
                "choice": None if self.choice is None else self.choice.as_dict(),
                "time_limit": self._time_limit(),
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
                "budget": [] if self.run is None else self.request.budget.as_dicts(self.run),
                "batch": self.batch.as_dict(),
                "minimum_gpus": [m.as_dict() for m in self.minimum],
                "reason": self.reason,
                "fixes": [fix.as_dict() for fix in self.fixes],
                "warnings": list(self.notes),
            },
        )

    def _time_limit(self) -> dict[str, Any] | None:
        """The longest job on so many nodes, and whose rule that is."""
        limit = self.request.time_limit(self.result.space.num_gpus)
        return None if limit is None else {"limit_s": limit[0], "rule": limit[1]}


def details_document(details: ModelDetails | None) -> dict[str, Any] | None:
    """What of the model is no size, for engines that train it."""
    return None if details is None else details.model_dump(mode="json", exclude_defaults=True)


def prediction_body(prediction: Answer) -> dict[str, Any]:
    """A `prediction/1` object with its layout in sight."""
    layout = prediction.question.layout
    return prediction.document() | {"layout": layout.as_dict(), "layout_text": layout.brief}


def what_if_body(change: Change) -> dict[str, Any]:
    """The best layout under another condition, beside the plan's own."""
    return change.as_dict() | {"best": prediction_body(change.after)}


def make_plan(catalog: Catalog, request: PlanRequest) -> Plan:
    """Search every node count of the request, choose by the objective, and explain."""
    check_request(request)
    if request.chooses_nodes:
        request = replace(request, counts=_open_counts(catalog, request))
    results = search_each([request.space(catalog, count) for count in request.counts])
    if request.feed.async_checkpoint and not any(r.feasible for r in results) and _lacks_host_memory(results):
        # A checkpoint that is written beside training keeps a copy on the hosts: without it something may fit.
        plan = make_plan(catalog, replace(request, feed=replace(request.feed, async_checkpoint=False)))
        return plan if plan.best is None else replace(plan, notes=(*plan.notes, NO_COPY_ON_HOSTS))
    if not any(len(result.split) for result in results):
        check_divides_at_all(results[-1], condition=f"fix {request.fixed}" if request.fixed.values else "")
    planned = [plan_count(catalog, request, result) for result in results]
    chosen = choose(request, planned)
    best, notes = chosen.prediction, (*_batch_notes(request), *chosen.notes)
    batch = batch_verdict(request.spec, global_batch=request.global_batch, num_tokens=request.work.num_tokens)
    if batch.warning is not None:
        notes = (*notes, batch.warning)
    plan = Plan(
        request=request, result=chosen.result, best=best, run=chosen.run, batch=batch, notes=notes,
        minimum=tuple(fewest_gpus(chosen.result.space, is_tight_enough=True)),
    )  # fmt: skip
    if best is None or chosen.choice is None:
        return replace(plan, fixes=tuple(fixes(chosen.result.space)), reason=why_none(chosen.result))
    around = _around(catalog, request, results, chosen.result)
    rows = scaling([*planned, *around], best, objective=request.objective, max_nodes=_site_nodes(request))
    return replace(
        plan, notes=(*notes, *stack_notes(chosen.choice), *_size_notes(request, best)), choice=chosen.choice,
        alternatives=tuple(chosen.choice.alternatives(request.top - 1)), rows=tuple(rows),
        losers=tuple(losers(chosen.result, best)), recommended=_recommended(request, rows),
    )  # fmt: skip


NO_COPY_ON_HOSTS = "the hosts have no room for a copy of the state: training stops while a checkpoint is written"


def _lacks_host_memory(results: Sequence[SearchResult]) -> bool:
    return any(NO_HOST_MEMORY in result.rejected for result in results)


def _open_counts(catalog: Catalog, request: PlanRequest) -> tuple[int, ...]:
    """Numbers of devices to choose from: doublings from the fewest that fit to what machine and site allow."""
    space = request.space(catalog, request.counts[0])
    needed = {row.mode.name: row.num_gpus for row in fewest_gpus(space)}
    return open_counts(space, fewest=needed.get(request.mode.name), max_nodes=_site_nodes(request))


def _site_nodes(request: PlanRequest) -> int | None:
    """The most nodes that the site allows in one job; None where no limit is known."""
    return None if request.site is None else most_nodes(request.site)


def _recommended(request: PlanRequest, rows: Sequence[ScalingRow]) -> Recommended | None:
    """The number of nodes to take, which is the chosen one where the user left a choice."""
    site_name = "" if request.site is None else request.site.name
    return recommended(
        rows, objective=request.objective, must_choose=request.chooses_nodes or len(request.counts) > 1,
        is_listed=not request.chooses_nodes and len(request.counts) > 1,
        most=most_nodes_of(rows, site_name=site_name, site_nodes=_site_nodes(request)),
    )  # fmt: skip


def _around(
    catalog: Catalog, request: PlanRequest, results: Sequence[SearchResult], chosen: SearchResult
) -> list[PlannedCount]:
    """Further node counts beside those of the request, for the table of node counts."""
    if request.chooses_nodes or len(request.counts) > 1:
        return []
    searched = search_counts(_free(chosen.space), counts_around(chosen.space), results)[len(results) :]
    return [plan_count(catalog, request, result) for result in searched]


def _free(space: Space) -> Space:
    """Other node counts cannot keep a fixed number of copies."""
    return replace(space, fixed=Fixed(values={k: v for k, v in space.fixed.values.items() if k != "dp"}))


def plan_count(catalog: Catalog, request: PlanRequest, result: SearchResult) -> PlannedCount:
    """The layout to take on one number of devices, and the whole run with it."""
    choice = chosen_layout(result, request.objective, facility=request.facility)
    if choice is None:
        return PlannedCount(result=result, choice=None)
    run, notes = run_of(catalog, request, choice.prediction)
    exceeded = () if run is None else tuple(request.budget.broken(run))
    return PlannedCount(result=result, choice=choice, run=run, notes=notes, exceeded=exceeded)


def choose(request: PlanRequest, planned: Sequence[PlannedCount]) -> PlannedCount:
    """The number of devices that is recommended; the only one where no other was asked for."""
    fitting = [count for count in planned if count.prediction is not None]
    if fitting and all(count.exceeded for count in fitting):
        raise ConfigError(_over_budget(request, fitting))
    if not fitting:
        return planned[-1]
    if len(planned) == 1:
        return fitting[0]
    rows = scaling(planned, objective=request.objective, max_nodes=_site_nodes(request))
    advice = _recommended(request, rows)
    if advice is None:  # the site allows none of them in one job, and a note says so
        return next(count for count in fitting if not count.exceeded)
    return next(count for count in fitting if count.num_gpus == advice.num_gpus)


def _batch_notes(request: PlanRequest) -> tuple[str, ...]:
    return () if request.batch_origin == "as asked" else (f"batch {request.batch_origin}; set it with --global-batch",)


def stack_notes(choice: ChosenLayout) -> tuple[str, ...]:
    """Where `auto` takes another stack than for plain layouts: which, why, and what the plain one would give."""
    best, result = choice.prediction, choice.result
    plain = result.space.stack_of(0)
    if not result.space.is_auto_stack or best.question.stack.id == plain.id:
        return ()
    others = np.array([c.stack.id == plain.id for c in result.choices], dtype=np.bool_).take(result.choice)
    fastest = result.fastest(1, others)
    beside = f"nothing fits with {plain.id}"
    if fastest:
        other = result.prediction(fastest[0])
        more = other.time_s / best.time_s - 1.0
        time = units.format(other.time_s, units.SECONDS)
        beside = (
            f"the fastest with {plain.id} is {other.question.layout.brief}, {time} ({more:+.0%}): --stack {plain.id} "
            "keeps to it"
        )
    reason = best.question.stack_origin.partition(": ")[2]
    return (f"stack auto takes {best.question.stack.id}, because {reason}; {beside}",)


def _size_notes(request: PlanRequest, best: Answer) -> tuple[str, ...]:
    most = _site_nodes(request)
    if most is None or best.question.num_nodes <= most or request.site is None:
        return ()
    return (f"{request.site.name} allows {most} nodes in one job: ask the site before you plan with more",)


def _over_budget(request: PlanRequest, planned: Sequence[PlannedCount]) -> str:
    """Names the count that comes closest to the budget."""

    def excess_frac(count: PlannedCount) -> float:
        return max(value / request.budget.limits[name] for name, value in count.exceeded)

    closest = min(planned, key=excess_frac)
    best = closest.prediction
    assert best is not None
    name, needs = max(closest.exceeded, key=lambda pair: pair[1] / request.budget.limits[pair[0]])
    assert closest.run is not None
    limit, value = (request.budget.words(name, v, closest.run) for v in (request.budget.limits[name], needs))
    tokens = units.format(request.work.num_tokens, units.COUNT)
    return (
        f"budget {name} of {limit} and {tokens} tokens conflict: the closest choice, {best.question.num_nodes} nodes "
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
    limit = request.time_limit(best.question.num_gpus)
    run = whole_run(
        work=step_work(best, is_searched=True), storage_entry=entry,
        limit_s=None if limit is None else limit[0],
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
        stack_origin="" if "stack" in written else request.stack_origin,
        counts=(count,),
        global_batch=int(knobs.values.get("gbs", request.global_batch)),
    )
    if "precision" in written:
        other = replace(other, recipes=(resolve_recipe(written["precision"], request.machine),))
    check_request(other)
    result = search(other.space(catalog, count))
    check_divides_at_all(result, condition=f"what-if {text}")
    choice = chosen_layout(result, request.objective, facility=request.facility)
    if choice is None:
        raise ConfigError(f"what-if {text} does not fit: it {why_none(result)}")
    return Change(name=text, before=best, after=choice.prediction)


def compare(catalog: Catalog, requests: Sequence[PlanRequest]) -> list[Compared]:
    """Each request's best on its own system, the least of the objective first, those that do not fit last."""
    return sorted((_compared(catalog, request) for request in requests), key=_rank)


def _compared(catalog: Catalog, request: PlanRequest) -> Compared:
    def nothing(reason: str) -> Compared:
        return Compared(request=request, num_gpus=request.counts[0], best=None, run=None, reason=reason)

    try:
        check_request(request)
        if request.chooses_nodes:
            request = replace(request, counts=_open_counts(catalog, request))
        results = search_counts(request.space(catalog, request.counts[0]), request.counts)
        chosen = choose(request, [plan_count(catalog, request, result) for result in results])
    except ConfigError as error:  # such as a budget that this system does not keep
        return nothing(str(error))
    if chosen.prediction is None:
        return nothing(why_none(chosen.result))
    return Compared(
        request=request, num_gpus=chosen.result.space.num_gpus, best=chosen.prediction, run=chosen.run, reason=""
    )  # fmt: skip


def _rank(compared: Compared) -> tuple[bool, float]:
    best = compared.best
    return (True, 0.0) if best is None else (False, run_value(best, compared.run, compared.request.objective))
