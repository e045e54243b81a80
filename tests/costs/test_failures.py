"""Failures and checkpoint intervals: published rates, closed forms, and a job simulated failure by failure."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.failures import daly_interval_s, job_mttf_s, wall_time, young_interval_s

DEVICE_MTTF_S = Catalog((packaged_data(),)).constants().device_mttf.value
HOUR_S, DAY_S = 3600.0, 86400.0


def test_a_failure_every_three_hours_on_llama_3s_devices() -> None:
    """Llama 3 405B (arXiv:2407.21783): 419 unexpected interruptions in 54 days on 16,384 GPUs."""
    mttf = job_mttf_s(device_mttf_s=DEVICE_MTTF_S, num_devices=16384)
    assert 54 * DAY_S / mttf == pytest.approx(419, rel=0.005)
    assert mttf == pytest.approx(3.1 * HOUR_S, rel=0.01)


def test_another_operators_clusters_are_of_the_same_order() -> None:
    """Kokolis et al. 2024 (arXiv:2410.21680, recalled): 6.5 and 2.3 failures per 1000 node-days of 8 A100."""
    ours = 1000 * DAY_S / job_mttf_s(device_mttf_s=DEVICE_MTTF_S, num_devices=8)
    assert 2.3 <= ours <= 6.5


def test_young_and_daly_of_five_minutes_and_one_failure_a_day() -> None:
    assert young_interval_s(checkpoint_s=300, mttf_s=DAY_S) == pytest.approx(7200)
    # 7200 (1 + sqrt(300/172800)/3 + (300/172800)/9) - 300
    assert daly_interval_s(checkpoint_s=300, mttf_s=DAY_S) == pytest.approx(7001.4, abs=0.1)


@pytest.mark.parametrize(("save", "mttf"), [(10, HOUR_S), (300, DAY_S), (600, 3 * HOUR_S), (60, 1800)])
def test_nothing_beats_dalys_interval(save: float, mttf: float) -> None:
    def total(interval: float) -> float:
        return wall_time(work_s=DAY_S, interval_s=interval, checkpoint_s=save, restart_s=60, mttf_s=mttf).total_s

    best = daly_interval_s(checkpoint_s=save, mttf_s=mttf)
    least = min(total(best * factor / 100) for factor in range(20, 500))
    assert total(best) <= least * 1.001


def test_saving_that_takes_longer_than_failures_last_is_done_once_per_failure() -> None:
    assert daly_interval_s(checkpoint_s=500, mttf_s=200) == 200


def simulated(work: float, interval: float, save: float, restart: float, mttf: float, *, seed: int) -> list[float]:
    """Time in all, restarting, and failures of one job, failure by failure."""
    chance, done, time, restarting, failures = random.Random(seed), 0.0, 0.0, 0.0, 0
    while done < work:
        segment, up = interval + save, chance.expovariate(1 / mttf)
        if up >= segment:
            time, done = time + segment, done + interval
            continue
        time, failures = time + up, failures + 1
        while (up := chance.expovariate(1 / mttf)) < restart:
            time, restarting, failures = time + up, restarting + up, failures + 1
        time, restarting = time + restart, restarting + restart
    return [time, restarting, failures]


@pytest.mark.parametrize("case", [(100, 10, 1, 2, 30), (100, 5, 0.5, 1, 100)], ids=["often", "rarely"])
def test_expected_time_is_that_of_simulated_jobs(case: tuple[float, float, float, float, float]) -> None:
    work, interval, save, restart, mttf = case
    runs = [simulated(*case, seed=i) for i in range(4000)]
    time, restarting, failures = (sum(column) / len(runs) for column in zip(*runs, strict=True))
    expected = wall_time(work_s=work, interval_s=interval, checkpoint_s=save, restart_s=restart, mttf_s=mttf)
    assert expected.total_s == pytest.approx(time, rel=0.02)
    assert expected.restart_s == pytest.approx(restarting, rel=0.06)
    assert expected.num_failures == pytest.approx(failures, rel=0.06)


def test_without_failures_there_is_work_and_saving() -> None:
    time = wall_time(work_s=1000, interval_s=100, checkpoint_s=2, restart_s=60, mttf_s=1e12)
    assert time.total_s == pytest.approx(1020)
    assert time.lost_s == pytest.approx(0, abs=1e-3)


@settings(deadline=None)
@given(more=st.floats(1.0, 10.0), save=st.floats(1.0, 600.0), mttf=st.floats(HOUR_S, 100 * DAY_S))
def test_more_failures_never_make_a_job_shorter(more: float, save: float, mttf: float) -> None:
    interval = daly_interval_s(checkpoint_s=save, mttf_s=mttf)
    both = [
        wall_time(work_s=DAY_S, interval_s=interval, checkpoint_s=save, restart_s=300, mttf_s=m).total_s
        for m in (mttf * more, mttf)
    ]
    assert both[1] >= both[0] * (1 - 1e-9)
