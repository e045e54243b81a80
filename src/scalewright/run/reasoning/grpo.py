"""GRPO and its relatives: sample groups of answers, score them, update, and give the engine the new weights.

The answers of a step are split into updates of `layout.gbs`. Problems and random numbers follow from the seed and the
number of the step. With a token budget, a step trains on the answers that a pool of rollouts hands out (C3PO++).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from scalewright.data.reasoning.task import Problem
from scalewright.errors import ConfigError
from scalewright.records.documents import document, read_document
from scalewright.records.hybrid import HybridSettings, HybridStep
from scalewright.records.reasoning import Accuracy, CurvePoint
from scalewright.run.checkpoint import NO_DOCUMENTS, Documents
from scalewright.run.micro.free_memory import free_bytes
from scalewright.run.reasoning.batches import SequenceBatch, TokenSequence
from scalewright.run.reasoning.colocated import CoLocated, Owner
from scalewright.run.reasoning.losses import group_advantages, overlong_penalties
from scalewright.run.reasoning.objectives import PolicyData, PolicyObjective
from scalewright.run.reasoning.pooled_rollout import PooledRollouts
from scalewright.run.reasoning.rollout import FREE_FRAC, needed_cache_bytes, num_running
from scalewright.run.reasoning.session import ScoredRollout, failures_of
from scalewright.run.reasoning.trainer import SequenceTrainer, UpdateResult
from scalewright.run.reasoning.training_stage import TrainingStage
from scalewright.workload.reasoning.iteration import iteration_of
from scalewright.workload.reasoning.rollout_pool import IterationResult
from scalewright.workload.reasoning.stage_run import GrpoSettings

POOL_KIND, POOL_FILE = "rollout-pool", "rollout_pool.json"
"""Of the pool of rollouts in a checkpoint."""
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
    num_skipped: Sequence[int] = ()
    """First tokens of each answer that take no part in the loss; empty: all tokens of all answers do."""
    pooled: HybridStep | None = None
    """What the pool of rollouts came to, where there is one."""

    def iteration(self, step: int) -> HybridStep:
        """Without a pool, every answer is written and trained on in the same step."""
        if self.pooled is not None:
            return self.pooled
        num_trained = sum(len(one.rollout.tokens) for one in self.rollouts)
        return HybridStep(
            step=step, version=step, num_finished=len(self.rollouts), num_decoded_tokens=self.num_decoded_tokens,
            num_trained_by_staleness={0: len(self.rollouts)}, num_trained_tokens=num_trained,
            num_wasted_tokens=self.num_decoded_tokens - num_trained,
        )  # fmt: skip


class GrpoStage(TrainingStage):
    """One rank's part of a GRPO stage."""

    writes_answers = True
    _pool: PooledRollouts | None = None
    _turns: CoLocated | None = None

    def prepare(self) -> None:
        self._open_reference()
        if self._releases():
            self._turns = CoLocated(self.trainer, self.session.clock)
            self.turn("engine")
        engine = self.open_engine(num_sequences=self.settings.num_sequences)
        if self._turns is not None:
            self._turns.add_engine(engine.engine)
        if self.settings.token_budget:
            self._pool = self._opened_pool()
            self.notes += self._pool.notes()

    def _open_reference(self) -> None:
        config = self.config
        self._num_equal_steps = 0
        self._reference: SequenceTrainer | None = None
        if self.settings.loss.needs_reference:
            self._reference = self.open_frozen(config.shape, config.model_id, config.start_from)

    def _releases(self) -> bool:
        """Whether trainer and engine take turns on the device: as chosen, or where both do not fit."""
        config, chosen = self.config, self.settings.release
        if chosen != "auto" or self.device.type != "cuda" or self.settings.stale_keys:
            return chosen == "on"
        running = num_running(config.engine, self.session.copy, self.settings.num_sequences)
        cache = needed_cache_bytes(config.shape, config.engine, num_sequences=running, device=self.device)
        weights = config.spec.num_params * (4 if config.engine.precision == "fp32" else 2) / config.engine.tp
        return cache + weights > FREE_FRAC * free_bytes(self.device)

    def turn(self, owner: Owner) -> None:
        if self._turns is not None:
            if owner == "engine":
                self.saves.hold_update()  # a save that is under way still copies the state
            self._turns.turn(owner)

    def _opened_pool(self) -> PooledRollouts:
        folder = self.resumed_from
        return PooledRollouts(
            self.session, self.settings, problem_at=lambda place: self.problems_at(place, 1)[0],
            document=None if folder is None else read_document(folder / POOL_FILE, POOL_KIND),
        )  # fmt: skip

    def saved_documents(self) -> Documents:
        return NO_DOCUMENTS if self._pool is None else {POOL_FILE: document(POOL_KIND, self._pool.document())}

    def hybrid_settings(self) -> HybridSettings:
        settings, whole = self.settings, super().hybrid_settings()
        if not settings.token_budget:
            return whole
        return replace(
            whole, token_budget=settings.token_budget, retention=settings.retention, groups=settings.groups,
            old_tokens=settings.old_tokens,
        )  # fmt: skip

    @property
    def settings(self) -> GrpoSettings:
        assert isinstance(self.config.settings, GrpoSettings)
        return self.config.settings

    def step(self, step: int) -> CurvePoint:
        self.turn("engine")
        answered = self._answered(step) if self._pool is None else self._pooled(self._pool, step)
        self.turn("trainer")
        updates = [
            result
            for epoch in range(self.settings.num_epochs)
            for result in self._updates(answered, is_first=epoch == 0)
        ]
        outcomes = self.session.take_reward_outcomes()
        self.sync_weights()
        if self._pool is not None:
            self._pool.step_done()
        if self.iterations is not None:
            self.iterations.write(replace(answered.iteration(step), sandbox_outcomes=outcomes))
        if self.rollouts is not None and self.rollouts.due(step):
            self.rollouts.write(step, answered.rollouts, num=self.config.num_read)
        return replace(self._point(step, answered, updates), reward_failures=failures_of(outcomes))

    def conclude(self) -> None:
        totals = self.session.totals
        if self._turns is not None and self._turns.note():
            self.notes.append(f"state of trainer and engine took turns on the device: {self._turns.note()}")
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

    def _pooled(self, pool: PooledRollouts, step: int) -> Answered:
        """Groups that the pool hands out in this step."""
        result = pool.iteration(step)
        pooled = iteration_of(pool.pool, result, step=step)
        answered = self._of_groups(
            pool.scored(result), _num_skipped(result, self.settings), num_decoded_tokens=result.num_tokens
        )
        num_trained = sum(len(one.rollout.tokens) for one in answered.rollouts)
        num_left_out = pooled.num_trained_tokens - num_trained
        whole = replace(
            pooled, num_trained_tokens=num_trained, num_wasted_tokens=pooled.num_wasted_tokens + num_left_out
        )
        return replace(answered, pooled=whole)

    def _of_groups(
        self, groups: Sequence[list[ScoredRollout]], skipped: Sequence[list[int]], *, num_decoded_tokens: int
    ) -> Answered:
        """Groups of any size with their advantages. One with equal rewards may be left out; nothing replaces it."""
        loss = self.settings.loss
        equal = [len({one.score.reward for one in group}) == 1 for group in groups]
        rollouts: list[ScoredRollout] = []
        rewards: list[float] = []
        advantages: list[float] = []
        num_skipped: list[int] = []
        for group, skips, is_equal in zip(groups, skipped, equal, strict=True):
            self._count(group)
            if is_equal and loss.drops_equal_groups:
                continue
            own = self._rewards(group)
            rollouts, rewards, num_skipped = rollouts + group, rewards + own, num_skipped + skips
            advantages += group_advantages(loss, torch.tensor([own])).flatten().tolist()
        self.session.totals.add("num_groups", len(groups))
        self.session.totals.add("num_equal_groups", sum(equal))
        if groups:
            self._check_equal(is_equal=all(equal))
        return Answered(
            rollouts=rollouts, advantages=advantages, rewards=rewards, num_groups=len(groups), num_equal=sum(equal),
            num_decoded_tokens=num_decoded_tokens, num_skipped=num_skipped,
        )  # fmt: skip

    @property
    def has_old_tokens(self) -> bool:
        """Whether older weights drew some tokens of a step, and the number of its answers varies."""
        return self._pool is not None

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

    def _evaluate(self, label: str, *, samples: bool) -> Accuracy | None:
        if self._pool is not None:
            self._pool.leave_engine()
        return super()._evaluate(label, samples=samples)

    def _count(self, rollouts: Sequence[ScoredRollout]) -> None:
        self.session.totals.add("num_samples", len(rollouts))
        self.session.totals.add("num_tokens", sum(len(one.rollout.tokens) for one in rollouts))
        self.session.count_rewards(rollouts)

    def _updates(self, answered: Answered, *, is_first: bool) -> list[UpdateResult]:
        """One pass over the answers. The first update of a step needs no log-probabilities of the weights before it."""
        parts = self._parts(len(answered.rollouts))
        if is_first:
            repeats = self.settings.num_epochs > 1
            self._known = [
                self._prepared(answered, part, has_old=number > 0 or repeats) for number, part in enumerate(parts)
            ]
        settings, longest = self.settings, self.session.task.max_response
        budget = settings.token_budget / max(len(parts), 1)
        return [
            self.update(
                batches,
                PolicyObjective(
                    settings=settings.loss, data=data, max_response=longest,
                    budget_per_sequence=budget / self._num_counted(answered, part),
                ),
            )
            for part, (batches, data) in zip(parts, self._known, strict=True)
        ]  # fmt: skip

    def _parts(self, num: int) -> list[range]:
        """Answers of each update: `gbs`; of a number that varies, about as many, in equal parts."""
        gbs = int(self.config.layout.gbs)
        if not self.has_old_tokens:
            return [range(start, min(start + gbs, num)) for start in range(0, num, gbs)]
        num_parts = max(round(num / gbs), 1) if num else 0
        bounds = [num * part // num_parts for part in range(num_parts + 1)] if num else [0]
        return [range(start, stop) for start, stop in pairwise(bounds)]

    @staticmethod
    def _num_counted(answered: Answered, part: range) -> int:
        """Answers of an update with tokens in the loss."""
        skipped = answered.num_skipped or [0] * len(answered.rollouts)
        return max(sum(skipped[place] < len(answered.rollouts[place].rollout.tokens) for place in part), 1)

    def _sequences(self, answered: Answered, part: range) -> list[TokenSequence]:
        """The answers of an update. Where replicas outnumber them, the first is repeated without a part in the loss."""
        skipped = answered.num_skipped or [0] * len(answered.rollouts)
        sequences = [
            TokenSequence(one.problem.prompt, one.tokens, num_skipped=skipped[place])
            for place in part
            for one in (answered.rollouts[place].rollout,)
        ]
        num_missing = max(self.trainer.position.num_replicas - len(sequences), 0)
        return sequences + [sequences[0]._replace(is_counted=False)] * num_missing

    def _prepared(
        self, answered: Answered, part: range, *, has_old: bool
    ) -> tuple[list[SequenceBatch], list[PolicyData]]:
        """This rank's micro-batches of an update, with all that is known before the weights change."""
        with self.session.clock.part("data"):
            sequences = self._sequences(answered, part)
            places = [*part, *[part[0]] * (len(sequences) - len(part))]
            own = self.own(sequences)
            batches = self.micro_batches(sequences, packs=False)
            advantages = [answered.advantages[places[index]] for index in own]
            engine = [answered.rollouts[places[index]].rollout.log_probs for index in own]
            recorded = [batch.per_token(engine) for batch in batches]
        old: Sequence[Tensor | None] = [None] * len(batches)
        if self.has_old_tokens and self.settings.loss.correction == "none":
            old = recorded  # nothing else corrects for the weights that drew a token
        elif has_old:
            old = self.log_probs(self.trainer, batches)
        reference = [None] * len(batches) if self._reference is None else self.log_probs(self._reference, batches)
        data = [
            PolicyData(
                advantages_N=batch.per_sequence(advantages), engine_log_probs_NR=engine_NR,
                old_log_probs_NR=old_NR, reference_log_probs_NR=reference_NR,
            )
            for batch, engine_NR, old_NR, reference_NR in zip(batches, recorded, old, reference, strict=True)
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
            equal_groups_frac=answered.num_equal / max(answered.num_groups, 1),
            num_tokens=sum(len(one.rollout.tokens) for one in rollouts),
        )  # fmt: skip


def _num_skipped(result: IterationResult, settings: GrpoSettings) -> list[list[int]]:
    """First tokens of each answer of each group that older weights drew, if these take no part in the loss."""
    is_masked = settings.old_tokens == "mask"
    return [
        [answer.rollout.num_older(result.version) if is_masked else 0 for answer in group.answers]
        for group in result.trained
    ]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
