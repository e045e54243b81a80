"""Timing: the interval of the median covers it as often as it says, budgets are kept, warm-up does not count."""

from __future__ import annotations

import random
import time

import pytest
import torch

from scalewright.run.micro.timing import CacheFlush, measure, timing_of

CPU = torch.device("cpu")


def test_median_and_interval_of_nine_leave_out_the_extremes() -> None:
    """Binomial(9, 1/2): ranks 2 to 8 cover the median with 96.1 % (David and Nagaraja, Order Statistics, 7.1)."""
    timing = timing_of([9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0])
    assert (timing.time_s, timing.time_low_s, timing.time_high_s, timing.repeats) == (5.0, 2.0, 8.0, 9)


@pytest.mark.parametrize(
    ("num", "low", "high"), [(1, 1, 1), (5, 1, 5), (6, 1, 6), (8, 1, 8), (20, 6, 15), (100, 40, 61)]
)
def test_ranks_of_the_interval_are_the_tabulated_ones(num: int, low: int, high: int) -> None:
    """Conover, Practical Nonparametric Statistics, table A3: 95 % for the median."""
    timing = timing_of([float(i) for i in range(1, num + 1)])
    assert (timing.time_low_s, timing.time_high_s) == (low, high)


@pytest.mark.parametrize("num", [12, 75, 1500])
def test_interval_covers_the_true_median_of_a_skewed_distribution(num: int) -> None:
    chance = random.Random(num)
    tries, covered = 400, 0
    for _ in range(tries):
        timing = timing_of([chance.expovariate(1.0) for _ in range(num)])
        covered += timing.time_low_s <= 0.6931472 <= timing.time_high_s
    assert covered / tries > 0.92


def test_median_of_an_even_number_lies_between() -> None:
    assert timing_of([1.0, 2.0, 3.0, 10.0]).time_s == 2.5


def test_budget_ends_the_repeats_and_one_is_always_made() -> None:
    calls: list[float] = []

    def slow() -> None:
        calls.append(time.monotonic())
        time.sleep(0.03)

    timing = measure(slow, device=CPU, budget_s=0.0)
    assert (timing.repeats, len(calls)) == (1, 2)  # the first one warms up
    assert timing.time_s >= 0.03


def test_steady_work_ends_before_its_budget() -> None:
    begun_s = time.monotonic()
    timing = measure(lambda: time.sleep(0.002), device=CPU, budget_s=12.0, max_repeats=20)
    assert timing.repeats <= 20
    assert time.monotonic() - begun_s < 10.0


def test_what_comes_before_a_repeat_is_not_timed() -> None:
    order: list[str] = []

    def before() -> None:
        order.append("before")
        time.sleep(0.02)

    timing = measure(lambda: order.append("work"), device=CPU, budget_s=0.3, before=before)
    assert timing.time_s < 0.01
    assert order == ["before", "work"] * (len(order) // 2)


def test_short_calls_are_timed_in_groups() -> None:
    timing = measure(lambda: None, device=CPU, budget_s=0.1)
    assert timing.calls_per_repeat > 1
    assert 0 < timing.time_s < 1e-4


def test_flush_reads_more_than_the_cache_and_changes_nothing() -> None:
    flush = CacheFlush(CPU, cache_bytes=2**20)
    flush()
    assert float(flush._sink) == 0.0
    assert flush._buffer.numel() * 4 >= 4 * 2**20
