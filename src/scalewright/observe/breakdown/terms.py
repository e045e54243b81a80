"""Predicted and measured time of a step side by side, by the planner's terms.

The planner's leaves are finer than what a trace can tell apart (the head's products are products), so each row joins
the leaves that one measured time stands for, and says which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from scalewright.observe.breakdown.across_ranks import best_times, waits_s
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import RankTime

COMMUNICATION_TERMS = (
    "tensor_parallel", "context_parallel", "expert_parallel", "pipeline_transfer", "data_parallel", "gradient_exchange",
)  # fmt: skip
ROWS: dict[str, tuple[str, ...]] = {
    "stragglers": ("stragglers",),
    "host_and_bubble": ("host", "pipeline_bubble", "power_limit", "host_per_step", "gaps"),
    "data": ("data",),
    "optimizer": ("optimizer", "update"),
    "copies": ("offload_transfer", "gradient_copies"),
}
"""Rows that join leaves of a prediction; communication has a row for each group, and the rest is computing."""
OTHER_COMMUNICATION = "other_communication"
_GROUP_WORDS: tuple[tuple[str, str], ...] = (
    ("data_parallel", r"dp|ddp|data|fsdp|hsdp|zero|shard|replicate"), ("pipeline_transfer", r"pp|pipeline"),
    ("expert_parallel", r"ep|expert|moe"), ("context_parallel", r"cp|context|ring|ulysses"),
    ("tensor_parallel", r"tp|tensor|model_parallel"),
)  # fmt: skip
"""Words in names of groups. Megatron-LM calls one DATA_PARALLEL_GROUP_WITH_CP and one EXPERT_DATA_PARALLEL_GROUP."""
_AXES = {"tp": "tensor_parallel", "cp": "context_parallel", "ep": "expert_parallel", "pp": "pipeline_transfer",
         "dp": "data_parallel"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TermRow:
    """One row: a term of the planner, or several that a measurement cannot tell apart."""

    name: str
    leaves: tuple[str, ...]
    """Leaves of the prediction that are in it."""
    predicted_s: float | None
    """None: the planner does not predict it."""
    measured_s: float | None
    """None: the measurement does not show it."""

    @property
    def difference_s(self) -> float:
        """Measured more than predicted; what one side lacks counts as none there."""
        return (self.measured_s or 0.0) - (self.predicted_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TermTable:
    rows: tuple[TermRow, ...]
    predicted_s: float | None
    measured_s: float
    is_traced: bool
    """Measured by a profiler, which slows the host."""

    @property
    def largest(self) -> TermRow | None:
        """The row that differs most; None without a prediction."""
        both = [row for row in self.rows if row.predicted_s is not None or row.measured_s is not None]
        return None if self.predicted_s is None or not both else max(both, key=lambda row: abs(row.difference_s))


def term_table(evidence: Evidence) -> TermTable | None:
    """None where nothing measured the parts of a step."""
    times = best_times(evidence.rank_times)
    if not times:
        return None
    measured = measured_terms_s(times, axis_sizes(evidence))
    predicted, leaves = predicted_terms_s(evidence.prediction)
    if not times[0].is_traced:
        measured, predicted, leaves = _with_update(measured, predicted, leaves)
    names = dict.fromkeys((*predicted, *(name for name, seconds in measured.items() if seconds)))
    rows = tuple(
        TermRow(name=n, leaves=leaves.get(n, ()), predicted_s=predicted.get(n), measured_s=measured.get(n))
        for n in names
    )
    return TermTable(
        rows=rows, predicted_s=sum(predicted.values()) if predicted else None,
        measured_s=fmean(time.step_s for time in times), is_traced=times[0].is_traced,
    )  # fmt: skip


def _with_update(
    measured: dict[str, float], predicted: dict[str, float], leaves: dict[str, tuple[str, ...]]
) -> tuple[dict[str, float], dict[str, float], dict[str, tuple[str, ...]]]:
    """A run's own measurement has the optimizer and copies in its computing: so they are added up here as well."""
    inside = [name for name in ("compute", "optimizer", "copies") if name in predicted]
    rows = {name: value for name, value in measured.items() if name not in ("optimizer", "copies")}
    if not inside:
        return rows, predicted, leaves
    others = {name: value for name, value in predicted.items() if name not in inside}
    joined = tuple(leaf for name in inside for leaf in leaves[name])
    return rows, {"compute": sum(predicted[name] for name in inside), **others}, {**leaves, "compute": joined}


def measured_terms_s(times: Sequence[RankTime], sizes: Mapping[str, int | None]) -> dict[str, float]:
    """Means over ranks and steps; they add up to the mean step.

    Waiting for slower ranks inside of collectives is taken out of communication: the planner calls it stragglers.
    """
    waits = waits_s(times)
    waited = fmean(waits.get(time.rank, 0.0) for time in times)
    exposed = fmean(time.exposed_communication_s for time in times)
    left_frac = 1.0 - min(waited / exposed, 1.0) if exposed > 0.0 else 1.0
    terms: dict[str, float] = {
        "compute": fmean(max(time.compute_s - time.optimizer_s, 0.0) for time in times),
        **dict.fromkeys(COMMUNICATION_TERMS, 0.0),
    }
    for time in times:
        for key, seconds in _exposed(time):
            name = communication_term(key, time.group_ranks, sizes)
            terms[name] = terms.get(name, 0.0) + seconds * left_frac / len(times)
    terms = {name: seconds for name, seconds in terms.items() if seconds or name == "compute"}
    terms["stragglers"] = min(waited, exposed)
    terms["host_and_bubble"] = fmean(time.idle_s for time in times)
    terms["data"] = fmean(time.data_s for time in times)
    terms["optimizer"] = fmean(min(time.optimizer_s, time.compute_s) for time in times)
    terms["copies"] = fmean(time.memory_copy_s for time in times)
    terms["checkpoint"] = fmean(time.checkpoint_s for time in times)
    terms["validation"] = fmean(time.validation_s for time in times)
    return terms


def _exposed(time: RankTime) -> Iterator[tuple[str, float]]:
    """Exposed time by collective; our own measurement does not tell collectives apart."""
    if time.exposed_by_collective_s:
        yield from time.exposed_by_collective_s.items()
    elif time.exposed_communication_s:
        yield "", time.exposed_communication_s


def communication_term(key: str, group_ranks: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int | None]) -> str:
    """The planner's term of `collective/group`: by the group's name, else by the only axis that is split.

    A group of another name (`default_pg`, a number, a stream) belongs to the axis that has its ranks' distance and
    number, in the order tp, cp, dp, pp of Megatron-LM; where nothing says it, it stays apart.
    """
    collective, _, group = key.partition("/")
    for term, words in _GROUP_WORDS:
        if re.search(rf"(?:^|[^a-z])(?:mesh_)?(?:{words})(?:[^a-z]|$)", group.lower().replace("-", "_")) is not None:
            return term
    split = [axis for axis, size in sizes.items() if size is not None and size > 1]
    if collective in ("send", "recv", "send_recv") and "pp" in split:
        return _AXES["pp"]
    if collective == "all_to_all" and "ep" in split:
        return _AXES["ep"]
    if len(split) == 1 and all(sizes[axis] is not None or axis == "ep" for axis in ("tp", "pp", "dp")):
        return _AXES[split[0]]
    return _by_distance(group_ranks.get(group, ()), sizes) or OTHER_COMMUNICATION


def _by_distance(ranks: Sequence[int], sizes: Mapping[str, int | None]) -> str | None:
    if len(ranks) < 2:
        return None
    distances = {after - before for before, after in pairwise(ranks)}
    distance = 1
    for axis in ("tp", "cp", "dp", "pp"):
        size = sizes.get(axis)
        if size is None:
            return None
        if size == len(ranks) and distances == {distance}:
            return _AXES[axis]
        distance *= size
    return None


def predicted_terms_s(prediction: Mapping[str, Any] | None) -> tuple[dict[str, float], dict[str, tuple[str, ...]]]:
    """Rows of a prediction document, and the leaves of each."""
    time = (prediction or {}).get("time")
    seconds: dict[str, float] = {}
    leaves: dict[str, tuple[str, ...]] = {}
    if not isinstance(time, dict):
        return seconds, leaves
    row_of = {leaf: row for row, own in ROWS.items() for leaf in own}
    for name, value in _leaves(time):
        row = name if name in COMMUNICATION_TERMS else row_of.get(name, "compute")
        seconds[row] = seconds.get(row, 0.0) + value
        leaves[row] = (*leaves.get(row, ()), name)
    return {name: value for name, value in seconds.items() if value > 0.0}, leaves


def _leaves(term: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    parts = term.get("parts")
    if isinstance(parts, list) and parts:
        for part in parts:
            if isinstance(part, dict):
                yield from _leaves(part)
    elif isinstance(value := term.get("total_s"), int | float):
        yield str(term.get("name", "")), float(value)


def axis_sizes(evidence: Evidence) -> dict[str, int | None]:
    """Of each parallel axis, as the run stated it; None where it did not."""
    return {axis: _size(evidence, axis) for axis in _AXES}


def _size(evidence: Evidence, axis: str) -> int | None:
    stated = evidence.settings.get(axis)
    if stated is None or not stated[0].strip().isdecimal():
        return None
    return int(stated[0])
