"""Which sequences read and decode in the next step, and which lose their pages when the cache is full.

Older work goes first. If a sequence needs a page and none is free, the youngest running one gives up all of its own
and is read again later. The cache holds at least one whole sequence, so the oldest one always ends.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scalewright.run.generate.pages import CachedTokens, PagePool, starting_span
from scalewright.run.generate.requests import Request
from scalewright.run.generate.sequences import Group, Key, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive tokens of one sequence that are read in this step."""

    tokens: list[int]
    start: int
    pages: list[int]
    """Of the sequence up to the last token of the chunk."""

    @property
    def positions(self) -> np.ndarray:
        return np.arange(self.start, self.start + len(self.tokens))


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """What the device does in one step, in this order."""

    copies: list[tuple[int, int]] = field(default_factory=list)
    """Pages (from, to)."""
    chunks: list[Chunk] = field(default_factory=list)
    decode: list[Sequence] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    preempted: list[tuple[str, int]] = field(default_factory=list)

    @property
    def num_prefill_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)


class Scheduler:
    def __init__(
        self, pool: PagePool, *, page_tokens: int, max_context: int, max_running: int, prefill_chunk: int
    ) -> None:
        self.pool = pool
        self._page_tokens, self._max_context = page_tokens, max_context
        self._max_running, self._prefill_chunk = max_running, prefill_chunk
        self._num_arrivals = 0
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._prefixes: list[Group] = []
        self._slots = list(range(max_running - 1, -1, -1))

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    def add(self, request: Request) -> None:
        group = Group(request=request, arrival=self._num_arrivals, num_unstarted=request.num_answers)
        self._num_arrivals += 1
        numbers = range(request.first_index, request.first_index + request.num_answers)
        self._waiting += [Sequence.of(group, index) for index in numbers]

    @property
    def must_preempt(self) -> bool:
        """The next plan takes pages away from somebody. Tokens in flight have to be fetched before that."""
        return sum(map(self._num_missing, self._decodable())) > self.pool.num_free

    def plan(self) -> StepPlan:
        plan = StepPlan()
        for group in self._prefixes:
            group.is_prefix_ready = group.has_read_prefix
        self._reserve(plan)
        budget = self._continue_reading(plan)
        if not plan.preempted:
            self._admit(plan, budget)
        plan.decode = self._decodable()
        return plan

    def launched(self, plan: StepPlan) -> None:
        """The device was given the plan: every decoded sequence has one more token in flight."""
        for sequence in plan.decode:
            assert sequence.span is not None
            sequence.span.num_cached += 1
            sequence.num_in_flight += 1

    def finish(self, sequence: Sequence) -> None:
        sequence.is_finished = True
        self._leave(sequence)

    def take(self, is_taken: Callable[[Sequence], bool]) -> list[Sequence]:
        """Give up sequences with nothing in flight, oldest first. They hold no page after that."""
        taken = sorted((s for s in (*self._running, *self._waiting) if is_taken(s)), key=lambda sequence: sequence.key)
        for sequence in taken:
            assert sequence.num_in_flight == 0
            if sequence.span is not None:
                self._leave(sequence)
            elif not sequence.has_started:
                self._count_start(sequence)
        self._waiting = [sequence for sequence in self._waiting if not is_taken(sequence)]
        return taken

    def preempt_all(self) -> list[tuple[str, int]]:
        """Take every page away, youngest first: everything is read again, with the weights of then."""
        plan = StepPlan()
        for sequence in sorted(self._running, key=lambda running: running.key, reverse=True):
            self._preempt(plan, sequence)
        for group in list(self._prefixes):
            self._drop_prefix(group)
        return plan.preempted

    def _decodable(self) -> list[Sequence]:
        return [s for s in self._running if s.num_unread == 0 and s.has_room(self._max_context)]

    def _num_missing(self, sequence: Sequence) -> int:
        assert sequence.span is not None
        return sequence.span.num_missing(sequence.length, self._page_tokens)

    def _reserve(self, plan: StepPlan) -> None:
        """A page for the next token of every sequence that decodes, oldest first."""
        for sequence in sorted(self._decodable(), key=lambda s: s.key):
            while sequence.span is not None and self._num_missing(sequence) > self.pool.num_free:
                self._make_room(plan, sequence)
            if sequence.span is not None:
                sequence.span.pages += self.pool.take(self._num_missing(sequence))

    def _make_room(self, plan: StepPlan, sequence: Sequence) -> None:
        """Take pages from the youngest running sequence; before it is the asking one itself, from shared prompts."""
        victim = max(self._running, key=lambda running: running.key)
        if victim is sequence and self._prefixes:
            self._drop_prefix(max(self._prefixes, key=lambda group: group.key))
        else:
            self._preempt(plan, victim)

    def _preempt(self, plan: StepPlan, victim: Sequence) -> None:
        assert victim.num_in_flight == 0
        self._leave(victim)
        victim.num_preemptions += 1
        plan.preempted.append((victim.group.request.id, victim.index))
        insort(self._waiting, victim, key=lambda s: s.key)

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.span is not None
        self.pool.release(sequence.span.pages)
        self._slots.append(sequence.slot)
        self._running.remove(sequence)
        sequence.span, sequence.slot = None, -1

    def _drop_prefix(self, group: Group) -> None:
        assert group.prefix is not None
        self.pool.release(group.prefix.pages)
        self._prefixes.remove(group)
        group.prefix, group.is_prefix_ready = None, False

    def _continue_reading(self, plan: StepPlan) -> int:
        """Chunks of what is being read already; returns the tokens that may still be read in this step."""
        budget = self._prefill_chunk
        reading: list[tuple[Key, CachedTokens, list[int]]] = []
        for group in self._prefixes:
            if not group.has_read_prefix and group.prefix is not None:
                reading.append((group.key, group.prefix, list(group.request.prompt[:-1])))
        for sequence in self._running:
            if sequence.num_unread > 0 and sequence.span is not None:
                reading.append((sequence.key, sequence.span, sequence.tokens[:-1]))
        for _, span, tokens in sorted(reading, key=lambda item: item[0]):
            budget -= self._read(plan, span, tokens, budget)
        return budget

    def _read(self, plan: StepPlan, span: CachedTokens, tokens: list[int], budget: int) -> int:
        start = span.num_cached
        part = tokens[start : start + budget]
        if part:
            span.num_cached += len(part)
            num_pages = -(-span.num_cached // self._page_tokens)
            plan.chunks.append(Chunk(tokens=part, start=start, pages=span.pages[:num_pages]))
        return len(part)

    def _admit(self, plan: StepPlan, budget: int) -> None:
        """Start waiting sequences, in order, while there are slots, pages and tokens to read."""
        position = 0
        while position < len(self._waiting) and self._slots:
            sequence = self._waiting[position]
            group = sequence.group
            if group.prefix is not None and not group.is_prefix_ready:
                position += 1  # its prompt is being read
                continue
            num_to_read = sequence.length - 1 - (group.num_prefix_tokens if group.is_prefix_ready else 0)
            opens_prefix = not sequence.has_started and self._is_worth_sharing(group)
            num_pages = self._num_prefix_pages(group) if opens_prefix else self._num_own_pages(sequence)
            if num_to_read > 0 and budget <= 0:
                return
            if num_pages + len(self._running) > self.pool.num_free:  # running sequences will soon need a page each
                if self._running or not self._drop_a_ready_prefix(sequence):
                    return
            elif opens_prefix:
                budget -= self._open_prefix(plan, group, num_pages, budget)
            else:
                del self._waiting[position]
                budget -= self._start(plan, sequence, budget)

    def _drop_a_ready_prefix(self, sequence: Sequence) -> bool:
        """Nothing runs that would free pages: the youngest prompt that only waits for its answers gives way to an older
        sequence, or to a longer one of its own."""
        ready = [
            group
            for group in self._prefixes
            if group.is_prefix_ready
            and (group.key > sequence.key or (group is sequence.group and sequence.has_started))
        ]
        if ready:
            self._drop_prefix(max(ready, key=lambda group: group.key))
        return bool(ready)

    def _is_worth_sharing(self, group: Group) -> bool:
        """Several answers have not begun, and the cache can hold the shared prompt beside one of them."""
        num_tokens, num_prefix_pages = len(group.request.prompt), self._num_prefix_pages(group)
        num_own = -(-num_tokens // self._page_tokens) - group.num_prefix_tokens // self._page_tokens
        fits = num_prefix_pages + num_own <= self.pool.num_pages
        return group.prefix is None and group.num_unstarted > 1 and group.num_prefix_tokens > 0 and fits

    def _num_prefix_pages(self, group: Group) -> int:
        return -(-group.num_prefix_tokens // self._page_tokens)

    def _num_own_pages(self, sequence: Sequence) -> int:
        group = sequence.group
        num_shared = group.num_prefix_tokens // self._page_tokens if group.is_prefix_ready else 0
        return -(-sequence.length // self._page_tokens) - num_shared

    def _open_prefix(self, plan: StepPlan, group: Group, num_pages: int, budget: int) -> int:
        self._note_start(plan, group)
        group.prefix = CachedTokens(pages=self.pool.take(num_pages))
        self._prefixes.append(group)
        return self._read(plan, group.prefix, list(group.request.prompt[:-1]), budget)

    def _start(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        group = sequence.group
        self._note_start(plan, group)
        sequence.span = CachedTokens()
        if group.is_prefix_ready and group.prefix is not None:
            sequence.span, copy = starting_span(group.prefix, self.pool, self._page_tokens)
            plan.copies += [copy] if copy is not None else []
        sequence.span.pages += self.pool.take(self._num_missing(sequence))
        sequence.slot = self._slots.pop()
        self._running.append(sequence)
        if not sequence.has_started:
            self._count_start(sequence)
        return self._read(plan, sequence.span, sequence.tokens[:-1], budget)

    def _count_start(self, sequence: Sequence) -> None:
        """The prompt that a group shares is dropped when the last of its answers began."""
        group = sequence.group
        sequence.has_started = True
        group.num_unstarted -= 1
        if group.num_unstarted == 0 and group.prefix is not None:
            self._drop_prefix(group)

    def _note_start(self, plan: StepPlan, group: Group) -> None:
        if not group.has_started:
            group.has_started = True
            plan.started.append(group.request.id)
