"""Residual factors of a calibration: what real steps show that operators measured alone did not.

At most three factors, each on a group of terms. They are added one by one, the one that explains most first, and only
as long as runs that were left out of the fit are predicted better for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalewright.catalog.calibration import (
    MAX_RESIDUALS,
    Calibration,
    Interval,
    Residual,
    ResidualName,
    Step,
)
from scalewright.catalog.library import Catalog
from scalewright.costs.calibrated import machine_from_calibration
from scalewright.costs.machine import Machine
from scalewright.observe.calibrate import fit_logs

CANDIDATES: dict[str, tuple[ResidualName, ...]] = {
    "language": ("products", "elementwise", "host"),
    "vision": ("convolutions", "norms", "host"),
}
"""Factors that steps of each workload may have fitted."""
PRIOR_WEIGHT = 0.02
"""How strongly a factor is held to 1, per step: a factor that does nothing stays there."""
WORTH_FRAC = 0.15
"""Another factor must lower the error of left-out steps by this share."""
GOOD_ENOUGH_FRAC = 0.01
"""Below this error there is nothing left to explain but noise."""
T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)
"""Student's t for a two-sided interval of 90 %, by degrees of freedom from 1."""
T_MANY = 1.70
LEAST_HALF_WIDTH_FRAC = 0.03
"""Sessions on one machine differ by this much without any change (docs/calibration.md)."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealStep:
    """A short real run, and how its step is predicted on a machine."""

    run: str
    workload: str
    label: str
    num_ranks: int
    num_steps: int
    precision: str
    size: float
    measured_s: float
    low_s: float
    high_s: float
    predicted_s: Callable[[Machine], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Residuals with the steps they come from, and the intervals that follow."""

    residuals: tuple[Residual, ...]
    steps: tuple[Step, ...]
    language_interval: Interval | None
    vision_interval: Interval | None


def fit_residuals(catalog: Catalog, calibration: Calibration, steps: Sequence[RealStep]) -> Fitted:
    """The residuals that these steps show; without steps there are none, and the catalogue's interval stands."""
    if not steps:
        return Fitted(residuals=(), steps=(), language_interval=None, vision_interval=None)
    problem = _Problem(catalog, calibration, steps)
    chosen = _chosen(problem)
    logs, spread = problem.fit(chosen)
    before, after = problem.predicted({}), problem.predicted(dict(zip(chosen, logs, strict=True)))
    left_out = problem.left_out(chosen)
    residuals = tuple(
        Residual(name=name, factor=math.exp(log), low=math.exp(log - dev), high=math.exp(log + dev))
        for name, log, dev in zip(chosen, logs, spread, strict=True)
    )
    rows = tuple(
        Step.model_validate({
            "run": s.run, "workload": s.workload, "label": s.label, "num_ranks": s.num_ranks, "num_steps": s.num_steps,
            "precision": s.precision, "size": s.size, "measured_s": s.measured_s, "low_s": s.low_s, "high_s": s.high_s,
            "before_s": float(before[i]), "after_s": float(after[i]), "left_out_s": float(left_out[i]),
        })
        for i, s in enumerate(steps)
    )  # fmt: skip
    return Fitted(
        residuals=residuals,
        steps=rows,
        language_interval=interval([row for row in rows if row.workload == "language"]),
        vision_interval=interval([row for row in rows if row.workload == "vision"]),
    )


def interval(steps: Sequence[Step]) -> Interval | None:
    """Where nine of ten further runs should lie, as measured over predicted.

    Student's t over the errors of steps that were predicted without themselves: wide for few steps, and never narrower
    than the difference between two sessions on one machine.
    """
    if len(steps) < 2:
        return None
    errors = np.array([math.log(step.measured_s / step.left_out_s) for step in steps])
    num = len(errors)
    deviation = math.sqrt(float(errors @ errors) / num)
    factor = T_95[num - 1] if num <= len(T_95) else T_MANY
    half = max(factor * deviation * math.sqrt(1.0 + 1.0 / num), math.log1p(LEAST_HALF_WIDTH_FRAC))
    return Interval(low_frac=math.exp(-half), high_frac=math.exp(half), num_steps=num)


def error_frac(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Mean of the absolute relative errors."""
    return float(np.mean(np.abs(np.array(predicted) / np.array(measured) - 1.0)))


class _Problem:
    """Predictions of all steps as a function of the factors' logarithms."""

    def __init__(self, catalog: Catalog, calibration: Calibration, steps: Sequence[RealStep]) -> None:
        self._catalog, self._calibration, self.steps = catalog, calibration, list(steps)
        self.measured = np.array([step.measured_s for step in steps])
        workloads = dict.fromkeys(step.workload for step in steps)
        self.candidates = tuple(dict.fromkeys(name for w in workloads for name in CANDIDATES[w]))
        self._known: dict[tuple[tuple[str, float], ...], Floats] = {}

    def predicted(self, logs: dict[ResidualName, float]) -> Floats:
        key = tuple(sorted((str(name), round(float(log), 9)) for name, log in logs.items()))
        if key not in self._known:
            factors = {name: math.exp(log) for name, log in logs.items()}
            residuals = tuple(Residual(name=n, factor=f, low=f, high=f) for n, f in factors.items())
            changed = self._calibration.model_copy(update={"residuals": residuals})
            machines = {
                ranks: machine_from_calibration(self._catalog, changed, num_ranks=ranks)
                for ranks in {step.num_ranks for step in self.steps}
            }
            self._known[key] = np.array([step.predicted_s(machines[step.num_ranks]) for step in self.steps])
        return self._known[key]

    def fit(self, names: Sequence[ResidualName], *, without: int | None = None) -> tuple[Floats, Floats]:
        """Logarithms of the factors, and their deviations; `without` leaves a step out."""
        if not names:
            return np.zeros(0), np.zeros(0)
        kept = [i for i in range(len(self.steps)) if i != without]

        def predicted(logs: Floats) -> Floats:
            found: Floats = self.predicted(dict(zip(names, logs, strict=True)))[kept]
            return found

        return fit_logs(predicted, self.measured[kept], np.zeros(len(names)), prior_weight=PRIOR_WEIGHT)

    def left_out(self, names: Sequence[ResidualName]) -> Floats:
        """Each step predicted with factors that were fitted to the others."""
        if len(self.steps) < 2:
            return self.predicted({})
        found = []
        for i in range(len(self.steps)):
            logs, _ = self.fit(names, without=i)
            found.append(self.predicted(dict(zip(names, logs, strict=True)))[i])
        return np.array(found)

    def error(self, names: Sequence[ResidualName]) -> float:
        """Root mean square of the log errors of left-out steps."""
        errors = np.log(self.left_out(names) / self.measured)
        return math.sqrt(float(np.mean(errors**2)))


def _chosen(problem: _Problem) -> list[ResidualName]:
    """Up to three factors, the most telling first; never as many as there are steps."""
    chosen: list[ResidualName] = []
    error = problem.error(chosen)
    while len(chosen) < min(MAX_RESIDUALS, len(problem.steps) - 1) and error > GOOD_ENOUGH_FRAC:
        rest = [name for name in problem.candidates if name not in chosen]
        if not rest:
            break
        errors = {name: problem.error([*chosen, name]) for name in rest}
        best = min(errors, key=lambda name: errors[name])
        if errors[best] > error * (1.0 - WORTH_FRAC):
            break
        chosen, error = [*chosen, best], errors[best]
    return chosen
