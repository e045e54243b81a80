"""A point of the vision benchmark: `dp` ranks with `mbs` images each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.catalog.library import Catalog
from scalewright.launch.vision import VisionWanted, prepare_vision
from scalewright.records import metric_names as names
from scalewright.records.study_report import Number
from scalewright.study.distribution import elbow
from scalewright.study.execute import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.language import LanguageKind
from scalewright.study.kinds.training import measured_training, read
from scalewright.units import SECONDS, format, parse
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
            stage=asked.stage,
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
            prediction=None if ready.ahead is None else ready.ahead.prediction.as_document(),
            expected_s=None if ready.ahead is None else ready.ahead.duration_s,
        )

    def measured(self, path: Path) -> Outcome:
        run, found = measured_training(path)
        if found.problem:
            return found
        numbers = dict(found.numbers)
        numbers["batch_time_s"] = numbers["step_time_s"]
        epochs = [value for ranks in run.steps.get(names.EPOCH_TIME, {}).values() for value in [max(ranks.values())]]
        if epochs:
            numbers["epoch_time_s"] = Number(value=float(np.median(epochs)), low=min(epochs), high=max(epochs))
            numbers["training_time_s"] = Number(value=float(sum(epochs)))
        times = np.sort(run.series(names.STEP_TIME, slowest=True))
        notes = found.notes
        if len(times) > 2:
            at = elbow(times)
            share = float(np.mean(times <= times[at]))
            notes = (*notes, f"batches: {share:.0%} take up to {format(float(times[at]), SECONDS)}, then a tail begins")
        kept = times[:: max(len(times) // MAX_SERIES, 1)]
        return Outcome(
            numbers=numbers, limit=found.limit, why=found.why, parts=found.parts, notes=notes,
            series={"batch_time_s": tuple(float(value) for value in kept)},
        )  # fmt: skip


KIND: Any = VisionKind()
