"""What is generated: requests with their sampling, and the completions that answer them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from scalewright.errors import ConfigError

Reason = Literal["stop", "length", "context"]
"""Why a completion ended: a stop token, its own limit of new tokens, or the engine's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn: temperature first, then the `top_k` likeliest, then the `top_p` mass of those."""

    temperature: float = 1.0
    """0: the likeliest token, always."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature {self.temperature} must be 0 (greedy) or a finite number above it")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p {self.top_p} must be above 0 and at most 1: 1 keeps every token")
        if self.top_k < 0:
            raise ConfigError(f"top_k {self.top_k} must be 0 or more: 0 keeps every token")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def is_filtered(self) -> bool:
        return not self.is_greedy and (self.top_p < 1.0 or self.top_k > 0)


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and how many answers to it are generated."""

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    """Of each answer."""
    num_answers: int = 1
    """The prompt is read once for all of them."""
    sampling: Sampling = field(default_factory=Sampling)
    stop_tokens: frozenset[int] = frozenset()
    """An answer ends with the first of these, which is part of it."""
    first_index: int = 0
    """The number of the first answer. Random numbers follow from it, so answers to a prompt can be split over
    requests of the same id."""
    written: tuple[int, ...] = ()
    """First tokens of the answer, which were written before. They are read like a prompt, count towards
    `max_new_tokens`, and are not part of the completion. The answer goes on as if it had never been interrupted."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ConfigError(f"request {self.id}: the prompt is empty; give at least one token")
        if self.max_new_tokens < 1:
            raise ConfigError(f"request {self.id}: max_new_tokens is {self.max_new_tokens}; give 1 or more")
        if self.num_answers < 1:
            raise ConfigError(f"request {self.id}: num_answers is {self.num_answers}; give 1 or more")
        if self.first_index < 0:
            raise ConfigError(f"request {self.id}: first_index is {self.first_index}; give 0 or more")
        if self.written and self.num_answers > 1:
            raise ConfigError(
                f"request {self.id}: {self.num_answers} answers with the same written tokens; an answer that goes on "
                "is a request of its own"
            )
        if len(self.written) >= self.max_new_tokens or (self.written and self.written[-1] in self.stop_tokens):
            raise ConfigError(f"request {self.id}: its {len(self.written)} written tokens are a whole answer already")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished answer, or the end of one that was written in parts."""

    request_id: str
    index: int
    """Which of the answers to the prompt: from the request's first index on."""
    tokens: tuple[int, ...]
    """After those that the request had."""
    log_probs: tuple[float, ...]
    """Of each token under the distribution that it was drawn from; of greedy tokens under temperature 1."""
    reason: Reason
    num_preemptions: int = 0
    weights_version: tuple[int, int] = (0, 0)
    """How often weights had been replaced when the first and the last token were drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAnswer:
    """An answer that was taken out of an engine before it ended. Its request with these tokens as `written` goes on."""

    request: Request
    index: int
    tokens: tuple[int, ...]
    """Drawn by this engine: after those that the request had."""
    log_probs: tuple[float, ...]


def random_stream(request: Request, index: int) -> int:
    """64 bits that name the random numbers of one answer: batching and neighbours have no part in it."""
    text = f"{request.sampling.seed}:{request.id}:{index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
