"""A point of the generation benchmark: our engine or a server answers requests, closed or at a rate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError
from scalewright.here.place import HERE, place_of
from scalewright.launch.prepare.generate_setup import (
    ReadyGeneration,
    device_of,
    loads_document,
    machine_document,
    precision_of,
    predict_loads,
    prepare_generate,
    request_plan,
    resolve_split,
    resolved_context,
    start_s,
)
from scalewright.launch.ranks.local import pick_port
from scalewright.planner.context import check_context
from scalewright.records.answers import read_answers
from scalewright.records.measurements import read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import Number
from scalewright.records.types import warnings_among
from scalewright.study.doubts import doubts_of_measurements
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.options import STRICT, parse_options
from scalewright.study.kinds.training import system_facts
from scalewright.workload.generate_run import EngineTarget, GenerateRun, SamplingSettings, ServerTarget
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.named import resolve_model
from scalewright.workload.request_plan import RequestPlan, planned_loads
from scalewright.workload.run_options import AUTO, DeviceKind

PREDICTED = {"tokens_per_s": "tokens_per_s_interval", "ttft_s": "ttft_interval_s", "itl_s": "itl_interval_s"}
"""Predicted figures, and where a document has their interval."""
MEASURED = {
    "tokens_per_s": "tokens_per_s",
    "tokens_per_s_each": "tokens_per_s_each",
    "ttft_s": "ttft_median_s",
    "ttft_p99_s": "ttft_p99_s",
    "itl_s": "itl_median_s",
    "itl_p99_s": "itl_p99_s",
    "utilisation_frac": "busy_frac",
    "memory_bytes_per_s": "decode_bytes_per_s",
    "cost_usd": "usd_per_million_tokens",
}
"""Metrics of a study, and the key of a row of measurements that each is."""


@checked(frozen=True, kw_only=True, config=STRICT)
class GenerateOptions:
    """Options of `bench generate`, and of a point of this kind."""

    model: str = ""
    """As in other benchmarks; empty: whatever the server serves."""
    url: str = ""
    """Address of a server with OpenAI's interface; empty: our engine answers."""
    prompt_lengths: str = "512"
    """512, uniform:64-512, lognormal:mean=512,cv=0.8 or pareto:mean=512,alpha=1.8,max=4096."""
    answer_lengths: str = "128"
    requests: str = ""
    """JSON-lines file of lengths or prompts, instead of made-up ones."""
    num: int = 0
    """Requests of a load; 0: 64, or all of the file."""
    answers: int = 1
    """To each prompt."""
    rate: str | float = ""
    """Requests a second, Poisson, several separated by commas; file: as the file says; empty: all at once."""
    concurrency: int = 0
    """Requests in flight; 0: no limit."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    layout: str = ""
    ranks: int | None = None
    precision: str = AUTO
    """Of the weights: fp32, bf16 or fp8; auto: bf16 on GPUs, fp32 on CPUs."""
    weights: str = ""
    """Folder of a checkpoint or of Hugging Face safetensors; empty: random weights by the seed."""
    context: int = 0
    cache: str = ""
    """Memory for keys and values of a rank, such as 8 GiB; empty: what the requests need, as far as there is room."""
    max_running: int = 0
    prefill_chunk: int = 0
    execution: str = AUTO
    server_model: str = ""
    api: str = AUTO
    api_key_env: str = "OPENAI_API_KEY"
    timeout: str = "120 s"
    device: str = AUTO
    system: str = HERE
    partition: str = ""
    this_system: str | None = None
    """Name of this machine as `--system` gives it."""
    budget: str = "10 min"

    @property
    def system_name(self) -> str | None:
        return self.this_system if self.system == HERE else self.system


_OPTIONS: TypeAdapter[GenerateOptions] = TypeAdapter(GenerateOptions)


class GenerateKind:
    metrics: tuple[str, ...] = ("tokens_per_s", "ttft_s", "ttft_p99_s", "itl_s", "itl_p99_s", "tokens_per_s_each")
    runs_as_job = False

    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        point = parse_options(_OPTIONS, options, where=where)
        spec, plan = _spec(catalog, point), _plan(point)
        resolved_context(planned_loads(plan), context=point.context)
        if point.url:
            _server(point)
        if spec is not None and point.system != HERE:
            place_of(catalog, point.system, partition=point.partition or None)

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Value]:
        return system_facts(catalog, values)

    def predict(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome:
        point = parse_options(_OPTIONS, options, where=where)
        spec = _spec(catalog, point)
        if spec is None:
            return Outcome(problem="no model: name the server's with model")
        tp, dp = resolve_split(point.ranks, point.layout, device=point.device, has_server=bool(point.url))
        place = place_of(catalog, point.system, partition=point.partition or None, num_ranks=tp * dp)
        plan, layout = _plan(point), Layout(tp=tp, dp=dp)
        outlook = predict_loads(catalog, plan, spec, layout, place, precision=point.precision)
        first = outlook.answers[0]
        outcome = self.stored_prediction(loads_document(plan, outlook))
        top = first.limits[0]
        return replace(
            outcome, limit=top.name.replace("_", " "), why=top.reason,
            problem="" if first.fits else "does not fit in memory",
        )  # fmt: skip

    def stored_prediction(self, prediction: dict[str, Any]) -> Outcome:
        numbers = {"num_gpus": Number(value=float(prediction["num_gpus"]))}
        for name, interval in PREDICTED.items():
            if prediction.get(name) is not None:
                low, high = prediction.get(interval) or (None, None)
                numbers[name] = Number(value=float(prediction[name]), low=low, high=high)
        return Outcome(numbers=numbers, notes=tuple(prediction.get("warnings", ())))

    def execution(
        self, catalog: Catalog, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
    ) -> Execution:
        point = parse_options(_OPTIONS, options, where=where)
        spec, plan = _spec(catalog, point), _plan(point)
        budget_s = units.parse(point.budget, units.SECONDS)
        config, layout = _config(point, spec, plan)
        execution = Execution(kind="generate", config=config.document(), path=path, num_ranks=config.num_ranks)
        if not predicts or execution.is_finished:
            return execution
        if config.num_ranks > 1:
            pick_port(os.environ)  # a port that is in use is refused before a second is spent on measuring
        precision = config.precision if isinstance(config.target, EngineTarget) else point.precision
        ready = prepare_generate(
            catalog, config, spec, layout, precision=precision, system=point.system_name, budget_s=budget_s
        )
        return _with_prediction(execution, ready)

    def measured(self, path: Path) -> Outcome:
        measurements = read_measurements(RunDirectory(path))
        if not measurements.rows:
            return Outcome(problem="no answer was measured")
        row = measurements.rows[0]
        numbers = {name: Number(value=float(row[key])) for name, key in MEASURED.items() if row.get(key) is not None}
        numbers["num_gpus"] = Number(value=float(measurements.summary.get("num_ranks", 1)))
        return Outcome(
            numbers=numbers, notes=tuple(measurements.notes),
            doubts=doubts_of_measurements(RunDirectory(path), measurements),
        )  # fmt: skip

    def samples(self, path: Path) -> tuple[float, ...]:
        """Mean time between tokens of every answer."""
        answers = read_answers(RunDirectory(path).all_rank_answers())
        return tuple(sum(a.gaps_s) / (a.num_tokens - 1) for a in answers if a.num_tokens > 1 and a.gaps_s)


def _spec(catalog: Catalog, point: GenerateOptions) -> ModelSpec | None:
    """The model that is named; that of a Hugging Face folder of weights where none is."""
    has_tensors = bool(point.weights) and not point.url and any(Path(point.weights).glob("*.safetensors"))
    name = point.model or (point.weights if has_tensors else "")
    return resolve_model(catalog, name) if name else None


def _plan(point: GenerateOptions) -> RequestPlan:
    rate = point.rate if isinstance(point.rate, str) else f"{point.rate:g}"
    return request_plan(
        prompt_lengths=point.prompt_lengths, answer_lengths=point.answer_lengths, file=point.requests, num=point.num,
        rate=rate, num_answers=point.answers, most_at_once=point.concurrency, seed=point.seed,
    )  # fmt: skip


def _server(point: GenerateOptions) -> ServerTarget:
    return ServerTarget(
        url=point.url, model=point.server_model, api=cast(Any, point.api), key_variable=point.api_key_env,
        timeout_s=units.parse(point.timeout, units.SECONDS),
    )  # fmt: skip


def _config(point: GenerateOptions, spec: ModelSpec | None, plan: RequestPlan) -> tuple[GenerateRun, Layout]:
    """The resolved run, and how its model is split for the prediction."""
    has_server = bool(point.url)
    tp, dp = resolve_split(point.ranks, point.layout, device=point.device, has_server=has_server)
    device = device_of(point.device, num_ranks=tp * dp, has_server=has_server)
    context = resolved_context(planned_loads(plan), context=point.context)
    target: EngineTarget | ServerTarget
    if has_server:
        target = _server(point)
    else:
        if plan.has_texts and not point.weights:
            raise ConfigError("prompts of text need a tokenizer: give --weights of a folder that has one, or token ids")
        if spec is not None:
            check_context(spec, context)
        target = EngineTarget(
            tp=tp, dp=dp, precision=cast(Any, precision_of(point.precision, device)), weights=_folder(point.weights),
            max_context=context, max_running=point.max_running, prefill_chunk=point.prefill_chunk,
            cache_size_bytes=round(units.parse(point.cache, units.BYTES)) if point.cache else 0,
            execution=cast(Any, point.execution),
        )  # fmt: skip
    run = GenerateRun(
        model_id="" if spec is None else spec.id,
        shape=None if spec is None else spec.transformer,
        target=target,
        requests=plan,
        sampling=SamplingSettings(temperature=point.temperature, top_p_frac=point.top_p, top_k=point.top_k),
        device=cast(DeviceKind, device),
    )
    return run, Layout(tp=tp, dp=dp)


def _folder(path: str) -> str:
    if path and not Path(path).is_dir():
        raise ConfigError(f"--weights {path!r}: no such folder: name a run, a checkpoint, or a Hugging Face folder")
    return str(Path(path).resolve()) if path else ""


def _with_prediction(execution: Execution, ready: ReadyGeneration) -> Execution:
    outlook = ready.outlook
    if outlook is None:
        return replace(execution, forecast=ready.note)
    first = outlook.answers[0]
    took = units.format(outlook.duration_s, units.SECONDS)
    forecast = f"predicted {took}: {first.rate_per_s:,.0f} tokens/s ({outlook.here.basis})"
    return replace(
        execution,
        machine=machine_document(outlook),
        prediction=loads_document(ready.config.requests, outlook),
        expected_s=outlook.duration_s + start_s(outlook.here),
        forecast="\n".join([forecast, *warnings_among(first.warnings)]),
    )


KIND = GenerateKind()
