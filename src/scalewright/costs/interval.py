"""How far a prediction may be off: quantiles of what published runs measured over what we predicted."""

from __future__ import annotations

from scalewright.catalog.types import Constants
from scalewright.costs.breakdown import FloatLike

COVERAGE_FRAC = 0.90


def interval_s(*, time_s: FloatLike, constants: Constants) -> tuple[FloatLike, FloatLike]:
    """The 90 % interval of a predicted time.

    Equation  [q05, q95] x t, with quantiles of measured/predicted
    Source    the published runs shipped with the package, each (source, GPU, dtype) group weighing the same
    Assumes   tomorrow's run is like a run of a source drawn at random from those
    Checked   `scalewright validate` prints the coverage with each source left out in turn
    """
    return time_s * constants.interval_low.value, time_s * constants.interval_high.value
