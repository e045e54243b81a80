"""PooledRollouts: the answers of a step within a token budget (C3PO++), on the ranks that also train.

Every rank holds the same pool and applies the same events in the same order, so ranks agree without a vote on what is
open, what ended and when the budget is reached. Each copy of the engine decodes its share of the open rollouts.

When an iteration ends, open rollouts leave the engine. The next iteration reads their prefixes again with the new
weights, so that an answer depends on the versions of its tokens alone. With `stale_keys` they stay: their keys and
values are those of the weights that wrote them. That saves the reading, and a resumed stage then goes another way,
because a checkpoint holds tokens and no keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from scalewright.data.reasoning.task import Problem, Score
from scalewright.errors import ScalewrightError
from scalewright.run.generate.options import StepEvents
from scalewright.run.generate.requests import Reason
from scalewright.run.reasoning.exchange import from_all_ranks, outcome_of
from scalewright.run.reasoning.rollout import PolicyEngine, Rollout
from scalewright.run.reasoning.session import ScoredRollout, StageSession
from scalewright.workload.reasoning.rollout_pool import (
    FinishedRollout,
    IterationResult,
    OpenRollout,
    RolloutId,
    RolloutPool,
)
from scalewright.workload.reasoning.stage_run import GrpoSettings

READ_STEPS = {"cpu": 0.15, "cuda": 6.0}
"""Decode steps that take as long as reading some short prompts. A CPU reads them within a decode step, which takes
longer for it. On a GPU, kernels are launched for it one by one, and a decode step is one graph. Free places are filled
when being idle has cost as much: twice the least cost at most."""
MOST_STEPS = 8
"""Decode steps between two exchanges of several copies: a free place waits that long for its next rollout."""


@dataclass(slots=True)
class Progress:
    """What a copy wrote since the last exchange."""

    tokens: dict[RolloutId, list[int]] = field(default_factory=dict)
    log_probs: dict[RolloutId, list[float]] = field(default_factory=dict)
    ended: list[tuple[RolloutId, Reason]] = field(default_factory=list)

    def add(self, events: StepEvents) -> None:
        for event in events.tokens:
            rollout = f"{event.request_id}:{event.index}"
            self.tokens.setdefault(rollout, []).append(event.token)
            self.log_probs.setdefault(rollout, []).append(event.log_prob)
        self.ended += [(f"{one.request_id}:{one.index}", one.reason) for one in events.finished]


class PooledRollouts:
    """One rank's view of the pool. Every rank calls the same methods in the same order."""

    def __init__(
        self, session: StageSession, settings: GrpoSettings, *, problem_at: Callable[[int], Problem],
        document: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        """`document` is the pool of a checkpoint; None: a new pool."""
        self._session, self._settings, self._problem_at = session, settings, problem_at
        max_open = session.config.engine.max_running * session.copy.num_copies
        self.pool = (
            RolloutPool(settings.pool_settings(max_open=max_open))
            if document is None
            else RolloutPool.from_document(document)
        )
        self._copy_of: dict[RolloutId, int] = {}
        """Rollouts that a copy has, and which."""
        self._loads = [0] * session.copy.num_copies
        self._problems: dict[int, Problem] = {}
        self._idle_steps = 0.0
        """Of all places, since free ones were filled."""
        self._before: dict[str, Any] | None = None

    @property
    def engine(self) -> PolicyEngine:
        assert self._session.engine is not None
        return self._session.engine

    def notes(self) -> list[str]:
        """What a reader of the stage's record should know about its budget."""
        settings = self.pool.settings
        num_each = settings.token_budget // settings.max_open
        num_longest = num_each * settings.retention
        if num_longest >= self._session.task.max_response:
            return []
        return [
            f"answers longer than about {num_longest} tokens are given up: a step writes about {num_each} tokens of "
            f"each of {settings.max_open} open answers, and the retention limit is {settings.retention}"
        ]

    def document(self) -> dict[str, Any]:
        """The pool for a checkpoint. During a step, it is the pool before it: such a step is done again."""
        return self.pool.to_document() if self._before is None else self._before

    def iteration(self, version: int) -> IterationResult:
        """Write until the budget is reached. `step_done` must follow once the answers are trained on."""
        pool, clock = self.pool, self._session.clock
        self._before = pool.to_document()
        pool.begin(version)
        with clock.part("generation"):
            self._drop_purged()
            self._deal()
            while not pool.is_over:
                self._apply(self._from_all_copies(self._decoded), version)
            self._apply(self._from_all_copies(self._fetched), version)
            if not self._settings.stale_keys:
                self.leave_engine()
            clock.count_tokens(pool.num_tokens // len(self._loads) if self._session.copy.is_first else 0)
        result = pool.end()
        oldest = pool.oldest_place
        kept = {group.prompt_place for group in result.trained}
        self._problems = {place: one for place, one in self._problems.items() if place >= oldest or place in kept}
        return result

    def step_done(self) -> None:
        """The answers of the last iteration are trained on: a checkpoint holds the pool as it is now."""
        self._before = None

    def leave_engine(self) -> None:
        """Take all rollouts out of the engines. Each is read again when it goes on."""
        self.engine.engine.take_open()
        self._copy_of.clear()
        self._loads = [0] * len(self._loads)

    def scored(self, result: IterationResult) -> list[list[ScoredRollout]]:
        """The trained groups with their scores, on every rank. Copies share the scoring."""
        session, num_copies = self._session, len(self._loads)
        rollouts = [self._rollout(answer) for group in result.trained for answer in group.answers]
        own = rollouts[session.copy.number :: num_copies] if session.copy.is_first else []
        with session.clock.part("reward"):
            outcome = outcome_of(lambda: session.task.score_many([(one.problem, one.tokens) for one in own]))
        with session.clock.part("idle"):
            parts = from_all_ranks(lambda: _value(outcome))[:: session.config.engine.tp]
        scores: list[Score] = [parts[place % num_copies][place // num_copies] for place in range(len(rollouts))]
        pairs = iter(zip(rollouts, scores, strict=True))
        return [
            [ScoredRollout(rollout=rollout, score=score) for _, (rollout, score) in zip(group.answers, pairs)]  # noqa: B905
            for group in result.trained
        ]

    def _rollout(self, answer: FinishedRollout) -> Rollout:
        one = answer.rollout
        return Rollout(
            problem=self._problem(one.prompt_place), index=one.index, tokens=tuple(one.tokens),
            log_probs=tuple(one.log_probs), reason=answer.reason,  # type: ignore[arg-type]
            weights_version=(one.version_runs[0][0], one.version_runs[-1][0]),
        )  # fmt: skip

    def _problem(self, place: int) -> Problem:
        if place not in self._problems:
            self._problems[place] = self._problem_at(place)
        return self._problems[place]

    def _drop_purged(self) -> None:
        """Rollouts that were given up while an engine had them."""
        gone = [rollout for rollout in self._copy_of if not self.pool.is_open(rollout)]
        names = {(place, int(index)) for place, _, index in (rollout.partition(":") for rollout in gone)}
        if names:
            self.engine.engine.take_open(names)
        for rollout in gone:
            self._loads[self._copy_of.pop(rollout)] -= 1

    def _deal(self) -> None:
        """Give open rollouts that no copy has to the copy with the fewest; fresh ones of a prompt stay together."""
        self._idle_steps = 0.0
        for run in _runs(one for one in self.pool.open if one.id not in self._copy_of):
            copy = min(range(len(self._loads)), key=self._loads.__getitem__)
            self._loads[copy] += len(run)
            self._copy_of |= {one.id: copy for one in run}
            if copy == self._session.copy.number:
                self.engine.open(
                    self._problem(run[0].prompt_place), name=str(run[0].prompt_place), first_index=run[0].index,
                    num_answers=len(run), written=tuple(run[0].tokens), sampling=self._session.sampling(),
                )  # fmt: skip

    def _decoded(self) -> Progress:
        """The tokens of this copy's next decode steps: one step where no other copy waits for what it frees."""
        pool, progress = self.pool, Progress()
        num_safe = pool.num_left // max(pool.num_open, 1)  # so many steps cannot reach the budget
        for _ in range(1 if len(self._loads) == 1 else max(min(num_safe, MOST_STEPS), 1)):
            if self.engine.engine.has_work:
                progress.add(self.engine.step())
        return progress

    def _fetched(self) -> Progress:
        progress = Progress()
        progress.add(self.engine.engine.fetch())
        return progress

    def _from_all_copies(self, work: Callable[[], Progress]) -> list[Progress]:
        outcome = outcome_of(work)
        if self._session.rank.world.world_size == 1:
            return [_value(outcome)]
        with self._session.clock.part("idle"):
            return from_all_ranks(lambda: _value(outcome))[:: self._session.config.engine.tp]

    def _apply(self, parts: Iterable[Progress], version: int) -> None:
        num_steps = 0
        for progress in parts:
            num_steps = max(num_steps, *map(len, progress.tokens.values()), 0)
            for rollout, tokens in progress.tokens.items():
                self.pool.wrote(rollout, tokens, progress.log_probs[rollout], version)
            for rollout, reason in progress.ended:
                self.pool.finished(rollout, reason)
                self._loads[self._copy_of.pop(rollout)] -= 1
        if not self.pool.is_over and self._is_worth_reading(num_steps):
            self._deal()

    def _is_worth_reading(self, num_steps: int) -> bool:
        """Whether free places have cost as much since they were filled as it costs to fill them."""
        num_free = self.pool.num_open - len(self._copy_of)
        self._idle_steps += num_steps * num_free / self.pool.settings.max_open
        has_cost = self._idle_steps >= READ_STEPS[self._session.device.type]
        return num_free > 0 and (has_cost or not all(self._loads))


def _value(outcome: tuple[Any, ScalewrightError | None]) -> Any:
    value, error = outcome
    if error is not None:
        raise error
    return value


def _runs(rollouts: Iterable[OpenRollout]) -> Iterator[list[OpenRollout]]:
    """Fresh rollouts of one prompt with consecutive numbers together; one that goes on alone."""
    run: list[OpenRollout] = []
    for one in rollouts:
        is_next = bool(run) and (run[-1].prompt_place, run[-1].index + 1) == (one.prompt_place, one.index)
        if run and not (is_next and not run[-1].tokens and not one.tokens):
            yield run
            run = []
        run.append(one)
    if run:
        yield run
