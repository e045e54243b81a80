"""Fit the constants of the vision model and print their errors, each publication left out in turn.

    .venv/bin/python benchmarks/fit_vision.py [--write]

Fitted are the rows of `published/vision_runs.jsonl`, each publication weighing the same, in logarithms, by Gauss-Newton
steps whose weights limit the pull of outliers (Huber). `--write` puts the constants and the quantiles of the left-out
ratios into `constants/engine.toml`, and the errors of left-out publications into `published/vision_left_out.json`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from constants_file import write_constants

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.vision_runs import PublishedVisionRun, vision_frameworks, vision_runs
from scalewright.costs.setting import VisionSetting
from scalewright.costs.vision import step_time
from scalewright.planner.stages.vision_step import vision_setting
from scalewright.planner.validation.vision_rows import LEFT_OUT_KIND, left_out_path, vision_question
from scalewright.records.documents import document, write_document
from scalewright.workload.layout import Layout

START = {
    "vector_convolution_gain": 1.2, "channels_last_vector_gain": 1.0, "matrix_convolution_share": 0.9,
    "norm_bandwidth_share": 0.9, "channels_first_rate": 4.0, "compiled_norm_factor": 1.2, "convolution_gap": 50e-6,
}  # fmt: skip
"""Where the fit starts, and what it is pulled to: products' rates, memory's rate, 32-bit loads, a few us a kernel."""
PRIOR_WIDTH = 0.5
PRIOR_WEIGHT = 0.1
"""A tenth of a publication's weight pulls a constant, in logarithms, to its start: the publication left out may be the
only one that says anything about it."""
OUTLIER = 0.15
"""Errors beyond this pull as strongly as one of this size."""
NUM_STEPS, TRIAL = 8, 0.02
WIDTH_TAIL, COVERAGE = 0.05, 0.9
Array = np.ndarray[Any, np.dtype[np.float64]]
Values = dict[str, float]


@dataclass(frozen=True)
class Rows:
    """Published rates; settings that differ in batch and devices only are one column."""

    publications: list[str]
    ids: list[str]
    measured_s: Array
    settings: list[tuple[VisionSetting, list[int]]]

    def predicted_s(self, values: Values) -> Array:
        times_s = np.empty(len(self.ids))
        for setting, places in self.settings:
            base = setting.machine.constants
            changed = {n: getattr(base, n).model_copy(update={"value": v}) for n, v in values.items()}
            machine = replace(setting.machine, constants=base.model_copy(update=changed))
            times_s[places] = step_time(replace(setting, machine=machine)).total
        return times_s


def prepare(catalog: Catalog, runs: Sequence[PublishedVisionRun]) -> Rows:
    frameworks, columns, first = vision_frameworks(), defaultdict(list), {}
    batches: list[tuple[int, int]] = []
    for place, run in enumerate(runs):
        question, _ = vision_question(catalog, frameworks, run)
        setting, layout = vision_setting(question), question.layout
        key = (
            question.spec.id, setting.machine.name, setting.machine.network_bytes_per_s_per_gpu,
            setting.machine.scale_up_bytes_per_s, setting.recipe.name, setting.stack.id, setting.channels_last,
            setting.library_norms,
        )  # fmt: skip
        columns[key].append(place)
        first.setdefault(key, setting)
        batches.append((int(layout.mbs), int(layout.dp)))
    settings = []
    for key, places in columns.items():
        mbs, dp = (np.array([batches[p][i] for p in places]) for i in range(2))
        settings.append((replace(first[key], layout=Layout(dp=dp, mbs=mbs, gbs=mbs * dp)), places))
    images = np.array([mbs * dp for mbs, dp in batches], dtype=np.float64)
    return Rows(
        publications=[run.document for run in runs], ids=[run.id for run in runs],
        measured_s=images / np.array([run.measured.images_per_s for run in runs]), settings=settings,
    )  # fmt: skip


def fit(rows: Rows, kept: Array, near: Values = START) -> Values:
    """The constants that the kept rows say; `near` is where the steps begin, the prior is always the same."""
    names, start = list(START), np.log(list(START.values()))
    counts = {name: sum(kept[i] for i, p in enumerate(rows.publications) if p == name) for name in rows.publications}
    share = np.array([k / counts[p] if k else 0.0 for p, k in zip(rows.publications, kept, strict=True)])

    def errors(x: Array) -> Array:
        times: Array = np.log(rows.predicted_s(dict(zip(names, np.exp(x), strict=True))) / rows.measured_s)
        return times

    x = np.log(list(near.values()))
    for _ in range(NUM_STEPS):
        now = errors(x)
        slopes = np.column_stack([(errors(x + TRIAL * np.eye(len(x))[i]) - now) / TRIAL for i in range(len(x))])
        weights = share * np.minimum(1.0, OUTLIER / np.maximum(np.abs(now), 1e-9))
        prior = PRIOR_WEIGHT / PRIOR_WIDTH**2
        left = slopes.T @ (weights[:, None] * slopes) + prior * np.eye(len(x))
        right = slopes.T @ (weights * now) + prior * (x - start)
        step = np.clip(np.linalg.solve(left, right), -0.3, 0.3)
        x = x - step
        if np.abs(step).max() < 4e-3:
            break
    return dict(zip(names, (float(v) for v in np.exp(x)), strict=True))


def weighted_quantiles(ratios: Array, publications: Sequence[str]) -> tuple[float, float]:
    """5 and 95 % of measured over predicted time, each publication weighing the same."""
    order = np.argsort(ratios)
    weights = np.array([1.0 / publications.count(publications[i]) for i in order])
    middle = (np.cumsum(weights) - weights / 2.0) / weights.sum()
    low, high = (float(np.interp(tail, middle, ratios[order])) for tail in (WIDTH_TAIL, 1.0 - WIDTH_TAIL))
    return low, high


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the vision model.")
    parser.add_argument("--write", action="store_true", help="put the constants into the catalogue")
    args = parser.parse_args()
    runs = vision_runs()
    rows = prepare(Catalog((packaged_data(),)), runs)
    values = fit(rows, np.ones(len(runs)))
    print({name: float(f"{value:.4g}") for name, value in values.items()})
    fitted = rows.predicted_s(values)
    left = np.empty(len(runs))
    for publication in dict.fromkeys(rows.publications):
        is_left = np.array([p == publication for p in rows.publications])
        others = fit(rows, (~is_left).astype(np.float64), values)
        left[is_left] = rows.predicted_s(others)[is_left]
    for i, name in enumerate(rows.ids):
        print(f"{fitted[i] / rows.measured_s[i]:5.2f} {left[i] / rows.measured_s[i]:5.2f}  {name}")
    ratios = rows.measured_s / left
    power = honest_power(ratios, rows.publications)
    low, high = (end**power for end in weighted_quantiles(ratios, rows.publications))
    body = left_out(rows, left, power)
    for name, scores in body.items():
        print(f"{name[:44]:44} {scores['num_rows']:4}  {100 * scores['mape_frac']:5.1f} %  bias "
              f"{100 * scores['bias_frac']:+5.1f} %  inside {100 * scores['coverage_frac']:4.0f} %")  # fmt: skip
    inside = np.mean(are_inside(ratios, rows.publications, power))
    print(f"left-out quantiles of measured over predicted time: {low:.3f} {high:.3f}, to the power {power:.2f}; "
          f"{100 * inside:.0f} % of left-out rows inside")  # fmt: skip
    if args.write:
        shown = {n: f"{v:.3g}" for n, v in values.items()} | {
            "convolution_gap": f'"{values["convolution_gap"] * 1e6:.3g} us"'
        }
        write_constants(shown | {"vision_interval_low": f"{low:.3g}", "vision_interval_high": f"{high:.3g}"})
        write_document(left_out_path(), document(LEFT_OUT_KIND, {"publications": body}))


def are_inside(ratios: Array, publications: Sequence[str], power: float) -> Array:
    """Which rows lie between the widened quantiles of the other publications."""
    inside = np.zeros(len(ratios))
    for publication in dict.fromkeys(publications):
        mine = np.array([p == publication for p in publications])
        low, high = weighted_quantiles(ratios[~mine], [p for p in publications if p != publication])
        inside[mine] = (ratios[mine] >= low**power) & (ratios[mine] <= high**power)
    return inside


def honest_power(ratios: Array, publications: Sequence[str]) -> float:
    """The least power of the quantiles with which 90 % of the left-out rows are inside."""
    powers = np.arange(1.0, 3.0, 0.05)
    return float(next((p for p in powers if np.mean(are_inside(ratios, publications, p)) >= COVERAGE), powers[-1]))


def left_out(rows: Rows, predicted_s: Array, power: float) -> dict[str, dict[str, float]]:
    """Scores of each publication under constants and, for the coverage, quantiles that did not see it."""
    ratios, scores = rows.measured_s / predicted_s, {}
    inside = are_inside(ratios, rows.publications, power)
    for publication in dict.fromkeys(rows.publications):
        mine = np.array([p == publication for p in rows.publications])
        errors = 1.0 / ratios[mine] - 1.0
        scores[publication] = {
            "num_rows": int(mine.sum()),
            "mape_frac": round(float(np.abs(errors).mean()), 4),
            "bias_frac": round(float(errors.mean()), 4),
            "coverage_frac": round(float(inside[mine].mean()), 4),
        }
    return scores


if __name__ == "__main__":
    main()
