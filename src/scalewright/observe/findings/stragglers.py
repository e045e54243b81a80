"""Ranks and nodes that are slower than the others, and steps that are slower than the rest."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Spot, StepFact
from scalewright.observe.evidence.series import LEAST_STEPS, StepSeries, step_series
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule
from scalewright.observe.findings.words import percent, ranks_named, seconds

STRAGGLER_FRAC = 0.10
"""Of a step: less is the spread that ranks of a healthy job have."""
STARVED_FRAC = 0.3
"""Of a rank's own time: with so much of it without a core on every rank, the machine is shared with other work."""
SAME_FRAC = 0.7
"""A straggler is the slowest rank in most steps; noise changes its place."""


@finding_rule(
    id="straggler-rank",
    severity="warning",
    role="slowed",
    title="One rank is slower than the others",
    why="Synchronous training goes at the pace of its slowest rank. The others wait in the next collective, so every "
    "rank reports the same step time and the slow one looks like the only busy one.",
    advice="Look at that rank's node: clocks and temperature, other processes, its share of the data, its binding. "
    "Leave the node out (`--exclude`), or give the rank less work.",
    source="Lin et al. 2025, Understanding Stragglers in Large Model Training (arXiv:2505.05713)",
    because_of=("throttled-clocks", "wrong-numa-node"),
)
def straggler_rank(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    series = step_series(evidence)
    own = own_times_s(series)
    step_s = statistics.fmean(series.times_s) if series.times_s else 0.0
    if len(own) < 2 or not step_s:
        return
    means = {rank: statistics.fmean(times.values()) for rank, times in own.items()}
    usual_s = statistics.median_low(list(means.values()))
    slow = [rank for rank, mean_s in means.items() if (mean_s - usual_s) / step_s >= STRAGGLER_FRAC]
    slow = [rank for rank in slow if _lead_frac(own, rank, usual_s) >= SAME_FRAC]
    if not slow or len(slow) > len(means) / 2:
        return
    own_lost_s = max(max(means[rank] for rank in slow) - usual_s, 0.0)
    lost_s = own_lost_s + _exchange_lost_s(series, slow, means, usual_s)
    lost_s = lost_s if _are_all_starved(series) else max(lost_s, _without_core_s(series, slow))
    share = min(lost_s / step_s, 1.0)
    spots = tuple(_spots_of(series, slow))
    verb, whose = ("takes", "its") if len(slow) == 1 else ("take", "their")
    others = "rank" if len(means) - len(slow) == 1 else f"{len(means) - len(slow)}"
    yield Seen(
        message=f"{ranks_named(slow)} {verb} {seconds(own_lost_s)} longer for {whose} own part of a step than the "
        f"other {others} ({seconds(usual_s + own_lost_s)} against {seconds(usual_s)}): "
        f"{percent(share)} of every step is waiting for it",
        spots=spots, next_step=_next_step(evidence, slow), certainty="certain" if len(means) > 2 else "likely",
        score=share, numbers={"lost_frac": share, "own_s": usual_s + own_lost_s, "others_s": usual_s},
        ranks=tuple(slow),
        gain=Gain(step_time_frac=share, how="measured: that rank as fast as the median of the others"),
    )  # fmt: skip


def _exchange_lost_s(series: StepSeries, slow: list[int], means: Mapping[int, float], usual_s: float) -> float:
    """What a slow rank loses after its own gradients: on CPUs it also copies, adds and updates at its slower pace.

    It comes last, so that it waits for nobody in the rest of the step. Ranks of equal work that are slower in their own
    part are slower by the same factor there.
    """
    lost_s = 0.0
    for rank in slow:
        rests = [
            one.time_s - one.parts_s["own"] for one in series.steady.get(rank, ())
            if one.time_s is not None and "own" in one.parts_s
        ]  # fmt: skip
        if rests and means[rank] > usual_s:
            lost_s = max(lost_s, max(statistics.fmean(rests), 0.0) * (1.0 - usual_s / means[rank]))
    return lost_s


def _without_core_s(series: StepSeries, slow: list[int]) -> float:
    """Time of a step in which slow ranks were ready and had no core, beyond the others: also after their gradients."""
    waits = {
        rank: statistics.fmean(known)
        for rank, steps in series.steady.items()
        if (known := [one.parts_s["core_wait"] for one in steps if "core_wait" in one.parts_s])
    }
    others = [wait for rank, wait in waits.items() if rank not in slow]
    own = [waits[rank] for rank in slow if rank in waits]
    return max(own) - statistics.median(others) if own and others else 0.0


def own_times_s(series: StepSeries) -> Mapping[int, Mapping[int, float]]:
    """Rank to step to the time in which it waited for no other rank.

    From a run of ours: the time to its own gradients, or the step without idle time. Traces have a rule of their own.
    Where every rank lacks a core, on a machine that others use, chance decides who lacks it longest: time without a
    core is then left out.
    """
    own: dict[int, dict[int, float]] = {}
    is_starved = _are_all_starved(series)
    for rank, steps in series.steady.items():
        times = {one.step: _own_s(one, is_starved=is_starved) for one in steps if "own" in one.parts_s}
        if not times:
            times = {
                one.step: one.time_s - one.parts_s["idle"]
                for one in steps if one.time_s is not None and "idle" in one.parts_s and "training" in one.parts_s
            }  # fmt: skip
        if len(times) >= LEAST_STEPS:
            own[rank] = times
    if len(own) >= 2:
        return own
    return {}


def _own_s(one: StepFact, *, is_starved: bool) -> float:
    own_s = one.parts_s["own"] - one.parts_s.get("data", 0.0)
    return max(own_s - one.parts_s.get("core_wait", 0.0), 0.0) if is_starved else own_s


def _are_all_starved(series: StepSeries) -> bool:
    shares = []
    for steps in series.steady.values():
        own_s = sum(one.parts_s["own"] for one in steps if "own" in one.parts_s)
        wait_s = sum(one.parts_s.get("core_wait", 0.0) for one in steps if "own" in one.parts_s)
        if own_s > 0:
            shares.append(wait_s / own_s)
    return len(shares) > 1 and min(shares) >= STARVED_FRAC


def _lead_frac(own: Mapping[int, Mapping[int, float]], rank: int, usual_s: float) -> float:
    """Share of its steps in which the rank took longer than usual."""
    times = list(own[rank].values())
    return sum(value > usual_s for value in times) / len(times)


def _spots_of(series: StepSeries, ranks: list[int]) -> Iterator[Spot]:
    for rank in ranks[:3]:
        steps = [one for one in series.steady.get(rank, ()) if "own" in one.parts_s or "idle" in one.parts_s]
        yield steps[len(steps) // 2].spot


def _next_step(evidence: Evidence, ranks: list[int]) -> str:
    hosts = {one.rank: one.host for one in evidence.happenings if one.rank in ranks and one.host}
    hosts |= {one.rank: one.host for one in evidence.rank_times if one.rank in ranks and one.host}
    where = ", ".join(sorted(set(hosts.values())))
    return f"check {where or 'its node'}: clocks, other processes, binding; then leave it out with --exclude"
