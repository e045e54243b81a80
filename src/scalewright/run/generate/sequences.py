"""The state of a sequence while it is generated, and of the answers that share a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field

from scalewright.run.generate.pages import CachedTokens
from scalewright.run.generate.requests import Completion, OpenAnswer, Reason, Request, random_stream

Key = tuple[int, int]
"""Order of arrival, then number of the answer; -1 for the prompt that a group shares. Older comes first."""


@dataclass(slots=True, kw_only=True)
class Group:
    """The answers to one request. With several, the prompt is read into `prefix`, which they all begin with."""

    request: Request
    arrival: int
    num_unstarted: int
    has_started: bool = False
    prefix: CachedTokens | None = None
    is_prefix_ready: bool = False
    """The whole prefix was read in earlier steps."""

    @property
    def key(self) -> Key:
        return self.arrival, -1

    @property
    def num_prefix_tokens(self) -> int:
        """All but the last prompt token: each answer reads that one itself, which gives its first scores."""
        return len(self.request.prompt) - 1

    @property
    def has_read_prefix(self) -> bool:
        return self.prefix is not None and self.prefix.num_cached == self.num_prefix_tokens


@dataclass(slots=True, kw_only=True)
class Sequence:
    """One answer: the tokens known so far, and those that the device is about to know."""

    group: Group
    index: int
    tokens: list[int]
    """The prompt, then the answer."""
    log_probs: list[float] = field(default_factory=list)
    num_in_flight: int = 0
    """Tokens that a device was given to compute and that were not fetched."""
    span: CachedTokens | None = None
    """None while it waits."""
    slot: int = -1
    """Where the device keeps its latest token, while it runs."""
    has_started: bool = False
    is_finished: bool = False
    num_preemptions: int = 0
    weights_version: tuple[int, int] = (0, 0)
    stream: int = 0

    @classmethod
    def of(cls, group: Group, index: int) -> Sequence:
        request = group.request
        tokens = [*request.prompt, *request.written]
        return cls(group=group, index=index, tokens=tokens, stream=random_stream(request, index))

    @property
    def key(self) -> Key:
        return self.group.arrival, self.index

    @property
    def length(self) -> int:
        return len(self.tokens) + self.num_in_flight

    @property
    def num_prompt(self) -> int:
        return len(self.group.request.prompt)

    @property
    def drawn(self) -> tuple[int, ...]:
        """Tokens of the answer that were drawn here."""
        return tuple(self.tokens[self.num_prompt + len(self.group.request.written) :])

    @property
    def num_unread(self) -> int:
        """Tokens before the last one that are not in the cache."""
        return 0 if self.span is None else self.length - 1 - self.span.num_cached

    def has_room(self, max_context: int) -> bool:
        """Another token may be computed."""
        return self.length - self.num_prompt < self.group.request.max_new_tokens and self.length < max_context

    def end(self, max_context: int) -> Reason | None:
        """Why the answer ends with the tokens it has; None if it goes on."""
        request = self.group.request
        if self.tokens[-1] in request.stop_tokens:
            return "stop"
        if len(self.tokens) - self.num_prompt >= request.max_new_tokens:
            return "length"
        return "context" if len(self.tokens) >= max_context else None

    def completion(self, reason: Reason) -> Completion:
        return Completion(
            request_id=self.group.request.id,
            index=self.index,
            tokens=self.drawn,
            log_probs=tuple(self.log_probs),
            reason=reason,
            num_preemptions=self.num_preemptions,
            weights_version=self.weights_version,
        )

    def open_answer(self) -> OpenAnswer:
        request = self.group.request
        return OpenAnswer(request=request, index=self.index, tokens=self.drawn, log_probs=tuple(self.log_probs))
