"""The rollout pool: nothing is lost or trained twice, tokens add up, and a restored pool goes the same way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.errors import ConfigError
from scalewright.workload.reasoning.rollout_pool import IterationResult, PoolSettings, RolloutPool

USUAL = settings(deadline=None, max_examples=60)
POOLS = st.builds(
    PoolSettings,
    token_budget=st.one_of(st.just(0), st.integers(1, 300)),
    retention=st.integers(1, 4),
    num_prompts=st.integers(1, 5),
    num_answers=st.integers(1, 4),
    max_open=st.integers(1, 12),
    groups=st.sampled_from(["whole", "parts"]),
)
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


class Writer:
    """Drives a pool like an engine: every open rollout gets one token a decode step, and ends at its length."""

    def __init__(self, pool: RolloutPool, lengths: list[int]) -> None:
        self.pool, self.lengths = pool, lengths

    def length_of(self, place: int, index: int) -> int:
        return self.lengths[(place * 7 + index) % len(self.lengths)]

    def step(self, version: int) -> None:
        for one in self.pool.open:
            number = one.num_tokens
            self.pool.wrote(one.id, [number], [-0.1 * number - version], version)
            if one.num_tokens == self.length_of(one.prompt_place, one.index):
                self.pool.finished(one.id, "stop")

    def iteration(self, version: int) -> IterationResult:
        self.pool.begin(version)
        while not self.pool.is_over:
            num_open, before = self.pool.num_open, self.pool.num_tokens
            self.step(version)
            assert self.pool.num_tokens - before == num_open
        budget = self.pool.settings.token_budget
        if budget:
            assert budget <= self.pool.num_tokens < budget + num_open
        return self.pool.end()


@given(pool=POOLS, lengths=LENGTHS, num=st.integers(1, 12))
@USUAL
def test_nothing_is_lost_or_trained_twice_and_tokens_add_up(pool: PoolSettings, lengths: list[int], num: int) -> None:
    writer = Writer(RolloutPool(pool), lengths)
    trained: list[str] = []
    purged: list[str] = []
    num_trained = num_wasted = num_written = 0
    for version in range(num):
        result = writer.iteration(version)
        ended = [one for group in result.trained for one in group.answers]
        trained += [one.rollout.id for one in ended]
        purged += result.purged
        num_trained, num_wasted = num_trained + result.num_trained, num_wasted + result.num_wasted
        num_written += result.num_tokens
        for one in ended:
            rollout = one.rollout
            assert rollout.tokens == list(range(writer.length_of(rollout.prompt_place, rollout.index)))
            assert rollout.versions == sorted(rollout.versions)
            assert len(rollout.versions) == len(rollout.log_probs) == rollout.num_tokens
            assert all(p == -0.1 * t - v for t, p, v in zip(rollout.tokens, rollout.log_probs, rollout.versions))  # noqa: B905
            assert rollout.num_cuts <= pool.retention
        assert all(one.num_cuts <= pool.retention for one in writer.pool.open)
        assert all(len(group.answers) >= min(2, pool.num_answers) for group in result.trained)
        if pool.groups == "whole" and not purged:
            assert all(len(group.answers) == pool.num_answers for group in result.trained)
    counts = writer.pool.counts
    assert (counts.num_written, counts.num_trained, counts.num_wasted) == (num_written, num_trained, num_wasted)
    assert counts.num_carried >= sum(one.num_tokens for one in writer.pool.open)
    assert len(trained) == len(set(trained))
    assert not set(trained) & set(purged)
    assert counts.num_purged == len(purged)
    state = writer.pool.to_document()
    held = [one["rollout"] for group in state["groups"] for one in group["ended"]]
    tokens_held = sum(num for row in (*held, *state["open"]) for _, num in row["version_runs"])
    assert tokens_held == counts.num_carried, "decoded = trained + wasted + carried"
    names = [f"{row['prompt_place']}:{row['index']}" for row in (*held, *state["open"], *state["waiting"])]
    assert len(names) == len(set(names))
    num_opened = writer.pool.next_place * pool.num_answers
    num_single = num_opened - len(trained) - len(purged) - len(names)
    assert num_single >= 0
    if pool.groups == "whole" and not purged:
        assert num_single == 0, "no rollout is lost"


@given(pool=POOLS, lengths=LENGTHS, num=st.integers(1, 4), num_steps=st.integers(0, 40))
@USUAL
def test_a_restored_pool_goes_the_same_way(pool: PoolSettings, lengths: list[int], num: int, num_steps: int) -> None:
    """Between iterations and in the middle of one."""
    writer = Writer(RolloutPool(pool, next_place=3), lengths)
    for version in range(num):
        writer.iteration(version)
    for is_running in (False, True):
        if is_running:
            writer.pool.begin(num)
            for _ in range(num_steps):
                if not writer.pool.is_over:
                    writer.step(num)
        document = writer.pool.to_document()
        other = Writer(RolloutPool.from_document(json.loads(json.dumps(document))), lengths)
        assert other.pool.to_document() == document
    results: list[list[Any]] = [[], []]
    for place, one in enumerate((writer, other)):
        while not one.pool.is_over:
            one.step(num)
        results[place].append(one.pool.end())
        results[place] += [one.iteration(num + 1 + version) for version in range(3)]
    assert results[0] == results[1]
    assert writer.pool.to_document() == other.pool.to_document()


@given(lengths=LENGTHS, num_prompts=st.integers(1, 5), num_answers=st.integers(2, 4), max_open=st.integers(1, 30))
@USUAL
def test_without_a_budget_an_iteration_is_all_done(
    lengths: list[int], num_prompts: int, num_answers: int, max_open: int
) -> None:
    pool = PoolSettings(token_budget=0, num_prompts=num_prompts, num_answers=num_answers, max_open=max_open)
    writer = Writer(RolloutPool(pool), lengths)
    for version in range(3):
        result = writer.iteration(version)
        places = list(range(version * num_prompts, (version + 1) * num_prompts))
        assert [group.prompt_place for group in result.trained] == places
        assert all(len(group.answers) == num_answers for group in result.trained)
        assert (result.carried, result.purged, result.num_wasted) == ([], [], 0)
        assert result.num_trained == result.num_tokens
        assert {v for g in result.trained for one in g.answers for v in one.rollout.versions} == {version}


def test_a_rollout_is_carried_cut_and_given_up() -> None:
    """One answer of 25 tokens and many of 1, with 10 tokens an iteration for two open rollouts."""
    pool = RolloutPool(PoolSettings(token_budget=10, retention=2, num_prompts=1, num_answers=2, max_open=2))
    writer = Writer(pool, [25, *[1] * 200])
    first = writer.iteration(0)
    assert first.carried == ["0:0"]
    assert pool.open[0].num_cuts == 1
    second = writer.iteration(1)
    assert (second.carried, second.purged) == (["0:0"], [])
    assert [(one.id, one.num_cuts, one.versions) for one in pool.open[:1]] == [("0:0", 2, [0] * 5 + [1] * 5)]
    third = writer.iteration(2)
    assert third.purged == ["0:0"]
    assert third.num_wasted == 10 + 1, "its own tokens, and those of the answer that is alone in its group"
    assert 0 not in [group.prompt_place for group in third.trained]


def test_parts_of_a_group_are_trained_apart() -> None:
    lengths = [2, 3, 12, 14, *[1] * 400]

    def places(groups: str) -> list[list[str]]:
        settings = PoolSettings(
            token_budget=14, retention=9, num_prompts=1, num_answers=4, max_open=4, groups=groups,  # type: ignore[arg-type]
        )  # fmt: skip
        writer = Writer(RolloutPool(settings), lengths)
        results = [writer.iteration(version) for version in range(4)]
        return [[one.rollout.id for g in r.trained if not g.prompt_place for one in g.answers] for r in results]

    assert places("parts")[0] == ["0:0", "0:1"]
    assert sorted(name for names in places("parts") for name in names) == ["0:0", "0:1", "0:2", "0:3"]
    whole = [names for names in places("whole") if names]
    assert whole == [["0:0", "0:1", "0:2", "0:3"]]


def test_tokens_of_older_weights_are_counted() -> None:
    pool = RolloutPool(PoolSettings(token_budget=6, num_prompts=1, num_answers=2, max_open=2))
    writer = Writer(pool, [5])
    writer.iteration(0)
    result = writer.iteration(1)
    rollout = result.trained[0].answers[0].rollout
    assert (rollout.versions, rollout.num_older(1), rollout.num_older(0), rollout.oldest_version) == (
        [0, 0, 0, 1, 1], 3, 0, 0,
    )  # fmt: skip


def test_a_hundred_thousand_rollouts_are_no_problem() -> None:
    settings = PoolSettings(token_budget=200_000, num_prompts=1, num_answers=8, max_open=1024)
    pool, num_ended = RolloutPool(settings), 0
    for version in range(1000):
        pool.begin(version)
        while not pool.is_over:
            for one in pool.open:
                pool.counted(one.id, 60, version)
                if (one.prompt_place * 31 + one.index * 17) % 8 or one.num_tokens > 60:
                    pool.finished(one.id, "stop")
                    num_ended += 1
        pool.end()
        if num_ended > 100_000:
            break
    assert num_ended > 100_000


def test_tokens_after_the_end_or_of_older_weights_are_refused() -> None:
    pool = RolloutPool(PoolSettings(token_budget=6, num_prompts=1, num_answers=2, max_open=2))
    with pytest.raises(ValueError, match="rollout 0:0 is not open"):
        pool.wrote("0:0", [1], [-1.0], 0)
    pool.begin(3)
    pool.wrote("0:0", [1], [-1.0], 3)
    for version, words in ((2, "a token of version 2 after one of version 3"),):
        with pytest.raises(ValueError, match=words):
            pool.wrote("0:0", [1], [-1.0], version)
    with pytest.raises(ValueError, match="has not ended"):
        pool.begin(4)
    pool.end()
    with pytest.raises(ValueError, match="version 2 after version 3"):
        pool.begin(2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"retention": 0}, "the retention limit is 0, which gives up every rollout before it is written"),
        ({"token_budget": -1}, "the token budget is -1: give 1 or more, or 0 to wait for all answers"),
        ({"max_open": 0}, "max_open is 0: give 1 or more"),
        ({"groups": "some"}, "groups 'some' is not known: choose whole, parts"),
        ({"old_tokens": "drop"}, "old_tokens 'drop' is not known: choose train, mask"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    given = {"token_budget": 6, "num_prompts": 1, "num_answers": 2, "max_open": 2, **changes}
    with pytest.raises(ConfigError, match=words):
        PoolSettings(**given)


def test_a_document_of_another_version_is_refused() -> None:
    pool = RolloutPool(PoolSettings(token_budget=6, num_prompts=1, num_answers=2, max_open=2))
    for key in pool.to_document():
        body = {name: value for name, value in pool.to_document().items() if name != key}
        with pytest.raises(ConfigError, match="the state of the rollout pool is not as this version writes it"):
            RolloutPool.from_document(body)
