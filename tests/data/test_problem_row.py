"""The row of training problems: the same for everybody who knows the seed, whatever was looked at before."""

from __future__ import annotations

from scalewright.data.reasoning.problem_row import PROBLEMS_AT_ONCE, ProblemRow
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.data.reasoning.task import open_task


def test_a_place_names_a_problem_whatever_was_looked_at_before() -> None:
    task = open_task(TaskSettings())
    first, second = ProblemRow(task, seed=3), ProblemRow(task, seed=3)
    ahead = first.problems(PROBLEMS_AT_ONCE - 2, 4)
    assert [second.problem(place) for place in reversed(range(PROBLEMS_AT_ONCE - 2, PROBLEMS_AT_ONCE + 2))] == [
        *reversed(ahead)
    ]
    assert ahead[:2] == task.problems("train", PROBLEMS_AT_ONCE, seed=3 * 100_003)[-2:]
    assert ahead[2:] == task.problems("train", PROBLEMS_AT_ONCE, seed=3 * 100_003 + 1)[:2]
    far = 5 * PROBLEMS_AT_ONCE
    assert first.problem(far) == second.problem(far)
    assert first.problems(PROBLEMS_AT_ONCE - 2, 4) == ahead


def test_another_seed_has_another_row() -> None:
    task = open_task(TaskSettings())
    assert ProblemRow(task, seed=0).problems(0, 8) != ProblemRow(task, seed=1).problems(0, 8)
