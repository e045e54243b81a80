"""Short real runs as a calibration takes them: the step that was measured, and how the same is predicted."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from scalewright.catalog.library import Catalog
from scalewright.costs.machine import Machine
from scalewright.errors import ScalewrightError
from scalewright.launch.prepare.outlook import language_outlook, vision_outlook
from scalewright.observe.collect import CollectedRun, collect
from scalewright.observe.residuals import RealStep
from scalewright.records import metric_names as names
from scalewright.records.run_directory import RunDirectory
from scalewright.workload import language_run, vision_run
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.vision_run import VisionRun

MIN_STEPS = 5
"""Steps that count, of a run that a factor may be fitted to."""


def read_steps(catalog: Catalog, directories: Iterable[RunDirectory]) -> tuple[list[RealStep], list[str]]:
    """Real steps of the runs that got far enough, and in words which did not."""
    runs, notes = steady_runs(directories)
    return [_real_step(catalog, run) for run in runs], notes


def steady_runs(directories: Iterable[RunDirectory]) -> tuple[list[CollectedRun], list[str]]:
    """Runs with enough steady steps, and in words which have not."""
    runs: list[CollectedRun] = []
    notes: list[str] = []
    for directory in directories:
        try:
            run = collect(directory)
        except ScalewrightError as error:
            notes.append(f"{directory.path.name}: {error}")
            continue
        times_s = run.series(names.STEP_TIME, slowest=True)
        if times_s.size < MIN_STEPS:
            notes.append(
                f"{directory.path.name}: only {times_s.size} of its steps were steady, and {MIN_STEPS} are needed to "
                "fit anything to it; give a longer --budget"
            )
            continue
        runs.append(run)
    return runs, notes


def num_steps_of(directory: RunDirectory) -> int:
    """Steps that count of a run that may have been ended at any moment."""
    try:
        return int(collect(directory).series(names.STEP_TIME, slowest=True).size)
    except ScalewrightError:
        return 0


def _real_step(catalog: Catalog, run: CollectedRun) -> RealStep:
    where, schema = str(run.directory.config), str(run.config["schema"])
    times_s = run.series(names.STEP_TIME, slowest=True)
    low_s, high_s = median_interval(times_s)
    median_s = float(np.median(times_s))
    if schema.startswith(f"scalewright.{vision_run.KIND}/"):
        vision = vision_run.from_document(run.config, where=where)
        return RealStep(
            run=run.directory.path.name, workload="vision", label=vision_label(vision), num_ranks=vision.num_ranks,
            num_steps=int(times_s.size), precision=vision.precision, size=float(vision.batch), measured_s=median_s,
            low_s=low_s, high_s=high_s, predicted_s=lambda machine: vision_step_s(catalog, vision, machine),
        )  # fmt: skip
    language = language_run.from_document(run.config, where=where)
    return RealStep(
        run=run.directory.path.name, workload="language", label=language_label(language),
        num_ranks=int(language.layout.num_gpus), num_steps=int(times_s.size), precision=language.precision,
        size=float(language.shape.hidden), measured_s=median_s, low_s=low_s, high_s=high_s,
        predicted_s=lambda machine: language_step_s(catalog, language, machine),
    )  # fmt: skip


def language_step_s(catalog: Catalog, run: LanguageRun, machine: Machine) -> float:
    return language_outlook(catalog, run, machine, start_s=0.0).step_s


def vision_step_s(catalog: Catalog, run: VisionRun, machine: Machine) -> float:
    return vision_outlook(catalog, run, machine, start_s=0.0).step_s


def language_label(run: LanguageRun) -> str:
    shape = run.shape
    return (
        f"{shape.layers} x {shape.hidden}, {shape.seq} tokens, batch {run.layout.mbs}, {run.precision}, "
        f"{'eager' if run.compile == 'off' else run.compile}"
    )


def vision_label(run: VisionRun) -> str:
    way = "eager" if run.compile == "off" else run.compile
    return f"{run.model_id}, {run.image_size} px, batch {run.batch}, {run.precision}, {way}"


def median_interval(times_s: np.ndarray) -> tuple[float, float]:
    """Between which order statistics the median lies with 95 % confidence, for any distribution."""
    ordered, num = np.sort(times_s), int(times_s.size)
    away = math.ceil(0.98 * math.sqrt(num))
    low, high = max(num // 2 - away, 0), min((num - 1) // 2 + away, num - 1)
    return float(ordered[low]), float(ordered[high])
