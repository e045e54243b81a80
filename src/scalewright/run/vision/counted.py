"""Which steps of a vision run count, by its protocol."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scalewright.run.breakdown import TimedStep
from scalewright.run.steady import steady_state
from scalewright.workload.vision_run import EPICURE_COUNTED, VisionRun


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSteps:
    first: int
    last: int | None
    """None: to the end."""
    median_s: float
    verdict: str


def counted_steps(run: VisionRun, timed: Sequence[TimedStep]) -> CountedSteps | None:
    """The steps that count, by the protocol of the run; None where no timed step can count."""
    if not timed:
        return None
    if run.protocol == "steady":
        verdict = steady_state([t.wall_s for t in timed], "steady")
        return CountedSteps(
            first=timed[verdict.first].step, last=None, median_s=verdict.median_s, verdict=verdict.verdict
        )
    return epicure_steps(run, timed)


def epicure_steps(run: VisionRun, timed: Sequence[TimedStep]) -> CountedSteps | None:
    """The fourth epoch without its first and last batch: warm-up and shutdown are left out.

    Source  EPICURE Best Practice Guide on AI on EuroHPC Systems 1.0, sections 2.1 and 5.2
    """
    first, last = EPICURE_COUNTED * run.steps_per_epoch + 1, (EPICURE_COUNTED + 1) * run.steps_per_epoch - 2
    times_s = [t.wall_s for t in timed if first <= t.step <= last]
    if not times_s:
        return None
    verdict = f"steps {first} to {last} count: the fourth epoch without its first and last"
    return CountedSteps(first=first, last=last, median_s=statistics.median(times_s), verdict=verdict)
