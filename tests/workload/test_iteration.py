"""The record of an iteration counts what the pool did."""

from __future__ import annotations

from scalewright.workload.reasoning.iteration import iteration_of
from scalewright.workload.reasoning.rollout_pool import PoolSettings, RolloutPool


def test_an_iteration_counts_what_was_carried_purged_and_trained() -> None:
    pool = RolloutPool(PoolSettings(token_budget=12, retention=2, num_prompts=1, num_answers=2, max_open=4))
    pool.begin(0)
    for name in ("0:0", "0:1", "1:0", "1:1"):
        pool.wrote(name, [1, 2, 3], [0.0] * 3, version=0)
    pool.finished("0:0", "stop")
    first = iteration_of(pool, pool.end(), step=0)
    assert (first.num_finished, first.num_decoded_tokens, first.num_trained_tokens) == (0, 12, 0)
    assert first.carried_by_cuts == {1: 3}
    assert first.carried_by_version == {0: 3}

    pool.begin(1)
    pool.wrote("0:1", [4] * 12, [0.0] * 12, version=1)
    pool.finished("0:1", "stop")
    second = iteration_of(pool, pool.end(), step=1)
    assert second.num_trained_by_staleness == {1: 2}  # both answers began with version 0
    assert second.num_trained_tokens == 18
    assert second.carried_by_cuts == {2: 2}

    pool.begin(2)
    pool.wrote(pool.open[0].id, [5] * 12, [0.0] * 12, version=2)
    third = iteration_of(pool, pool.end(), step=2)
    assert third.num_purged == 2
    assert third.num_wasted_tokens == 6
    assert third.carried_by_version == {2: 1}
    counted = [first, second, third]
    num_decoded = sum(one.num_decoded_tokens for one in counted)
    num_dealt_with = sum(one.num_trained_tokens + one.num_wasted_tokens for one in counted)
    assert num_decoded - num_dealt_with == pool.counts.num_carried
