"""A point of the vision benchmark: `dp` ranks with `mbs` images each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.catalog.library import Catalog
from scalewright.launch.prepare.vision_setup import VisionRequest, prepare_vision_config, resolve_vision_run
from scalewright.launch.ranks.local import pick_port
from scalewright.observe.collect import CollectedRun
from scalewright.observe.vision_summary import summarize_vision
from scalewright.records import metric_names as names
from scalewright.records.study_report import Number
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.language import LanguageKind, saving_options
from scalewright.study.kinds.options import parse_options
from scalewright.study.kinds.training import BENCH_OPTIONS, TrainingOptions, measured_training, with_prediction
from scalewright.units import SECONDS, parse
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model
from scalewright.workload.vision_run import LargeBatchRecipe

MAX_SERIES = 2000
"""Largest number of batch times that are kept, evenly sampled."""


class VisionKind(LanguageKind):
    metrics = ("batch_time_s", "images_per_s_per_gpu", "images_per_s", "epoch_time_s", "memory_bytes")

    def execution(
        self, catalog: Catalog, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
    ) -> Execution:
        point = parse_options(BENCH_OPTIONS, options, where=where)
        budget_s = parse(point.budget, SECONDS)
        config = resolve_vision_run(catalog, _request(catalog, point))
        execution = Execution(kind="vision", config=config.document(), path=path, num_ranks=config.num_ranks)
        if not predicts or execution.is_finished:
            return execution
        pick_port(os.environ)  # a port that is in use is refused before a second is spent on measuring
        ready = prepare_vision_config(catalog, config, system=point.system_name, budget_s=budget_s)
        return with_prediction(execution, ready)

    def measured(self, path: Path) -> Outcome:
        run, outcome = measured_training(path)
        if outcome.problem:
            return outcome
        numbers = {**outcome.numbers, "batch_time_s": outcome.numbers["step_time_s"], **_epoch_numbers(run)}
        times = np.sort(run.series(names.STEP_TIME, slowest=True))
        kept = times[:: max(len(times) // MAX_SERIES, 1)]
        return replace(outcome, numbers=numbers, series={"batch_time_s": tuple(float(value) for value in kept)})


def _request(catalog: Catalog, point: TrainingOptions) -> VisionRequest:
    """Ranks and images come from the layout, or from options of their own."""
    layout = parse_layout(point.layout) if point.layout else None
    return VisionRequest(
        spec=resolve_model(catalog, point.model),
        ranks=point.ranks if layout is None else int(layout.dp),
        batch=point.batch if layout is None else int(layout.mbs),
        image_size=point.image_size,
        epochs=point.epochs,
        steps=point.steps,
        device=point.device,
        precision=point.precision,
        compile=point.compile,
        channels=point.channels,
        data=point.data,
        num_images=point.num_images,
        copy_to=point.copy_to,
        workers=point.workers,
        protocol=point.protocol,
        options={
            **saving_options(point),
            "passes_per_epoch": point.passes,
            "recipe": LargeBatchRecipe(label_smoothing=point.label_smoothing),
            "validates": point.validates,
        },
    )


def _epoch_numbers(run: CollectedRun) -> dict[str, Number]:
    """Times of the epochs that count by the run's protocol; if none does, of all epochs. The value is the median.

    The training time of an epoch is its time without validation, as EPICURE defines it.
    """
    summary = summarize_vision(run)
    every = () if summary is None else summary.epochs
    chosen = [epoch for epoch in every if epoch.counts] or every
    numbers = {}
    for name, times_s in (
        ("epoch_time_s", [epoch.epoch_s for epoch in chosen if epoch.epoch_s is not None]),
        ("training_time_s", [epoch.training_s for epoch in chosen if epoch.training_s is not None]),
    ):
        if times_s:
            numbers[name] = Number(value=float(np.median(times_s)), low=min(times_s), high=max(times_s))
    return numbers


KIND: Any = VisionKind()
