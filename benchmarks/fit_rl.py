"""Fit the constants of RL steps to published steps, with each model left out once.

    .venv/bin/python benchmarks/fit_rl.py [--write]

Seven constants, each with a prior: what an RL framework adds to an iteration of its generator, and more over hosts; the
time of scoring and updates over pretraining; one expert in a loop; the share of the host link that moved state reaches;
each tensor of a weight sync; what a step takes beside its parts. Every model weighs the same. Parts of a step are
linear in the constants (the share as its inverse), so each is predicted once per constant and put together again.
`--write` stores constants and interval in the catalogue, and what the other models say of each model beside the rows.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright import units
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.stage import waited_rollout_s
from scalewright.planner.validation.rl_rows import RlRow, ordered_pairs_frac, rl_left_out_path, rl_rows
from scalewright.records.documents import document, to_json, write_text

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A constant with its prior: a median, and the factor that holds two thirds around it."""

    name: str
    prior: float
    factor: float
    why: str
    is_inverse: bool = False


PARAMETERS = (
    Parameter(name="rl_engine_step_time", prior=3e-3, factor=2.0, why="vLLM's host work an iteration, with log-probs"),
    Parameter(name="rl_hosts_step_time", prior=10e-3, factor=2.0, why="remote calls and sums between hosts"),
    Parameter(name="rl_training_factor", prior=1.15, factor=1.25, why="uneven lengths, fp32 scores"),
    Parameter(name="rl_expert_time", prior=60e-6, factor=2.0, why="six launches of 10 us an expert"),
    Parameter(name="rl_move_share", prior=0.0625, factor=2.0, why="4 GB/s of PCIe 5: pageable copies", is_inverse=True),
    Parameter(name="rl_tensor_time", prior=220e-6, factor=1.2, why="verl: 0.12 s for the 339 tensors of 7B"),
    Parameter(name="rl_controller_time", prior=3.0, factor=2.0, why="a few seconds of Ray and Python"),
)
ROW_ERROR = 0.15
"""Relative error of a row for which the fit is as sure of it as of one prior."""
ROWS_OF_A_MODEL = 3.0
"""A model weighs as so many rows."""
TAILS = (0.05, 0.95)
COVERAGE_FRAC = 0.9
POWERS = tuple(1.0 + 0.1 * step for step in range(31))
"""Six models say little of the next: their quantiles are widened until each is covered by the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRow:
    """A row's parts as they follow from the constants: value without them, and slopes."""

    row: RlRow
    names: tuple[str, ...]
    at_origin: Array
    slopes: Array
    """Parts x parameters."""

    def time_s(self, values: Array) -> float:
        parts = dict(zip(self.names, self.at_origin + self.slopes @ _linear(values), strict=True))
        step, written_s = self.row.step, parts.pop("rollout") + parts.pop("reward")
        if not step.is_split:
            return written_s + sum(parts.values())
        is_ahead = step.lag > 0 or step.staleness_frac > 0.0
        beside = ("old_log_probs", "reference_log_probs", "update", *(("weight_sync",) if is_ahead else ()))
        waited_s = waited_rollout_s(
            rollout_s=written_s, training_s=sum(parts[name] for name in beside), num_chunks=step.num_chunks,
            is_ahead=is_ahead,
        )  # fmt: skip
        return waited_s + sum(parts.values())


def _linear(values: Array) -> Array:
    return np.array([1.0 / v if p.is_inverse else v for p, v in zip(PARAMETERS, values, strict=True)])


def linear_rows(catalog: Catalog) -> list[LinearRow]:
    """Predict every row once with the priors, and once more for each constant."""
    priors = {p.name: p.prior for p in PARAMETERS}
    base = [row for row in rl_rows(catalog, values=priors) if row.prediction is not None]
    others = [
        [row for row in rl_rows(catalog, values=priors | {p.name: 2.0 * p.prior}) if row.prediction is not None]
        for p in PARAMETERS
    ]
    at_prior = _linear(np.array([p.prior for p in PARAMETERS]))
    changes = _linear(np.array([2.0 * p.prior for p in PARAMETERS])) - at_prior
    rows = []
    for index, row in enumerate(base):
        names, parts = row.part_names, row.part_times_s
        slopes = np.array([(other[index].part_times_s - parts) / d for other, d in zip(others, changes, strict=True)]).T
        rows.append(LinearRow(row=row, names=names, at_origin=parts - slopes @ at_prior, slopes=slopes))
    return rows


def fitted(rows: Sequence[LinearRow]) -> Array:
    """The constants that minimise squared log errors and distances from the priors."""
    models = [row.row.model for row in rows]
    weights = np.array([math.sqrt(ROWS_OF_A_MODEL / models.count(m)) / ROW_ERROR for m in models])
    prior = np.log([p.prior for p in PARAMETERS])
    spread = np.log([p.factor for p in PARAMETERS])

    def residuals(x: Array) -> Array:
        errors = [math.log(row.time_s(np.exp(x)) / row.row.step_s) for row in rows]
        return np.concatenate([weights * errors, (x - prior) / spread])

    return np.exp(_least_squares(residuals, prior))


def _least_squares(residuals: Any, start: Array) -> Array:
    """Levenberg-Marquardt with numeric slopes."""
    x, damping, step = start.copy(), 1e-2, 1e-4
    r = residuals(x)
    for _ in range(200):
        slopes = np.array([(residuals(x + step * unit) - r) / step for unit in np.eye(len(x))]).T
        square = slopes.T @ slopes
        move = -np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), slopes.T @ r)
        after = residuals(x + move)
        if after @ after < r @ r:
            gain, x, r, damping = r @ r - after @ after, x + move, after, max(damping / 3.0, 1e-8)
            if gain < 1e-9:
                break
        elif damping > 1e10:
            break
        else:
            damping *= 4.0
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description="Constants and interval of RL steps.")
    parser.add_argument("--write", action="store_true", help="put them into the catalogue")
    args = parser.parse_args()
    catalog = Catalog((packaged_data(),))
    rows = linear_rows(catalog)
    sound = [row for row in rows if row.row.run.consistent]
    values = fitted(sound)
    left_out, ratios, is_stale = _left_out(rows, sound)
    for p, value in zip(PARAMETERS, values, strict=True):
        print(f"{p.name:22s} {value:10.4g}   prior {p.prior:g} within {p.factor:g} times: {p.why}")
    for model, scores in left_out["models"].items():
        print(f"{model:18s} {scores['num_rows']:3d} rows, left out: MAPE {scores['mape_frac']:.1%}")
    known = [ratio for ratio, stale in zip(ratios, is_stale, strict=True) if not stale]
    power = next(p for p in POWERS if _coverage(known, p) >= COVERAGE_FRAC)
    low, high = (end**power for end in _interval(known))
    left_out |= {"coverage_frac": _coverage(known, power), "interval_power": power}
    stale_power = _asynchronous_power(ratios, is_stale, (low, high))
    print(f"interval {low:.3f} to {high:.3f}, quantiles to the power {power:.1f}")
    print(f"asynchronous steps: ends to the power {stale_power:.2f}")
    print(f"each model by the others: {left_out['coverage_frac']:.0%} inside")
    print(f"models left out: MAPE {left_out['mape_frac']:.1%}; order of modes {left_out['order_frac']:.1%}")
    if args.write:
        _write(values, (low, high), stale_power, left_out)


def _left_out(
    rows: Sequence[LinearRow], sound: Sequence[LinearRow]
) -> tuple[dict[str, Any], list[tuple[str, float]], list[bool]]:
    """Errors of each model under constants that the others give, measured over predicted time, and which of these
    steps are asynchronous."""
    models: dict[str, Any] = {}
    ratios: list[tuple[str, float]] = []
    is_stale: list[bool] = []
    predicted: dict[int, float] = {}
    for model in dict.fromkeys(row.row.model for row in rows):
        values = fitted([row for row in sound if row.row.model != model])
        own = [row for row in rows if row.row.model == model]
        predicted |= {id(row.row): row.time_s(values) for row in own}
        known = [row for row in own if row.row.run.consistent]
        errors = [row.time_s(values) / row.row.step_s - 1.0 for row in known]
        ratios += [(model, row.row.step_s / row.time_s(values)) for row in known]
        is_stale += [row.row.step.staleness_frac > 0.0 for row in known]
        models[model] = {
            "num_rows": len(known),
            "mape_frac": float(np.mean(np.abs(errors))),
            "bias_frac": float(np.mean(errors)),
            "values": {p.name: float(v) for p, v in zip(PARAMETERS, values, strict=True)},
        }
    mape = float(np.mean([m["mape_frac"] for m in models.values()]))
    order = ordered_pairs_frac([(row.row, predicted[id(row.row)]) for row in sound])
    return {"models": models, "mape_frac": mape, "order_frac": order}, ratios, is_stale


def _asynchronous_power(
    ratios: Sequence[tuple[str, float]], is_stale: Sequence[bool], ends: tuple[float, float]
) -> float:
    """The power of the interval's ends that holds nine of ten asynchronous steps of left-out models."""
    logs = np.log([ratio for (_, ratio), stale in zip(ratios, is_stale, strict=True) if stale])
    low, high = np.log(ends)
    needed = np.where(logs < 0.0, logs / low, logs / high)
    return max(float(np.quantile(needed, COVERAGE_FRAC)), 1.0)


def _interval(ratios: Sequence[tuple[str, float]]) -> tuple[float, float]:
    """Quantiles of measured over predicted time, every model weighing the same; they hold the prediction itself."""
    names = [model for model, _ in ratios]
    order = np.argsort([ratio for _, ratio in ratios])
    weights = np.array([1.0 / names.count(names[i]) for i in order])
    middle = (np.cumsum(weights) - weights / 2.0) / weights.sum()
    low, high = (float(np.interp(tail, middle, [ratios[i][1] for i in order])) for tail in TAILS)
    return min(low, 1.0), max(high, 1.0)


def _coverage(ratios: Sequence[tuple[str, float]], power: float) -> float:
    """Rows inside the interval that the other models give, its ends to a power."""
    inside = 0
    for model in {name for name, _ in ratios}:
        low, high = (end**power for end in _interval([pair for pair in ratios if pair[0] != model]))
        inside += sum(low <= ratio <= high for name, ratio in ratios if name == model)
    return inside / len(ratios)


def _write(values: Array, ends: tuple[float, float], stale_power: float, left_out: dict[str, Any]) -> None:
    path = packaged_data() / "constants" / "engine.toml"
    text = path.read_text(encoding="utf-8")
    shown = {p.name: _text(p.name, float(v)) for p, v in zip(PARAMETERS, values, strict=True)}
    shown |= {"rl_interval_low": f"{ends[0]:.3g}", "rl_interval_high": f"{ends[1]:.3g}"}
    shown["rl_asynchronous_power"] = f"{stale_power:.3g}"
    for name, value in shown.items():
        text, count = re.subn(rf"(?m)^({name} = {{ value = )(\"[^\"]*\"|[^,]+)", rf"\g<1>{value}", text)
        assert count == 1, name
    write_text(path, text)
    write_text(rl_left_out_path(), to_json(document("rl-left-out", left_out)))


def _text(name: str, value: float) -> str:
    if not name.endswith("_time"):
        return f"{value:.4g}"
    unit, size = next((u, s) for u, s in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)) if value >= s)
    text = f"{value / size:.4g} {unit}"
    assert math.isclose(units.parse(text, units.SECONDS), value, rel_tol=1e-3)
    return json.dumps(text)


if __name__ == "__main__":
    main()
