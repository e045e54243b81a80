"""Two results of one study: which points are faster or slower by more than their noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalewright.errors import ConfigError
from scalewright.records.documents import document, read_document
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import Doubt
from scalewright.study.doubts import merged
from scalewright.study.kinds.registry import kind_named
from scalewright.study.store import Store

Verdict = Literal["same", "faster", "slower", "only in the first", "only in the second"]
NUM_RESAMPLES = 2000
CONFIDENCE_FRAC = 0.95
SEED = 20260101


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One point of both results: the second time over the first."""

    point: str
    labels: dict[str, str]
    verdict: Verdict
    ratio_frac: float | None = None
    interval_frac: tuple[float, float] | None = None
    first_s: float | None = None
    second_s: float | None = None
    num_first: int = 0
    """Repeats."""
    num_second: int = 0
    doubts_first: tuple[Doubt, ...] = ()
    """Doubts about the first figure: if the machine was busy then, it did not become faster."""
    doubts_second: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    study: str
    differences: tuple[Difference, ...]
    threshold_frac: float

    @property
    def slower(self) -> list[Difference]:
        return [d for d in self.differences if d.verdict == "slower"]

    def as_document(self) -> dict[str, Any]:
        return document("study-diff", asdict(self))


def compare(first: Store, second: Store, *, threshold_frac: float = 0.0) -> Diff:
    """Compare every point that either result has. A change counts if its whole interval exceeds the threshold."""
    names = {store.path: str(read_document(store.study, "study-results").get("study")) for store in (first, second)}
    if len(set(names.values())) > 1:
        raise ConfigError(
            f"{first.path} holds the study {names[first.path]!r} and {second.path} {names[second.path]!r}: "
            "compare two results of one study"
        )
    points: dict[str, dict[str, Any]] = {}
    for store in (first, second):
        for point in read_document(store.points, "study-points").get("points", []):
            points.setdefault(str(point["id"]), point)
    differences = [_difference(point, first, second, threshold_frac) for point in points.values()]
    return Diff(
        study=names[first.path],
        differences=tuple(difference for difference in differences if difference is not None),
        threshold_frac=threshold_frac,
    )


def _difference(point: dict[str, Any], first: Store, second: Store, threshold_frac: float) -> Difference | None:
    kind = kind_named(str(point["resolved"]["kind"]))
    finished = [_finished(store, str(point["id"])) for store in (first, second)]
    samples_s = [[kind.samples(run.path) for run in runs] for runs in finished]
    before, after = ([np.asarray(times) for times in of_runs if times] for of_runs in samples_s)
    difference = partial(Difference, point=str(point["id"]), labels=dict(point["labels"]))
    if not before and not after:
        return None
    if not before or not after:
        return difference(verdict="only in the second" if after else "only in the first")
    ratio, interval = ratio_of_medians(before, after)
    doubts = [merged([kind.measured(run.path).doubts for run in runs]) for runs in finished]
    slower, faster = interval[0] > 1.0 + threshold_frac, interval[1] < 1.0 - threshold_frac
    return difference(
        verdict="slower" if slower else "faster" if faster else "same",
        ratio_frac=ratio,
        interval_frac=interval,
        first_s=_median(before),
        second_s=_median(after),
        num_first=len(before),
        num_second=len(after),
        doubts_first=doubts[0],
        doubts_second=doubts[1],
    )


def _finished(store: Store, point: str) -> list[RunDirectory]:
    finished = []
    for path in sorted((store.path / "runs" / point).glob("repeat-*")):
        run = RunDirectory(path)
        info = run.read_exit_info() if run.config.exists() else None
        if info is not None and info.finished:
            finished.append(run)
    return finished


def _median(runs: Sequence[NDArray[np.float64]]) -> float:
    """Median of the runs' medians: a run with more steps does not weigh more."""
    return float(np.median([np.median(samples) for samples in runs]))


def ratio_of_medians(
    before: Sequence[NDArray[np.float64]], after: Sequence[NDArray[np.float64]]
) -> tuple[float, tuple[float, float]]:
    """Second over first, with its bootstrap interval.

    Equation  median over runs of the runs' medians; resampled 2,000 times: runs with replacement, and in each run
              blocks of n^(1/3) neighbouring steps with replacement; the middle 95 % of the ratios
    Source    kuensch1989 (The jackknife and the bootstrap for general stationary observations) for blocks,
              davison1997 (Bootstrap Methods and their Application), section 3.8, for runs and then steps
    Assumes   runs are alike; steps far apart in a run do not depend on each other
    Checked   tests/study/test_study_diff.py: of two equal machines about one in twenty is called different
    """
    random = np.random.default_rng(SEED)
    draws = [_resampled(runs, random) for runs in (before, after)]
    ratios = draws[1] / draws[0]
    tail = 100.0 * (1.0 - CONFIDENCE_FRAC) / 2.0
    low, high = (float(value) for value in np.percentile(ratios, [tail, 100.0 - tail]))
    return _median(after) / _median(before), (low, high)


def _resampled(runs: Sequence[NDArray[np.float64]], random: np.random.Generator) -> NDArray[np.float64]:
    """Medians of resampled runs, one for each resample."""
    inner = np.stack([_block_medians(samples, random) for samples in runs])
    chosen = random.integers(len(runs), size=(NUM_RESAMPLES, len(runs)))
    medians: NDArray[np.float64] = np.median(inner[chosen, np.arange(NUM_RESAMPLES)[:, None]], axis=1)
    return medians


def _block_medians(samples: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    n = len(samples)
    length = max(round(n ** (1.0 / 3.0)), 1)
    starts = random.integers(n - length + 1, size=(NUM_RESAMPLES, math.ceil(n / length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(NUM_RESAMPLES, -1)[:, :n]
    medians: NDArray[np.float64] = np.median(samples[places], axis=1)
    return medians
