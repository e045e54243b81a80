"""StageSession: what every stage of a rank works with, and the answers that all ranks write together."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scalewright.data.reasoning.task import Problem, Score, open_task
from scalewright.errors import ConfigError
from scalewright.records.run_directory import RunDirectory
from scalewright.run.generate.copies import copy_of
from scalewright.run.generate.requests import Sampling
from scalewright.run.language.rotary import LayerConstants
from scalewright.run.rank_context import RankContext
from scalewright.run.reasoning.exchange import from_all_ranks, wait_for_all
from scalewright.run.reasoning.parts import StageClock, StageTotals
from scalewright.run.reasoning.rollout import PolicyEngine, Rollout, open_policy_engine
from scalewright.workload.reasoning.counted_work import ModelWork
from scalewright.workload.reasoning.stage_run import ReasonRun

TEST_SEED = 0
"""The test problems are the same for every stage and seed, so that stages are compared on the same ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """An answer and what it is worth."""

    rollout: Rollout
    score: Score


def sampling_of(config: ReasonRun) -> Sampling:
    """How answers to train on are drawn."""
    chosen = config.engine.sampling
    return Sampling(temperature=chosen.temperature, top_p=chosen.top_p_frac, top_k=chosen.top_k, seed=config.seed)


def failures_of(outcomes: Mapping[str, int]) -> dict[str, int] | None:
    """Rewards that failed, by kind; None where all have a value."""
    return {kind: num for kind, num in outcomes.items() if kind != "ok"} or None


class StageSession:
    """One rank's view of a stage."""

    def __init__(self, config: ReasonRun, rank: RankContext, device: torch.device) -> None:
        self.config, self.rank, self.device = config, rank, device
        self.task = open_task(config.task)
        if self.task.vocab > config.shape.vocab:
            raise ConfigError(
                f"the task has {self.task.vocab} tokens and {config.model_id} a vocabulary of {config.shape.vocab}: "
                "use the model's own tokenizer, or a model with more"
            )
        if config.evaluation.num_problems:  # more than the task has: refused now, not after the training
            self.task.problems("test", config.evaluation.num_problems, seed=TEST_SEED)
        self.copy = copy_of(rank.world.rank, tp=config.engine.tp, dp=config.num_ranks // config.engine.tp)
        self.clock, self.totals = StageClock(device), StageTotals()
        self.work = ModelWork.of(config.shape, num_params=config.spec.num_params)
        self.engine: PolicyEngine | None = None
        self._reward_outcomes: Counter[str] = Counter()

    @property
    def directory(self) -> RunDirectory:
        return self.rank.directory

    @property
    def is_first(self) -> bool:
        return self.rank.world.is_first

    def open_engine(
        self, weights: Iterable[tuple[str, Tensor]] | int, *, num_sequences: int,
        constants: LayerConstants | None = None, where: str = "the weights",
    ) -> PolicyEngine:  # fmt: skip
        self.engine = open_policy_engine(
            self.config.shape, self.config.engine, task=self.task, copy=self.copy, work=self.work, totals=self.totals,
            num_sequences=num_sequences, num_local_ranks=self.rank.world.local_world_size, device=self.device,
            weights=weights, constants=constants, where=where,
        )  # fmt: skip
        return self.engine

    def sampling(self) -> Sampling:
        return sampling_of(self.config)

    def answers(
        self, problems: Sequence[Problem], *, num_answers: int, sampling: Sampling, label: str, is_step: bool = True
    ) -> list[ScoredRollout]:
        """Answers to all problems with their scores, on every rank, the answers to a problem one after the other.

        Without `is_step` the time is not split: it is part of an evaluation.
        """
        assert self.engine is not None
        with self._part("generation", is_step):
            own = self.engine.answers(problems, num_answers=num_answers, sampling=sampling, label=label)
            self.clock.count_tokens(sum(len(one.tokens) for one in own) if self.copy.is_first else 0)
        if not self.copy.is_first:
            own = []
        scores: list[Score] | ConfigError
        with self._part("reward", is_step):
            try:
                scores = self.task.score_many([(rollout.problem, rollout.tokens) for rollout in own])
            except ConfigError as error:
                scores = error
        with self._part("idle", is_step):
            wait_for_all()
        with self._part("data", is_step):
            return self._merged(own, scores, num_answers=num_answers)

    def count_rewards(self, rollouts: Sequence[ScoredRollout]) -> None:
        """Count how the sandbox ended, where rewards run in one. Every rank counts the same."""
        if self.config.task.sandbox == "off":
            return
        for kind, num in Counter(one.score.failure for one in rollouts).items():
            self._reward_outcomes[kind or "ok"] += num
            if kind:
                self.totals.add(f"failed_{kind}", num)

    def take_reward_outcomes(self) -> dict[str, int]:
        """Of the step so far, `ok` included; the next step counts from zero."""
        taken, self._reward_outcomes = dict(sorted(self._reward_outcomes.items())), Counter()
        return taken

    @contextlib.contextmanager
    def _part(self, name: str, is_step: bool):  # type: ignore[no-untyped-def]
        with self.clock.part(name) if is_step else contextlib.nullcontext():
            yield

    def _merged(
        self, own: list[Rollout], scores: list[Score] | ConfigError, *, num_answers: int
    ) -> list[ScoredRollout]:
        """The answers of all copies in the order of the problems, which were dealt out one by one."""

        def scored() -> list[ScoredRollout]:
            if isinstance(scores, ConfigError):
                raise scores
            return [ScoredRollout(rollout=r, score=s) for r, s in zip(own, scores, strict=True)]

        if self.rank.world.world_size == 1:
            return scored()
        by_copy = from_all_ranks(scored)[:: self.config.engine.tp]
        groups = [[part[start : start + num_answers] for start in range(0, len(part), num_answers)] for part in by_copy]
        merged: list[ScoredRollout] = []
        for row in range(max(map(len, groups))):
            for part in groups:
                merged += part[row] if row < len(part) else []
        return merged
