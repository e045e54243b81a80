"""A point that another training program runs: torchtitan, DeepSpeed, Hugging Face's Trainer, TRL, Megatron-Core."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.costs.machine import Machine
from scalewright.engines.environment import check_installed, engine_python
from scalewright.engines.info import EngineInfo, find_engine
from scalewright.engines.nearest import rendered
from scalewright.engines.prepare import bench_request, settings_of
from scalewright.engines.types import EngineJob, EngineRequest
from scalewright.errors import ConfigError, EnvironmentFailedError, NotExpressedError
from scalewright.here.devices import device_here
from scalewright.here.place import HERE, place_of
from scalewright.launch.prepare.language_setup import machine_of, resolve_ranks
from scalewright.launch.prepare.outlook import Outlook, RunTooLargeError
from scalewright.observe.breakdown.gaps import slow_down, traced_terms_s
from scalewright.observe.collect import CollectedRun, collect
from scalewright.observe.compare import SLOWED
from scalewright.observe.readers.reading import read_evidence
from scalewright.planner.answer import answer
from scalewright.planner.engine_stack import engine_stack
from scalewright.planner.question import ask
from scalewright.records import metric_names as names
from scalewright.records.documents import parse_json, read_text
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import EnvName, warnings_among
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.language import KIND as OWN_KIND
from scalewright.study.kinds.options import STRICT, parse_options
from scalewright.study.kinds.training import (
    measured_training,
    predict_point,
    stored_training_prediction,
    system_facts,
)
from scalewright.workload.engine_run import EngineRun
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model
from scalewright.workload.run_options import AUTO

OWN = "scalewright"
"""Our own trainer, beside the others."""
SHARED = (
    "model", "layout", "system", "precision", "seq", "steps", "device", "data", "seed", "this_system", "budget",
    "profile", "profile_steps",
)  # fmt: skip
"""Options that our own trainer has as well."""
INSTEAD = "{why}; our own trainer runs instead, as the study says"
TRACED = "the profiler made steps {longer:.0%} longer: terms are scaled to the time of an ordinary step"
ENGINE_START_S = 30.0
"""Time that an engine takes before its first step, as seen on two cores; its import is most of it."""


@checked(frozen=True, kw_only=True, config=STRICT)
class EngineBenchOptions:
    """Options of `bench engine`, and of a point of this kind."""

    engine: str
    model: str
    layout: str
    system: str = HERE
    partition: str = ""
    precision: str = AUTO
    stack: str = AUTO
    """auto: the stack of the engine."""
    seq: int = 0
    steps: int = 20
    device: str = AUTO
    task: str = ""
    """pretrain, sft or grpo; empty: the engine's first."""
    data: str = "synthetic"
    load: str = ""
    tokenizer: str = ""
    engine_dir: str = ""
    """Checkout of an engine that is no package, such as Megatron-LM."""
    seed: int = 0
    python: str = ""
    """Interpreter that has the engine; empty: $SCALEWRIGHT_ENGINE_PYTHON, or this one."""
    set: str = ""
    """Settings of the engine's own, `key=value` separated by blanks."""
    extra: str = ""
    """More words for the engine's command line."""
    profile: bool = False
    """Trace the last steps with PyTorch's profiler, which tells where a step goes."""
    profile_steps: int = 2
    otherwise: str = ""
    """`scalewright`: our own trainer runs where the engine is not installed; empty: the point fails."""
    force: bool = False
    """Go on with a release that the tests do not cover."""
    this_system: str | None = None
    budget: str = "10 min"

    @property
    def system_name(self) -> str | None:
        return self.this_system if self.system == HERE else self.system


_OPTIONS: TypeAdapter[EngineBenchOptions] = TypeAdapter(EngineBenchOptions)


class EngineKind:
    metrics: tuple[str, ...] = ("step_time_s", "tokens_per_s", "flop_per_s_per_gpu", "mfu_frac", "memory_bytes")
    runs_as_job = False

    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        point = parse_options(_OPTIONS, options, where=where)
        if point.engine != OWN:
            find_engine(point.engine)
        if point.otherwise not in ("", OWN):
            raise ConfigError(f"{where}: otherwise is {point.otherwise!r}: use {OWN!r}, or leave it out")
        parse_layout(point.layout)
        resolve_model(catalog, point.model)

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Value]:
        return system_facts(catalog, values)

    def predict(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome:
        point = parse_options(_OPTIONS, options, where=where)
        shared = ("model", "layout", "system", "partition", "precision", "seq")
        chosen: dict[str, Value] = {name: getattr(point, name) for name in shared}
        if point.engine != OWN:
            elsewhere = "cpu" if point.device == "cpu" else "cuda"  # systems of the catalogue have accelerators
            device = _device(point) if point.system == HERE else elsewhere
            place = place_of(catalog, point.system, partition=point.partition or None)
            chosen["stack"] = _stack(catalog, point, find_engine(point.engine), device, place.machine)
        return predict_point(catalog, chosen, where=where)

    def stored_prediction(self, prediction: dict[str, Any]) -> Outcome:
        return stored_training_prediction(prediction)

    def execution(
        self, catalog: Catalog, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
    ) -> Execution:
        point = parse_options(_OPTIONS, options, where=where)
        own = partial(_own_execution, catalog, point, path=path, where=where, predicts=predicts)
        if point.engine == OWN or (point.otherwise == OWN and _is_own(path)):
            return own()
        try:
            return self._of_engine(catalog, point, path, predicts=predicts)
        except EnvironmentFailedError as error:
            if point.otherwise != OWN:
                raise
            return replace(own(), note=INSTEAD.format(why=error))

    def _of_engine(self, catalog: Catalog, point: EngineBenchOptions, path: Path, *, predicts: bool) -> Execution:
        info, python = find_engine(point.engine), engine_python(point.python)
        request = _request(catalog, point, info, path, python)
        run = replace(_run(point, info, request), version=_stored_version(path, info))
        execution = Execution(kind="engine", config=run.document(), path=path, num_ranks=run.num_ranks)
        if execution.is_finished:
            return execution
        installed = check_installed(info, python, force=point.force)
        job = rendered(info.id, request)
        _check_whole(job)
        run = replace(run, version=installed[info.installed_as(installed)])
        execution = replace(execution, config=run.document(), engine_job=job, engine_run=run, engine_releases=installed)
        return _predicted(catalog, point, info, request, run, execution) if predicts else execution

    def measured(self, path: Path) -> Outcome:
        run, outcome = measured_training(path)
        outcome = replace(outcome, words=outcome.words | _program(path))
        return with_traced_terms(run, outcome)

    def samples(self, path: Path) -> tuple[float, ...]:
        return tuple(collect(RunDirectory(path)).series(names.STEP_TIME, slowest=True).tolist())


def with_traced_terms(run: CollectedRun, outcome: Outcome) -> Outcome:
    """The outcome with the terms of the run's traces as its parts, which tell kinds of computing apart."""
    step = outcome.numbers.get("step_time_s")
    if step is None or not run.directory.traces.is_dir():
        return outcome
    times = read_evidence([run.directory.traces]).rank_times
    terms = traced_terms_s(times, step_s=step.value)
    if not terms:
        return outcome
    parts = dict(sorted(((name, seconds / step.value) for name, seconds in terms.items()), key=lambda one: -one[1]))
    longer = slow_down(times, step_s=step.value)
    notes = (TRACED.format(longer=longer - 1.0),) if longer > SLOWED else ()
    return replace(outcome, parts=parts, limit=next(iter(parts)), notes=(*outcome.notes, *notes))


def _stack(
    catalog: Catalog, point: EngineBenchOptions, info: EngineInfo, device: str, machine: Machine | None = None
) -> str:
    """The stack of the engine with these settings; by the engine's own name where it has factors of its own."""
    if point.stack != AUTO:
        return point.stack
    stack = info.stack_with(settings_of(point.set), device=device)
    return engine_stack(catalog, machine, engine=info.id, stack=stack).id


def _device(point: EngineBenchOptions) -> str:
    return device_here(point.device, num_ranks=int(parse_layout(point.layout).num_gpus))


def _request(catalog: Catalog, point: EngineBenchOptions, info: EngineInfo, path: Path, python: str) -> EngineRequest:
    layout, _ = resolve_ranks(None, point.layout, device=point.device)
    task = point.task or info.tasks[0]
    if task not in info.tasks:
        raise ConfigError(f"{info.title} does not do {task!r}: choose {', '.join(info.tasks)}")
    device = _device(point)
    precision = ("bf16" if device == "cuda" else "fp32") if point.precision == AUTO else point.precision
    return bench_request(
        catalog, model=point.model, layout=layout, precision=precision, seq_len=point.seq, task=task,
        device=cast(Any, device), num_steps=point.steps, run_dir=path.absolute(), data=point.data, load=point.load,
        tokenizer=point.tokenizer, engine_dir=point.engine_dir or os.environ.get(EnvName.ENGINE_DIR, ""),
        engine_python=python, seed=point.seed,
        settings=settings_of(point.set), extra_args=tuple(shlex.split(point.extra)),
        profile_steps=point.profile_steps if point.profile else 0,
    )  # fmt: skip


def _run(point: EngineBenchOptions, info: EngineInfo, request: EngineRequest) -> EngineRun:
    return EngineRun(
        engine=info.id, model_id=request.spec.id, shape=request.shape, layout=request.layout,
        precision=request.recipe.name, task=request.task, steps=point.steps, device=request.device, data=request.data,
        load=request.load, seed=request.seed, settings=dict(request.settings), extra_args=request.extra_args,
        profile_steps=request.profile_steps,
    )  # fmt: skip


def _own_execution(
    catalog: Catalog, point: EngineBenchOptions, *, path: Path, where: str, predicts: bool
) -> Execution:  # fmt: skip
    """The run of our own trainer for the same point."""
    shared: dict[str, Value] = {name: getattr(point, name) for name in SHARED}
    own_options = {name: value for name, value in shared.items() if value is not None}
    return OWN_KIND.execution(catalog, own_options, path=path, where=where, predicts=predicts)


def _stored(path: Path) -> dict[str, Any]:
    """Configuration of a run that was begun; empty without one."""
    config = RunDirectory(path).config
    body = parse_json(read_text(config), where=str(config)) if config.exists() else {}
    return body if isinstance(body, dict) else {}


def _is_own(path: Path) -> bool:
    """Whether our own trainer began this run."""
    stored = _stored(path)
    return bool(stored) and "engine" not in stored


def _stored_version(path: Path, info: EngineInfo) -> str:
    """Release of the engine that began this run, so that a finished one is known again."""
    stored = _stored(path)
    return str(stored.get("version", "")) if stored.get("engine") == info.id else ""


def _program(path: Path) -> dict[str, str]:
    """The program that was measured, with its release."""
    stored = _stored(path)
    return {"program": f"{stored.get('engine', OWN)} {stored.get('version', '')}".strip()}


def _check_whole(job: EngineJob) -> None:
    if job.placeholders:
        first = job.placeholders[0]
        if first.name == "engine-dir":
            raise EnvironmentFailedError(
                f"{job.engine} needs {first.what}: give it with --engine-dir, or in ${EnvName.ENGINE_DIR}"
            )
        raise ConfigError(f"{job.engine} needs {first.what}: give it with --{first.name}")


def _predicted(
    catalog: Catalog, point: EngineBenchOptions, info: EngineInfo, request: EngineRequest, run: EngineRun,
    execution: Execution,
) -> Execution:  # fmt: skip
    """The execution with the prediction of the engine's stack on this machine."""
    here = machine_of(catalog, point.system_name, cast(Any, run), run.num_ranks)
    if here is None or request.task == "grpo":
        why = "name this machine with --system" if here is None else "a GRPO step of an engine is not predicted here"
        return replace(execution, forecast=f"no prediction: {why}")
    try:
        prediction = answer(ask(
            catalog, model=request.spec, system=here.machine, layout=request.layout, precision=run.precision,
            stack=_stack(catalog, point, info, run.device, here.machine),
        ))  # fmt: skip
    except NotExpressedError as error:
        return replace(execution, forecast=f"no prediction: {error}")
    outlook = Outlook(prediction=prediction, start_s=ENGINE_START_S, num_steps=run.steps)
    budget_s = units.parse(point.budget, units.SECONDS)
    duration, step = (units.format(s, units.SECONDS) for s in (outlook.duration_s, outlook.step_s))
    if not prediction.fits or outlook.duration_s > budget_s:
        why = (
            f"would take {duration}, over the budget of {point.budget}" if prediction.fits else "does not fit in memory"
        )
        raise RunTooLargeError(
            f"{run.model_id} with {info.title} {why}: use fewer --steps, a smaller model or --budget"
        )
    forecast = f"predicted {duration}: {run.steps} steps of {step} (stack {prediction.question.stack.id}, {here.basis})"
    return replace(
        execution, machine=here.as_document(run.precision), prediction=prediction.document(),
        expected_s=outlook.duration_s, forecast="\n".join([forecast, *warnings_among(prediction.warnings)]),
    )  # fmt: skip


KIND = EngineKind()
