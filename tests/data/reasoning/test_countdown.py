"""Countdown: problems, splits, cold-start traces, and the verifier that follows every written step."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.data.reasoning.countdown import CountdownTask
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.data.reasoning.symbols import ANSWER, EQUALS, MARKS, NEXT, STOP
from scalewright.data.reasoning.task import Problem, open_task
from scalewright.errors import ConfigError

SIZES = st.tuples(st.just(2), st.integers(16, 30)) | st.tuples(st.integers(3, 4), st.integers(6, 14))
KNOBS = st.fixed_dictionaries(
    {
        "sizes": SIZES,
        "operators": st.sampled_from(["+-*", "+-", "*+", "+-*/", "/*-+"]),
        "values": st.sampled_from([40, 100, 300]),
        "attempts": st.integers(1, 5),
        "test_frac": st.sampled_from([0.2, 0.5]),
    }
)
SEEDS = st.integers(0, 2**31)


def task_of(**knobs: object) -> CountdownTask:
    numbers, largest = knobs.pop("sizes", (knobs.get("numbers", 3), knobs.get("largest", 9)))  # type: ignore[misc]
    task = open_task(TaskSettings(**{**knobs, "numbers": numbers, "largest": largest}))  # type: ignore[arg-type]
    assert isinstance(task, CountdownTask)
    return task


def tokens_of(task: CountdownTask, text: str) -> tuple[int, ...]:
    """The tokens of a text as people write it."""
    ids = {task.symbols.name(token): token for token in range(task.symbols.num_symbols)}
    return tuple(ids[word] for word in text.split())


def problem_of(task: CountdownTask, numbers: tuple[int, ...], target: int) -> Problem:
    return Problem(id="x", prompt=(0,), facts={"numbers": numbers, "target": target})


def key(problem: Problem) -> tuple[tuple[int, ...], int]:
    return problem.facts["numbers"], problem.facts["target"]


@given(knobs=KNOBS, seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_every_trace_of_the_solver_verifies_and_fits(knobs: dict[str, object], seed: int) -> None:
    task = task_of(**knobs)
    for trace in task.cold_start(50, seed=seed):
        score = task.score(trace.problem, trace.response)
        assert (score.reward, score.is_correct) == (1.0, True), score.why
        assert len(trace.response) <= task.max_response
        assert len(trace.problem.prompt) == task.max_prompt
        assert all(0 <= token < task.vocab for token in (*trace.problem.prompt, *trace.response))
        assert trace.response[-1] in task.stop_tokens


@given(knobs=KNOBS, seed=SEEDS, data=st.data())
@settings(max_examples=120, deadline=None)
def test_any_change_of_one_symbol_in_a_correct_trace_is_caught(
    knobs: dict[str, object], seed: int, data: st.DataObject
) -> None:
    """Most changes break a step. One that does not must be another right answer, which plain arithmetic confirms."""
    task = task_of(**knobs)
    (trace,) = task.cold_start(1, seed=seed)
    place = data.draw(st.integers(0, len(trace.response) - 1))
    other = data.draw(st.integers(0, task.vocab - 1).filter(lambda token: token != trace.response[place]))
    changed = (*trace.response[:place], other, *trace.response[place + 1 :])
    assert task.score(trace.problem, changed).is_correct == is_right(task, trace.problem, changed)
    if task.symbols.value(other) >= 0 or task.symbols.value(trace.response[place]) >= 0:
        assert not task.score(trace.problem, changed).is_correct


def is_right(task: CountdownTask, problem: Problem, response: tuple[int, ...]) -> bool:
    """A second verifier, of the text, that shares nothing with the first: Python computes every step."""
    *body, stop = task.text(response).split(" ")
    written, mark, answer = " ".join(body).partition(" ANS ")
    attempts = written.split(" ;")
    if stop != "EOS" or not mark or attempts.pop() != "" or not 1 <= len(attempts) <= task.settings.attempts:
        return False
    for attempt in attempts:
        words = attempt.split()
        if words[3::4] != ["="] * (len(problem.facts["numbers"]) - 1) or len(words) % 4 != 1:
            return False
        uses = [words[0], *words[2::4]]
        if not all(word.isdigit() for word in words[0::4] + uses):
            return False
        if sorted(map(int, uses)) != sorted(problem.facts["numbers"]):
            return False
        for left, operator, right, _, result in (words[i : i + 5] for i in range(0, len(words) - 1, 4)):
            if operator not in set(task.settings.operators):
                return False
            if operator == "/" and int(left) % int(right):
                return False
            exact = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}[operator]
            if exact(int(left), int(right)) != int(result):
                return False
        expression = [words[0], *(word for i in range(1, len(words), 4) for word in words[i : i + 2])]
    return int(words[-1]) == problem.facts["target"] and answer.split() == expression


@given(knobs=KNOBS, seeds=st.tuples(SEEDS, SEEDS))
@settings(max_examples=40, deadline=None)
def test_splits_share_no_problem_whatever_the_seeds(knobs: dict[str, object], seeds: tuple[int, int]) -> None:
    task = task_of(**knobs)
    num_test = int(task.space.is_test.sum())
    test = {key(problem) for problem in task.problems("test", num_test, seed=seeds[0])}
    train = {key(problem) for problem in task.problems("train", 4000, seed=seeds[1])}
    train |= {key(trace.problem) for trace in task.cold_start(500, seed=seeds[0])}
    assert len(test) == num_test
    assert not test & train
    assert all(tuple(sorted(numbers)) == numbers for numbers, _ in test | train)


def test_problems_are_those_that_counting_by_hand_gives() -> None:
    """Every (numbers, target) of three numbers up to 9 that some left-to-right expression reaches, and no other."""
    task = task_of()
    reached = set()
    for numbers in itertools.product(range(1, 10), repeat=3):
        for first, second in itertools.product("+-*", repeat=2):
            value = eval(f"{numbers[0]} {first} {numbers[1]}")
            target = eval(f"({value}) {second} {numbers[2]}")
            if 0 <= value < 100 and 0 <= target < 100:
                reached.add((tuple(sorted(numbers)), target))
    problems = [*task.problems("test", int(task.space.is_test.sum()), seed=0), *task.problems("train", 4000, seed=0)]
    assert {key(problem) for problem in problems} == reached


def test_the_same_seed_gives_the_same_problems_and_traces_and_another_seed_gives_others() -> None:
    task, again = task_of(), CountdownTask(TaskSettings())
    assert task.problems("test", 50, seed=3) == again.problems("test", 50, seed=3)
    assert task.cold_start(50, seed=3) == again.cold_start(50, seed=3)
    assert task.problems("test", 50, seed=3) != task.problems("test", 50, seed=4)
    assert task.cold_start(50, seed=3) != task.cold_start(50, seed=4)


def test_training_problems_repeat_only_after_all_were_used() -> None:
    task = task_of()
    num = int((~task.space.is_test).sum())
    problems = task.problems("train", 2 * num, seed=1)
    assert len({problem.id for problem in problems[:num]}) == num
    assert len({problem.id for problem in problems[num:]}) == num


def test_cold_start_traces_are_those_of_a_solver_that_tries_at_random() -> None:
    """A random attempt rarely hits, so kept traces have 1, 2 or 3 attempts almost equally often; earlier ones miss."""
    task = task_of()
    traces = task.cold_start(6000, seed=5)
    num_attempts = [trace.response.count(NEXT) for trace in traces]
    shares = [num_attempts.count(num) / len(traces) for num in (1, 2, 3)]
    assert shares[0] > shares[1] > shares[2] > 0.25
    assert sum(shares) == pytest.approx(1.0)
    for trace in traces[:500]:
        attempts = task.text(trace.response).split(" ; ")[:-1]
        reached = [int(attempt.split()[-1]) for attempt in attempts]
        assert reached[-1] == trace.problem.facts["target"]
        assert trace.problem.facts["target"] not in reached[:-1]


RIGHT = "2 * 3 = 6 * 7 = 42 ; 2 + 3 = 5 * 7 = 35 ; ANS 2 + 3 * 7 EOS"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (RIGHT, "every step is right"),
        ("2 + 3 = 5 * 7 = 35 ; ANS 2 + 3 * 7 EOS", "every step is right"),
        ("2 * 3 = 7 * 7 = 49 ; 2 + 3 = 5 * 7 = 35 ; ANS 2 + 3 * 7 EOS", "attempt 1, step 1: 2 * 3 = 7 is wrong"),
        ("2 + 3 = 5 * 7 = 36 ; ANS 2 + 3 * 7 EOS", "attempt 1, step 2: 5 * 7 = 36 is wrong"),
        ("2 - 3 = 0 * 7 = 0 ; ANS 2 - 3 * 7 EOS", "attempt 1, step 1: 2 - 3 = 0 is wrong"),
        ("5 * 7 = 35 + 0 = 35 ; ANS 5 * 7 + 0 EOS", "attempt 1, step 1: 5 is none of the numbers"),
        ("7 * 7 = 49 + 2 = 51 ; ANS 7 * 7 + 2 EOS", "attempt 1, step 1: 7 is none of the numbers that are left"),
        ("2 ; 3 = 5 * 7 = 35 ; ANS 2 + 3 * 7 EOS", "attempt 1, step 1: ; is no operator"),
        ("2 + 3 5 5 * 7 = 35 ; ANS 2 + 3 * 7 EOS", "attempt 1, step 1: 5 stands in the place of ="),
        ("2 + 3 = 5 * 7 = 35 = ANS 2 + 3 * 7 EOS", "attempt 1, = stands in the place of ;"),
        ("2 * 3 = 6 * 7 = 42 ; ANS 2 * 3 * 7 EOS", "the last attempt gives 42, and the target is 35"),
        ("2 * 3 = 6 * 7 = 42 ; ANS 2 + 3 * 7 EOS", "the last attempt gives 42, and the target is 35"),
        ("2 + 3 = 5 * 7 = 35 ; ANS 7 * 2 + 3 EOS", "ANS 7 * 2 + 3 is not the last attempt"),
        ("2 + 3 = 5 * 7 = 35 ; ANS EOS", "ANS is empty"),
        ("ANS 2 + 3 * 7 EOS", "no attempt is written before ANS"),
        ("2 + 3 = 5 * 7 = 35 ; ANS 2 + 3 * 7", "no EOS: the answer is cut"),
        ("2 + 3 = 5 * 7 = 35 ; EOS", "attempt 2, step 1: EOS is none of the numbers"),
        ("2 + 3 = 5 EOS", "attempt 1, step 2: EOS is no operator"),
        ("", "the answer is empty"),
    ],
)
def test_the_verifier_names_the_first_fault(text: str, why: str) -> None:
    task = task_of()
    score = task.score(problem_of(task, (2, 3, 7), 35), tokens_of(task, text))
    assert score.why == why
    assert score.is_correct == (why == "every step is right")
    assert score.reward == float(score.is_correct)


def test_more_attempts_than_allowed_are_refused() -> None:
    miss = "2 * 3 = 6 * 7 = 42 ; "
    task = task_of(attempts=2)
    score = task.score(problem_of(task, (2, 3, 7), 35), tokens_of(task, miss + RIGHT))
    assert score.why == "more than 2 attempts"


@given(tokens=st.lists(st.integers(0, 111) | st.sampled_from([ANSWER, EQUALS, NEXT, STOP, len(MARKS)]), max_size=45))
@settings(max_examples=300, deadline=None)
def test_random_answers_get_a_score_and_never_a_traceback(tokens: list[int]) -> None:
    task = task_of()
    score = task.score(problem_of(task, (2, 3, 7), 35), tokens)
    assert not score.is_correct
    assert score.why


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        ({"numbers": 2, "largest": 2}, "give 7 problems to train, and 20 are needed"),
        ({"numbers": 1}, "numbers is 1: give a whole number from 2 to 5"),
        ({"numbers": 9}, "numbers is 9: give a whole number from 2 to 5"),
        ({"largest": 100}, "largest is 100: give a whole number from 1 to 99"),
        ({"operators": "+^"}, "operators are '+^': give some of +-*/, each once"),
        ({"operators": ""}, "operators are '': give some of"),
        ({"operators": "++"}, "each once"),
        ({"values": 10**6}, "values is 1000000: give a whole number from 2 to 10000"),
        ({"attempts": 0}, "attempts is 0: give a whole number from 1 to 64"),
        ({"test_frac": 1.0}, "test_frac is 1: give a share above 0 and below 1"),
        ({"test_frac": float("nan")}, "test_frac is nan"),
        ({"kind": "chess"}, "task 'chess' is not known: choose countdown or files"),
    ],
)
def test_knobs_that_give_no_task_are_refused_with_a_sentence(knobs: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=r".") as refusal:
        task_of(**knobs)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(("split", "num"), [("test", 5000), ("test", 0), ("train", 0)])
def test_too_many_or_too_few_problems_are_refused(split: str, num: int) -> None:
    with pytest.raises(ConfigError, match=f"countdown: {num} problems"):
        task_of().problems(split, num, seed=0)  # type: ignore[arg-type]


def test_a_large_space_is_sampled_the_same_way_everywhere() -> None:
    task = task_of(numbers=5, largest=60, values=1000)
    assert task.space.num_problems > 50_000
    assert len(task.space.choices) < 12_000_000 / 9720
    problems = task.problems("test", 3, seed=0)
    assert [problem.id for problem in problems] == [problem.id for problem in task.problems("test", 3, seed=0)]


def test_generation_and_scores_are_fast_enough_for_training() -> None:
    task = task_of(numbers=4)
    start_s = time.process_time()
    traces = task.cold_start(20_000, seed=0)
    assert time.process_time() - start_s < 4.0, "100,000 traces take some seconds"
    start_s = time.process_time()
    scores = task.score_many((trace.problem, trace.response) for trace in traces[:10_000])
    assert time.process_time() - start_s < 1.0
    assert all(score.is_correct for score in scores)
