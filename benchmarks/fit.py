"""Fit the cost models' global constants to the published runs, and say how well they hold on sources left out.

    python benchmarks/fit.py             fit on all rows, leave each source out in turn, print both
    python benchmarks/fit.py --write     also write the fitted values into the catalogue

Nothing is keyed to a source, though some software stacks appear in one source only (docs/decisions.md). Each (source,
GPU, dtype) weighs the same; a robust loss keeps single odd runs from steering; priors keep a constant that few rows
inform near its starting value.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalewright.catalog.library import Catalog, open_catalog, packaged_data
from scalewright.catalog.published import PublishedRun, load_runs, packaged_runs
from scalewright.catalog.types import Constants, Stack
from scalewright.costs.setting import Setting
from scalewright.costs.step import step_time
from scalewright.errors import ScalewrightError
from scalewright.planner.error_table import residual_quantiles
from scalewright.planner.validate import NotInScopeError, express, measured_step_s, with_recompute
from scalewright.workload.layout import COLUMNS

Array = NDArray[np.float64]

CONSTANTS = (
    "sustained_matmul_share", "throttle_exponent", "narrow_matmul_gain", "depth_overhead", "wave_overhead",
    "grouped_matmul_share", "unfused_attention_passes", "permute_passes", "narrow_cast_passes", "logits_passes",
    "expert_host_factor", "host_blend", "collective_offset", "latency_factor", "tensor_exposure", "transfer_exposure",
    "all_to_all_exposure", "gradient_overlap", "shard_overlap", "overlap_cost", "straggler_growth", "step_overhead",
)  # fmt: skip
AT_MOST_ONE = {"sustained_matmul_share", "grouped_matmul_share", "tensor_exposure", "transfer_exposure",
               "all_to_all_exposure", "gradient_overlap", "shard_overlap", "overlap_cost"}  # fmt: skip
FACTORS = ("host_time", "elementwise_passes", "attention_share")
# stacks that share their factors with the first of the row: they differ in what overlaps, not in kernels
FAMILIES = (
    ("eager-unfused",),
    ("eager-fused-loss",),
    ("eager",),
    ("compiled", "compiled-async"),
    ("megatron-core", "megatron-bridge"),
)
PRIORS = {
    "sustained_matmul_share": 0.9, "throttle_exponent": 0.3, "narrow_matmul_gain": 1.2, "depth_overhead": 100.0,
    "wave_overhead": 1e-6, "grouped_matmul_share": 0.7, "unfused_attention_passes": 14.0, "permute_passes": 12.0,
    "narrow_cast_passes": 6.0, "logits_passes": 12.0, "expert_host_factor": 10.0, "host_blend": 3.0,
    "collective_offset": 20e-6,
    "latency_factor": 1.5, "tensor_exposure": 0.6, "transfer_exposure": 0.7, "all_to_all_exposure": 0.9,
    "gradient_overlap": 0.7, "shard_overlap": 0.8, "overlap_cost": 0.2, "straggler_growth": 0.02, "step_overhead": 5e-3,
    "eager-unfused.host_time": 1e-3, "eager-unfused.elementwise_passes": 30.0, "eager-unfused.attention_share": 1.0,
    "eager-fused-loss.host_time": 0.4e-3, "eager-fused-loss.elementwise_passes": 28.0,
    "eager-fused-loss.attention_share": 0.4,
    "eager.host_time": 0.4e-3, "eager.elementwise_passes": 28.0, "eager.attention_share": 0.75,
    "compiled.host_time": 0.15e-3, "compiled.elementwise_passes": 12.0, "compiled.attention_share": 0.75,
    "megatron-core.host_time": 0.2e-3, "megatron-core.elementwise_passes": 15.0, "megatron-core.attention_share": 0.6,
}  # fmt: skip
"""Where every fit starts and what it is drawn to: round figures from kernel counts and vendors' documents; attention
rates from FlashAttention-2's comparison with its predecessor (arXiv:2307.08691) and from our H200 table."""
PRIOR_SIGMA = 0.7
"""Spread of a constant about its starting value, as a logarithm: a factor of two either way is one sigma."""
NOISE_SIGMA = 0.08
OWN_STEPS = Path(__file__).parent / "results" / "h200_steps.jsonl"
SOFT_FRAC = 0.20
"""Residuals beyond this count linearly."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that differ only in whole-number knobs: costed as columns in one call."""

    setting: Setting
    index: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Problem:
    blocks: tuple[Block, ...]
    measured_s: Array
    sources: NDArray[np.str_]
    groups: NDArray[np.int64]
    weights: Array


def fitted_runs() -> list[PublishedRun]:
    """The published runs, and every second of our own on one H200; the others are never fitted to."""
    own = load_runs(OWN_STEPS) if OWN_STEPS.exists() else []
    return [*load_runs(packaged_runs()), *own[::2]]


def build_problem(catalog: Catalog) -> Problem:
    settings: list[Setting] = []
    measured, sources, groups = [], [], []
    for run in fitted_runs():
        try:
            case = express(catalog, run)
            setting, _ = with_recompute(run, case)
        except (NotInScopeError, ScalewrightError):
            continue
        time = measured_step_s(run, case.spec, setting.layout)
        if time is None:
            continue
        settings.append(setting)
        measured.append(time)
        sources.append(run.document)
        groups.append((run.document, run.hardware.gpu, run.dtype))
    names = sorted(set(groups))
    group = np.array([names.index(g) for g in groups])
    weights = 1.0 / np.bincount(group)[group]
    return Problem(
        _blocks(settings), np.array(measured), np.array(sources), group, weights * len(names) / weights.sum()
    )


def _blocks(settings: list[Setting]) -> tuple[Block, ...]:
    members: dict[object, list[int]] = defaultdict(list)
    for i, s in enumerate(settings):
        shape = s.shape.model_dump_json(exclude={"source"})
        machine = (s.machine.accelerator.id, s.machine.gpus_per_node, s.machine.scale_up_bytes_per_s,
                   s.machine.network_bytes_per_s_per_gpu)  # fmt: skip
        how = (s.recipe.name, s.mode, s.stack.id, s.layout.zero, s.layout.sp, s.layout.recompute)
        members[shape, machine, how].append(i)
    blocks = []
    for rows in members.values():
        layouts = [settings[i].layout for i in rows]
        columns = {name: np.array([getattr(layout, name) for layout in layouts], dtype=np.int64) for name in COLUMNS}
        first = settings[rows[0]]
        blocks.append(Block(replace(first, layout=replace(first.layout, **columns)), np.array(rows)))
    return tuple(blocks)


@dataclass(frozen=True, slots=True)
class Values:
    """The constants and stacks under trial."""

    constants: Constants
    stacks: dict[str, Stack]


def parameter_names() -> list[str]:
    return [*CONSTANTS, *(f"{family[0]}.{factor}" for family in FAMILIES for factor in FACTORS)]


def starting_values(values: Values) -> Array:
    found = [getattr(values.constants, name).value for name in CONSTANTS]
    found += [getattr(values.stacks[family[0]], factor).value for family in FAMILIES for factor in FACTORS]
    return np.array(found)


def with_parameters(values: Values, parameters: Array) -> Values:
    def changed(fact: object, value: float) -> object:
        return fact.model_copy(update={"value": float(value)})  # type: ignore[attr-defined]

    count = len(CONSTANTS)
    update = {
        name: changed(getattr(values.constants, name), v) for name, v in zip(CONSTANTS, parameters[:count], strict=True)
    }
    stacks = dict(values.stacks)
    for i, family in enumerate(FAMILIES):
        chosen = parameters[count + i * len(FACTORS) : count + (i + 1) * len(FACTORS)]
        for stack in family:
            facts = {f: changed(getattr(stacks[stack], f), v) for f, v in zip(FACTORS, chosen, strict=True)}
            stacks[stack] = stacks[stack].model_copy(update=facts)
    return Values(values.constants.model_copy(update=update), stacks)


def predict_all(problem: Problem, values: Values) -> Array:
    predicted = np.empty(len(problem.measured_s))
    for block in problem.blocks:
        s = block.setting
        trial = replace(s, machine=replace(s.machine, constants=values.constants), stack=values.stacks[s.stack.id])
        predicted[block.index] = np.broadcast_to(step_time(trial).total, len(block.index))
    return predicted


def fit(problem: Problem, shipped: Values, keep: NDArray[np.bool_], *, progress: Callable[[str], None]) -> Values:
    """Damped Gauss-Newton on log residuals with a soft-L1 loss and log-normal priors."""
    start = with_parameters(shipped, np.array([PRIORS[name] for name in parameter_names()]))
    origin = np.log(starting_values(start))
    ceiling = np.array([0.0 if name in AT_MOST_ONE else np.inf for name in parameter_names()])
    target = np.log(problem.measured_s[keep])
    weights = problem.weights[keep] / NOISE_SIGMA**2

    def residuals(x: Array) -> Array:
        return np.log(predict_all(problem, with_parameters(start, np.exp(x)))[keep]) - target

    def loss(r: Array, x: Array) -> float:
        soft = 2.0 * SOFT_FRAC**2 * (np.sqrt(1.0 + (r / SOFT_FRAC) ** 2) - 1.0)
        return float(np.sum(weights * soft) + np.sum(((x - origin) / PRIOR_SIGMA) ** 2))

    x, damping = origin.copy(), 1e-2
    r = residuals(x)
    best = loss(r, x)
    for iteration in range(25):
        step = 1e-3
        jacobian = np.stack([(residuals(x + step * e) - r) / step for e in np.eye(len(x))], axis=1)
        w = weights / np.sqrt(1.0 + (r / SOFT_FRAC) ** 2)
        normal = jacobian.T @ (w[:, None] * jacobian) + np.eye(len(x)) / PRIOR_SIGMA**2
        gradient = jacobian.T @ (w * r) + (x - origin) / PRIOR_SIGMA**2
        improved = False
        for _ in range(6):
            move = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            trial = np.minimum(x + np.clip(move, -0.7, 0.7), ceiling)
            trial_r = residuals(trial)
            trial_loss = loss(trial_r, trial)
            if trial_loss < best:
                gain, improved = best - trial_loss, True
                x, r, best, damping = trial, trial_r, trial_loss, damping / 3.0
                break
            damping *= 4.0
        progress(f"iteration {iteration}: loss {best:.3f}")
        if not improved or gain < 1e-3 * best:
            break
    return with_parameters(start, np.exp(x))


def balanced_mape_frac(problem: Problem, predicted: Array) -> float:
    error = np.abs(predicted / problem.measured_s - 1.0)
    return float(np.mean([error[problem.groups == g].mean() for g in np.unique(problem.groups)]))


def summary(problem: Problem, predicted: Array) -> str:
    error = np.abs(predicted / problem.measured_s - 1.0)
    balanced = balanced_mape_frac(problem, predicted)
    return f"balanced MAPE {100 * balanced:.1f} %, median APE {100 * float(np.median(error)):.1f} %"


def leave_sources_out(problem: Problem, start: Values) -> Array:
    """Predictions of each source by constants fitted to the others, from the same starting point."""
    predicted = np.empty(len(problem.measured_s))
    for source in np.unique(problem.sources):
        out = problem.sources == source
        values = fit(problem, start, ~out, progress=lambda _: None)
        predicted[out] = predict_all(problem, values)[out]
        error = np.abs(predicted[out] / problem.measured_s[out] - 1.0)
        print(f"  left out {source[:60]:60s} {out.sum():4d} rows  MAPE {100 * error.mean():5.1f} %", flush=True)
    return predicted


def write(values: Values, quantiles: tuple[float, float] | None) -> None:
    """Put fitted values into the catalogue's files, line by line, and the hash of the data beside them."""
    digest = hashlib.sha256(packaged_runs().read_bytes() + OWN_STEPS.read_bytes()).hexdigest()[:12]
    new = {name: _shown(getattr(values.constants, name)) for name in CONSTANTS}
    if quantiles is not None:
        new |= {"interval_low": f"{quantiles[0]:.3g}", "interval_high": f"{quantiles[1]:.3g}"}
    _rewrite(packaged_data() / "constants" / "engine.toml", new, digest)
    for family in FAMILIES:
        for stack in family:
            facts = {f: _shown(getattr(values.stacks[stack], f)) for f in FACTORS}
            _rewrite(packaged_data() / "stacks" / f"{stack}.toml", facts, digest)


def _shown(fact: object) -> str:
    value, unit = fact.value, fact.dimension.si  # type: ignore[attr-defined]
    return f'"{value * 1e6:.4g} us"' if unit == "s" else f"{value:.4g}"


def _rewrite(path: Path, values: dict[str, str], digest: str) -> None:
    text = path.read_text()
    for name, shown in values.items():
        text, count = re.subn(rf'(?m)^({name} = {{ value = )("[^"]*"|[^,]+)', rf"\g<1>{shown}", text)
        assert count == 1, (path, name)
    text = re.sub(
        r'text = "benchmarks/fit.py([^"]*?)(?: \(data [0-9a-f]+\))?"',
        rf'text = "benchmarks/fit.py\1 (data {digest})"',
        text,
    )
    path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help="write the fitted values into the catalogue")
    parser.add_argument("--skip-left-out", action="store_true", help="only fit on all rows")
    args = parser.parse_args()
    catalog = open_catalog()
    problem = build_problem(catalog)
    stacks = {s: catalog.stack(s) for family in FAMILIES for s in family}
    start = Values(catalog.constants(), stacks)
    print(f"{len(problem.measured_s)} rows in {len(problem.blocks)} blocks, {len(parameter_names())} parameters")
    print(f"as shipped: balanced MAPE {100 * balanced_mape_frac(problem, predict_all(problem, start)):.1f} %")
    fitted = fit(
        problem,
        start,
        np.ones(len(problem.measured_s), dtype=bool),
        progress=lambda text: print(f"  {text}", flush=True),
    )
    predicted = predict_all(problem, fitted)
    for name, old, new in zip(parameter_names(), starting_values(start), starting_values(fitted), strict=True):
        print(f"  {name:40s} {old:12.5g} -> {new:12.5g}")
    print(f"fitted on all: {summary(problem, predicted)}")
    quantiles = None
    if not args.skip_left_out:
        left = leave_sources_out(problem, start)
        print(f"left out: {summary(problem, left)}")
        ratio = problem.measured_s / left
        quantiles = residual_quantiles(
            {(str(g), "", ""): ratio[problem.groups == g] for g in np.unique(problem.groups)}
        )
        print(f"90 % interval: measured / predicted from {quantiles[0]:.3f} to {quantiles[1]:.3f}")
    if args.write:
        write(fitted, quantiles)
        print("written")


if __name__ == "__main__":
    main()
