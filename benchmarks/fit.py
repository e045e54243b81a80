"""Fit the cost models' global constants to the published runs, and say how well they hold on sources left out.

    python benchmarks/fit.py             fit on all rows, leave each source out in turn, print both
    python benchmarks/fit.py --write     also write the fitted values into the catalogue
    python benchmarks/fit.py --shipped   the same for the values in the catalogue, as results/left_out.txt has it; with
                                         --write only the interval is written

Nothing is keyed to a source, though some software stacks appear in one source only (docs/decisions.md). Each (source,
GPU, dtype) weighs the same; a robust loss keeps single odd runs from steering; priors keep a constant that few rows
inform near its starting value.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fit_problem import (
    CONSTANTS,
    FACTORS,
    FAMILIES,
    NOTHING_REMOVED,
    OWN_STEPS,
    SCALARS,
    Array,
    Problem,
    Removed,
    Values,
    build_problem,
    origin_and_ceiling,
    parameter_names,
    predict_all,
    starting_values,
    with_parameters,
)
from numpy.typing import NDArray

from scalewright.catalog.library import open_catalog, packaged_data
from scalewright.catalog.published import packaged_runs
from scalewright.costs.interval import COVERAGE_FRAC
from scalewright.planner.validation.scores import weighted_quantile

KERNELS_OF = {"scalewright": "compiled"}
"""Stacks that run the kernels of a fitted one, but are issued otherwise: they take its factors without the host's."""
LIKE = {"automodel": "compiled"}
"""Stacks without a fitted run that take all factors of another."""
PRIOR_SIGMA = 0.7
"""Spread of a constant about its starting value, as a logarithm: a factor of two either way is one sigma."""
NOISE_SIGMA = 0.08
SLOPE_STEP = 1e-3
MAX_EXPERT_POWER = 4.0
TAIL = (1.0 - COVERAGE_FRAC) / 2.0
MAX_MOVES = 25
MAX_NEAR_MOVES = 30
LEAST_MOVE = 0.05
"""A logarithm that moved less than this from its prior did not move."""
LEAST_NARROWING = 0.9
"""A width above this part of the prior's: the runs say next to nothing about the constant."""
FITTED_TEXT = "benchmarks/fit.py on the published training runs"
"""How the source of fitted values begins in the catalogue."""
SOFT_FRAC = 0.20
"""Residuals beyond this count linearly."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Where a fit ended, and how every row moves with every parameter there."""

    values: Values
    logs: Array
    jacobian: Array
    removed: Removed
    """Parameters that were held at their neutral value, and that value."""


def fit(
    problem: Problem, shipped: Values, *, progress: Callable[[str], None], removed: Removed = NOTHING_REMOVED,
    max_moves: int = MAX_MOVES,
) -> Fitted:  # fmt: skip
    """Damped Gauss-Newton on log residuals with a soft-L1 loss and log-normal priors, from the shipped values on."""
    origin, ceiling = origin_and_ceiling()
    is_free = np.array([name not in removed for name in parameter_names()])
    target = np.log(problem.measured_s)
    weights = problem.weights / NOISE_SIGMA**2

    def residuals(x: Array) -> Array:
        return np.log(predict_all(problem, with_parameters(shipped, np.exp(x), removed))) - target

    def slopes(x: Array, r: Array) -> Array:
        columns = np.zeros((len(r), len(x)))
        moved = x + SLOPE_STEP * np.eye(len(x))
        at_once = np.array([name not in SCALARS for name in parameter_names()])
        for i in np.flatnonzero(is_free & ~at_once):
            columns[:, i] = (residuals(moved[i]) - r) / SLOPE_STEP
        if np.any(is_free & at_once):
            columns[:, is_free & at_once] = (residuals(moved[is_free & at_once]) - r).T / SLOPE_STEP
        return columns

    def loss(r: Array, x: Array) -> float:
        soft = 2.0 * SOFT_FRAC**2 * (np.sqrt(1.0 + (r / SOFT_FRAC) ** 2) - 1.0)
        return float(np.sum(weights * soft) + np.sum(((x - origin) / PRIOR_SIGMA) ** 2))

    x = np.where(is_free, np.log(starting_values(shipped)), origin)
    r, damping = residuals(x), 1e-2
    best = loss(r, x)
    for iteration in range(max_moves):
        jacobian = slopes(x, r)
        normal, gradient = normal_equations(jacobian, r, x - origin, weights)
        gain = 0.0
        for _ in range(6):
            move = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            trial = np.minimum(x + np.clip(move, -0.7, 0.7), ceiling)
            trial_r = residuals(trial)
            trial_loss = loss(trial_r, trial)
            if trial_loss < best:
                gain, x, r, best, damping = best - trial_loss, trial, trial_r, trial_loss, damping / 3.0
                break
            damping *= 4.0
        progress(f"move {iteration}: loss {best:.3f}")
        if gain < 1e-3 * best:
            break
    return Fitted(with_parameters(shipped, np.exp(x), removed), x, slopes(x, r), removed)


def normal_equations(jacobian: Array, r: Array, off: Array, weights: Array) -> tuple[Array, Array]:
    """Second and first derivatives of the loss, `off` being how far the parameters are from their priors."""
    w = weights / np.sqrt(1.0 + (r / SOFT_FRAC) ** 2)
    normal = jacobian.T @ (w[:, None] * jacobian) + np.eye(len(off)) / PRIOR_SIGMA**2
    return normal, jacobian.T @ (w * r) + off / PRIOR_SIGMA**2


def fit_without(problem: Problem, near: Fitted, start: Array, keep: NDArray[np.bool_]) -> Array:
    """Parameters of a fit to the rows kept, found along the derivatives of the fit to all, whose residuals `start` are.

    Full fits give errors of left-out sources that differ from these by 1 % and less.
    """
    origin, ceiling = origin_and_ceiling()
    weights, x = problem.weights[keep] / NOISE_SIGMA**2, near.logs.copy()
    for _ in range(MAX_NEAR_MOVES):
        r = (start + near.jacobian @ (x - near.logs))[keep]
        normal, gradient = normal_equations(near.jacobian[keep], r, x - origin, weights)
        free = ~((x >= ceiling - 1e-12) & (gradient < 0))
        move = np.zeros(len(x))
        move[free] = -np.linalg.solve(normal[np.ix_(free, free)], gradient[free])
        x = np.minimum(x + np.clip(move, -0.3, 0.3), ceiling)
    return np.exp(x)


def balanced_mape_frac(problem: Problem, predicted: Array) -> float:
    error = np.abs(predicted / problem.measured_s - 1.0)
    return float(np.mean([error[problem.groups == g].mean() for g in np.unique(problem.groups)]))


def summary(problem: Problem, predicted: Array) -> str:
    error = np.abs(predicted / problem.measured_s - 1.0)
    balanced = balanced_mape_frac(problem, predicted)
    return f"balanced MAPE {100 * balanced:.1f} %, median APE {100 * float(np.median(error)):.1f} %"


def leave_sources_out(problem: Problem, near: Fitted, *, progress: Callable[[str], None]) -> Array:
    """Predictions of each source by constants fitted to the others."""
    predicted = np.empty(len(problem.measured_s))
    start = np.log(predict_all(problem, near.values) / problem.measured_s)
    for source in np.unique(problem.sources):
        out = problem.sources == source
        values = with_parameters(near.values, fit_without(problem, near, start, ~out), near.removed)
        predicted[out] = predict_all(problem, values, rows=out)[out]
        error = np.abs(predicted[out] / problem.measured_s[out] - 1.0)
        progress(f"left out {source[:60]:60s} {out.sum():4d} rows  MAPE {100 * error.mean():5.1f} %")
    return predicted


@dataclass(frozen=True, slots=True)
class Spread:
    """The 90 % interval: quantiles of dense models' residuals, and how much wider mixtures of experts scatter."""

    low: float
    high: float
    expert_power: float

    def covers(self, ratio: Array, has_experts: NDArray[np.bool_]) -> NDArray[np.bool_]:
        power = np.where(has_experts, self.expert_power, 1.0)
        return (ratio >= self.low**power) & (ratio <= self.high**power)

    def width_frac(self, has_experts: NDArray[np.bool_]) -> Array:
        power = np.where(has_experts, self.expert_power, 1.0)
        return np.asarray(self.high**power - self.low**power)


def spread_of(problem: Problem, ratio: Array, keep: NDArray[np.bool_]) -> Spread:
    """From measured over predicted in the rows kept, for a row of a source that is not among them.

    A row counts with the fourth root of its source's rows, inverted: between each source alike, which lets a few odd
    runs widen every interval, and each row alike, which lets one large source speak for all. Residuals of experts are
    divided by how much wider they scatter than those of dense models: the ratio of what holds 90 % of each.
    """
    counts = {s: np.count_nonzero(problem.sources == s) for s in np.unique(problem.sources)}
    weights = np.array([counts[s] ** -0.25 for s in problem.sources])
    logs = np.log(ratio)
    dense, experts = keep & ~problem.has_experts, keep & problem.has_experts
    held = [weighted_quantile(np.abs(logs[rows]), weights[rows], COVERAGE_FRAC) for rows in (dense, experts)]
    power = float(np.clip(held[1] / held[0], 1.0, MAX_EXPERT_POWER))
    alike = logs[keep] / np.where(problem.has_experts[keep], power, 1.0)
    low, high = (weighted_quantile(alike, weights[keep], q) for q in (TAIL, 1.0 - TAIL))
    return Spread(float(np.exp(low)), float(np.exp(high)), power)


def covered(problem: Problem, ratio: Array) -> tuple[NDArray[np.bool_], Array]:
    """Which rows are inside the interval that the other sources' left-out residuals give, and its width."""
    inside, width = np.zeros(len(ratio), dtype=bool), np.zeros(len(ratio))
    for source in np.unique(problem.sources):
        mine = problem.sources == source
        spread = spread_of(problem, ratio, ~mine)
        inside[mine] = spread.covers(ratio[mine], problem.has_experts[mine])
        width[mine] = spread.width_frac(problem.has_experts[mine])
    return inside, width


def print_coverage(problem: Problem, ratio: Array) -> None:
    """Share of each group's rows inside the interval that the other sources' left-out residuals give."""
    inside, width = covered(problem, ratio)
    shares = []
    for g, (source, gpu, dtype) in enumerate(problem.names):
        mine = problem.groups == g
        shares.append(float(np.mean(inside[mine])))
        print(f"  {source[:44]:44s} {gpu[:14]:14s} {dtype:5s} {mine.sum():4d} rows  covered {shares[-1]:6.1%}")
    by_source = [float(np.mean(inside[problem.sources == s])) for s in np.unique(problem.sources)]
    print(f"covered on the mean of {len(shares)} groups: {np.mean(shares):.1%}, ", end="")
    print(f"of {len(by_source)} sources: {np.mean(by_source):.1%}, of {len(inside)} rows: {np.mean(inside):.1%}")
    has = problem.has_experts
    print(f"mean width of the interval: {np.mean(width):.3f} of the prediction; ", end="")
    print(f"dense models {np.mean(width[~has]):.3f}, {np.mean(inside[~has]):.1%} inside; ", end="")
    print(f"mixtures of experts {np.mean(width[has]):.3f}, {np.mean(inside[has]):.1%} inside")


ENGINE = packaged_data() / "constants" / "engine.toml"


def digest() -> str:
    """Of the rows that a fit sees."""
    return hashlib.sha256(packaged_runs().read_bytes() + OWN_STEPS.read_bytes()).hexdigest()[:12]


def write_interval(spread: Spread) -> None:
    new = {"interval_low": f"{spread.low:.3g}", "interval_high": f"{spread.high:.3g}"}
    _rewrite(ENGINE, new | {"expert_interval_power": f"{spread.expert_power:.3g}"}, "benchmarks/fit.py: quantiles")


def write(problem: Problem, fitted: Fitted) -> None:
    """Put fitted values into the catalogue's files, line by line, and the hash of the data beside them."""
    values, origin = fitted.values, origin_and_ceiling()[0]
    moved = zip(parameter_names(), fitted.logs - origin, widths(problem, fitted), strict=True)
    informed = {name for name, move, width in moved if is_informed(moved=move, width=width)}
    _rewrite(ENGINE, {name: _shown(getattr(values.constants, name)) for name in CONSTANTS}, FITTED_TEXT)
    _label(ENGINE, {name: name in informed for name in CONSTANTS})
    for family in FAMILIES:
        for stack in family:
            path = packaged_data() / "stacks" / f"{stack}.toml"
            _rewrite(path, {f: _shown(getattr(values.stacks[stack], f)) for f in FACTORS}, FITTED_TEXT)
            _label(path, {f: f"{family[0]}.{f}" in informed for f in FACTORS})
    for stack, other in KERNELS_OF.items():
        facts = {f: _shown(getattr(values.stacks[other], f)) for f in FACTORS if f != "host_time"}
        _rewrite(packaged_data() / "stacks" / f"{stack}.toml", facts, FITTED_TEXT)
    for stack, other in LIKE.items():
        facts = {f: _shown(getattr(values.stacks[other], f)) for f in FACTORS}
        _rewrite(packaged_data() / "stacks" / f"{stack}.toml", facts, FITTED_TEXT)


def _label(path: Path, informed: dict[str, bool]) -> None:
    """Name the source of each value: the fit, or its prior where the runs did not move it (kind: assumed)."""
    text = path.read_text()
    for name, is_fitted in informed.items():
        text = re.sub(
            rf'(?m)^({name} = .*source = )"(?:fit|prior)"', rf'\g<1>"{"fit" if is_fitted else "prior"}"', text
        )
    if 'source = "prior"' in text and "[sources.prior]" not in text:
        raise SystemExit(f"{path}: the fit did not move a value; add [sources.prior], kind assumed, and write again")
    path.write_text(text)


def _shown(fact: object) -> str:
    value, unit = fact.value, fact.dimension.si  # type: ignore[attr-defined]
    return f'"{value * 1e6:.4g} us"' if unit == "s" else f"{value:.4g}"


def _rewrite(path: Path, values: dict[str, str], source: str) -> None:
    """Put values into a file, and the hash of the data behind the source whose text begins like this."""
    text = path.read_text()
    for name, shown in values.items():
        text, count = re.subn(rf'(?m)^({name} = {{ value = )("[^"]*"|[^,]+)', rf"\g<1>{shown}", text)
        assert count == 1, (path, name)
    text = re.sub(
        rf'text = "({re.escape(source)}[^"]*?)(?: \(data [0-9a-f]+\))?"', rf'text = "\1 (data {digest()})"', text
    )
    path.write_text(text)


def widths(problem: Problem, fitted: Fitted) -> Array:
    """Standard deviation of each parameter's logarithm after the fit; a prior's is `PRIOR_SIGMA`."""
    origin, _ = origin_and_ceiling()
    r = np.log(predict_all(problem, fitted.values) / problem.measured_s)
    normal, _ = normal_equations(fitted.jacobian, r, fitted.logs - origin, problem.weights / NOISE_SIGMA**2)
    return np.sqrt(np.diag(np.linalg.inv(normal)))


def print_parameters(problem: Problem, fitted: Fitted) -> None:
    """Prior, posterior and width of each parameter, and whether the runs say anything about it."""
    origin, _ = origin_and_ceiling()
    print(f"  {'':40s} {'prior':>12s} {'posterior':>12s} {'width':>7s}   (width of the priors: {PRIOR_SIGMA})")
    for name, prior, log, width in zip(parameter_names(), origin, fitted.logs, widths(problem, fitted), strict=True):
        word = "" if is_informed(moved=log - prior, width=width) else "  assumed: the runs did not move it"
        print(f"  {name:40s} {np.exp(prior):12.5g} {np.exp(log):12.5g} {width:7.3f}{word}")


def is_informed(*, moved: float, width: float) -> bool:
    """Whether the runs set a parameter: they moved it from its prior, or made it narrower than its prior."""
    return abs(moved) > LEAST_MOVE or width < LEAST_NARROWING * PRIOR_SIGMA


def progress(text: str) -> None:
    print(f"  {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help="write the fitted values into the catalogue")
    parser.add_argument("--skip-left-out", action="store_true", help="only fit on all rows")
    parser.add_argument("--shipped", action="store_true", help="score the shipped values; fit nothing to all rows")
    args = parser.parse_args()
    catalog = open_catalog()
    problem = build_problem(catalog)
    stacks = {s: catalog.stack(s) for family in FAMILIES for s in family}
    start = Values(catalog.constants(), stacks)
    print(f"{len(problem.measured_s)} rows in {len(problem.blocks)} blocks, {len(parameter_names())} parameters")
    print(f"as shipped: balanced MAPE {100 * balanced_mape_frac(problem, predict_all(problem, start)):.1f} %")
    fitted = fit(problem, start, progress=progress, max_moves=0 if args.shipped else MAX_MOVES)
    predicted = predict_all(problem, fitted.values)
    print_parameters(problem, fitted)
    print(f"fitted on all: {summary(problem, predicted)}")
    spread = None
    if not args.skip_left_out:
        left = leave_sources_out(problem, fitted, progress=progress)
        print(f"left out: {summary(problem, left)}")
        ratio = problem.measured_s / left
        spread = spread_of(problem, ratio, np.ones(len(ratio), dtype=bool))
        print(f"90 % interval: measured / predicted from {spread.low:.3f} to {spread.high:.3f}, ", end="")
        print(f"for mixtures of experts to the power {spread.expert_power:.2f}")
        print_coverage(problem, ratio)
    if args.write and spread is not None:
        write_interval(spread)
    if args.write and not args.shipped:
        write(problem, fitted)
    if args.write:
        print("written: the interval" if args.shipped else "written: the constants and the interval")


if __name__ == "__main__":
    main()
