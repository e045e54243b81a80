"""Options of an engine, and what one of its steps reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from scalewright.errors import ConfigError
from scalewright.run.generate.requests import Completion

WeightPrecision = Literal["fp32", "bf16", "fp8", "int4", "int3"]
Execution = Literal["auto", "plain", "kernels", "graphs"]
"""plain: PyTorch's operators; kernels: our Triton kernels; graphs: the fastest of both for each product, timed when a
batch size is first met, and the whole step replayed as a CUDA graph; auto: graphs on GPUs with Triton, else plain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an engine runs."""

    max_context: int
    """Longest prompt and answer together, in tokens."""
    cache_bytes: int = 0
    """Memory for keys and values on each rank; 0: room for `max_running` sequences of `max_context`."""
    max_running: int = 64
    """Sequences that are decoded at once."""
    prefill_chunk: int = 2048
    """Prompt tokens that are read between two decode steps."""
    page_tokens: int = 0
    """Tokens of a page of the cache; 0: 16 on CPUs, 64 on GPUs."""
    precision: WeightPrecision = "bf16"
    """Of stored weights. fp8 weights are multiplied as bf16; keys and values have the type of the products. int4 and
    int3 round the weights of layers to so many bits and store them in 16 bit (32 on CPUs): they save nothing, and show
    what an engine that coarse would write."""
    execution: Execution = "auto"

    def __post_init__(self) -> None:
        for name in ("max_context", "max_running", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        for name in ("cache_bytes", "page_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 0 (automatic) or more")
        for name, choices in (("precision", WeightPrecision), ("execution", Execution)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(f"{name} {getattr(self, name)!r} is not known: choose {', '.join(get_args(choices))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """A token that a sequence got."""

    request_id: str
    index: int
    """Which of the request's answers."""
    position: int
    """Number of the token in its answer, from 0."""
    token: int
    log_prob: float


@dataclass(slots=True, kw_only=True)
class StepEvents:
    """One iteration. On GPUs the tokens are those of the iteration before: the host works one step behind."""

    tokens: list[TokenEvent] = field(default_factory=list)
    finished: list[Completion] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    """Requests whose prompt began to be read."""
    preempted: list[tuple[str, int]] = field(default_factory=list)
    """Sequences (request, answer) that lost their cache and wait to be read again."""
    num_prefill_tokens: int = 0
    num_decoded: int = 0
    """Sequences in this iteration's decode batch."""
    num_context_tokens: int = 0
    """Keys that the decode batch attended to, over all its sequences."""
    num_waiting: int = 0
    occupancy_frac: float = 0.0
    """Of the pages of the cache."""


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counters since the engine was opened."""

    weight_bytes: int
    """Read by each decode step on one rank: every stored weight but the rows of tables that no token names."""
    cache_bytes_per_token: int
    cache_bytes: int
    num_steps: int = 0
    num_decode_steps: int = 0
    num_prefill_steps: int = 0
    num_prefill_tokens: int = 0
    num_decoded: int = 0
    num_context_tokens: int = 0
    num_preemptions: int = 0
    num_weight_replacements: int = 0
    peak_occupancy_frac: float = 0.0

    @property
    def decode_bytes(self) -> int:
        """Bytes that decoding had to read so far: weights once a step, and the keys and values of every sequence."""
        return self.num_decode_steps * self.weight_bytes + self.num_context_tokens * self.cache_bytes_per_token

    @property
    def bytes_per_decoded_token(self) -> float:
        return self.decode_bytes / max(self.num_decoded, 1)

    def add(self, events: StepEvents) -> None:
        self.num_steps += 1
        self.num_decode_steps += events.num_decoded > 0
        self.num_prefill_steps += events.num_prefill_tokens > 0
        self.num_prefill_tokens += events.num_prefill_tokens
        self.num_decoded += events.num_decoded
        self.num_context_tokens += events.num_context_tokens
        self.num_preemptions += len(events.preempted)
        self.peak_occupancy_frac = max(self.peak_occupancy_frac, events.occupancy_frac)
