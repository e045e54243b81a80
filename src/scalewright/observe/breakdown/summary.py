"""Everything that is known of where the time of a step went, for reports: parts, collectives, terms, MFU, spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from scalewright.observe.breakdown.across_ranks import AcrossRanks, across_ranks, best_times
from scalewright.observe.breakdown.distribution import Distribution, distribution
from scalewright.observe.breakdown.terms import TermTable, axis_sizes, communication_term, term_table
from scalewright.observe.breakdown.utilization import Utilization, utilization
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import RankTime
from scalewright.observe.evidence.series import step_series

NUM_KERNELS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """A collective of a group: means over ranks and steps."""

    name: str
    group: str
    term: str
    """The planner's term that it belongs to."""
    total_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownSummary:
    across: AcrossRanks
    measured_by: str
    """trace of a device, trace of a host, or the run itself."""
    collectives: tuple[CollectiveTime, ...]
    kinds_s: dict[str, float]
    """Computing by the planner's terms."""
    kernels_s: dict[str, float]
    """The kernels that take most time, of a step of one rank."""
    launch_idle_s: float | None
    terms: TermTable | None
    utilization: Utilization | None
    step_times: Distribution | None
    """Of the reported steps; of traces alone, of the traced ones."""

    def as_document(self) -> dict[str, Any]:
        body = asdict(self)
        if self.step_times is not None:
            body["step_times"] = {**body["step_times"], "times_s": None, "points": self.step_times.points(50)}
            del body["step_times"]["times_s"]
        return body


def breakdown_summary(evidence: Evidence) -> BreakdownSummary | None:
    """None where nothing tells the parts of a step."""
    times = best_times(evidence.rank_times)
    across = across_ranks(times)
    if across is None:
        return None
    launches = [time.launch_idle_s for time in times if time.launch_idle_s is not None]
    first = times[0]
    by = "the run itself" if not first.is_traced else "trace of a device" if first.on_device else "trace of a host"
    reported = step_series(evidence).times_s or [time.step_s for time in times]
    return BreakdownSummary(
        across=across, measured_by=by, collectives=_collectives(evidence), kinds_s=_kinds_s(evidence),
        kernels_s=dict(list(_means(evidence, "top_kernels_s").items())[:NUM_KERNELS]),
        launch_idle_s=fmean(launches) if launches else None, terms=term_table(evidence),
        utilization=utilization(evidence), step_times=distribution(reported),
    )  # fmt: skip


def _kinds_s(evidence: Evidence) -> dict[str, float]:
    """Of the best times; where those are the run's own, which has no kinds, of its traces."""
    traced = [time for time in evidence.rank_times if time.is_traced]
    return _means(evidence, "by_kind_s") or _mean_table(traced, "by_kind_s")


def _means(evidence: Evidence, name: str) -> dict[str, float]:
    """Means of a table over ranks and steps, largest first."""
    return _mean_table(best_times(evidence.rank_times), name)


def _mean_table(times: Sequence[RankTime], name: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for time in times:
        for key, value in getattr(time, name).items():
            sums[key] = sums.get(key, 0.0) + value / len(times)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _collectives(evidence: Evidence) -> tuple[CollectiveTime, ...]:
    sizes = axis_sizes(evidence)
    groups = {group: ranks for time in evidence.rank_times for group, ranks in time.group_ranks.items()}
    exposed = _means(evidence, "exposed_by_collective_s")
    rows = []
    for key, total_s in _means(evidence, "by_collective_s").items():
        name, _, group = key.partition("/")
        term = communication_term(key, groups, sizes)
        rows.append(CollectiveTime(name=name, group=group, term=term, total_s=total_s, exposed_s=exposed.get(key, 0.0)))
    return tuple(sorted(rows, key=lambda row: -row.exposed_s))
