"""Steps that take longer than the others: at regular times, or now and then."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import StepFact
from scalewright.observe.evidence.series import StepSeries, step_series
from scalewright.observe.findings.host import busy_machine
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule
from scalewright.observe.findings.words import percent, seconds

SLOW_FACTOR = 1.6
"""A step is slow if it takes this many medians, and lies beyond the spread of the others."""
NUM_SPREADS = 6.0
"""Median absolute deviations beyond which a step is no part of the usual spread."""
LEAST_SLOW = 3
"""Slow steps from which a period can be seen."""
PERIOD_SPREAD = 0.25
"""Standard deviation of the times between slow steps over their mean: above it they are not regular."""
STALL_FRAC = 0.05
TAIL_FRAC = 0.15
"""Time of slow steps beyond the median's, over all time, from which it is a warning."""


def slow_steps(series: StepSeries) -> list[StepFact]:
    """Steps beyond the usual spread that neither a checkpoint nor the data explain."""
    if not series.is_enough:
        return []
    median_s = statistics.median(series.times_s)
    spread_s = statistics.median(abs(value - median_s) for value in series.times_s)
    limit_s = max(SLOW_FACTOR * median_s, median_s + NUM_SPREADS * spread_s)
    return [one for one in series.job_steps if (one.time_s or 0.0) > limit_s and not _is_explained(one, median_s)]


def _is_explained(one: StepFact, median_s: float) -> bool:
    known_s = sum(one.parts_s.get(part, 0.0) for part in ("checkpoint", "data", "validation", "evaluation"))
    return known_s >= 0.5 * ((one.time_s or 0.0) - median_s)


def _lost_frac(slow: Sequence[StepFact], series: StepSeries) -> float:
    median_s = statistics.median(series.times_s)
    return sum((one.time_s or 0.0) - median_s for one in slow) / sum(series.times_s)


def period(slow: Sequence[StepFact]) -> tuple[float, str] | None:
    """The usual distance of slow steps, in seconds where reports have a time of day, else in steps. None: irregular."""
    if len(slow) < LEAST_SLOW:
        return None
    for distances, unit in (
        ([b.at_s - a.at_s for a, b in pairwise(slow) if a.at_s is not None and b.at_s is not None], "s"),
        ([float(b.step - a.step) for a, b in pairwise(slow)], "steps"),
    ):
        if len(distances) < LEAST_SLOW - 1:
            continue
        mean = statistics.fmean(distances)
        if mean > 0 and statistics.pstdev(distances) <= PERIOD_SPREAD * mean:
            return mean, unit
    return None


@finding_rule(
    id="periodic-stall",
    severity="warning",
    role="slowed",
    title="Steps stall at regular times",
    why="Something outside the step runs by a clock or a counter: garbage collection, logging, a monitoring agent, a "
    "cron job, a file system that flushes. All ranks wait for the one that it hits.",
    advice="Look for what has this period: `gc.freeze()` or a fixed interval of Python's collector, fewer log lines, "
    "evaluation less often. On the node: `perf trace`, `dmesg`, the list of cron jobs.",
    source="Petrini et al. 2003, The Case of the Missing Supercomputer Performance (SC 2003); Lin et al. 2025 "
    "(arXiv:2505.05713), garbage collection",
)
def periodic_stall(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    series = step_series(evidence)
    slow = slow_steps(series)
    every = period(slow)
    if every is None:
        return
    lost = _lost_frac(slow, series)
    if lost < STALL_FRAC:
        return
    typical_s = statistics.median(one.time_s or 0.0 for one in slow)
    length, unit = every
    when = seconds(length) if unit == "s" else f"{length:.0f} steps"
    yield Seen(
        message=f"about every {when} a step takes {seconds(typical_s)} instead of {seconds(series.median_s or 0.0)}: "
        f"{len(slow)} of {len(series.times_s)} steps, {percent(lost)} of the time",
        spots=tuple(one.spot for one in slow[:3]), certainty="likely", score=lost,
        next_step=f"look for what runs every {when} on these nodes: garbage collection, logging, agents, cron jobs",
        numbers={"period": length, "lost_frac": lost},
        gain=Gain(step_time_frac=lost, how="measured: the slow steps as fast as the median"),
    )  # fmt: skip


@finding_rule(
    id="slow-steps",
    severity="warning",
    role="slowed",
    title="Some steps are much slower than the others",
    why="The curve of step times has an elbow: most steps are alike, and a few take far longer. The mean is then set "
    "by what happens in those few: other users of the network or the file system, a rank that is interrupted, long "
    "samples.",
    advice="Compare the time of the slow steps with what else ran then, and look whether one rank is late in all of "
    "them. Sort samples of very different lengths into buckets.",
    source="Dean and Barroso 2013, The Tail at Scale (CACM 56)",
    because_of=("busy-machine", "periodic-stall", "data-loader-bound", "checkpoint-stall", "slow-first-batches",
                "straggler-rank", "impossible-flop", "oversubscribed-threads", "wrong-binding", "throttled-clocks"),
)  # fmt: skip
def slow_step_tail(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    series = step_series(evidence)
    slow = slow_steps(series)
    if not slow or period(slow) is not None:
        return
    lost = _lost_frac(slow, series)
    if lost < STALL_FRAC:
        return
    is_loud = lost >= TAIL_FRAC and len(slow) >= LEAST_SLOW and next(busy_machine(evidence, context), None) is None
    worst = sorted(slow, key=lambda one: -(one.time_s or 0.0))
    yield Seen(
        message=f"{len(slow)} of {len(series.times_s)} steps take up to {seconds(worst[0].time_s or 0.0)}, the "
        f"median is "
        f"{seconds(series.median_s or 0.0)}: {percent(lost)} of the time is lost in them",
        spots=tuple(one.spot for one in worst[:3]), certainty="certain", score=lost,
        severity=None if is_loud else "info", numbers={"lost_frac": lost},
        next_step="compare the times of these steps with other jobs, logs of the file system and validation",
        gain=Gain(step_time_frac=lost, how="measured: the slow steps as fast as the median"),
    )  # fmt: skip
