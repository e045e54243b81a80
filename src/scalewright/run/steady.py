"""Decide which steps of a run count. A rule leaves out the warm-up, and the verdict is part of the result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scalewright.workload.run_options import StepProtocol

BATCH = 5
"""Steps in one batch mean of MSER-5."""
MAX_DRIFT_FRAC = 0.05
"""Largest difference between the medians of the two halves of the steps that count."""
STABLE_STEPS, STABLE_FRAC = 10, 0.02
"""EPICURE runs until throughput is stable, without a definition. Here it means this many steps this close to their
median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Verdict on a series of step times."""

    is_steady: bool
    first: int
    """Index of the first step that counts; all steps after it count too."""
    median_s: float
    reason: str

    @property
    def verdict(self) -> str:
        return f"{'steady' if self.is_steady else 'not steady'}: {self.reason}"


def steady_state(times_s: Sequence[float], protocol: StepProtocol) -> SteadyState:
    if not times_s:
        return SteadyState(is_steady=False, first=0, median_s=float("nan"), reason="no step was timed")
    return _epicure(times_s) if protocol == "epicure" else _mser(times_s)


def _mser(times_s: Sequence[float]) -> SteadyState:
    """Leave out the start whose removal makes the mean most certain, then check that the remaining steps do not drift.

    Equation  d* = argmin_d  sum_{i>d} (x_i - mean)^2 / (n - d)^2  over batch means of 5, d at most n/2
    Source    white1997 (SIMULATION 69(6)), MSER-5
    """
    batches = [statistics.fmean(times_s[i : i + BATCH]) for i in range(0, len(times_s) - BATCH + 1, BATCH)]
    if len(batches) < 4:
        reason = (
            f"{len(times_s)} timed steps are too few for a verdict, {4 * BATCH} are needed; all but the first count"
        )
        kept = times_s[1:] or times_s
        return SteadyState(
            is_steady=False, first=len(times_s) - len(kept), median_s=statistics.median(kept), reason=reason
        )

    def error(start: int) -> float:
        remaining = batches[start:]
        return statistics.pvariance(remaining) / len(remaining)

    first = min(range(len(batches) // 2 + 1), key=error) * BATCH
    kept = times_s[first:]
    drift = _drift_frac(kept)
    reason = f"steps from {first} on count, of {len(times_s)}; their halves differ by {100 * drift:.1f} %"
    return SteadyState(is_steady=drift <= MAX_DRIFT_FRAC, first=first, median_s=statistics.median(kept), reason=reason)


def _epicure(times_s: Sequence[float]) -> SteadyState:
    """All steps count from the first window of steps that stay close to their median."""
    for first in range(len(times_s) - STABLE_STEPS + 1):
        window = times_s[first : first + STABLE_STEPS]
        middle = statistics.median(window)
        if max(abs(t - middle) for t in window) <= STABLE_FRAC * middle:
            reason = f"steps from {first} on count: {STABLE_STEPS} of them stayed within {100 * STABLE_FRAC:.0f} %"
            return SteadyState(is_steady=True, first=first, median_s=statistics.median(times_s[first:]), reason=reason)
    half = len(times_s) // 2
    reason = f"no {STABLE_STEPS} steps in a row stayed within {100 * STABLE_FRAC:.0f} %; the second half counts"
    return SteadyState(is_steady=False, first=half, median_s=statistics.median(times_s[half:]), reason=reason)


def _drift_frac(times_s: Sequence[float]) -> float:
    middle = len(times_s) // 2
    early, late = statistics.median(times_s[:middle]), statistics.median(times_s[middle:])
    return abs(late - early) / early
