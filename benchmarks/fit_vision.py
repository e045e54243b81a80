"""Fit the four constants of the vision model and print their errors, each source left out in turn.

    .venv/bin/python benchmarks/fit_vision.py [--write]

Fitted are the rates of one device in `published/vision_runs.toml`, each source weighing the same, in logarithms, by
coordinate descent. `--write` puts the constants and the quantiles of the left-out ratios into `constants/engine.toml`.
Runs on several devices are predicted, not fitted.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.stage_runs import PublishedVisionRun, vision_runs
from scalewright.catalog.types import Constants
from scalewright.planner.validation.stage_rows import StageRow, quantiles, vision_rows

NAMES = ("vector_convolution_gain", "matrix_convolution_share", "norm_bandwidth_share", "channels_first_rate")
STEPS = (1.1, 1.03, 1.01, 1.003)
PRIOR_WIDTH = 0.5
"""A tenth of a row's weight pulls a constant, in logarithms, to where it starts: a source left out may be the only one
that says anything about it."""
Values = dict[str, float]


@dataclass(frozen=True)
class WithConstants:
    """A catalogue whose vision constants are others."""

    base: Catalog
    values: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def constants(self) -> Constants:
        catalogued: Constants = self.base.constants()
        changed = {n: getattr(catalogued, n).model_copy(update={"value": v}) for n, v in self.values.items()}
        return catalogued.model_copy(update=changed)


def rows(catalog: Catalog, runs: Sequence[PublishedVisionRun], values: Values) -> list[StageRow]:
    return vision_rows(WithConstants(catalog, values), runs)  # type: ignore[arg-type]


def loss(catalog: Catalog, runs: Sequence[PublishedVisionRun], values: Values, start: Values) -> float:
    sources = [run.source for run in runs]
    predicted = rows(catalog, runs, values)
    errors = sum(math.log(row.time_ratio) ** 2 / sources.count(row.source) for row in predicted)
    return errors + 0.1 * sum((math.log(values[n] / start[n]) / PRIOR_WIDTH) ** 2 for n in NAMES)


def fit(catalog: Catalog, runs: Sequence[PublishedVisionRun], start: Values) -> Values:
    alone = [run for run in runs if run.num_gpus == 1]
    best, least = dict(start), loss(catalog, alone, start, start)
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for name in NAMES:
                for factor in (step, 1.0 / step):
                    tried = {**best, name: best[name] * factor}
                    now = loss(catalog, alone, tried, start)
                    if now < least - 1e-9:
                        best, least, improved = tried, now, True
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the vision model.")
    parser.add_argument("--write", action="store_true", help="put the constants into the catalogue")
    args = parser.parse_args()
    catalog, runs = Catalog((packaged_data(),)), vision_runs()
    # where the fit starts: no gain, full rates, and four elements a cycle, a warp's worth of 32-bit loads in eight
    start = dict.fromkeys(NAMES[:3], 1.0) | {"channels_first_rate": 4.0}
    values = fit(catalog, runs, start)
    print({name: round(value, 4) for name, value in values.items()})
    for row in rows(catalog, runs, values):
        print(f"{row.predicted / row.published:5.2f}  {row.what}  [{row.source[:40]}]")
    left: list[StageRow] = []
    for source in dict.fromkeys(run.source for run in runs):
        others = fit(catalog, [run for run in runs if run.source != source], start)
        left_out = rows(catalog, [run for run in runs if run.source == source], others)
        left += left_out
        ratios = ", ".join(f"{row.predicted / row.published:.2f}" for row in left_out)
        print(f"without {source[:60]}: {ratios}")
    low, high = quantiles(left)
    print(f"left-out quantiles of measured over predicted time: {low:.3f} {high:.3f}")
    if args.write:
        shown = {n: f"{v:.3g}" for n, v in values.items()}
        write(shown | {"vision_interval_low": f"{low:.3g}", "vision_interval_high": f"{high:.3g}"})


def write(shown: dict[str, str]) -> None:
    path = Path(packaged_data()) / "constants" / "engine.toml"
    text = path.read_text()
    for name, value in shown.items():
        text, count = re.subn(rf"(?m)^({name} = {{ value = )[^,]+", rf"\g<1>{value}", text)
        assert count == 1, name
    path.write_text(text)


if __name__ == "__main__":
    main()
