"""Prepare a stage of reasoning-model training: options as people give them become one resolved run. Nothing is started.

What a stage leaves open it takes from the stage that it starts from: model and task are given once, at the start of a
pipeline.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from scalewright.catalog.library import Catalog
from scalewright.catalog.types import TransformerShape
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.data.reasoning.task import Task, open_task
from scalewright.errors import ConfigError
from scalewright.here.devices import device_here, num_cores, visible_gpus
from scalewright.launch.prepare.language_setup import default_ranks
from scalewright.launch.ranks.allocation import is_inside, num_nodes
from scalewright.launch.roles.division import check_engines_fit
from scalewright.records.documents import read_document
from scalewright.records.reasoning import StageName
from scalewright.records.run_directory import MANIFEST, RunDirectory
from scalewright.workload.generate_run import WeightPrecision
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.named import resolve_model
from scalewright.workload.reasoning import stage_run
from scalewright.workload.reasoning.role_settings import RoleSettings
from scalewright.workload.reasoning.stage_run import (
    DistillSettings,
    EvaluationSettings,
    GrpoSettings,
    ReasonRun,
    StageSettings,
)
from scalewright.workload.reasoning.task_settings import file_task
from scalewright.workload.run_options import AUTO

DEFAULT_MODEL = "layers=3,hidden=96,heads=4"
VOCAB_MULTIPLE = 8
"""The vocabulary of a model made for a task is rounded up to this, so that ranks can share it evenly."""
SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab")
"""What must agree between the model that is named and the weights that it starts from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a folder of weights is known to hold."""

    folder: str = ""
    spec: ModelSpec | None = None
    """None: the folder does not say."""
    task: TaskSettings | None = None
    is_pretrained: bool = False
    """A Hugging Face folder, whose tokenizer decides the tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonRequest:
    """Options of a stage; what is empty is resolved here."""

    stage: StageName
    settings: StageSettings
    model: str = ""
    task: dict[str, Any] = field(default_factory=dict)
    """Fields of TaskSettings that were given."""
    ranks: int | None = None
    layout: str = ""
    batch: int = 0
    """Sequences of an update; 0: the layout's, or the default of the stage."""
    device: str = AUTO
    precision: str = AUTO
    engine_precision: str = AUTO
    start_from: str = ""
    data_from: str = ""
    evaluates_usual: bool = False
    """Nobody said how many problems to evaluate, so that fewer will do."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of ReasonRun that are taken as they are."""


DEFAULT_BATCH: dict[StageName, int] = {"sft": 64, "grpo": 128, "distill": 64, "generate": 1, "evaluate": 1}
MICRO_TOKENS = {"cpu": 4096, "cuda": 16384}
"""Tokens of one pass, from which the rows of a micro-batch follow where the layout does not say."""


def resolve_stage(catalog: Catalog, request: ReasonRequest, *, env: dict[str, str]) -> ReasonRun:
    """The stage that the options describe."""
    start = start_of(request.start_from)
    settings = stage_task(request, start)
    task = open_task(settings)
    if isinstance(request.settings, GrpoSettings):
        request.settings.check_budget(task.max_response)
    spec = _spec(catalog, request, start, task)
    num_ranks, split = _split(request)
    device = device_here(request.device, num_ranks=max(num_ranks // num_nodes(env), 1))
    default = "bf16" if device == "cuda" else "fp32"
    precision = default if request.precision == AUTO else request.precision
    engine_precision = request.engine_precision
    if engine_precision == AUTO:
        engine_precision = precision if precision in get_args(WeightPrecision) else default
    layout = _batched(request, split, shape=spec.transformer, device=device)
    options = dict(request.options)
    options["evaluation"] = _evaluation(request, settings, task)
    engine = dict(options.pop("engine", {}))
    if isinstance(request.settings, GrpoSettings) and request.settings.roles.are_separate:
        engine["tp"] = math.gcd(engine.get("tp", 1), num_ranks)  # of the evaluation on the trainer's own ranks
        _check_engines(request.settings.roles, num_ranks=num_ranks, device=device, env=env)
    return ReasonRun(
        stage=request.stage,
        model_id=spec.id,
        shape=spec.transformer,
        layout=layout,
        settings=_with_teacher(request.settings, spec),
        task=settings,
        precision=precision,  # type: ignore[arg-type]
        engine=stage_run.EngineSettings(precision=engine_precision, **engine),  # type: ignore[arg-type]
        start_from=start.folder,
        data_from=_data_folder(request.data_from),
        device=device,  # type: ignore[arg-type]
        **options,
    )


def _evaluation(request: ReasonRequest, settings: TaskSettings, task: Task) -> EvaluationSettings:
    """The usual number of problems, or all that are kept for tests. More than that, or a stage that lacks a reward, is
    refused before a run directory is made."""
    chosen: EvaluationSettings = request.options.get("evaluation", EvaluationSettings())
    if settings.kind == "files" and not settings.reward:
        if request.stage in ("grpo", "generate", "evaluate"):
            raise ConfigError(f"reason {request.stage} scores answers, and the task has no reward: give --reward")
        if chosen.num_problems:
            raise ConfigError(
                f"{chosen.num_problems} answers to test prompts are scored at the end, and the task has no reward: "
                "give --reward, or --eval-problems 0"
            )
    if request.evaluates_usual:
        return replace(chosen, num_problems=min(chosen.num_problems, task.num_test))
    if chosen.num_problems:
        task.problems("test", chosen.num_problems, seed=0)
    return chosen


def _check_engines(roles: RoleSettings, *, num_ranks: int, device: str, env: dict[str, str]) -> None:
    """Refuse more engines than this machine has room for; an allocation is looked at when its steps are started."""
    if not is_inside(env):
        num_gpus = len(visible_gpus()) if device == "cuda" else 0
        check_engines_fit(
            num_trainer_ranks=num_ranks, engine_ranks=roles.engine_ranks, num_gpus=num_gpus, num_cores=num_cores()
        )


def start_of(folder: str) -> Start:
    """What is known of a folder of weights, without reading them."""
    if not folder:
        return Start()
    path = Path(folder)
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        from scalewright.workload.huggingface.config import from_hf_config

        return Start(folder=str(path.resolve()), spec=from_hf_config(path / "config.json"), is_pretrained=True)
    checkpoint = path if (path / MANIFEST).is_file() else RunDirectory(path).last_checkpoint()
    if checkpoint is None:
        raise ConfigError(
            f"--start-from {folder!r}: holds no whole checkpoint and no safetensors: name a stage that has ended, a "
            "checkpoint, or a Hugging Face folder"
        )
    run = RunDirectory(checkpoint.parent.parent)
    if run.config.is_file():
        doc = read_document(run.config, stage_run.KIND) if _is_stage(run) else None
        if doc is not None:
            config = stage_run.from_document(doc, where=str(run.config))
            return Start(folder=str(path.resolve()), spec=config.spec, task=config.task)
    return Start(folder=str(path.resolve()))


def _is_stage(run: RunDirectory) -> bool:
    return str(read_document(run.run, "run").get("kind", "")) == stage_run.KIND if run.run.is_file() else False


def stage_task(request: ReasonRequest, start: Start) -> TaskSettings:
    """The task of the options; where none is given, that of the stage it starts from or takes its data from."""
    given = dict(request.task)
    if not given:
        if start.task is not None:
            return start.task
        if request.data_from and _is_stage(RunDirectory(Path(request.data_from))):
            where = RunDirectory(Path(request.data_from)).config
            return stage_run.from_document(read_document(where, stage_run.KIND), where=str(where)).task
        return TaskSettings()
    inherited = start.task.kind if start.task is not None else "countdown"
    kind = given.pop("kind", None) or ("files" if given.get("prompts") else inherited)
    base = asdict(start.task) if start.task is not None and start.task.kind == kind else {}
    base.pop("kind", None)
    if kind != "files":
        return TaskSettings(**{**base, **given, "kind": kind})
    if start.is_pretrained:
        given.setdefault("tokenizer", start.folder)
    base.pop("files_digest", None)
    return file_task(**{"prompts": "", "tokenizer": "", **base, **given})


def _spec(catalog: Catalog, request: ReasonRequest, start: Start, task: Task) -> ModelSpec:
    """The model, with room for the task's tokens and its longest prompt and answer."""
    context = task.max_prompt + task.max_response
    if start.spec is not None:
        if request.model:
            _check_same(resolve_model(catalog, request.model), start, task)
        spec = start.spec
        if task.vocab > spec.transformer.vocab:
            raise ConfigError(
                f"--start-from {start.folder}: its vocabulary has {spec.transformer.vocab} tokens and the task needs "
                f"{task.vocab}: they are of different tokenizers; start from a model of this task"
            )
        shape = spec.transformer
        if shape.positions == "learned" and shape.num_positions < context:
            raise ConfigError(
                f"--start-from {start.folder}: it has {shape.num_positions} positions and the task needs {context}: "
                "choose shorter answers, or a model with more"
            )
        return replace(spec, shape=shape.model_copy(update={"seq": context}))
    spec = resolve_model(catalog, request.model or DEFAULT_MODEL)
    shape = spec.transformer
    changes: dict[str, Any] = {"seq": context, "vocab": _padded(task.vocab)}
    if shape.positions == "learned":
        changes["num_positions"] = max(context, shape.num_positions if "=" not in (request.model or "=") else 0)
    return replace(spec, id=_model_id(request.model), shape=shape.model_copy(update=changes))


def _model_id(name: str) -> str:
    return name or DEFAULT_MODEL


def _padded(vocab: int) -> int:
    return -(-vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def _check_same(named: ModelSpec, start: Start, task: Task) -> None:
    """The model that is named and the weights must be the same: which of them was meant cannot be known."""
    assert start.spec is not None
    here, there = named.transformer, start.spec.transformer
    for name in SIZES:
        mine, stored = getattr(here, name), getattr(there, name)
        if name == "vocab" and not start.is_pretrained:
            mine = _padded(task.vocab)
        if mine != stored:
            raise ConfigError(
                f"--start-from {start.folder}: its model has {name} {stored}, --model has {mine}: leave out --model "
                "or start from weights of the same shape"
            )


def _split(request: ReasonRequest) -> tuple[int, Layout]:
    """Ranks and how the model is split over them."""
    if request.ranks is not None and request.ranks < 1:
        raise ConfigError(f"--ranks {request.ranks} must be 1 or more")
    if not request.layout:
        count = request.ranks or max(default_ranks(request.device) - _num_engine_ranks(request.settings), 1)
        return count, Layout(dp=count)
    split = parse_layout(request.layout)
    needed = int(split.num_gpus)
    if request.ranks is not None and request.ranks != needed:
        raise ConfigError(
            f"--ranks {request.ranks} does not match layout {split.brief}, which takes {needed}: give one of them"
        )
    return needed, split


def _num_engine_ranks(settings: StageSettings) -> int:
    return settings.roles.num_engine_ranks if isinstance(settings, GrpoSettings) else 0


def _batched(request: ReasonRequest, split: Layout, *, shape: TransformerShape, device: str) -> Layout:
    """The layout with its batch: sequences of an update, and rows of a pass."""
    stage = request.stage
    dp, settings = int(split.dp), request.settings
    if stage in ("generate", "evaluate"):
        return replace(split, mbs=1, gbs=dp)
    given = request.batch or (int(split.gbs) if "gbs=" in request.layout else 0)
    gbs = given or DEFAULT_BATCH[stage]
    num_answers = _answers_of_a_step(settings)
    if not given and num_answers:
        gbs = num_answers if num_answers <= gbs else next(n for n in range(gbs, 0, -1) if num_answers % n == 0)
    if gbs < 1 or gbs % dp:
        raise ConfigError(f"a batch of {gbs} does not divide over {dp} copies: choose a multiple of {dp}")
    rows = max(MICRO_TOKENS[device] // shape.seq, 1)
    mbs = int(split.mbs) if "mbs=" in request.layout else _divisor(gbs // dp, rows)
    return replace(split, mbs=mbs, gbs=gbs)


def _answers_of_a_step(settings: StageSettings) -> int:
    if isinstance(settings, GrpoSettings):
        return settings.num_sequences
    if isinstance(settings, DistillSettings) and settings.mode == "on-policy":
        return settings.num_prompts
    return 0


def _divisor(number: int, most: int) -> int:
    return next(n for n in range(min(number, most), 0, -1) if number % n == 0)


def _with_teacher(settings: StageSettings, student: ModelSpec) -> StageSettings:
    if not isinstance(settings, DistillSettings) or not settings.teacher or settings.mode != "on-policy":
        return settings
    teacher = start_of(settings.teacher)
    if teacher.spec is None:
        raise ConfigError(
            f"--teacher {settings.teacher!r}: does not say what model it is: name a stage's run directory"
        )
    shape = teacher.spec.transformer.model_copy(update={"seq": student.transformer.seq})
    return replace(settings, teacher=teacher.folder, teacher_id=teacher.spec.id, teacher_shape=shape)


def _data_folder(folder: str) -> str:
    if not folder:
        return ""
    if not RunDirectory(Path(folder)).answer_shards():
        raise ConfigError(
            f"--data-from {folder!r}: holds no answers: name the run directory of a `reason generate` that has ended"
        )
    return str(Path(folder).resolve())
