"""Engine: requests in, tokens out, one step at a time. Whoever drives it stamps the time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.run.generate.decode_batch import DecodeBatch
from scalewright.run.generate.options import EngineOptions, EngineStats, StepEvents, TokenEvent
from scalewright.run.generate.requests import Completion, OpenAnswer, Request, Sampling
from scalewright.run.generate.runner import Decoded, PlainRunner
from scalewright.run.generate.sampler import sampler_kind
from scalewright.run.generate.scheduler import Scheduler
from scalewright.run.generate.sequences import Sequence
from scalewright.run.generate.served_model import ServedModel


class Engine:
    """Continuous batching. Under tensor parallelism every rank gets the same calls in the same order."""

    def __init__(
        self, model: ServedModel, runner: PlainRunner, scheduler: Scheduler, options: EngineOptions, stats: EngineStats
    ) -> None:
        self._model, self._runner, self._scheduler = model, runner, scheduler
        self.options, self.stats = options, stats
        self._in_flight: deque[tuple[list[Sequence], Decoded]] = deque()
        self._carried = StepEvents()
        """Of tokens that were fetched between steps; the next step reports them."""

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._carried.tokens)

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def vocab(self) -> int:
        return self._model.whole_shape.vocab

    @property
    def num_tensor_ranks(self) -> int:
        """Ranks that share this copy of the model."""
        return self._model.ranks.size

    def prepare(self, sampling: Sampling, on_size: Callable[[int, int], None]) -> None:
        """Get ready to decode batches of every size, so that no request waits for kernels.

        Kernels that were never chosen take seconds a size. `on_size` hears of each size before it, and of how many.
        """
        self._runner.prepare(sampler_kind([sampling]), on_size)

    @property
    def device(self) -> torch.device:
        return self._model.device

    def cache_tensors(self) -> list[Tensor]:
        """The memory of keys and values. Call `forget_cache` before it is released."""
        cache = self._runner.cache
        return [cache.keys_LNPGE, cache.values_LNPGE]

    def forget_cache(self) -> int:
        """Take every page away, so that open answers are read again, and drop recorded steps, which have addresses of
        the cache inside; the bytes of those, where they are known."""
        self._fetch(self._carried, num_left=0)
        self._carried.preempted += self._scheduler.preempt_all()
        self._runner.forget_steps()
        return 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        limit = self.options.max_context
        known = (*request.prompt, *request.written)
        if len(known) >= limit:
            raise ConfigError(
                f"request {request.id}: its prompt has {len(known)} tokens, and the context of {limit} must "
                "also hold an answer: shorten it or raise max_context"
            )
        odd = next((token for token in known if not 0 <= token < self.vocab), None)
        if odd is not None:
            raise ConfigError(
                f"request {request.id}: token {odd} is not in the vocabulary of {self.vocab}: use the model's tokenizer"
            )
        self._scheduler.add(request)

    def step(self) -> StepEvents:
        """One iteration: read a chunk of prompts, decode one token of every sequence that is read."""
        events, self._carried = self._carried, StepEvents()
        if self._in_flight and self._scheduler.must_preempt:
            self._fetch(events, num_left=0)
        plan = self._scheduler.plan()
        self._runner.copy(plan.copies)
        batch = DecodeBatch.of(plan.decode) if plan.decode else None
        decoded = self._runner.step(plan.chunks, batch)
        if batch is not None and decoded is not None:
            self._in_flight.append((plan.decode, decoded))
            events.num_context_tokens = batch.num_context_tokens
        self._scheduler.launched(plan)
        events.started, events.preempted = plan.started, events.preempted + plan.preempted
        events.num_prefill_tokens, events.num_decoded = plan.num_prefill_tokens, len(plan.decode)
        events.num_waiting = self._scheduler.num_waiting
        events.occupancy_frac = self._scheduler.pool.occupancy_frac
        self._fetch(events, num_left=self._runner.num_behind if plan.decode else 0)
        self.stats.add(events)
        return events

    def drain(self) -> list[Completion]:
        """Step until nothing is left to do; the completions of these steps, in the order in which they ended."""
        completions: list[Completion] = []
        while self.has_work:
            completions += self.step().finished
        return completions

    def fetch(self) -> StepEvents:
        """Tokens that the device has computed and no step has reported."""
        events, self._carried = self._carried, StepEvents()
        self._fetch(events, num_left=0)
        return events

    def take_open(self, answers: Collection[tuple[str, int]] | None = None) -> list[OpenAnswer]:
        """Take answers that have not ended out of the engine, oldest first; their cache is free then.

        `answers` are names of a request and numbers of an answer; None: all. Call `fetch` before: what is still in
        flight is otherwise reported by the next step.
        """
        self._fetch(self._carried, num_left=0)
        taken = self._scheduler.take(lambda one: answers is None or (one.group.request.id, one.index) in answers)
        return [sequence.open_answer() for sequence in taken]

    def replace_weights(
        self, tensors: Iterable[tuple[str, Tensor]], *, rereads: bool = False, are_parts: bool = False
    ) -> None:
        """Copy new weights into place between two steps; running sequences go on with them.

        Their keys and values stay those of the old weights, unless `rereads`: then every sequence is read again. With
        `are_parts`, the tensors are the parts that this rank stores, as a weight sync by peers brings them.
        """
        self._fetch(self._carried, num_left=0)
        self._model.replace(tensors, where="the new weights", is_whole=False, are_parts=are_parts)
        self.stats.num_weight_replacements += 1
        if rereads:
            self._carried.preempted += self._scheduler.preempt_all()

    def _fetch(self, events: StepEvents, *, num_left: int) -> None:
        """Take over tokens from the device until only `num_left` steps are in flight."""
        while len(self._in_flight) > num_left:
            sequences, decoded = self._in_flight.popleft()
            for sequence, token, log_prob in zip(sequences, *decoded.fetch(), strict=True):
                if not sequence.is_finished:  # one that met a stop token is computed once more before that is known
                    self._take(events, sequence, token, log_prob)

    def _take(self, events: StepEvents, sequence: Sequence, token: int, log_prob: float) -> None:
        request, position = sequence.group.request, len(sequence.tokens) - sequence.num_prompt
        if not math.isfinite(log_prob):
            raise ConfigError(
                f"request {request.id}: the scores of token {position} of answer {sequence.index} are not finite "
                "numbers: check the weights, or choose a precision with more range"
            )
        sequence.num_in_flight -= 1
        version = self.stats.num_weight_replacements
        sequence.weights_version = (sequence.weights_version[0] if sequence.log_probs else version, version)
        sequence.tokens.append(token)
        sequence.log_probs.append(log_prob)
        events.tokens.append(
            TokenEvent(request_id=request.id, index=sequence.index, position=position, token=token, log_prob=log_prob)
        )
        reason = sequence.end(self.options.max_context)
        if reason is not None:
            self._scheduler.finish(sequence)
            events.finished.append(sequence.completion(reason))
