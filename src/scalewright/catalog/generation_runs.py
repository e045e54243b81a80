"""Published rates of generation, one JSON object a line, in the form of `published.py`'s rows.

A row has `isl` and `osl`, tokens of a prompt and of an answer, and measures tokens per second, the time to the first
token or the time between tokens. What it leaves open follows from its engine, and is listed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from scalewright.catalog.facts import Id, Strict
from scalewright.catalog.library import packaged_data
from scalewright.catalog.published import RunModel
from scalewright.errors import DocumentError
from scalewright.records.loader import load_toml, read_jsonl, validate


class _GenerationPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class GenerationHardware(_GenerationPart):
    gpu: str
    gpus: int = Field(gt=0)
    gpus_per_node: int = Field(default=8, gt=0)
    inter_bw_gb_per_s_per_gpu: float | None = Field(default=None, alias="inter_bw_GBps_per_gpu", gt=0)


class GenerationMeasured(_GenerationPart):
    output_tokens_per_s_total: float | None = Field(default=None, gt=0)
    """All devices together, generated tokens only."""
    output_tokens_per_s_per_gpu: float | None = Field(default=None, gt=0)
    total_tokens_per_s: float | None = Field(default=None, gt=0)
    """Prompts counted as well."""
    ttft_ms: float | None = Field(default=None, gt=0)
    itl_ms: float | None = Field(default=None, gt=0)


class PublishedGeneration(_GenerationPart):
    """One rate or latency of generation that somebody published."""

    id: str
    source: str
    year: int | None = None
    publication: str = ""
    """What rows of one document share; empty: the engine and its release, else the source."""
    model: RunModel
    hardware: GenerationHardware
    tp: int = Field(default=1, gt=0)
    pp: int | None = Field(default=1, gt=0)
    ep: int | None = Field(default=None, gt=0)
    attention_dp: bool | None = None
    """Each device attends for its own sequences, whole heads; null where the source does not say."""
    precision: str
    """Of the weights and products: FP16, BF16, FP8, FP4, INT4."""
    cache_precision: str | None = None
    """Of cached keys and values; null: 8 bit with 8- and 4-bit weights, as the engines of such rows set it."""
    engine: str = ""
    isl: int = Field(gt=0)
    osl: int = Field(gt=0)
    batch: int | None = Field(default=None, gt=0)
    """Prompts given at once and answered together; null: as many as memory holds take turns."""
    concurrency: int | None = Field(default=None, gt=0)
    """Requests that clients keep open."""
    requests_per_s: float | None = Field(default=None, gt=0)
    """Arrivals; null: all requests wait from the start."""
    requests: int | None = Field(default=None, gt=0)
    """Requests in all; null: so many that start and end do not count."""
    measured: GenerationMeasured
    assumed: tuple[str, ...] = Field(default=(), strict=False)
    """Inputs that the source does not state and that were filled in."""

    @property
    def document(self) -> str:
        return self.publication or self.engine or self.source


class RequestHabit(Strict):
    """How many requests an engine's publisher sends, by the tokens of one."""

    engine: Id
    source: str
    up_to_tokens: tuple[int, ...]
    num_requests: tuple[int, ...]

    def num_requests_of(self, num_tokens: int) -> int:
        places = (i for i, most in enumerate(self.up_to_tokens) if num_tokens <= most)
        return self.num_requests[next(places, -1)]


class ParallelBlocks(Strict):
    """Models whose rows give no sign of it, but whose engines add up attention and feed-forward in one sum."""

    source: str
    families: tuple[str, ...]
    """How their names begin."""


class GenerationHabits(Strict):
    schema_: str = Field(alias="schema")
    requests: tuple[RequestHabit, ...]
    parallel_blocks: ParallelBlocks


def generation_habits() -> GenerationHabits:
    path = packaged_data() / "published" / "generation_habits.toml"
    return load_toml(path, GenerationHabits, kind="generation-habits")


def packaged_generation_runs() -> Path:
    return packaged_data() / "published" / "generation_runs.jsonl"


def is_generation_row(row: dict[str, Any]) -> bool:
    """Whether a published row is a rate of generation."""
    return "isl" in row and "osl" in row


def generation_runs(path: Path | None = None) -> list[PublishedGeneration]:
    """The generation rows of a file; default: those shipped."""
    file = path or packaged_generation_runs()
    return [_run(row, f"{file}, line {number}") for number, row in read_jsonl(file) if is_generation_row(row)]


def _run(row: dict[str, Any], where: str) -> PublishedGeneration:
    try:
        return validate(row, PublishedGeneration, where=where)
    except DocumentError as error:
        raise DocumentError(f"{error}; docs/generation.md has an example row") from error
