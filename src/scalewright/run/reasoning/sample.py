"""Bulk sampling: answers to training problems in shards that are written whole; right ones are kept, each once."""

from __future__ import annotations

from collections.abc import Sequence

from scalewright.data.reasoning.task import Problem
from scalewright.data.sandbox.types import FAILURES
from scalewright.records import metric_names as names
from scalewright.records.reasoning import (
    CurvePoint,
    ShardHead,
    StoredAnswer,
    append_row,
    curve_writer,
    read_shard_head,
    write_shard,
)
from scalewright.records.types import ExitCode
from scalewright.run.reasoning.exchange import from_all_ranks
from scalewright.run.reasoning.parts import StageTotals
from scalewright.run.reasoning.record import StageMeter, write_record
from scalewright.run.reasoning.rollout_log import RolloutLog
from scalewright.run.reasoning.session import ScoredRollout, StageSession, failures_of
from scalewright.run.reasoning.start import start_weights
from scalewright.workload.reasoning.stage_run import GenerateSettings

PROBLEM_SALT = 1_000_003
"""Keeps the problems of a generation apart from those of other stages with the same seed."""


class SampleStage:
    """One rank's part. Copies of the engine take shards by turns and do not wait for each other."""

    def __init__(self, session: StageSession) -> None:
        self.session, self.config = session, session.config
        assert isinstance(self.config.settings, GenerateSettings)
        self.settings: GenerateSettings = self.config.settings

    def run(self) -> ExitCode:
        session = self.session
        with session.rank.watchdog.suspended():
            start = start_weights(self.config.start_from, seed=self.config.seed, device=session.device)
            session.open_engine(
                start.tensors, num_sequences=self._num_sequences, constants=start.constants, where=start.where
            )
        problems = session.task.problems("train", self.settings.num_problems, seed=self.config.seed + PROBLEM_SALT)
        with StageMeter(session) as meter:
            is_stopped = self._shards(problems, meter)
        stops = from_all_ranks(lambda: is_stopped)
        if any(stops):
            return ExitCode.REQUEUE
        self._conclude(meter)
        return ExitCode.YES

    @property
    def _num_sequences(self) -> int:
        each = min(self.settings.shard_problems, self.settings.num_problems)
        return each * self.settings.num_answers * self.session.copy.num_copies

    def _shards(self, problems: Sequence[Problem], meter: StageMeter) -> bool:
        """Make the shards of this copy that are not there; true if a signal ended it before."""
        copy, rank, size = self.session.copy, self.session.rank, self.settings.shard_problems
        for number in range(copy.number, self.settings.num_shards, copy.num_copies):
            if copy.agreed(int(rank.stop.requested is not None)):
                return True
            if not copy.agreed(int(self.session.directory.answer_shard(number).exists())):
                self._shard(number, problems[number * size : (number + 1) * size], meter)
        return False

    def _shard(self, number: int, problems: Sequence[Problem], meter: StageMeter) -> None:
        session, num_answers = self.session, self.settings.num_answers
        assert session.engine is not None
        before = StageTotals.from_tensor(session.totals.values)
        with session.clock.part("generation"):
            rollouts = session.engine.own_answers(
                problems, num_answers=num_answers, sampling=session.sampling(), label=f"shard-{number}"
            )
        with session.clock.part("reward"):
            scores = session.task.score_many([(one.problem, one.tokens) for one in rollouts])
        scored = [ScoredRollout(rollout=r, score=s) for r, s in zip(rollouts, scores, strict=True)]
        with session.clock.part("data"):
            kept = kept_answers(scored, self.settings)
        num_tokens = sum(len(one.tokens) for one in rollouts)
        session.totals.add("num_samples", len(rollouts))
        session.count_rewards(scored)
        session.totals.add("num_tokens", num_tokens)
        seconds = session.clock.take()
        meter.step_done(seconds)
        if session.copy.is_first:
            used = session.totals.since(before)
            head = ShardHead(num_sampled=len(rollouts), num_kept=len(kept), totals=used.as_dict())
            write_shard(session.directory, number, kept, head)
        self._report(number, scored, seconds, num_tokens=num_tokens)

    def _report(
        self, number: int, scored: Sequence[ScoredRollout], seconds: dict[str, float], *, num_tokens: int
    ) -> None:
        session, wall_s = self.session, sum(seconds.values())
        metrics, reward = session.rank.metrics, sum(one.score.reward for one in scored) / len(scored)
        values = {
            names.STEP_TIME: wall_s, names.REWARD: reward,
            names.TOKENS_PER_S: num_tokens / wall_s * session.copy.num_copies,
            **{names.STAGE_PARTS[part]: value for part, value in seconds.items()},
        }  # fmt: skip
        for name, value in values.items():
            metrics.write(step=number, name=name, value=value, unit=names.UNITS[name])
        session.rank.watchdog.step_done(step=number, seconds_s=wall_s, loss=None, flop_per_s=0.0)
        if session.is_first:
            self._lines(number, scored, seconds, num_tokens=num_tokens)

    def _lines(
        self, number: int, scored: Sequence[ScoredRollout], seconds: dict[str, float], *, num_tokens: int
    ) -> None:
        """The shard's line of the curve, and answers to read. Rank 0 writes those of its own shards."""
        session, num = self.session, len(scored)
        curve = curve_writer(session.directory, first_step=number)
        point = CurvePoint(
            step=number, reward_mean=sum(one.score.reward for one in scored) / num,
            correct_frac=sum(one.score.is_correct for one in scored) / num, length_mean=num_tokens / num,
            truncated_frac=sum(one.rollout.is_cut_off for one in scored) / num, num_tokens=num_tokens,
            seconds_by_part=seconds, reward_failures=failures_of(session.take_reward_outcomes()),
        )  # fmt: skip
        append_row(curve, point.row())
        curve.close()
        log = RolloutLog(session, first_step=number)
        log.write(number, scored, num=self.config.num_read)
        log.close()

    def _conclude(self, meter: StageMeter) -> None:
        """Count the shards of all attempts; each holds what it took."""
        session, copy = self.session, self.session.copy
        heads = [read_shard_head(path) for path in session.directory.answer_shards()]
        if copy.is_first:
            own = [head for number, head in enumerate(heads) if number % copy.num_copies == copy.number]
            attempts = session.totals["num_attempts"]
            session.totals.values.zero_()
            session.totals.add("num_attempts", attempts)
            for head in own:
                session.totals.merge(StageTotals.of(head.totals))
        num_sampled, num_kept = sum(head.num_sampled for head in heads), sum(head.num_kept for head in heads)
        note = f"{num_kept:,} of {num_sampled:,} answers are kept ({self.settings.keeps}, each once)"
        write_record(
            session, accuracy=None, num_trained_params=0, energy_of=meter.energy_of, notes=[note],
            num_samples=num_sampled, num_tokens=_total(heads, "num_tokens"),
            reward_failures={kind: num for kind in FAILURES if (num := _total(heads, f"failed_{kind}"))},
        )  # fmt: skip


def _total(heads: Sequence[ShardHead], name: str) -> int:
    return round(sum(head.totals.get(name, 0.0) for head in heads))


def kept_answers(scored: Sequence[ScoredRollout], settings: GenerateSettings) -> list[StoredAnswer]:
    """Right answers, or all; the same tokens to a problem once; at most so many to a problem. Cut-off ones never."""
    kept: list[StoredAnswer] = []
    seen: set[tuple[str, tuple[int, ...]]] = set()
    counts: dict[str, int] = {}
    for one in scored:
        rollout, problem = one.rollout, one.rollout.problem
        is_wrong = settings.keeps == "correct" and not one.score.is_correct
        is_full = 0 < settings.most_per_problem <= counts.get(problem.id, 0)
        if is_wrong or is_full or rollout.is_cut_off or (problem.id, rollout.tokens) in seen:
            continue
        seen.add((problem.id, rollout.tokens))
        counts[problem.id] = counts.get(problem.id, 0) + 1
        kept.append(
            StoredAnswer(
                problem=problem.id, prompt=problem.prompt, response=rollout.tokens, reward=one.score.reward,
                is_correct=one.score.is_correct, log_prob=sum(rollout.log_probs),
            )
        )  # fmt: skip
    return kept
