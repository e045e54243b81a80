"""Answers that people read: some of a step's, right and wrong ones, as text with the verifier's phrase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from scalewright.records.reasoning import RolloutLine, append_row, rollout_writer
from scalewright.run.reasoning.session import ScoredRollout, StageSession


class RolloutLog:
    """Writes rollouts of one stage. Only rank 0 has one."""

    def __init__(self, session: StageSession, *, first_step: int) -> None:
        self._task, self._config = session.task, session.config
        self._writer = rollout_writer(session.directory, first_step=first_step)

    def write(self, step: int, rollouts: Sequence[ScoredRollout], *, num: int) -> None:
        """Right and wrong answers by turns, as far as there are both, from different problems first."""
        right = [one for one in rollouts if one.score.is_correct]
        wrong = [one for one in rollouts if not one.score.is_correct]
        num_right = min(len(right), max(-(-num // 2), num - len(wrong)))
        for one in (*_spread(right, num_right), *_spread(wrong, num - num_right)):
            append_row(self._writer, asdict(self._line(step, one)))

    def due(self, step: int) -> bool:
        return self._config.num_read > 0 and (step % self._config.read_every == 0 or step == self._config.steps - 1)

    def close(self) -> None:
        self._writer.close()

    def _line(self, step: int, one: ScoredRollout) -> RolloutLine:
        rollout, score = one.rollout, one.score
        return RolloutLine(
            step=step, problem=rollout.problem.id, prompt=self._task.text(rollout.problem.prompt),
            answer=self._task.text(rollout.tokens), reward=score.reward, is_correct=score.is_correct, why=score.why,
            num_tokens=len(rollout.tokens),
        )  # fmt: skip


def _spread(rollouts: Sequence[ScoredRollout], num: int) -> list[ScoredRollout]:
    """`num` of them at even distances."""
    if num <= 0 or not rollouts:
        return []
    num = min(num, len(rollouts))
    return [rollouts[place * len(rollouts) // num] for place in range(num)]
