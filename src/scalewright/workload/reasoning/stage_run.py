"""ReasonRun: everything that decides one stage of reasoning-model training, resolved. The same one resumes the stage.

It is written by `reason` and by studies, read by `run/reasoning`, and imports neither torch nor what it configures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from scalewright import units
from scalewright.catalog.types import TransformerShape
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.errors import ConfigError
from scalewright.records.documents import check_schema, document
from scalewright.records.reasoning import StageName
from scalewright.workload.generate_run import EngineExecution, SamplingSettings
from scalewright.workload.language_run import (
    OptimizerSettings,
    RunPrecision,
    check_runs_here,
    restored_shape,
    shape_document,
)
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.reasoning import policy_loss, role_settings
from scalewright.workload.reasoning.policy_loss import PolicyLoss
from scalewright.workload.reasoning.role_settings import RoleSettings
from scalewright.workload.reasoning.rollout_pool import Groups, OldTokens, PoolSettings
from scalewright.workload.run_options import DeviceKind, check_literals

KIND = "reason-run"
EnginePrecision = Literal["fp32", "bf16", "fp8", "int4", "int3"]
"""int4 and int3 round weights to so many bits without storing them shorter, to study an engine that coarse."""
DistillMode = Literal["data", "on-policy"]
Kept = Literal["correct", "all"]
MOST_SEED = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine that writes answers. Its weights are those of the trainer, in a precision of their own."""

    precision: EnginePrecision = "fp32"
    tp: int = 1
    """Ranks that share one copy of the model; copies share the prompts."""
    max_running: int = 256
    """Answers that a copy decodes at once."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    execution: EngineExecution = "auto"

    def __post_init__(self) -> None:
        check_literals(self, {"precision": EnginePrecision, "execution": EngineExecution})
        for name in ("tp", "max_running"):
            if getattr(self, name) < 1:
                raise ConfigError(f"engine {name} is {getattr(self, name)}: give 1 or more")


USUAL_PROBLEMS = 256
"""Of an evaluation, if the task has so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """Accuracy on the test split: at the end of every stage, and now and then on the way."""

    num_problems: int = USUAL_PROBLEMS
    """0: nothing is evaluated."""
    num_answers: int = 0
    """Sampled answers to each problem, for pass@k; 0: the greedy answer only."""
    every: int = 0
    """Steps between two evaluations on the way (greedy only); 0: at the end only."""

    def __post_init__(self) -> None:
        for name in ("num_problems", "num_answers", "every"):
            if getattr(self, name) < 0:
                raise ConfigError(f"evaluation {name} is {getattr(self, name)}: give 0 (none) or more")

    @property
    def ks(self) -> tuple[int, ...]:
        """The k of pass@k: powers of two up to the number of answers."""
        return tuple(2**power for power in range(self.num_answers.bit_length()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    """Supervised fine-tuning on written answers. `layout.gbs` rows make an update."""

    num_traces: int = 4096
    """Cold-start traces of the task; not used where `data_from` names answers."""
    packs: bool = True
    """Several sequences share a row, and none attends to another; false: a row holds one sequence and padding."""

    def __post_init__(self) -> None:
        if self.num_traces < 1:
            raise ConfigError(f"num_traces is {self.num_traces}: give 1 or more")


Release = Literal["auto", "off", "on"]
"""auto: on GPUs where both do not fit together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoSettings:
    """Reinforcement learning with group advantages. `layout.gbs` answers make an update."""

    num_prompts: int = 32
    num_answers: int = 8
    """Answers to each prompt: the group."""
    num_epochs: int = 1
    """Times that the answers of a step are trained on."""
    loss: PolicyLoss = field(default_factory=PolicyLoss)
    roles: RoleSettings = field(default_factory=RoleSettings)
    """Engines beside the trainer, if any."""
    token_budget: int = 0
    """Tokens that a step writes; unfinished answers go on in the next (C3PO++). 0: a step waits for all its answers."""
    retention: int = 2
    """With a budget: an answer that was cut so often is given up."""
    groups: Groups = "whole"
    old_tokens: OldTokens = "train"
    stale_keys: bool = False
    """With a budget: answers go on with the keys and values of older weights. False: their prefix is read again."""
    release: Release = "auto"
    """Whether the trainer's state leaves the devices while answers are written, and the engine's while it trains."""

    def __post_init__(self) -> None:
        check_literals(self, {"release": Release})
        if self.release == "on" and self.stale_keys:
            raise ConfigError("release on frees the keys and values that stale_keys goes on with: choose one of them")
        if self.release == "on" and self.roles.engine_ranks:
            raise ConfigError(
                "release on is for engines on the trainer's devices, and these have their own: leave out one of both"
            )
        if self.num_prompts < 1:
            raise ConfigError(f"num_prompts is {self.num_prompts}: a step needs 1 or more")
        if self.num_answers < 2:
            raise ConfigError(
                f"a group of {self.num_answers}: an advantage compares the answers to one prompt, so give 2 answers or "
                "more, such as 8"
            )
        if self.num_epochs < 1:
            raise ConfigError(f"num_epochs is {self.num_epochs}: give 1 or more")
        self.pool_settings(max_open=1)
        if self.loss.aggregation == "budget" and not self.token_budget:
            raise ConfigError(f"loss {self.loss.name} divides by the token budget, and there is none: give one")

    @property
    def num_sequences(self) -> int:
        """Answers of a step; with a token budget, answers that are open at once."""
        return self.num_prompts * self.num_answers

    def pool_settings(self, *, max_open: int) -> PoolSettings:
        """Of the pool of rollouts. At most `max_open` of them are decoded at once, over all engines."""
        return PoolSettings(
            token_budget=self.token_budget, retention=self.retention, num_prompts=self.num_prompts,
            num_answers=self.num_answers, max_open=min(self.num_sequences, max_open), groups=self.groups,
            old_tokens=self.old_tokens,
        )  # fmt: skip

    def check_budget(self, max_response: int) -> None:
        """A budget holds at least one answer of the longest kind: a smaller one could cut every answer for ever."""
        if 0 < self.token_budget < max_response:
            raise ConfigError(
                f"the token budget is {self.token_budget}, and one answer may have {max_response} tokens: give at "
                "least that, or 0 to wait for all answers"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSettings:
    """Bulk sampling. A step is one shard of problems."""

    num_problems: int = 2048
    num_answers: int = 4
    """Answers to each problem that are sampled."""
    shard_problems: int = 256
    """Problems of a shard; a stage that is stopped repeats at most one shard a copy of the engine."""
    keeps: Kept = "correct"
    """correct: rejection sampling, right answers only."""
    most_per_problem: int = 0
    """Kept answers to one problem, the first ones; 0: all different ones."""

    def __post_init__(self) -> None:
        check_literals(self, {"keeps": Kept})
        for name in ("num_problems", "num_answers", "shard_problems"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.most_per_problem < 0:
            raise ConfigError(f"most_per_problem is {self.most_per_problem}: give 1 or more, or 0 for all")

    @property
    def num_shards(self) -> int:
        return -(-self.num_problems // self.shard_problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillSettings:
    """A student learns from a teacher: from its answers, or from its probabilities of the student's own answers."""

    mode: DistillMode = "data"
    """data: supervised training on `data_from`; on-policy: reverse KL on what the student writes."""
    teacher: str = ""
    """on-policy: folder of the teacher's weights."""
    teacher_id: str = ""
    teacher_shape: TransformerShape | None = None
    num_prompts: int = 128
    """on-policy: prompts of a step, one answer each."""
    num_traces: int = 4096
    """data: cold-start traces where `data_from` is empty. Commands refuse that: without a teacher it is SFT."""
    packs: bool = True

    def __post_init__(self) -> None:
        check_literals(self, {"mode": DistillMode})
        for name in ("num_prompts", "num_traces"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.mode == "on-policy" and not self.teacher:
            raise ConfigError("on-policy distillation needs the teacher's weights: give --teacher")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSettings:
    """A stage that only evaluates has nothing else to set."""


StageSettings = SftSettings | GrpoSettings | GenerateSettings | DistillSettings | NoSettings
SETTINGS: dict[StageName, type[StageSettings]] = {
    "sft": SftSettings, "grpo": GrpoSettings, "generate": GenerateSettings, "distill": DistillSettings,
    "evaluate": NoSettings,
}  # fmt: skip
TRAINS: frozenset[StageName] = frozenset({"sft", "grpo", "distill"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonRun:
    """One stage."""

    stage: StageName
    model_id: str
    shape: TransformerShape
    """With `seq` set to the longest prompt and answer of the task, and `vocab` to hold its tokens."""
    layout: Layout
    """gbs: rows or answers of an update; mbs: of one pass on a rank."""
    settings: StageSettings
    task: TaskSettings = field(default_factory=TaskSettings)
    precision: RunPrecision = "fp32"
    """Of the trainer."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    row_tokens: int = 0
    """Tokens of a row, where several sequences share it; 0: the longest prompt and answer."""
    lora_rank: int = 0
    """0: all weights are trained."""
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    steps: int = 100
    """Updates of SFT and distillation, rounds of GRPO, shards of a generation; 0 of an evaluation."""
    seed: int = 0
    start_from: str = ""
    """Folder of the weights to start from: a stage, a checkpoint, or a Hugging Face folder; empty: from the seed."""
    data_from: str = ""
    """Run directory of a generation stage whose answers are trained on."""
    num_read: int = 4
    """Answers of a step that are written for people to read."""
    read_every: int = 10
    """Steps between two of these."""
    checkpoint_every: int | Literal["auto"] = "auto"
    """Steps; auto: from the failure model and the measured time of a save. The last step is always saved."""
    checkpoint_async: bool = False
    checkpoint_keep: int = 1
    device_mttf_s: float = 50_000.0 * units.HOUR_S
    profile_steps: int = 1
    """Last steps that are profiled to split their time."""
    device: DeviceKind = "auto"

    def __post_init__(self) -> None:
        choices = {"stage": StageName, "precision": RunPrecision, "device": DeviceKind}
        check_literals(self, choices)
        assert isinstance(self.settings, SETTINGS[self.stage])
        self._check_numbers()
        if int(self.layout.pp) > 1 or int(self.layout.cp) > 1:
            raise ConfigError(f"layout {self.layout.brief}: stages of `reason` are split by dp, zero and tp only")
        check_runs_here(self.model_id, self.shape, self.layout)
        if self.num_ranks % self.engine.tp:
            raise ConfigError(f"engine tp={self.engine.tp} does not divide {self.num_ranks} ranks: choose a divisor")
        if self.lora_rank and not self.start_from:
            raise ConfigError(f"adapters of rank {self.lora_rank} need a trained base: give --start-from")
        if 0 < self.row_tokens < self.context:
            raise ConfigError(f"row_tokens is {self.row_tokens}: a row must hold a sequence of {self.context} tokens")
        if isinstance(self.settings, GrpoSettings):
            self._check_policy(self.engine.sampling)
            if not self.settings.token_budget:  # a budget decides how many answers a step has
                self._check_rounds(self.settings.num_sequences)
            for num_ranks in self.roles.engine_ranks:
                check_runs_here(self.model_id, self.shape, Layout(tp=num_ranks))
        elif isinstance(self.settings, DistillSettings):
            self._check_teacher(self.settings)

    def _check_numbers(self) -> None:
        least = 0 if self.stage == "evaluate" else 1
        for name, smallest in (
            ("steps", least),
            ("lora_rank", 0),
            ("row_tokens", 0),
            ("num_read", 0),
            ("profile_steps", 0),
        ):
            if getattr(self, name) < smallest:
                raise ConfigError(f"{name} is {getattr(self, name)}: give {smallest} or more")
        if not 0 <= self.seed < MOST_SEED:
            raise ConfigError(f"seed {self.seed} must be from 0 up to 2^63")
        every = self.checkpoint_every
        if every != "auto" and (not isinstance(every, int) or every < 1):
            raise ConfigError(f"checkpoint_every is {every!r}: give steps, 1 or more, or auto")
        for name in ("checkpoint_keep", "read_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")

    def _check_policy(self, sampling: SamplingSettings) -> None:
        if sampling.temperature == 0.0 or sampling.top_p_frac < 1.0 or sampling.top_k:
            raise ConfigError(
                "GRPO learns from answers that are drawn from the whole policy: give a temperature above 0, and no "
                "top_p or top_k"
            )

    def _check_rounds(self, num_sequences: int) -> None:
        gbs = int(self.layout.gbs)
        if num_sequences % gbs:
            raise ConfigError(
                f"{num_sequences} answers of a step do not divide into updates of gbs={gbs}: choose a divisor of "
                f"{num_sequences}"
            )

    def _check_teacher(self, settings: DistillSettings) -> None:
        teacher = settings.teacher_shape
        if settings.mode != "on-policy":
            return
        assert teacher is not None
        if teacher.vocab != self.shape.vocab:
            raise ConfigError(
                f"teacher {settings.teacher_id} has a vocabulary of {teacher.vocab} and student {self.model_id} one of "
                f"{self.shape.vocab}: their probabilities cannot be compared; choose --mode data"
            )
        self._check_rounds(settings.num_prompts)

    @property
    def num_ranks(self) -> int:
        return int(self.layout.num_gpus)

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(id=self.model_id, name=self.model_id, shape=self.shape)

    @property
    def context(self) -> int:
        """Longest prompt and answer."""
        return self.shape.seq

    @property
    def trains(self) -> bool:
        return self.stage in TRAINS

    @property
    def roles(self) -> RoleSettings:
        """Engines beside the trainer; only GRPO may have some."""
        return self.settings.roles if isinstance(self.settings, GrpoSettings) else RoleSettings()

    def document(self) -> dict[str, Any]:
        body = asdict(self) | {"shape": shape_document(self.shape), "layout": str(self.layout)}
        if isinstance(self.settings, DistillSettings) and self.settings.teacher_shape is not None:
            body["settings"]["teacher_shape"] = shape_document(self.settings.teacher_shape)
        return document(KIND, body)


def from_document(doc: Mapping[str, Any], *, where: str) -> ReasonRun:
    """The stage that `ReasonRun.document` wrote."""
    check_schema(doc.get("schema"), KIND, where=where)
    body = {key: value for key, value in doc.items() if key != "schema"}
    known = {f.name for f in fields(ReasonRun)}
    if set(body) != known or body["stage"] not in get_args(StageName):
        odd = min(set(body) ^ known, default="stage")
        raise ConfigError(f"{where}: key {odd!r} is not as in a {KIND} of this version: choose another --run-dir")
    try:
        body["shape"] = restored_shape(body["shape"], where=where)
        body["layout"] = parse_layout(str(body["layout"]))
        body["settings"] = _settings(body["stage"], body["settings"], where=where)
        body["task"] = TaskSettings(**body["task"])
        sampling = SamplingSettings(**body["engine"]["sampling"])
        body["engine"] = EngineSettings(**{**body["engine"], "sampling": sampling})
        body["optimizer"] = OptimizerSettings(**body["optimizer"])
        body["evaluation"] = EvaluationSettings(**body["evaluation"])
        return ReasonRun(**body)
    except (TypeError, KeyError) as error:
        raise ConfigError(f"{where}: is not a {KIND}: {error}; choose another --run-dir") from error


def _settings(stage: StageName, body: Mapping[str, Any], *, where: str) -> StageSettings:
    values = dict(body)
    if stage == "grpo":
        values["loss"] = policy_loss.from_body(values["loss"], where=where)
        values["roles"] = role_settings.from_body(values.get("roles", {}))
    if stage == "distill" and values["teacher_shape"] is not None:
        values["teacher_shape"] = restored_shape(values["teacher_shape"], where=where)
    return SETTINGS[stage](**values)
