"""Published RL steps, one JSON object a line, as their sources printed them.

NeMo-RL and verl print different columns; a row keeps those of its source. What a row leaves open about the software
follows from its framework (`rl_frameworks.toml`), and is listed. Unknown keys are passed over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from scalewright.catalog.facts import Strict
from scalewright.catalog.library import packaged_data
from scalewright.errors import ConfigError, UnknownNameError
from scalewright.records.loader import load_toml, read_jsonl, validate

Policy = Literal["on policy", "off policy", "asynchronous"]


class PublishedRlRun(BaseModel):
    """One step somebody timed."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    source: str
    file: str = ""
    version: str = ""
    framework: str
    algorithm: str = "GRPO"
    model: str
    system: str | None = None
    """Name of a machine; null: devices of `gpu` in nodes of eight."""
    gpu: str | None = None
    precision: str = "bf16"
    policy: str | None = None
    """NeMo-RL's word for how old the weights are."""
    mode: str | None = None
    """verl's."""
    engine: str = ""
    """verl's generator and trainer."""
    gpus: int | None = Field(default=None, gt=0)
    alloc: str | None = None
    """Devices of generator and trainer, as in 16:16; one number where they take turns."""
    train_max_seq: int | None = Field(default=None, gt=0)
    """Longest sequence, prompt included."""
    max_response: int | None = Field(default=None, gt=0)
    avg_seq: float | None = Field(default=None, gt=0)
    """Mean answer."""
    prompt_len: float | None = Field(default=None, gt=0)
    gen_gbs: int | None = Field(default=None, gt=0)
    """Sequences of a step."""
    train_gbs: int | None = Field(default=None, gt=0)
    """Sequences of an update."""
    rollout_n: int | None = Field(default=None, gt=0)
    train_batch_size: int | None = Field(default=None, gt=0)
    """Prompts of a step."""
    ppo_mini_batch: int | None = Field(default=None, gt=0)
    """Prompts of an update."""
    gen_tp_pp: str | None = None
    train_tp_cp_ep_pp_vpp: str | None = None
    staleness_threshold: float | None = Field(default=None, ge=0)
    require_batches: int | None = Field(default=None, gt=0)
    packs: bool | None = None
    scores_old: bool | None = None
    stage: str = ""
    """What is timed, where it is no whole step."""
    trainer_ranks: int | None = Field(default=None, gt=0)
    rollout_ranks: int | None = Field(default=None, gt=0)
    checkpoint_engine: bool = False
    step_s: float | None = Field(default=None, gt=0)
    gen_s: float | None = Field(default=None, gt=0)
    generate_sequences_s: float | None = Field(default=None, gt=0)
    old_log_prob_s: float | None = Field(default=None, gt=0)
    update_actor_s: float | None = Field(default=None, gt=0)
    weight_sync_s: float | None = Field(default=None, gt=0)
    consistent: bool = True
    """False where the row's own columns disagree."""
    assumed: tuple[str, ...] = Field(default=(), strict=False)
    """Inputs that the source does not state and that were filled in."""

    @property
    def policy_kind(self) -> Policy:
        words = f"{self.policy or ''} {self.mode or ''}".lower()
        if "async" in words:
            return "asynchronous"
        return "off policy" if "off" in words else "on policy"

    @property
    def is_whole_step(self) -> bool:
        return not self.stage and self.step_s is not None


class RlFramework(Strict):
    """How a framework runs a step, where a row does not say."""

    stack: str
    zero: int
    prompt_len: int
    """Tokens of a prompt, on average."""
    samples: int
    """Answers of a prompt, where a row gives sequences only."""
    recompute: str
    recompute_of: dict[str, str] = Field(default_factory=dict)
    """By model, where recipes differ."""
    rollout_tp: int = 1
    cp: int = 1
    train_tp: int = 1
    train_pp: int = 1
    together_memory_frac: float
    """Memory that the generator fills where it shares devices."""
    apart_memory_frac: float
    has_reference: bool
    scores_old_async: bool
    """The trainer scores answers before updates in asynchronous steps as well."""
    loops_experts: bool
    """The trainer runs a rank's experts one by one."""
    packs: bool
    pack_sequences: int = 1
    """Longest sequences that a micro-batch has room for."""
    num_chunks: int = 1
    """Parts in which an asynchronous batch is handed over."""
    generator_frac: float
    """Share of devices that generate, where a row gives their sum only."""
    source: str


class RlFrameworks(Strict):
    schema_: str = Field(alias="schema")
    models: dict[str, str]
    """Catalogue names by those that the sources print."""
    frameworks: dict[str, RlFramework]
    generator_gpus: dict[str, int] = Field(default_factory=dict)
    """Devices that generate by `model, policy, devices`, where a recipe splits them otherwise."""

    def model_of(self, run: PublishedRlRun) -> str:
        return self.models.get(run.model, run.model)

    def of(self, run: PublishedRlRun) -> tuple[str, RlFramework]:
        name = run.framework.lower()
        if name == "verl" and "megatron" in run.engine.lower():
            name = "verl-megatron"
        if name not in self.frameworks:
            raise UnknownNameError("RL framework", run.framework, tuple(self.frameworks))
        return name, self.frameworks[name]


def rl_frameworks() -> RlFrameworks:
    return load_toml(packaged_data() / "published" / "rl_frameworks.toml", RlFrameworks, kind="rl-frameworks")


def rl_runs(path: Path | None = None) -> list[PublishedRlRun]:
    """The rows of a file; default: those shipped."""
    path = packaged_data() / "published" / "rl_runs.jsonl" if path is None else path
    rows = [validate(row, PublishedRlRun, where=f"{path}, line {line}") for line, row in read_jsonl(path)]
    if not rows:
        raise ConfigError(f"{path} holds no rows: one JSON object a line")
    return rows


def whole_numbers(text: str) -> tuple[int, ...]:
    """The numbers of `[4,1,1,4,n/a]`."""
    parts = text.strip("[] ").split(",")
    return tuple(int(part) for part in parts if part.strip().isdigit())
