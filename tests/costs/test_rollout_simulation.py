"""Simulated iterations of a rollout pool: against a pool that is stepped token by token, and against known limits."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.generation import Load, Serving, load_time
from scalewright.costs.machine import machine_from_system
from scalewright.costs.rollout_simulation import (
    NUM_LENGTHS,
    NUM_MEASURED,
    SimulatedPool,
    compared_with_all,
    rollout_time,
    simulate,
)
from scalewright.workload.lengths import LengthDistribution, fixed, parse_lengths
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import recipe
from scalewright.workload.reasoning.rollout_pool import PoolSettings, RolloutPool

CATALOG = Catalog((packaged_data(),))
TAIL = "lognormal:mean=100,cv=1,max=600"


def pool_of(
    lengths: str | LengthDistribution, *, budget: int = 6400, retention: int = 2, max_open: int = 64,
    staleness: int | None = None, ) -> SimulatedPool:  # fmt: skip
    answers = parse_lengths(lengths) if isinstance(lengths, str) else lengths
    settings = PoolSettings(token_budget=budget, retention=retention, num_prompts=16, num_answers=4, max_open=max_open)
    return SimulatedPool(settings=settings, answers=answers, prompt_len=20, staleness=staleness)


def serving(model: str = "llama3-8b") -> Serving:
    return Serving(
        shape=from_catalog(CATALOG.model(model)).transformer, machine=machine_from_system(CATALOG, "generic-h100"),
        stack=CATALOG.stack("eager"), recipe=recipe("bf16"), tp=1, weight_bytes=2.0, cache_bytes=2.0,
    )  # fmt: skip


def stepped(pool: SimulatedPool, *, seed: int) -> dict[str, float]:
    """The same pool, one token of every open rollout at a time."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    rollouts, steps, results, running = RolloutPool(pool.settings), [], [], []
    for version in range(pool.num_warm_up + NUM_MEASURED):
        rollouts.begin(version)
        steps.append(0)
        while not rollouts.is_over:
            steps[-1] += 1
            running.append((version, rollouts.num_open))
            for one in rollouts.open:
                place = one.prompt_place * pool.settings.num_answers + one.index
                while place >= len(lengths):
                    lengths += pool.answers.sample(rng, NUM_LENGTHS).tolist()
                rollouts.counted(one.id, 1, version)
                if one.num_tokens == lengths[place]:
                    rollouts.finished(one.id, "length")
        results.append(rollouts.end())
    counted = results[pool.num_warm_up :]
    return {
        "steps": sum(steps[pool.num_warm_up :]) / NUM_MEASURED,
        "running": sum(num for version, num in running if version >= pool.num_warm_up) / NUM_MEASURED,
        "decoded": sum(one.num_tokens for one in counted) / NUM_MEASURED,
        "trained": sum(one.num_trained for one in counted) / NUM_MEASURED,
        "wasted": sum(one.num_wasted for one in counted) / NUM_MEASURED,
        "carried": sum(len(one.carried) for one in counted) / NUM_MEASURED,
    }


@pytest.mark.parametrize("budget", [0, 3000, 6400, 20000])
@pytest.mark.parametrize(("max_open", "retention"), [(64, 2), (24, 1), (50, 5)])
def test_jumps_go_the_way_of_single_tokens(budget: int, max_open: int, retention: int) -> None:
    pool = pool_of(TAIL, budget=budget, max_open=max_open, retention=retention)
    fast, slow = simulate(pool, seed=3), stepped(pool, seed=3)
    assert fast.plan.num_all_steps == pytest.approx(slow["steps"])
    assert float(np.sum(fast.plan.num_steps * fast.plan.num_running)) == pytest.approx(slow["decoded"])
    assert (fast.num_decoded, fast.num_trained, fast.num_wasted) == pytest.approx(
        (slow["decoded"], slow["trained"], slow["wasted"])
    )
    assert sum(fast.carried_by_cuts.values()) == pytest.approx(slow["carried"])


def test_waiting_for_all_is_the_schedule_that_generation_is_predicted_by() -> None:
    """Two ways to one number of iterations: the integral over the distribution, and answers that were drawn.

    Generation is predicted with the mean batch, so that more room is never slower. The simulation follows the batch as
    it thins out: 512 sequences of one H200 are arithmetic, the last ones memory traffic.
    """
    answers = parse_lengths("lognormal:mean=1000,cv=1,max=6000")
    settings = PoolSettings(token_budget=0, num_prompts=64, num_answers=8, max_open=512)
    pool = SimulatedPool(settings=settings, answers=answers, prompt_len=200)
    load = Load(num_requests=512, prompts=fixed(200), answers=answers, num_at_once=512, num_per_prompt=8)
    predicted, plan = load_time(serving(), load)
    drawn = [simulate(pool, seed=seed) for seed in range(3)]
    assert np.mean([one.plan.num_all_steps for one in drawn]) == pytest.approx(plan.num_all_steps, rel=0.03)
    thinned_s = np.mean([float(rollout_time(serving(), one, num_copies=1).total) for one in drawn])
    assert 0.0 <= thinned_s / float(predicted.total) - 1.0 <= 0.05


def test_equal_answers_gain_nothing() -> None:
    compared = compared_with_all(serving(), pool_of(fixed(100), budget=6400), num_copies=1.0)
    assert compared.gain.ratio == pytest.approx(1.0, abs=0.01)
    assert compared.simulated.num_wasted == 0.0


def test_a_longer_tail_gains_more() -> None:
    gains = [
        compared_with_all(serving(), pool_of(f"lognormal:mean=100,cv={cv},max=2000", retention=20), num_copies=1.0).gain
        for cv in (0.3, 0.8, 1.6)
    ]
    assert 1.0 < gains[0].ratio < gains[1].ratio < gains[2].ratio
    assert all(gain.low <= gain.ratio <= gain.high for gain in gains)


def test_retention_decides_what_is_wasted() -> None:
    wasted = [simulate(pool_of(TAIL, retention=retention)).wasted_frac for retention in (1, 2, 4, 16)]
    assert wasted == sorted(wasted, reverse=True)
    assert wasted[0] > 0.2
    assert wasted[-1] == pytest.approx(0.0, abs=0.01)


def test_tokens_are_trained_wasted_or_carried_in_equal_numbers_over_time() -> None:
    one = simulate(pool_of(TAIL, budget=6400), num_measured=60)
    assert one.num_trained + one.num_wasted == pytest.approx(one.num_decoded, rel=0.02)


def test_a_bound_of_staleness_is_kept() -> None:
    free, bound = simulate(pool_of(TAIL, retention=8)), simulate(pool_of(TAIL, retention=8, staleness=1))
    assert simulate(pool_of(TAIL, budget=0)).mean_staleness == 0.0
    assert free.max_staleness > 1
    assert bound.max_staleness <= 1
    assert bound.num_wasted > free.num_wasted


def test_a_part_stands_for_a_large_pool() -> None:
    small = simulate(pool_of(TAIL, max_open=256, budget=25_600, retention=3))
    large = simulate(pool_of(TAIL, max_open=1024, budget=102_400, retention=3))
    assert large.num_decoded == pytest.approx(4 * small.num_decoded)
    assert large.plan.num_mean_running == pytest.approx(4 * small.plan.num_mean_running)
    assert large.wasted_frac == pytest.approx(small.wasted_frac)
