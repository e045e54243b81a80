"""A stage of reasoning-model training: SFT, GRPO, generation, distillation or evaluation, run and measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.errors import ConfigError
from scalewright.here.devices import Here
from scalewright.here.place import HERE
from scalewright.launch.prepare.reason_outlook import stage_machine, stage_outlook
from scalewright.launch.prepare.reason_setup import ReasonRequest, resolve_stage
from scalewright.launch.ranks.local import pick_port
from scalewright.planner.stages.reason_stage import StagePrediction
from scalewright.records.reasoning import StageName, StageRecord, read_curve, read_stage
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import Number
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.options import STRICT, parse_options
from scalewright.study.kinds.training import system_facts
from scalewright.workload.generate_run import SamplingSettings
from scalewright.workload.language_run import OptimizerSettings
from scalewright.workload.named import resolve_model
from scalewright.workload.reasoning.policy_loss import policy_loss
from scalewright.workload.reasoning.role_settings import RoleSettings, role_settings
from scalewright.workload.reasoning.stage_run import (
    USUAL_PROBLEMS,
    DistillSettings,
    EvaluationSettings,
    GenerateSettings,
    GrpoSettings,
    NoSettings,
    ReasonRun,
    SftSettings,
    StageSettings,
)
from scalewright.workload.run_options import AUTO

TASK_OPTIONS = tuple(f.name for f in fields(TaskSettings) if f.name not in ("kind", "files_digest"))
LOSS_BOUNDS = ("clip_low", "clip_high", "band_low", "band_high", "tis_cap", "kl_coef", "overlong_tokens")
DEFAULT_STEPS: dict[StageName, int] = {"sft": 300, "grpo": 100, "distill": 300, "generate": 0, "evaluate": 0}
DEFAULT_RATES: dict[StageName, float] = {"sft": 2e-3, "grpo": 2e-4, "distill": 2e-3, "generate": 1e-3, "evaluate": 1e-3}
"""Learning rates that suit models of a million parameters; larger ones need smaller ones."""
WARMUP_STEPS = 20


@checked(frozen=True, kw_only=True, config=STRICT)
class ReasonOptions:
    """Options of `reason`, and of a point of this kind."""

    stage: StageName
    model: str = ""
    """As in benchmarks; empty: that of `start_from`, or a model of 0.36M parameters."""

    task: str = ""
    """countdown or files; empty: that of `start_from`, or countdown."""
    numbers: int | None = None
    largest: int | None = None
    operators: str | None = None
    values: int | None = None
    attempts: int | None = None
    prompts: str | None = None
    test_prompts: str | None = None
    reward: str | None = None
    tokenizer: str | None = None
    traces: str | None = None
    max_prompt: int | None = None
    max_response: int | None = None
    reward_timeout_s: float | None = None
    reward_batch: int | None = None
    sandbox: str | None = None
    reward_memory_bytes: int | None = None
    broken_reward: float | None = None
    correct_from: float | None = None
    test_frac: float | None = None

    start_from: str = ""
    """Weights: a stage, a checkpoint or a Hugging Face folder."""
    data_from: str = ""
    """Answers: the run directory of a generation stage."""
    teacher: str = ""
    mode: str = "data"
    """Of a distillation: data or on-policy."""

    steps: int = 0
    """0: as usual for the stage."""
    seed: int = 0
    batch: int = 0
    """Sequences of an update; 0: as usual for the stage."""
    learning_rate: float = 0.0
    """0: as usual for the stage, at a million parameters."""
    warmup_steps: int = WARMUP_STEPS
    decays: bool | None = None
    """The learning rate falls to zero over the steps; None: of supervised stages, not of GRPO."""
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    beta_2: float = 0.95
    lora: int = 0
    """Rank of the adapters; 0: all weights are trained."""
    packs: bool | None = None
    """None: packed on GPUs, padded on CPUs."""
    row_tokens: int = 0

    num_traces: int = 4096
    num_problems: int = 2048
    """Of a generation."""
    num_prompts: int = 0
    """Of a step of GRPO (32) or of on-policy distillation (128)."""
    answers: int = 0
    """To each prompt: 8 of GRPO, 4 of a generation."""
    epochs: int = 1
    token_budget: str | int = 0
    """Tokens that a step of GRPO writes, such as 4k; 0: a step waits for all its answers."""
    retention: int = 2
    groups: str = "whole"
    old_tokens: str = "train"
    stale_keys: bool = False
    release: str = "auto"
    shard_problems: int = 256
    keeps: str = "correct"
    most_per_problem: int = 0

    loss: str = "grpo"
    correction: str = "icepop"
    clip_low: float | None = None
    clip_high: float | None = None
    band_low: float | None = None
    band_high: float | None = None
    tis_cap: float | None = None
    kl_coef: float | None = None
    overlong_tokens: int | None = None

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    engine_precision: str = AUTO
    engine_tp: int | str = 1
    """Ranks of an engine; with `engines`, one number for all of them or one for each: 2,1."""
    max_running: int = 256
    engines: int = 0
    """Of GRPO: engines beside the trainer; 0: the trainer's ranks write the answers."""
    staleness: int = 0
    """Versions that a trained answer may be behind the trainer."""
    sync: str = AUTO
    """How engines get new weights: auto, broadcast, peers or file."""
    progress_every: int = 16
    """Decode steps between two reports of an engine."""
    precision: str = AUTO
    """Of the trainer: bf16 on GPUs, fp32 on CPUs."""

    eval_problems: int | None = None
    """Held-out problems; None: as many as usual, or all if there are fewer."""
    eval_answers: int = 0
    eval_every: int = 0
    checkpoint_every: str | int = AUTO
    ranks: int | None = None
    layout: str = ""
    device: str = AUTO
    system: str = HERE
    partition: str = ""
    this_system: str | None = None
    budget: str = ""

    @property
    def system_name(self) -> str | None:
        return self.this_system if self.system == HERE else self.system


PREDICTED = ("training_time_s", "num_gpus", "tokens_per_s", "energy_j", "cost_usd", "memory_bytes")
INTERVALS = {"training_time_s": "training_time_interval_s", "tokens_per_s": "tokens_per_s_interval"}
"""Predicted figures, and where a document has their interval."""
_OPTIONS: TypeAdapter[ReasonOptions] = TypeAdapter(ReasonOptions)


class ReasonKind:
    metrics: tuple[str, ...] = ("accuracy_frac", "training_time_s", "tokens_per_s", "utilisation_frac", "energy_j")
    runs_as_job = True

    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        """Folders of earlier stages are not looked at: in a pipeline they come to be later."""
        point = parse_options(_OPTIONS, options, where=where)
        if point.model:
            resolve_model(catalog, point.model)
        _request(point)
        if not point.start_from and not point.data_from:
            _task(point)

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Value]:
        return system_facts(catalog, values)

    def predict(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome:
        """Of a stage that starts from nothing on a named system. Others are predicted when they are run: what they
        start from is known then."""
        point = parse_options(_OPTIONS, options, where=where)
        if point.system == HERE or point.start_from or point.data_from or point.teacher:
            return Outcome()
        config = resolve_stage(catalog, _request(point), env=dict(os.environ))
        outlook = stage_outlook(catalog, config, system=point.system)
        if outlook.prediction is None:
            return Outcome(problem=outlook.note)
        return self.stored_prediction(outlook.prediction.document())

    def stored_prediction(self, prediction: dict[str, Any]) -> Outcome:
        numbers = {}
        for key in PREDICTED:
            if prediction.get(key) is not None:
                low, high = prediction.get(INTERVALS.get(key, ""), (None, None))
                numbers[key] = Number(value=float(prediction[key]), low=low, high=high)
        parts = shares_of(prediction.get("seconds_by_part", {}))
        return Outcome(
            numbers=numbers, parts=parts, limit=next(iter(parts), ""), notes=tuple(prediction.get("warnings", ()))
        )

    def execution(
        self, catalog: Catalog, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
    ) -> Execution:
        point = parse_options(_OPTIONS, options, where=where)
        config = resolve_stage(catalog, _request(point), env=dict(os.environ))
        _check_given(point)
        execution = Execution(
            kind="reason", config=config.document(), path=path, num_ranks=config.num_ranks,
            engine_ranks=config.roles.engine_ranks,
        )  # fmt: skip
        if not predicts or execution.is_finished:
            return execution
        if config.num_ranks > 1:
            pick_port(os.environ)  # a port that is in use is refused before a second is spent
        return _predicted(catalog, execution, config, point)

    def measured(self, path: Path) -> Outcome:
        record = read_stage(RunDirectory(path))
        return Outcome(
            numbers=measured_numbers(record), words=measured_words(record), parts=time_shares(record),
            limit=max(time_shares(record), key=lambda part: time_shares(record)[part], default=""),
            notes=tuple(record.notes),
        )  # fmt: skip

    def samples(self, path: Path) -> tuple[float, ...]:
        """Times of the steps."""
        return tuple(sum(point.seconds_by_part.values()) for point in read_curve(RunDirectory(path)))


def _predicted(catalog: Catalog, execution: Execution, config: ReasonRun, point: ReasonOptions) -> Execution:
    """The execution with the prediction of its stage, and one sentence about it."""
    outlook = stage_outlook(catalog, config, system=point.system_name)
    prediction, here = outlook.prediction, outlook.here
    return replace(
        execution,
        prediction=None if prediction is None else prediction.document(),
        machine=None
        if here is None
        else stage_machine(
            catalog, here, precision=config.precision, num_ranks=config.num_ranks, system=point.system_name
        ),
        forecast=outlook.forecast,
        expected_s=None if prediction is None or here is None else _least_s(prediction, here),
    )


def _least_s(prediction: StagePrediction, here: Here) -> float | None:
    """What the stage takes at least: it is not started in less time. A probe alone is too rough to refuse by."""
    return prediction.whole.low_s + here.start_s if prediction.machine.confidence == "calibrated" else None


def measured_numbers(record: StageRecord) -> dict[str, Number]:
    """The stage's figures under the names that studies use."""
    rate = record.num_tokens / record.wall_s if record.wall_s else None
    plain = {
        "training_time_s": record.wall_s, "num_gpus": float(record.num_ranks), "tokens_per_s": rate,
        "utilisation_frac": record.utilisation_frac, "energy_j": record.energy_j, "cost_usd": record.cost_usd,
        "process_memory_bytes": record.host_bytes, "memory_bytes": record.device_bytes,
    }  # fmt: skip
    numbers = {name: Number(value=float(value)) for name, value in plain.items() if value is not None}
    if record.accuracy is not None:
        greedy = record.accuracy.greedy
        numbers["accuracy_frac"] = Number(value=greedy.value_frac, low=greedy.low_frac, high=greedy.high_frac)
    return numbers


def measured_words(record: StageRecord) -> dict[str, str]:
    return {"stage": record.stage, "model": record.model, "layout": record.layout, "device": record.device}


def time_shares(record: StageRecord) -> dict[str, float]:
    """Shares of the stage's time by part, the largest first."""
    return shares_of(record.seconds_by_part)


def shares_of(seconds_by_part: Mapping[str, float]) -> dict[str, float]:
    total = sum(seconds_by_part.values())
    shares = {part.replace("_", " "): s / total for part, s in seconds_by_part.items() if total and s}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _task(point: ReasonOptions) -> TaskSettings:
    given = _given_task(point)
    return TaskSettings(**given) if given else TaskSettings()


def _given_task(point: ReasonOptions) -> dict[str, Any]:
    given = {name: getattr(point, name) for name in TASK_OPTIONS if getattr(point, name) is not None}
    return given | ({"kind": point.task} if point.task else {})


def _settings(point: ReasonOptions) -> StageSettings:
    packs = point.packs if point.packs is not None else point.device != "cpu" and _has_gpu(point)
    if point.stage == "sft":
        return SftSettings(num_traces=point.num_traces, packs=packs)
    if point.stage == "grpo":
        bounds = {name: getattr(point, name) for name in LOSS_BOUNDS if getattr(point, name) is not None}
        return GrpoSettings(
            num_prompts=point.num_prompts or 32, num_answers=point.answers or 8, num_epochs=point.epochs,
            loss=policy_loss(point.loss, correction=point.correction, **bounds), roles=_roles(point)[0],
            token_budget=_token_budget(point.token_budget), retention=point.retention,
            groups=point.groups, old_tokens=point.old_tokens, stale_keys=point.stale_keys,  # type: ignore[arg-type]
            release=point.release,  # type: ignore[arg-type]
        )  # fmt: skip
    if point.stage == "generate":
        return GenerateSettings(
            num_problems=point.num_problems, num_answers=point.answers or 4, shard_problems=point.shard_problems,
            keeps=point.keeps, most_per_problem=point.most_per_problem,  # type: ignore[arg-type]
        )  # fmt: skip
    if point.stage == "distill":
        return _distillation(point, packs=packs)
    return NoSettings()


def _token_budget(text: str | int) -> int:
    num_tokens = units.parse(str(text), units.COUNT)
    if not num_tokens.is_integer():
        raise ConfigError(f"the token budget is {text}: give a whole number of tokens, such as 4096 or 4k")
    return int(num_tokens)


def _roles(point: ReasonOptions) -> tuple[RoleSettings, int]:
    """Engines beside the trainer, and the ranks that share the trainer's own engine."""
    if point.stage != "grpo" and point.engines:
        raise ConfigError(f"--engines {point.engines}: only grpo has engines beside its trainer; leave it out")
    roles, engine_tp = role_settings(
        engines=point.engines, engine_tp=point.engine_tp, staleness=point.staleness, sync=point.sync
    )
    return replace(roles, progress_every=point.progress_every), engine_tp


def _distillation(point: ReasonOptions, *, packs: bool) -> DistillSettings:
    """The teacher's shape is read from its folder when the stage is resolved."""
    return DistillSettings(
        mode=point.mode, teacher=point.teacher, num_prompts=point.num_prompts or 128,  # type: ignore[arg-type]
        num_traces=point.num_traces, packs=packs,
    )  # fmt: skip


def _check_given(point: ReasonOptions) -> None:
    """Refuse to sample or score random weights, and a student without a teacher: nobody wants that."""
    if point.stage in ("generate", "evaluate") and not point.start_from:
        work = "sample from" if point.stage == "generate" else "score"
        raise ConfigError(
            f"reason {point.stage} has no weights to {work}: give --start-from, the folder of a stage, of a checkpoint "
            "or of Hugging Face weights"
        )
    if point.stage == "distill" and point.mode == "data" and not point.data_from:
        raise ConfigError(
            "reason distill has no answers of a teacher: give --data-from, the run directory of reason generate, or "
            "--mode on-policy --teacher DIR; without a teacher, reason sft trains on traces of the task"
        )


def _has_gpu(point: ReasonOptions) -> bool:
    from scalewright.here.devices import visible_gpus

    return bool(visible_gpus()) if point.device == AUTO else point.device == "cuda"


def _steps(point: ReasonOptions, settings: StageSettings) -> int:
    if isinstance(settings, GenerateSettings):
        return settings.num_shards
    return point.steps or DEFAULT_STEPS[point.stage]


def _request(point: ReasonOptions) -> ReasonRequest:
    settings, every = _settings(point), str(point.checkpoint_every)
    steps = _steps(point, settings)
    decays = point.stage != "grpo" if point.decays is None else point.decays
    return ReasonRequest(
        stage=point.stage,
        settings=settings,
        model=point.model,
        task=_given_task(point),
        ranks=point.ranks,
        layout=point.layout,
        batch=point.batch,
        device=point.device,
        precision=point.precision,
        engine_precision=point.engine_precision,
        start_from=point.start_from,
        data_from=point.data_from,
        evaluates_usual=point.eval_problems is None,
        options={
            "steps": steps,
            "seed": point.seed,
            "row_tokens": point.row_tokens,
            "lora_rank": point.lora,
            "optimizer": OptimizerSettings(
                learning_rate=point.learning_rate or DEFAULT_RATES[point.stage], warmup_steps=point.warmup_steps,
                decay_steps=max(steps, 0) if decays else 0, weight_decay=point.weight_decay, clip_norm=point.clip_norm,
                beta_2=point.beta_2,
            ),
            "evaluation": EvaluationSettings(
                num_problems=USUAL_PROBLEMS if point.eval_problems is None else point.eval_problems,
                num_answers=point.eval_answers, every=point.eval_every,
            ),
            "checkpoint_every": int(every) if every.isdigit() else every,
            "engine": {
                "tp": _roles(point)[1], "max_running": point.max_running,
                "sampling": SamplingSettings(
                    temperature=point.temperature, top_p_frac=point.top_p, top_k=point.top_k
                ),
            },
        },
    )  # fmt: skip


KIND = ReasonKind()
