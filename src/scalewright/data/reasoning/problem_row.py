"""ProblemRow: the endless row of training problems that a seed decides. A place in it names a problem."""

from __future__ import annotations

from scalewright.data.reasoning.task import Problem, Task

PROBLEMS_AT_ONCE = 4096
SEED_STRIDE = 100_003
"""Problems are drawn in pieces, each with a seed of its own; runs with neighbouring seeds share none."""
MOST_PIECES = 2
"""Pieces that are kept: rollouts that are carried over are of the last places before the newest."""


class ProblemRow:
    """Every role of a run has its own and sees the same problems."""

    def __init__(self, task: Task, *, seed: int) -> None:
        self._task, self._seed = task, seed
        self._pieces: dict[int, list[Problem]] = {}

    def problem(self, place: int) -> Problem:
        number, offset = divmod(place, PROBLEMS_AT_ONCE)
        return self._piece(number)[offset]

    def problems(self, start: int, num: int) -> list[Problem]:
        """Problems number `start` and after."""
        return [self.problem(place) for place in range(start, start + num)]

    def _piece(self, number: int) -> list[Problem]:
        if number not in self._pieces:
            while len(self._pieces) >= MOST_PIECES:
                del self._pieces[next(iter(self._pieces))]
            seed = self._seed * SEED_STRIDE + number
            self._pieces[number] = self._task.problems("train", PROBLEMS_AT_ONCE, seed=seed)
        return self._pieces[number]
