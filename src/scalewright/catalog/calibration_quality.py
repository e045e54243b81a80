"""How far a calibration can be trusted: what it measured, and its error on training runs left out of its own fit.

A calibration that measured little, or that does not predict its own runs, is a weaker basis than the catalogue or a
short probe. Such a calibration must not be used, and must not replace a better one, without a word.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scalewright.catalog.calibration import Calibration
from scalewright.catalog.library import Catalog

FEWEST_RUNS = 2
"""Training runs without which nothing shows how far off a calibration is."""
MOST_MISSING_FRAC = 0.5
"""Share of the planned parts that may be missing before a prediction says so."""


def left_out_error_frac(calibration: Calibration) -> float | None:
    """Mean error on training runs, each predicted without itself; None without such runs."""
    if not calibration.steps:
        return None
    return statistics.mean(abs(step.left_out_s / step.measured_s - 1.0) for step in calibration.steps)


def error_words(error_frac: float) -> str:
    """An error as one says it: in percent, or as a factor where percent say nothing any more."""
    if error_frac < 1.0:
        return f"{error_frac:.0%} off"
    return f"off by a factor of {float(f'{1.0 + error_frac:.2g}'):,g}"


def is_trusted(catalog: Catalog, calibration: Calibration) -> bool:
    """Whether its own left-out runs are predicted as well as runs are without any calibration."""
    error_frac = left_out_error_frac(calibration)
    return len(calibration.steps) >= FEWEST_RUNS and error_frac is not None and error_frac <= _limit_frac(catalog)


def doubt(catalog: Catalog, calibration: Calibration) -> str:
    """Why its predictions may be far off, in words; empty where nothing says so."""
    reasons = []
    if calibration.num_missing > MOST_MISSING_FRAC * calibration.num_parts:
        reasons.append(f"{calibration.num_missing} of {calibration.num_parts} parts were not measured")
    error_frac = left_out_error_frac(calibration)
    if len(calibration.steps) < FEWEST_RUNS:
        reasons.append("only one training run checks it" if calibration.steps else "no training run checks it")
    if error_frac is not None and error_frac > _limit_frac(catalog):
        reasons.append(f"it is {error_words(error_frac)} on training runs left out of its fit")
    return " and ".join(reasons)


def best_of(catalog: Catalog, calibrations: Sequence[Calibration]) -> Calibration:
    """The best calibration of one machine; of equal ones the first."""
    return max(calibrations, key=lambda calibration: _rank(catalog, calibration))


def is_worse(catalog: Catalog, calibration: Calibration, stored: Calibration) -> bool:
    return _rank(catalog, calibration) < _rank(catalog, stored)


def _rank(catalog: Catalog, calibration: Calibration) -> tuple[bool, bool, float, float]:
    """Orders calibrations of one machine, the best last."""
    if is_trusted(catalog, calibration):
        return (True, not calibration.is_disturbed, 0.0, 0.0)
    error_frac = left_out_error_frac(calibration)
    return (False, False, -math.inf if error_frac is None else -error_frac, -float(calibration.num_missing))


def _limit_frac(catalog: Catalog) -> float:
    """Error that a prediction without a calibration may have: the upper end of the catalogue's 90 % interval."""
    return catalog.constants().interval_high.value - 1.0
