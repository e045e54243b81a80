"""How well predicted times tell layouts of one job apart, from published runs in which only the layout varies.

    python benchmarks/layout_resolution.py

A job is what one source ran with one model, sequence length, device, number of devices, batch, precision and
software. The error of a layout is ln(measured / predicted). Two layouts of a job share what the model gets wrong
about the job; the difference of their errors is what the model gets wrong about the layouts. The resolution of a
source is the median absolute difference of two layouts that are predicted within 25 % of the job's fastest, over
sqrt(2) and the normal quantile 0.6745; a job weighs as many layouts as it has beyond one. The figure is the mean of
the sources: `layout_resolution` in the catalogue. Medians are used, because a few jobs are far off.

The second part checks what follows from it. In each job of three or more layouts the layout that is predicted fastest
is chosen, as a search would. The mean of its error above the job's mean error is the optimism of a choice. It is
printed beside what `costs.selection` gives for the same predicted times.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.published import PublishedRun, load_runs, packaged_runs
from scalewright.costs.selection import selection_frac
from scalewright.planner.validation.validate import validate_run

KNOBS = ("dp", "tp", "pp", "vpp", "cp", "ep", "sp", "zero", "micro_batch", "recompute")
Array = NDArray[np.float64]
NEAR_FRAC = 0.25
HALF_NORMAL_MEDIAN = 0.6745


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Layouts of one job: what identifies each, and the logarithms of its predicted time and of its error."""

    source: str
    layouts: list[tuple[Any, ...]]
    log_time: Array
    error: Array

    @property
    def families(self) -> NDArray[np.int64]:
        """Layouts whose devices run the same kernels, as `planner.search.chosen_layout` groups them."""
        named = [dict(zip(KNOBS, layout, strict=True)) for layout in self.layouts]
        names = [
            (k["tp"], k["ep"], (k["micro_batch"] or 1) / (k["cp"] or 1), (k["zero"] or 0) >= 3, k["recompute"])
            for k in named
        ]  # fmt: skip
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return np.array([numbers[name] for name in names])


def jobs(catalog: Catalog) -> list[Job]:
    """Every job of which a source published two or more layouts; a layout that is there twice counts with its mean."""
    found: dict[tuple[object, ...], dict[tuple[object, ...], list[tuple[float, float]]]] = defaultdict(dict)
    for run in load_runs(packaged_runs()):
        row = validate_run(catalog, run)
        if row.is_timed and row.predicted_step_s and row.measured_step_s:
            layout = tuple(getattr(run.layout, name) for name in KNOBS)
            logs = math.log(row.predicted_step_s), math.log(row.measured_step_s / row.predicted_step_s)
            found[_identity(run)].setdefault(layout, []).append(logs)
    return [
        Job(
            source=str(identity[0]), layouts=list(rows),
            log_time=np.array([statistics.fmean(x for x, _ in logs) for logs in rows.values()]),
            error=np.array([statistics.fmean(r for _, r in logs) for logs in rows.values()]),
        )
        for identity, rows in found.items()
        if len(rows) > 1
    ]  # fmt: skip


def _identity(run: PublishedRun) -> tuple[object, ...]:
    m, layout = run.model, run.layout
    software = run.release, layout.compile, layout.async_tp, str(layout.fsdp), run.task
    shape = m.name, m.layers, m.hidden, m.seq, m.vocab
    return run.document, shape, run.hardware.gpu, run.hardware.gpus, run.dtype, layout.global_batch, software


def resolution_by_source(published: list[Job]) -> dict[str, float]:
    """The spread of errors between near layouts of a job, for each source."""
    differences: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for job in published:
        weight, least = 2.0 / len(job.error), float(job.log_time.min()) + math.log1p(NEAR_FRAC)
        for i, j in itertools.combinations(range(len(job.error)), 2):
            if max(job.log_time[i], job.log_time[j]) <= least:
                differences[job.source].append((abs(float(job.error[i] - job.error[j])), weight))
    return {s: _weighted_median(rows) / math.sqrt(2.0) / HALF_NORMAL_MEDIAN for s, rows in differences.items()}


def _weighted_median(rows: list[tuple[float, float]]) -> float:
    ordered = sorted(rows)
    total = np.cumsum([weight for _, weight in ordered])
    return ordered[int(np.searchsorted(total, total[-1] / 2.0))][0]


def optimism(published: list[Job], resolution_frac: float) -> tuple[float, float, float, int]:
    """Error of the layout predicted fastest above its job's mean error: mean, its standard error, what
    `costs.selection` predicts, and the number of jobs."""
    actual, predicted = [], []
    for job in published:
        if len(job.error) > 2:
            chosen = int(job.log_time.argmin())
            actual.append(float(job.error[chosen] - job.error.mean()))
            frac = selection_frac(
                log_time=job.log_time, family=job.families, safety=np.arange(len(job.error)),
                resolution_frac=resolution_frac, tolerance_frac=0.0,
            )  # fmt: skip
            predicted.append(math.log1p(frac))
    spread = statistics.stdev(actual) / math.sqrt(len(actual))
    return statistics.fmean(actual), spread, statistics.fmean(predicted), len(actual)


def main() -> None:
    catalog = Catalog((packaged_data(),))
    published = jobs(catalog)
    by_source = resolution_by_source(published)
    for source, value in by_source.items():
        print(f"{value:.4f}  {source}")
    figure = statistics.fmean(by_source.values())
    print(f"{figure:.4f}  mean of the sources; the catalogue has {catalog.constants().layout_resolution.value}")
    mean, error, predicted, num_jobs = optimism(published, figure)
    print(
        f"optimism of a choice in {num_jobs} jobs: {mean:.4f} (standard error {error:.4f}), predicted {predicted:.4f}"
    )


if __name__ == "__main__":
    main()
