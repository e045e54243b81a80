"""A point of the language benchmark."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError
from scalewright.here.place import HERE
from scalewright.launch.prepare.language_setup import (
    Chosen,
    LanguageRequest,
    chosen_by_plan,
    prepare_config,
    resolve_data,
    resolve_language_run,
    resolve_save_mode,
    resolve_start,
)
from scalewright.launch.prepare.outlook import Ready
from scalewright.launch.ranks.local import pick_port
from scalewright.observe.collect import collect
from scalewright.records import metric_names as names
from scalewright.records.run_directory import RunDirectory
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.options import parse_options
from scalewright.study.kinds.training import (
    BENCH_OPTIONS,
    TrainingOptions,
    measured_training,
    predict_point,
    read,
    resolve,
    stored_training_prediction,
    system_facts,
    with_prediction,
)
from scalewright.units import SECONDS, parse
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model


class LanguageKind:
    metrics: tuple[str, ...] = ("step_time_s", "tokens_per_s", "flop_per_s_per_gpu", "mfu_frac", "memory_bytes")
    runs_as_job = True

    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        point = read(options, where=where)
        parse_layout(point.layout)
        if point.system == HERE:
            resolve_model(catalog, point.model)
        else:
            resolve(catalog, options, where=where)

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Value]:
        return system_facts(catalog, values)

    def predict(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome:
        return predict_point(catalog, options, where=where)

    def stored_prediction(self, prediction: dict[str, Any]) -> Outcome:
        return stored_training_prediction(prediction)

    def execution(
        self, catalog: Catalog, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
    ) -> Execution:
        run = LanguagePointRun(catalog, parse_options(BENCH_OPTIONS, options, where=where), path)
        return run.predicted() if predicts and not run.execution.is_finished else run.execution

    def measured(self, path: Path) -> Outcome:
        return measured_training(path)[1]

    def samples(self, path: Path) -> tuple[float, ...]:
        return tuple(collect(RunDirectory(path)).series(names.STEP_TIME, slowest=True).tolist())


class LanguagePointRun:
    """The run of one point: its configuration is resolved once, and its prediction follows where it is needed."""

    def __init__(self, catalog: Catalog, options: TrainingOptions, path: Path) -> None:
        self._catalog, self._options, self._directory = catalog, options, RunDirectory(path)
        self._budget_s = parse(options.budget, SECONDS)
        self._chosen = _chosen(catalog, options)
        self._request = _request(options, self._chosen)
        self.config, self.num_ranks = resolve_language_run(self._request, self._directory)

    @property
    def execution(self) -> Execution:
        """Without a prediction."""
        return Execution(
            kind="language",
            config=self.config.document(),
            path=self._directory.path,
            num_ranks=self.num_ranks,
            plan_id=self._chosen.plan_id,
            plan=self._chosen.plan,
        )

    def ready(self) -> Ready[LanguageRun]:
        """The run with its prediction. One that takes too long or does not fit in memory is refused."""
        pick_port(os.environ)  # a port that is in use is refused before a second is spent on measuring
        return prepare_config(
            self._catalog, self._request, self.config, self.num_ranks, self._directory,
            system=self._options.system_name, budget_s=self._budget_s,
        )  # fmt: skip

    def predicted(self) -> Execution:
        ready = self.ready()
        detail = "" if self._request.layout else f", layout {ready.config.layout.brief}"
        return with_prediction(self.execution, ready, detail=detail)


def _chosen(catalog: Catalog, options: TrainingOptions) -> Chosen:
    """What is trained and how it is split: as the options say, or as a plan does."""
    if not options.plan:
        if not options.model:
            raise ConfigError("no model: give --model, or a stored plan with --plan")
        spec = resolve_model(catalog, options.model)
        return Chosen(spec=spec, layout=options.layout or None, precision=options.precision)
    given = {"--model": options.model, "--layout": options.layout, "--precision": options.precision != "auto"}
    twice = [name for name, is_given in given.items() if is_given]
    if twice:
        raise ConfigError(f"{twice[0]} and --plan both say it: leave out one")
    return chosen_by_plan(Path(options.plan))


def _request(options: TrainingOptions, chosen: Chosen) -> LanguageRequest:
    start_from = Path(options.start_from) if options.start_from else None
    return LanguageRequest(
        spec=chosen.spec,
        ranks=options.ranks,
        layout=chosen.layout,
        device=options.device,
        precision=chosen.precision,
        seq_len=options.seq,
        scaling=options.scaling,
        compile=options.compile,
        options={
            **saving_options(options),
            "steps": options.steps,
            "protocol": options.protocol,
            "start_from": resolve_start(start_from, steps=options.steps),
            "data": resolve_data(options.data, seq_len=options.seq),
        },
    )


class SharedOptions(TypedDict):
    """Fields that the configurations of language and vision runs share."""

    seed: int
    checkpoint_every: int | str
    checkpoint_async: bool
    checkpoint_keep: int
    profile_steps: int
    keep_trace: bool


def saving_options(options: TrainingOptions) -> SharedOptions:
    every = str(options.checkpoint_every)
    return {
        "seed": options.seed,
        "checkpoint_every": int(every) if every.isdigit() else every,
        "checkpoint_async": resolve_save_mode(options.checkpoint),
        "checkpoint_keep": options.keep,
        "profile_steps": options.profile_steps,
        "keep_trace": options.profile,
    }


KIND = LanguageKind()
