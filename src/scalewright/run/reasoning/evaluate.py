"""Accuracy of a policy on the test split: greedy, and pass@k from sampled answers, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalewright.records.reasoning import Accuracy
from scalewright.records.types import ExitCode
from scalewright.run.generate.requests import GREEDY
from scalewright.run.reasoning.record import StageMeter, write_record
from scalewright.run.reasoning.rollout_log import RolloutLog
from scalewright.run.reasoning.session import TEST_SEED, ScoredRollout, StageSession
from scalewright.run.reasoning.start import start_weights
from scalewright.workload.reasoning.accuracy import pass_rate, wilson_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    accuracy: Accuracy
    greedy: Sequence[ScoredRollout]


def evaluated(session: StageSession, *, label: str, samples: bool, is_step: bool = False) -> Evaluation | None:
    """The accuracy of the engine's weights. None: the configuration has no evaluation."""
    settings = session.config.evaluation
    if not settings.num_problems:
        return None
    problems = session.task.problems("test", settings.num_problems, seed=TEST_SEED)
    greedy = session.answers(problems, num_answers=1, sampling=GREEDY, label=f"{label}:greedy", is_step=is_step)
    num_hits = sum(one.score.is_correct for one in greedy)
    rates, num_answers = {}, settings.num_answers if samples else 0
    if num_answers:
        sampled = session.answers(
            problems, num_answers=num_answers, sampling=session.sampling(), label=f"{label}:sampled", is_step=is_step
        )
        right = [
            sum(one.score.is_correct for one in sampled[start : start + num_answers])
            for start in range(0, len(sampled), num_answers)
        ]
        rates = {k: pass_rate(right, num_answers=num_answers, k=k) for k in settings.ks}
    accuracy = Accuracy(
        num_problems=len(problems),
        greedy=wilson_rate(num_hits=num_hits, num=len(problems)),
        num_answers=num_answers,
        temperature=session.config.engine.sampling.temperature,
        pass_at_k=rates,
        mean_tokens=sum(len(one.rollout.tokens) for one in greedy) / len(greedy),
        marks="".join("1" if one.score.is_correct else "0" for one in greedy),
    )
    return Evaluation(accuracy=accuracy, greedy=greedy)


def num_sequences(session: StageSession) -> int:
    """Answers of the largest part of an evaluation."""
    settings = session.config.evaluation
    return settings.num_problems * max(settings.num_answers, 1)


def run_evaluation(session: StageSession) -> ExitCode:
    """The stage that only evaluates."""
    config, rank = session.config, session.rank
    with rank.watchdog.suspended():
        start = start_weights(config.start_from, seed=config.seed, device=session.device)
        session.open_engine(
            start.tensors, num_sequences=num_sequences(session), constants=start.constants, where=start.where
        )
        with StageMeter(session) as meter:
            evaluation = evaluated(session, label="evaluate", samples=True, is_step=True)
            meter.step_done(session.clock.take())
        assert evaluation is not None
        answers = evaluation.accuracy.num_problems * (1 + evaluation.accuracy.num_answers)
        session.totals.add("num_samples", answers)
        session.totals.add("num_tokens", round(evaluation.accuracy.mean_tokens * answers))
        if session.is_first:
            RolloutLog(session, first_step=0).write(0, evaluation.greedy, num=config.num_read * config.read_every)
        write_record(session, accuracy=evaluation.accuracy, num_trained_params=0)
    return ExitCode.YES
