"""A point of the language benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog
from scalewright.here.place import HERE
from scalewright.launch.prepare.language_setup import Wanted, prepare
from scalewright.launch.prepare.outlook import Ready
from scalewright.observe.collect import collect
from scalewright.records import metric_names as names
from scalewright.records.run_directory import RunDirectory
from scalewright.study.execute import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.training import (
    Training,
    foretold,
    measured_training,
    predict_point,
    read,
    resolve,
    system_facts,
)
from scalewright.units import SECONDS, parse
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model


class LanguageKind:
    metrics: tuple[str, ...] = ("step_time_s", "tokens_per_s", "flop_per_s_per_gpu", "mfu_frac", "memory_bytes")

    def check(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> None:
        asked = read(told, where=where)
        parse_layout(asked.layout)
        if asked.system == HERE:
            resolve_model(catalog, asked.model)
        else:
            resolve(catalog, told, where=where)

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Any]:
        return system_facts(catalog, values)

    def predict(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> Outcome:
        return predict_point(catalog, told, where=where)

    def foretold(self, prediction: dict[str, Any]) -> Outcome:
        return foretold(prediction)

    def execution(self, catalog: Catalog, told: Mapping[str, Value], *, path: Path, where: str) -> Execution:
        ready = prepared(catalog, read(told, where=where), RunDirectory(path))
        return Execution(
            kind="language",
            config=ready.config.document(),
            path=path,
            num_ranks=ready.num_ranks,
            machine=None if ready.here is None else ready.here.as_document(ready.config.precision),
            prediction=None if ready.ahead is None else ready.ahead.prediction.document(),
            expected_s=None if ready.ahead is None else ready.ahead.duration_s,
        )

    def measured(self, path: Path) -> Outcome:
        return measured_training(path)[1]

    def samples(self, path: Path) -> tuple[float, ...]:
        return tuple(collect(RunDirectory(path)).series(names.STEP_TIME, slowest=True).tolist())


def prepared(catalog: Catalog, asked: Training, directory: RunDirectory) -> Ready[LanguageRun]:
    """The run that measures a point on this machine, with its prediction."""
    wanted = Wanted(
        spec=resolve_model(catalog, asked.model),
        ranks=None,
        layout=asked.layout,
        device=asked.device,
        precision=asked.precision,
        seq_len=asked.seq,
        scaling="given",
        compile=asked.compile,
        options={"steps": asked.steps, "protocol": asked.protocol, "data": asked.data},
    )
    system = None if asked.system == HERE else asked.system
    return prepare(catalog, wanted, directory, system=system, budget_s=parse(asked.budget, SECONDS))


KIND = LanguageKind()
