"""A point of the vision benchmark: `dp` ranks with `mbs` images each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.catalog.library import Catalog
from scalewright.launch.prepare.vision_setup import VisionWanted, prepare_vision
from scalewright.observe.collect import CollectedRun
from scalewright.observe.vision_summary import summarize_vision
from scalewright.records import metric_names as names
from scalewright.records.study_report import Number
from scalewright.study.execute import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.language import LanguageKind
from scalewright.study.kinds.training import measured_training, read
from scalewright.units import SECONDS, parse
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model

MAX_SERIES = 2000
"""Batches of a distribution that are kept, evenly taken."""


class VisionKind(LanguageKind):
    metrics = ("batch_time_s", "images_per_s_per_gpu", "images_per_s", "epoch_time_s", "memory_bytes")

    def execution(self, catalog: Catalog, told: Mapping[str, Value], *, path: Path, where: str) -> Execution:
        asked = read(told, where=where)
        layout = parse_layout(asked.layout)
        wanted = VisionWanted(
            spec=resolve_model(catalog, asked.model),
            ranks=int(layout.dp),
            batch=int(layout.mbs),
            image_size=asked.image_size,
            epochs=asked.epochs,
            steps=asked.steps,
            device=asked.device,
            precision=asked.precision,
            compile=asked.compile,
            data=asked.data,
            num_images=asked.num_images,
            copy_to=asked.copy_to,
            protocol=asked.protocol,
        )
        system = None if asked.system == "here" else asked.system
        ready = prepare_vision(catalog, wanted, system=system, budget_s=parse(asked.budget, SECONDS))
        return Execution(
            kind="vision",
            config=ready.config.document(),
            path=path,
            num_ranks=ready.num_ranks,
            machine=None if ready.here is None else ready.here.as_document(ready.config.precision),
            prediction=None if ready.ahead is None else ready.ahead.prediction.document(),
            expected_s=None if ready.ahead is None else ready.ahead.duration_s,
        )

    def measured(self, path: Path) -> Outcome:
        run, found = measured_training(path)
        if found.problem:
            return found
        numbers = {**found.numbers, "batch_time_s": found.numbers["step_time_s"], **_epoch_numbers(run)}
        times = np.sort(run.series(names.STEP_TIME, slowest=True))
        kept = times[:: max(len(times) // MAX_SERIES, 1)]
        return replace(found, numbers=numbers, series={"batch_time_s": tuple(float(value) for value in kept)})


def _epoch_numbers(run: CollectedRun) -> dict[str, Number]:
    """Times of the epoch that counts by the run's protocol; where none does, of the middle one of all.

    The training time of an epoch is the epoch without its validation, as EPICURE has it.
    """
    summary = summarize_vision(run)
    every = () if summary is None else summary.epochs
    chosen = [epoch for epoch in every if epoch.counts] or every
    found = {}
    for name, times_s in (
        ("epoch_time_s", [epoch.epoch_s for epoch in chosen if epoch.epoch_s is not None]),
        ("training_time_s", [epoch.training_s for epoch in chosen if epoch.training_s is not None]),
    ):
        if times_s:
            found[name] = Number(value=float(np.median(times_s)), low=min(times_s), high=max(times_s))
    return found


KIND: Any = VisionKind()
