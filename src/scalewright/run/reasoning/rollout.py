"""PolicyEngine: the engine of a stage, with the trainer's weights in a precision of its own. It counts what it does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scalewright.catalog.types import TransformerShape
from scalewright.data.reasoning.task import Problem, Task
from scalewright.run.generate.copies import Copy
from scalewright.run.generate.engine import Engine
from scalewright.run.generate.open import PAGE_TOKENS, open_engine
from scalewright.run.generate.options import EngineOptions, StepEvents
from scalewright.run.generate.requests import GREEDY, Completion, Reason, Request, Sampling
from scalewright.run.generate.served_model import ROUNDED_BITS
from scalewright.run.language.rotary import LayerConstants
from scalewright.run.micro.free_memory import free_bytes
from scalewright.run.reasoning.parts import StageTotals
from scalewright.workload.reasoning.counted_work import ModelWork
from scalewright.workload.reasoning.stage_run import EngineSettings

READ_TOKENS = {"cpu": 4096, "cuda": 2**15}
"""Tokens of prompts and prefixes that are read in a step: nobody waits for a first token, so many are read at once."""
FREE_FRAC = 0.85
"""Share of the free memory that keys and values may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One answer of the policy."""

    problem: Problem
    index: int
    """Which of the answers to the problem."""
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Of each token under the engine's distribution."""
    reason: Reason
    weights_version: tuple[int, int]

    @property
    def is_cut_off(self) -> bool:
        return self.reason != "stop"


class PolicyEngine:
    """One copy's engine. The ranks of a copy call the same methods with the same arguments."""

    def __init__(
        self, engine: Engine, *, task: Task, copy: Copy, work: ModelWork, totals: StageTotals, device: torch.device
    ) -> None:
        self.engine, self.task, self.copy, self.totals = engine, task, copy, totals
        self._work, self._device = work, device

    def answers(
        self, problems: Sequence[Problem], *, num_answers: int, sampling: Sampling, label: str
    ) -> list[Rollout]:
        """This copy's share of the answers: those to every num_copies-th problem, in the order of the problems.

        Random numbers depend on the seed, `label`, the problem's place and id alone: not on ranks and batches.
        """
        return self._answers(
            list(enumerate(problems))[self.copy.number :: self.copy.num_copies], num_answers, sampling, label
        )

    def own_answers(
        self, problems: Sequence[Problem], *, num_answers: int, sampling: Sampling, label: str
    ) -> list[Rollout]:
        """Answers of this copy to all the problems; other copies have others."""
        return self._answers(list(enumerate(problems)), num_answers, sampling, label)

    def _answers(
        self, own: list[tuple[int, Problem]], num_answers: int, sampling: Sampling, label: str
    ) -> list[Rollout]:
        by_id: dict[str, Problem] = {}
        for place, problem in own:
            name = f"{label}:{place}:{problem.id}"
            by_id[name] = problem
            self.engine.add(
                Request(
                    id=name, prompt=problem.prompt, num_answers=num_answers, sampling=sampling,
                    max_new_tokens=self.task.max_response, stop_tokens=self.task.stop_tokens,
                )
            )  # fmt: skip
        completed = {}
        for completion in self._drain(own):
            completed[completion.request_id, completion.index] = completion
        return [
            Rollout(
                problem=problem, index=index, tokens=done.tokens, log_probs=done.log_probs, reason=done.reason,
                weights_version=done.weights_version,
            )
            for name, problem in by_id.items()
            for index in range(num_answers)
            for done in (completed[name, index],)
        ]  # fmt: skip

    def open(
        self, problem: Problem, *, name: str, first_index: int, num_answers: int, written: tuple[int, ...],
        sampling: Sampling,
    ) -> None:  # fmt: skip
        """Begin answers to a problem, or let one go on that has these tokens. Random numbers depend on the seed, the
        name and the number of the answer."""
        num_read = len(problem.prompt) + len(written)
        self._count_reading(num_tokens=num_read, num_pairs=float(num_read**2))
        self.engine.add(
            Request(
                id=name, prompt=problem.prompt, num_answers=num_answers, sampling=sampling, first_index=first_index,
                max_new_tokens=self.task.max_response, stop_tokens=self.task.stop_tokens, written=written,
            )
        )  # fmt: skip

    def step(self) -> StepEvents:
        """One step of the engine, timed and counted."""
        begun_s = time.perf_counter()
        events = self.engine.step()
        self._count(events, time.perf_counter() - begun_s)
        return events

    def greedy(self, problems: Sequence[Problem], *, label: str) -> list[Rollout]:
        return self.answers(problems, num_answers=1, sampling=GREEDY, label=label)

    def sync(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Take over the trainer's weights in place."""
        self.engine.replace_weights(tensors)

    def _drain(self, own: Sequence[tuple[int, Problem]]) -> Iterator[Completion]:
        """Completions as they end; every step is counted."""
        num_pairs = float(sum(len(problem.prompt) ** 2 for _, problem in own))
        self._count_reading(num_tokens=sum(len(problem.prompt) for _, problem in own), num_pairs=num_pairs)
        while self.engine.has_work:
            yield from self.step().finished

    def _count_reading(self, *, num_tokens: int, num_pairs: float) -> None:
        flop = self._work.forward_flop(num_tokens=num_tokens, num_scored=0, num_pairs=num_pairs) / self._size
        self.totals.add("prefill_flop", flop)

    @property
    def _size(self) -> int:
        return self.engine.num_tensor_ranks

    def _count(self, events: StepEvents, took_s: float) -> None:
        stats, num = self.engine.stats, events.num_decoded
        flop = self._work.forward_flop(num_tokens=num, num_scored=num, num_pairs=events.num_context_tokens)
        num_bytes = stats.weight_bytes + events.num_context_tokens * stats.cache_bytes_per_token
        kind = "prefill" if events.num_prefill_tokens else "decode"
        self.totals.add_work(kind, flop=flop / self._size, num_bytes=num_bytes, seconds=took_s)
        if num:
            self.totals.add("occupancy", events.occupancy_frac)
            self.totals.add("num_decode_steps", 1)
        self.totals.add("kv_peak", events.occupancy_frac)


def num_running(settings: EngineSettings, copy: Copy, num_sequences: int) -> int:
    """Sequences that one copy decodes at once."""
    return max(min(-(-num_sequences // copy.num_copies), settings.max_running), 1)


def needed_cache_bytes(
    shape: TransformerShape, settings: EngineSettings, *, num_sequences: int, device: torch.device
) -> int:
    """Keys and values of so many sequences of the whole context, on one rank."""
    is_wide = settings.precision == "fp32" or (settings.precision in ROUNDED_BITS and device.type == "cpu")
    width = 4 if is_wide else 2
    each = 2 * shape.layers * max(shape.kv_heads // settings.tp, 1) * shape.head_dim * width
    return num_sequences * (shape.seq + PAGE_TOKENS[device.type]) * each


def open_policy_engine(
    shape: TransformerShape, settings: EngineSettings, *, task: Task, copy: Copy, work: ModelWork, totals: StageTotals,
    num_sequences: int, num_local_ranks: int, device: torch.device, weights: Iterable[tuple[str, Tensor]] | int,
    constants: LayerConstants | None = None, where: str = "the weights",
) -> PolicyEngine:  # fmt: skip
    """An engine with room for the sequences of a step, at most `settings.max_running` at once."""
    running = num_running(settings, copy, num_sequences)
    room = free_bytes(device) * FREE_FRAC / (1 if device.type == "cuda" else num_local_ranks)
    needed = needed_cache_bytes(shape, settings, num_sequences=running, device=device)
    options = EngineOptions(
        max_context=shape.seq, max_running=running, precision=settings.precision, execution=settings.execution,
        cache_bytes=int(room) if needed > room > 0 else 0, prefill_chunk=READ_TOKENS[device.type],
    )  # fmt: skip
    engine = open_engine(
        shape, options, device=device, weights=weights, constants=constants, group=copy.group, where=where
    )
    return PolicyEngine(engine, task=task, copy=copy, work=work, totals=totals, device=device)
