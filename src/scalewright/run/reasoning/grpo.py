"""GRPO and its relatives: sample groups of answers, score them, update, and give the engine the new weights.

The answers of a step are split into updates of `layout.gbs`. Problems and random numbers follow from the seed and the
number of the step.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from scalewright.data.reasoning.task import Problem
from scalewright.errors import ConfigError
from scalewright.records.hybrid import HybridStep
from scalewright.records.reasoning import CurvePoint
from scalewright.run.reasoning.batches import SequenceBatch, TokenSequence
from scalewright.run.reasoning.losses import group_advantages, overlong_penalties
from scalewright.run.reasoning.objectives import PolicyData, PolicyObjective
from scalewright.run.reasoning.session import ScoredRollout
from scalewright.run.reasoning.trainer import SequenceTrainer, UpdateResult
from scalewright.run.reasoning.training_stage import TrainingStage
from scalewright.workload.reasoning.stage_run import GrpoSettings

MOST_ROUNDS = 4
"""Rounds of prompts that a step samples to replace groups with equal rewards (yu2025, dynamic sampling)."""
MOST_EQUAL_STEPS = 20
"""After so many steps in a row without any difference between rewards, nothing will be learnt."""
MISMATCHES = ("kl_engines", "masked_frac", "effective_sample_frac", "clip_frac")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answers of a step with their advantages, in groups of one problem each."""

    rollouts: list[ScoredRollout]
    advantages: list[float]
    rewards: list[float]
    num_groups: int
    """Groups that were sampled, trained on or not."""
    num_equal: int
    num_decoded_tokens: int
    """Of all answers that were sampled, trained on or not."""

    def iteration(self, step: int) -> HybridStep:
        """Every answer is written and trained on in the same step."""
        num_trained = sum(len(one.rollout.tokens) for one in self.rollouts)
        return HybridStep(
            step=step, version=step, num_finished=len(self.rollouts), num_decoded_tokens=self.num_decoded_tokens,
            num_trained_by_staleness={0: len(self.rollouts)}, num_trained_tokens=num_trained,
            num_wasted_tokens=self.num_decoded_tokens - num_trained,
        )  # fmt: skip


class GrpoStage(TrainingStage):
    """One rank's part of a GRPO stage."""

    writes_answers = True

    def prepare(self) -> None:
        config = self.config
        self._reference: SequenceTrainer | None = None
        if self.settings.loss.needs_reference:
            self._reference = self.open_frozen(config.shape, config.model_id, config.start_from)
        self.open_engine(num_sequences=self.settings.num_sequences)
        self._num_equal_steps = 0

    @property
    def settings(self) -> GrpoSettings:
        assert isinstance(self.config.settings, GrpoSettings)
        return self.config.settings

    def step(self, step: int) -> CurvePoint:
        answered = self._answered(step)
        updates = [
            result
            for epoch in range(self.settings.num_epochs)
            for result in self._updates(answered, is_first=epoch == 0)
        ]
        self.sync_weights()
        if self.iterations is not None:
            self.iterations.write(answered.iteration(step))
        if self.rollouts is not None and self.rollouts.due(step):
            self.rollouts.write(step, answered.rollouts, num=self.config.num_read)
        return self._point(step, answered, updates)

    def conclude(self) -> None:
        totals = self.session.totals
        if totals["num_groups"] and totals["num_equal_groups"] == totals["num_groups"]:
            raise self._equal_error(f"all {self.config.steps} steps")

    def _answered(self, step: int) -> Answered:
        """Groups to train on. A loss that drops groups of equal rewards samples other problems in their place."""
        settings, size = self.settings, self.settings.num_answers
        kept: list[ScoredRollout] = []
        num_groups = num_equal = num_decoded = 0
        for number in range(MOST_ROUNDS if settings.loss.drops_equal_groups else 1):
            problems = self._problems(step, number)
            rollouts = self.session.answers(
                problems, num_answers=size, sampling=self.session.sampling(), label=f"{step}.{number}"
            )
            self._count(rollouts)
            num_decoded += sum(len(one.rollout.tokens) for one in rollouts)
            groups = [rollouts[start : start + size] for start in range(0, len(rollouts), size)]
            equal = [len({one.score.reward for one in group}) == 1 for group in groups]
            num_groups, num_equal = num_groups + len(groups), num_equal + sum(equal)
            for group, is_equal in zip(groups, equal, strict=True):
                kept += [] if is_equal and settings.loss.drops_equal_groups else group
            if len(kept) >= settings.num_sequences:
                break
        self.session.totals.add("num_groups", num_groups)
        self.session.totals.add("num_equal_groups", num_equal)
        self._check_equal(is_equal=num_equal == num_groups)
        kept = kept[: settings.num_sequences]
        rewards = self._rewards(kept)
        advantages: list[float] = []
        if kept:
            advantages = group_advantages(settings.loss, torch.tensor(rewards).view(-1, size)).flatten().tolist()
        return Answered(
            rollouts=kept, advantages=advantages, rewards=rewards, num_groups=num_groups, num_equal=num_equal,
            num_decoded_tokens=num_decoded,
        )  # fmt: skip

    def _problems(self, step: int, number: int) -> list[Problem]:
        """Problems of a step: the next of an endless row of shuffled epochs."""
        settings = self.settings
        with self.session.clock.part("data"):
            place = step * MOST_ROUNDS + number if settings.loss.drops_equal_groups else step
            return self.problems_at(place * settings.num_prompts, settings.num_prompts)

    def _rewards(self, rollouts: Sequence[ScoredRollout]) -> list[float]:
        lengths = [len(one.rollout.tokens) for one in rollouts]
        penalties = overlong_penalties(self.settings.loss, lengths, max_response=self.session.task.max_response)
        return [one.score.reward + penalty for one, penalty in zip(rollouts, penalties, strict=True)]

    def _check_equal(self, *, is_equal: bool) -> None:
        self._num_equal_steps = self._num_equal_steps + 1 if is_equal else 0
        if self._num_equal_steps >= MOST_EQUAL_STEPS:
            raise self._equal_error(f"the last {MOST_EQUAL_STEPS} steps")

    @staticmethod
    def _equal_error(span: str) -> ConfigError:
        return ConfigError(
            f"in {span} all answers to a prompt had the same reward, so there is nothing to learn: start from a model "
            "that solves some of the problems, choose easier ones, or check the reward; the last checkpoint is kept"
        )

    def _count(self, rollouts: Sequence[ScoredRollout]) -> None:
        self.session.totals.add("num_samples", len(rollouts))
        self.session.totals.add("num_tokens", sum(len(one.rollout.tokens) for one in rollouts))

    def _updates(self, answered: Answered, *, is_first: bool) -> list[UpdateResult]:
        """One pass over the answers. The first update of a step needs no log-probabilities of the weights before it."""
        gbs, num = int(self.config.layout.gbs), len(answered.rollouts)
        parts = [range(start, min(start + gbs, num)) for start in range(0, num, gbs)]
        if is_first:
            repeats = self.settings.num_epochs > 1
            self._known = [
                self._prepared(answered, part, has_old=number > 0 or repeats) for number, part in enumerate(parts)
            ]
        settings, longest = self.settings.loss, self.session.task.max_response
        return [
            self.update(batches, PolicyObjective(settings=settings, data=data, max_response=longest))
            for batches, data in self._known
        ]

    def _prepared(
        self, answered: Answered, part: range, *, has_old: bool
    ) -> tuple[list[SequenceBatch], list[PolicyData]]:
        """This rank's micro-batches of an update, with all that is known before the weights change."""
        with self.session.clock.part("data"):
            chosen = [answered.rollouts[index].rollout for index in part]
            sequences = [TokenSequence(one.problem.prompt, one.tokens) for one in chosen]
            own = self.own(sequences)
            batches = self.micro_batches(sequences, packs=False)
            advantages = [answered.advantages[part[index]] for index in own]
            engine = [chosen[index].log_probs for index in own]
        old = self.log_probs(self.trainer, batches) if has_old else [None] * len(batches)
        reference = [None] * len(batches) if self._reference is None else self.log_probs(self._reference, batches)
        data = [
            PolicyData(
                advantages_N=batch.per_sequence(advantages), engine_log_probs_NR=batch.per_token(engine),
                old_log_probs_NR=old_NR, reference_log_probs_NR=reference_NR,
            )
            for batch, old_NR, reference_NR in zip(batches, old, reference, strict=True)
        ]  # fmt: skip
        return batches, data

    def _point(self, step: int, answered: Answered, updates: Sequence[UpdateResult]) -> CurvePoint:
        rollouts, made = answered.rollouts, [one for one in updates if not one.is_skipped]
        numbers = [one.numbers for one in made]
        means = {name: statistics.fmean(one[name] for one in numbers) for name in (numbers[0] if numbers else ())}
        for name in MISMATCHES:
            self.session.totals.add(name, means.get(name, 0.0))
        self.session.totals.add("num_mismatches", 1 if means else 0)
        rewards = answered.rewards or [0.0]
        return CurvePoint(
            step=step,
            loss=statistics.fmean(float(one.loss) for one in made) if made else None,
            grad_norm=statistics.fmean(float(one.grad_norm) for one in made) if made else None,
            reward_mean=statistics.fmean(rewards), reward_std=statistics.pstdev(rewards),
            correct_frac=_mean([one.score.is_correct for one in rollouts]),
            length_mean=_mean([len(one.rollout.tokens) for one in rollouts]),
            truncated_frac=_mean([one.rollout.is_cut_off for one in rollouts]),
            entropy=means.get("entropy"), kl_engines=means.get("kl_engines"), masked_frac=means.get("masked_frac"),
            kl_reference=means.get("kl_reference") if self._reference is not None else None,
            effective_sample_frac=means.get("effective_sample_frac"), clip_frac=means.get("clip_frac"),
            equal_groups_frac=answered.num_equal / answered.num_groups,
            num_tokens=sum(len(one.rollout.tokens) for one in rollouts),
        )  # fmt: skip


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
