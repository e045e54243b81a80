"""Residual factors of a calibration: what real steps show that operators measured alone did not.

At most three factors, each on a group of terms: the set under which the steps are most probable. How far a prediction
may be off is then taken from steps that were left out of their own fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Generic, Protocol, TypeVar

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
from scalewright.costs.machine import Machine
from scalewright.costs.machine.calibrated import machine_from_calibration

CANDIDATES: dict[str, tuple[ResidualName, ...]] = {
    "language": ("products", "elementwise", "host"),
    "vision": ("convolutions", "norms", "host"),
}
"""Factors that steps of each workload may have fitted."""
NOISE_FRAC = 0.03
"""Error of a step that no factor can explain: two sessions on one machine differ by as much."""
FACTOR_SPREAD = 0.3
"""How far from 1 a factor may be expected, as a deviation of its logarithm."""
T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)
"""Student's t for a two-sided interval of 90 %, by degrees of freedom from 1."""
T_MANY = 1.70
LEAST_FREEDOM = 4
"""Steps needed beyond the number of fitted factors for a calibrated interval. With fewer, the catalogue's is used."""

NUM_NEWTON_STEPS = 8
SMALL_STEP, CLOSE_ENOUGH = 1e-3, 3e-3
LARGEST_MOVE = 0.7
"""Of a logarithm in one step: a fit walks, it does not leap."""
FARTHEST = math.log(4.0)
"""A factor beyond this has another cause: another process, a wrong count."""
WIDEST = math.log(1000.0)
"""Half of an interval: steps of a machine that others used give no bound at all."""
MOST_LEVERAGE = 0.9
"""A step that alone decides a factor says little about how well others are predicted."""

Floats = NDArray[np.float64]
Name = TypeVar("Name", bound=str)
"""Of a factor."""


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
    """The residuals that these steps show; without steps there are none, and the catalogue's interval is used."""
    if not steps:
        return Fitted(residuals=(), steps=(), language_interval=None, vision_interval=None)
    workloads = dict.fromkeys(step.workload for step in steps)
    problem = FactorProblem(
        measured=np.array([step.measured_s for step in steps]),
        candidates=tuple(dict.fromkeys(name for w in workloads for name in CANDIDATES[w])),
        predicted=lambda factors: _predicted(catalog, calibration, steps, factors),
    )
    chosen, fit = chosen_factors(problem)
    before, after = problem.predicted_s((), np.zeros(0)), problem.predicted_s(chosen, fit.logs)
    left_out = problem.measured * np.exp(-fit.left_out)
    residuals = tuple(
        Residual(name=name, **bounded_factor(float(log), float(dev), farthest=FARTHEST))
        for name, log, dev in zip(chosen, fit.logs, fit.deviations, strict=True)
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
        language_interval=_interval_of("language", rows, chosen),
        vision_interval=_interval_of("vision", rows, chosen),
    )


def bounded_factor(log: float, deviation: float, *, farthest: float) -> dict[str, float]:
    """A factor with its deviation, which few and restless steps may leave without bounds."""
    dev = min(deviation, farthest)
    return {"factor": math.exp(log), "low": math.exp(log - dev), "high": math.exp(log + dev)}


def _interval_of(workload: str, rows: Sequence[Step], chosen: Sequence[ResidualName]) -> Interval | None:
    own = [row for row in rows if row.workload == workload]
    return interval(own, num_factors=sum(name in CANDIDATES[workload] for name in chosen))


class LeftOutStep(Protocol):
    """A measured step that was predicted without itself."""

    @property
    def measured_s(self) -> float: ...

    @property
    def left_out_s(self) -> float: ...


def interval(steps: Sequence[LeftOutStep], *, num_factors: int) -> Interval | None:
    """Where nine of ten further runs should lie, as measured over predicted; None where the steps cannot tell.

    Student's t over the errors of steps that were predicted without themselves: wide for few steps, and never narrower
    than the difference between two sessions on one machine.
    """
    freedom = len(steps) - num_factors
    if freedom < LEAST_FREEDOM:
        return None
    errors = np.array([math.log(step.measured_s / step.left_out_s) for step in steps])
    deviation = math.sqrt(float(errors @ errors) / len(errors))
    factor = T_95[freedom - 1] if freedom <= len(T_95) else T_MANY
    half = max(factor * deviation * math.sqrt(1.0 + 1.0 / len(errors)), math.log1p(NOISE_FRAC))
    half = min(half, WIDEST)
    return Interval(low_frac=math.exp(-half), high_frac=math.exp(half), num_steps=len(errors))


def _predicted(
    catalog: Catalog, calibration: Calibration, steps: Sequence[RealStep], factors: Mapping[ResidualName, float]
) -> Floats:
    """The steps on the calibrated machine with these residuals."""
    residuals = tuple(Residual(name=n, factor=f, low=f, high=f) for n, f in factors.items())
    changed = calibration.model_copy(update={"residuals": residuals})
    machines = {
        ranks: machine_from_calibration(catalog, changed, num_ranks=ranks)
        for ranks in {step.num_ranks for step in steps}
    }
    return np.array([step.predicted_s(machines[step.num_ranks]) for step in steps])


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorFit:
    """Logarithms of the factors, their deviations, and errors with each step in and left out."""

    logs: Floats
    deviations: Floats
    left_out: Floats
    """Logarithms of measured over predicted."""
    log_evidence: float
    """Logarithm of the steps' probability under any values of these factors, up to a constant (mackay1992)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorProblem(Generic[Name]):
    """Predictions of measured steps as a function of some factors' logarithms."""

    measured: Floats
    """Seconds of each step."""
    candidates: tuple[Name, ...]
    predicted: Callable[[Mapping[Name, float]], Floats]
    """Seconds of each step under some factors; those that are not named are 1."""
    spreads: Mapping[Name, float] = field(default_factory=dict)
    """How far from its usual value a factor may be expected, as a deviation of its logarithm; else FACTOR_SPREAD."""
    usual: Mapping[Name, float] = field(default_factory=dict)
    """What a factor is expected to be; else 1."""
    noise_frac: float = NOISE_FRAC
    """Error of a step that no factor can explain."""
    farthest: float = FARTHEST
    """Logarithm of the largest factor."""

    def predicted_s(self, names: Sequence[Name], logs: Floats) -> Floats:
        return self.predicted({name: math.exp(float(log)) for name, log in zip(names, logs, strict=True)})

    def without(self, index: int) -> FactorProblem[Name]:
        """The problem without one of its steps."""
        return replace(
            self,
            measured=np.delete(self.measured, index),
            predicted=lambda factors: np.delete(self.predicted(factors), index),
        )

    def fit(self, names: Sequence[Name]) -> FactorFit:
        """Factors with the least squared log error, held to what is usual by a prior; Gauss-Newton with numerical
        slopes.

        Left-out errors follow from the leverage of each step (e / (1 - h)), which is exact where the logarithm of a
        prediction is linear in those of the factors.
        """
        num, target = len(names), np.log(self.measured)
        usual = np.array([math.log(self.usual.get(name, 1.0)) for name in names])
        logs, slopes = usual, np.zeros((len(self.measured), num))
        spreads = np.array([self.spreads.get(name, FACTOR_SPREAD) for name in names])
        weight = (self.noise_frac / spreads) ** 2  # a factor that does nothing stays at what is usual
        normal = np.diag(weight)
        now = np.log(self.predicted_s(names, logs))
        for _ in range(NUM_NEWTON_STEPS if num else 0):
            moved = [np.log(self.predicted_s(names, logs + step)) for step in np.eye(num) * SMALL_STEP]
            slopes = np.stack([(there - now) / SMALL_STEP for there in moved], axis=1)
            normal = slopes.T @ slopes + np.diag(weight)
            move = np.linalg.solve(normal, slopes.T @ (target - now) - weight * (logs - usual))
            logs = np.clip(logs + np.clip(move, -LARGEST_MOVE, LARGEST_MOVE), -self.farthest, self.farthest)
            now = np.log(self.predicted_s(names, logs))
            if float(np.abs(move).max()) < CLOSE_ENOUGH:
                break
        left = target - now
        inverse = np.linalg.inv(normal)
        leverage = np.minimum(np.einsum("ij,jk,ik->i", slopes, inverse, slopes), MOST_LEVERAGE)
        variance = float(left @ left) / max(len(left) - num, 1)
        spread = np.sqrt(np.diag(inverse) * variance)
        room = np.linalg.slogdet(normal / weight)[1] if num else 0.0
        unusual = float(np.sum(((logs - usual) / spreads) ** 2))
        log_evidence = -0.5 * (float(left @ left) / self.noise_frac**2 + unusual + room)
        return FactorFit(
            logs=logs, deviations=spread, left_out=left / (1.0 - leverage), log_evidence=float(log_evidence)
        )  # fmt: skip


def chosen_factors(problem: FactorProblem[Name]) -> tuple[tuple[Name, ...], FactorFit]:
    """The set of at most three factors that makes the steps most probable: each must explain more than it could."""
    most = min(MAX_RESIDUALS, len(problem.measured) - 1)
    return most_probable(problem, [names for num in range(most + 1) for names in combinations(problem.candidates, num)])


def most_probable(problem: FactorProblem[Name], sets: Sequence[tuple[Name, ...]]) -> tuple[tuple[Name, ...], FactorFit]:
    """Of some sets of factors the one that makes the steps most probable; of equal ones the first."""
    fits = [(names, problem.fit(names)) for names in sets]
    return max(fits, key=lambda pair: pair[1].log_evidence)
