"""Published rates of generation, RL steps and vision training: what those predictions are held against."""

from __future__ import annotations

from pydantic import Field

from scalewright.catalog.facts import Id, Strict
from scalewright.catalog.library import packaged_data
from scalewright.records.loader import load_toml


class StageRun(Strict):
    """What every row has."""

    source: str
    gpu: Id
    precision: str
    assumed: str = ""
    """Inputs that the source does not state and that were filled in."""


class PublishedVisionRun(StageRun):
    compiled: bool
    channels_last: bool
    batch: int = Field(gt=0)
    """Images per device."""
    num_gpus: int = Field(default=1, gt=0)
    network_per_node: str | None = None
    """Line rate, as text with its unit; absent for one node."""
    images_per_s: float = Field(gt=0)
    """All devices together."""


class GenerationRun(StageRun):
    model: str
    """Catalogue name or shape."""
    cache_bytes: float | None = None
    batch: int = Field(gt=0)
    tp: int = Field(gt=0)
    prompt: int = Field(gt=0)
    response: int = Field(gt=0)
    counts_prompts: bool = False
    """The rate counts prompt tokens as well."""
    tokens_per_s: float | None = Field(default=None, gt=0)
    ttft_s: float | None = Field(default=None, gt=0)


class RlRun(StageRun):
    model: str
    layout: str
    rollout_tp: int = Field(gt=0)
    prompts: int = Field(gt=0)
    samples: int = Field(gt=0)
    prompt: int = Field(gt=0)
    mean: int = Field(gt=0)
    """Tokens of a sequence, prompt included."""
    longest: int = Field(gt=0)
    step_s: float = Field(gt=0)


class _VisionFile(Strict):
    schema_: str = Field(alias="schema")
    runs: tuple[PublishedVisionRun, ...]


class _GenerationFile(Strict):
    schema_: str = Field(alias="schema")
    runs: tuple[GenerationRun, ...]


class _RlFile(Strict):
    schema_: str = Field(alias="schema")
    runs: tuple[RlRun, ...]


def vision_runs() -> tuple[PublishedVisionRun, ...]:
    return load_toml(packaged_data() / "published" / "vision_runs.toml", _VisionFile, kind="vision-runs").runs


def generation_runs() -> tuple[GenerationRun, ...]:
    path = packaged_data() / "published" / "generation_runs.toml"
    return load_toml(path, _GenerationFile, kind="generation-runs").runs


def rl_runs() -> tuple[RlRun, ...]:
    return load_toml(packaged_data() / "published" / "rl_runs.toml", _RlFile, kind="rl-runs").runs
