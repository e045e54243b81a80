"""Published rates of generation: what those predictions are held against."""

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


class _GenerationFile(Strict):
    schema_: str = Field(alias="schema")
    runs: tuple[GenerationRun, ...]


def generation_runs() -> tuple[GenerationRun, ...]:
    path = packaged_data() / "published" / "generation_runs.toml"
    return load_toml(path, _GenerationFile, kind="generation-runs").runs
