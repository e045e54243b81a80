"""Alpha-beta fits of measured collectives: t = alpha + size x bus share / bandwidth, with confidence intervals.

A library changes protocol and algorithm with the size, and caches end somewhere: where one line does not fit, several
do, each from a size on. How many is decided by how well each describes sizes that it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.records.measurements import read_measurements, write_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.collective import bus_share

MIN_POINTS = 3
"""Of one line: two parameters and something left to doubt them."""
MAX_LINES = 4
WORTH_FRAC = 0.2
"""Another line must lower the error on left-out sizes by this much."""
GOOD_ENOUGH_FRAC = 0.02
"""Where left-out sizes are met this well, or as well as their times are known, there is nothing to gain."""
TRUSTED_FRAC = 0.1
"""Spread of the repeats from which on a size counts less than others."""
HUBER = 1.345
"""Residuals beyond this many robust deviations count less (95 % as efficient as least squares on normal errors)."""
NUM_REWEIGHTINGS = 20
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t for a two-sided interval of 95 %, by degrees of freedom from 1."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One line of one operation, for sizes from `from_bytes` up to the next line's."""

    op: str
    backend: str
    dtype: str
    num_ranks: int
    num_nodes: int
    from_bytes: int
    to_bytes: int
    """Largest size that it was fitted to."""
    alpha_s: float
    """Below 0 where a line begins high up: it is no latency then, only where the line meets size 0."""
    alpha_low_s: float
    alpha_high_s: float
    bytes_per_s: float
    """Bus bandwidth."""
    bytes_per_s_low: float
    bytes_per_s_high: float | None
    """None: the time does not tell it from infinite."""
    error_frac: float
    """Root mean square of what is left on sizes when each is left out of its own fit."""
    num_points: int

    def time_s(self, size_bytes: float) -> float:
        """Below `from_bytes` without an alpha that is below 0."""
        alpha_s = self.alpha_s if size_bytes >= self.from_bytes else max(self.alpha_s, 0.0)
        return alpha_s + size_bytes * bus_share(self.op, self.num_ranks) / self.bytes_per_s

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """t = a + b x, fitted with relative weights."""

    intercept: float
    slope: float
    intercept_error: float
    slope_error: float
    weights: Floats
    """Of each point in the end."""
    variance: float
    """Of a relative residual."""
    left_out: Floats
    """Relative error on each point when it is left out."""

    @property
    def error_frac(self) -> float:
        return float(np.sqrt(np.mean(self.left_out**2)))


def fit_collectives(rows: Iterable[dict[str, Any]]) -> list[Fit]:
    """Lines of every operation, number of ranks and back end among the rows of `bench collectives`, by size."""
    groups: dict[tuple[Any, ...], dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("op", "backend", "dtype", "num_ranks", "num_nodes"))
        groups.setdefault(key, {}).setdefault(int(row["size_bytes"]), []).append(row)
    fits: list[Fit] = []
    for key, by_size in groups.items():
        sizes = sorted(by_size)
        if len(sizes) >= MIN_POINTS:
            times_s = np.array([np.median([row["time_s"] for row in by_size[size]]) for size in sizes])
            spreads = np.array([_spread_frac(by_size[size]) for size in sizes])
            fits += _fits(key, np.array(sizes, dtype=np.float64), times_s, spreads)
    return fits


def _spread_frac(rows: list[dict[str, Any]]) -> float:
    """How well the time of a size is known: half the width of its rows' intervals; 0 where they do not tell."""
    widths = [
        (row.get("time_high_s", row["time_s"]) - row.get("time_low_s", row["time_s"])) / row["time_s"] for row in rows
    ]
    return float(0.5 * np.median(widths) / np.sqrt(len(rows)))


def add_fits(directory: RunDirectory) -> None:
    """Write the fits of a run of `bench collectives` beside its rows."""
    measurements = read_measurements(directory)
    fits = [fit.document() for fit in fit_collectives(measurements.rows)]
    write_measurements(directory, replace(measurements, fits=fits))


def _fits(key: tuple[Any, ...], sizes: Floats, times_s: Floats, spreads: Floats) -> list[Fit]:
    op, backend, dtype, num_ranks, num_nodes = key
    share = bus_share(op, num_ranks)
    fits = []
    for first, last, fitted in _lines(sizes * share, times_s, spreads):
        margin = _student(last - first - 2)
        alpha_low, alpha_high = (fitted.intercept + sign * margin * fitted.intercept_error for sign in (-1.0, 1.0))
        line = fitted
        if first == 0 and fitted.intercept < 0.0 < alpha_high:  # a latency that the sizes do not resolve
            line = _line_from_zero((sizes * share)[:last], times_s[:last], fitted)
        slowest, fastest = line.slope + margin * line.slope_error, line.slope - margin * line.slope_error
        fits.append(
            Fit(
                op=op,
                backend=backend,
                dtype=dtype,
                num_ranks=num_ranks,
                num_nodes=num_nodes,
                from_bytes=int(sizes[first]),
                to_bytes=int(sizes[last - 1]),
                alpha_s=line.intercept,
                alpha_low_s=alpha_low,
                alpha_high_s=alpha_high,
                bytes_per_s=1.0 / line.slope,
                bytes_per_s_low=1.0 / slowest,
                bytes_per_s_high=1.0 / fastest if fastest > 0 else None,
                error_frac=line.error_frac,
                num_points=last - first,
            )
        )
    return fits


def _lines(x: Floats, t: Floats, spreads: Floats) -> list[tuple[int, int, _Line]]:
    """First and past-the-last point of each line, and the line: as few as describe left-out points well."""
    cache: dict[tuple[int, int], _Line | None] = {}

    def line(first: int, last: int) -> _Line | None:
        if (first, last) not in cache:
            cache[first, last] = _line(x[first:last], t[first:last], spreads[first:last])
        return cache[first, last]

    def squares(cuts: tuple[int, ...]) -> float:
        lines = [line(first, last) for first, last in pairwise(cuts)]
        if len(lines) > 1 and lines[0] is not None and lines[0].intercept < 0:
            return np.inf  # of the smallest sizes it is a latency
        return float(sum(np.inf if one is None else np.sum(one.left_out**2) for one in lines))

    best: tuple[int, ...] = (0, len(x))
    best_frac = np.sqrt(squares(best) / len(x))
    known_frac = max(GOOD_ENOUGH_FRAC, float(np.median(spreads)))
    cuts = best
    for _ in range(1, MAX_LINES):
        if best_frac <= known_frac:
            break
        options = [
            tuple(sorted((*cuts, at)))
            for at in range(MIN_POINTS, len(x) - MIN_POINTS + 1)
            if all(abs(at - cut) >= MIN_POINTS for cut in cuts)
        ]
        if not options:
            break
        cuts = min(options, key=squares)
        frac = np.sqrt(squares(cuts) / len(x))
        if frac < (1.0 - WORTH_FRAC) * best_frac:
            best, best_frac = cuts, frac
    segments = [(first, last, line(first, last)) for first, last in pairwise(best)]
    return [(first, last, one) for first, last, one in segments if one is not None]


def _line(x: Floats, t: Floats, spreads: Floats) -> _Line | None:
    """Relative-weighted least squares, reweighted after Huber; None where times do not grow with the size.

    Relative weights: repeats of a collective scatter by a share of its time, so the smallest sizes, which alone tell
    the latency, would not count beside the largest. Sizes whose repeats scatter more count less.
    """
    design = np.stack([np.ones_like(x), x], axis=1) / t[:, None]
    trust = 1.0 / (TRUSTED_FRAC**2 + spreads**2)
    trust = trust / trust.max()
    target, weights = np.ones_like(t), trust
    for _ in range(NUM_REWEIGHTINGS):
        root = np.sqrt(weights)[:, None]
        solution = np.linalg.lstsq(_columns(root * design, x), root[:, 0] * target, rcond=None)[0] / _units(x)
        residuals = target - design @ solution
        deviation = max(1.4826 * float(np.median(np.abs(residuals))), 1e-9)
        renewed = trust * np.minimum(1.0, HUBER * deviation / np.maximum(np.abs(residuals), 1e-300))
        if np.allclose(renewed, weights, atol=1e-4):
            break
        weights = renewed
    intercept, slope = (float(value) for value in solution)
    if slope <= 0:
        return None
    weighted = np.sqrt(trust)[:, None] * _columns(design, x)
    inverse = np.linalg.inv(weighted.T @ weighted)
    leverage = np.sum((weighted @ inverse) * weighted, axis=1)
    variance = _variance(residuals, weights, trust)
    errors = np.sqrt(variance * np.diag(inverse)) / _units(x)
    fitted = _Line(
        intercept=intercept,
        slope=slope,
        intercept_error=float(errors[0]),
        slope_error=float(errors[1]),
        weights=weights,
        variance=variance,
        left_out=residuals / np.maximum(1.0 - leverage, 1e-3),
    )
    return fitted if intercept + slope * x[0] > 0.0 else _line_from_zero(x, t, fitted)


def _line_from_zero(x: Floats, t: Floats, fitted: _Line) -> _Line:
    """The same points with a latency of 0."""
    column = x / t
    weight = float(np.sum(fitted.weights * column**2))
    slope = float(np.sum(fitted.weights * column)) / weight
    error = float(np.sqrt(fitted.variance / weight))
    return replace(fitted, intercept=0.0, slope=slope, slope_error=error, left_out=1.0 - slope * column)


def _variance(residuals: Floats, weights: Floats, trust: Floats) -> float:
    """Of a residual with trust 1, from those whose weight was reduced as well.

    Equation  s^2 = K^2 sum(psi^2) / (n - 2) / m^2,  psi = w r,  m share of weights kept,  K = 1 + 2 (1 - m) / (n m)
    Source    Huber, Robust Statistics (1981), section 7.6
    """
    num, kept = len(residuals), float(np.mean(weights >= trust * (1.0 - 1e-6)))
    kept = max(kept, 1.0 / num)
    correction = 1.0 + 2.0 * (1.0 - kept) / (num * kept)
    psi = weights / np.sqrt(trust) * residuals
    return correction**2 * float(np.sum(psi**2)) / max(num - 2, 1) / kept**2


def _units(x: Floats) -> Floats:
    """Bytes reach 1e9 and seconds 1e-6: both columns are brought to one size before they are solved."""
    return np.array([1.0, float(x[-1])])


def _columns(design: Floats, x: Floats) -> Floats:
    return design / _units(x)


def _student(freedom: int) -> float:
    """97.5 % quantile; beyond the table within 0.5 %."""
    if freedom <= len(T_975):
        return T_975[max(freedom, 1) - 1]
    return 1.96 + 2.5 / freedom
