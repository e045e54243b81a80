"""The whole run from one step: parts that add up, nothing for nothing, and published totals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.campaign import (
    SAVE_EVERY_S,
    Campaign,
    Interruptions,
    Saving,
    campaign_of,
    num_failures,
    run_energy,
    run_time,
    save_cost_frac,
    save_range,
    slice_parts,
)
from scalewright.costs.energy import energy_use
from scalewright.costs.failures import daly_interval_s
from scalewright.errors import ConfigError

HOUR_S, DAY_S = 3600.0, 86400.0
SAVING = Saving(size_bytes=2.3e12, write_s=40.0, stall_s=40.0, read_s=60.0)
STOPS = Interruptions(mttf_s=5 * DAY_S, restart_s=600.0, startup_s=180.0)
FREE = Saving(size_bytes=0.0, write_s=0.0, stall_s=0.0, read_s=0.0)
NEVER = Interruptions(mttf_s=1e15, restart_s=0.0, startup_s=0.0)


def run(**changed: Any) -> Breakdown:
    arguments: dict[str, Any] = {
        "num_steps": 10_000, "step_s": 100.0, "every_s": 6000.0, "saving": SAVING, "interruptions": STOPS,
        "num_jobs": 1,
    }  # fmt: skip
    return run_time(**(arguments | changed))


def test_a_run_without_failures_is_its_steps_and_stalls() -> None:
    time = run(interruptions=NEVER)
    assert float(time.part("steps").total) == 1e6
    assert float(time.part("checkpoint_stalls").total) == pytest.approx(1e6 / 6000 * 40, rel=1e-6)
    assert float(time.part("lost_work").total) == pytest.approx(0.0, abs=0.1)
    assert float(time.total) == pytest.approx(1e6 * (1 + 40 / 6000) + 60 + 40, rel=1e-6)


@settings(deadline=None)
@given(
    mttf=st.floats(DAY_S / 2, 1000 * DAY_S),
    stall=st.floats(0.5, 300),
    write=st.floats(1, 300),
    steps=st.integers(1, 10**6),
)
def test_parts_add_up_and_are_never_negative(mttf: float, stall: float, write: float, steps: int) -> None:
    saving = Saving(size_bytes=1e12, write_s=max(write, stall), stall_s=stall, read_s=write)
    stops = Interruptions(mttf_s=mttf, restart_s=600.0, startup_s=180.0)
    advice = save_range(saving=saving, interruptions=stops, step_s=2.0, work_s=2.0 * steps, max_writing_frac=0.1)
    time = run(num_steps=steps, step_s=2.0, every_s=advice.every_s, saving=saving, interruptions=stops)
    assert float(time.total) == pytest.approx(sum(float(p.total) for p in time.parts))
    assert min(float(p.total) for p in time.parts) >= 0.0
    assert float(time.total) >= 2.0 * steps


@settings(deadline=None)
@given(stall=st.floats(0.5, 300), longer=st.floats(1, 10), mttf=st.floats(HOUR_S, 100 * DAY_S), step=st.floats(0.1, 60))
def test_saving_is_every_whole_step_and_never_before_the_last_is_written(
    stall: float, longer: float, mttf: float, step: float
) -> None:
    saving = Saving(size_bytes=1e12, write_s=stall * longer, stall_s=stall, read_s=1.0)
    stops = Interruptions(mttf_s=mttf, restart_s=600.0, startup_s=180.0)
    advice = save_range(saving=saving, interruptions=stops, step_s=step, work_s=1e9, max_writing_frac=0.1)
    assert advice.every_s / step == pytest.approx(round(advice.every_s / step))
    assert advice.shortest_s <= advice.longest_s
    assert advice.shortest_s >= saving.write_s
    waited_s = daly_interval_s(checkpoint_s=saving.write_s, mttf_s=mttf)
    assert advice.shortest_s >= min(10 * saving.exposed_s, waited_s) * (1.0 - 1e-9)


def test_a_write_beside_training_never_costs_more_than_one_that_is_waited_for() -> None:
    """However long the write: half an hour or two hours, with a failure every two days."""
    stops = Interruptions(mttf_s=2 * DAY_S, restart_s=600.0, startup_s=180.0)
    for write_s in (10.0, 100.0, 1800.0, 7200.0):
        costs = []
        for stall_s in (write_s, 1.0):
            saving = Saving(size_bytes=1e12, write_s=write_s, stall_s=stall_s, read_s=1.0)
            advice = save_range(saving=saving, interruptions=stops, step_s=1.0, work_s=1e7, max_writing_frac=0.1)
            costs.append(save_cost_frac(every_s=advice.every_s, saving=saving, interruptions=stops))
        assert costs[1] <= costs[0]


def test_every_interval_of_the_advice_costs_at_most_what_it_says() -> None:
    """One failure in five days, 40 s a stall: an hour loses half an hour a failure and 40 s an hour."""
    advice = save_range(saving=SAVING, interruptions=STOPS, step_s=100.0, work_s=1e7, max_writing_frac=0.1)
    hour = save_cost_frac(every_s=HOUR_S, saving=SAVING, interruptions=STOPS)
    assert hour == pytest.approx(40 / HOUR_S + HOUR_S / 2 / (5 * DAY_S), rel=0.03)
    for every in SAVE_EVERY_S:
        cost = save_cost_frac(every_s=every, saving=SAVING, interruptions=STOPS)
        assert (cost <= advice.most_frac) == (advice.shortest_s <= every <= advice.longest_s)
    assert advice.longest_s >= 12 * advice.shortest_s
    assert advice.shortest_s <= HOUR_S <= advice.longest_s


def test_a_run_shorter_than_a_minute_still_has_an_interval() -> None:
    advice = save_range(saving=FREE, interruptions=NEVER, step_s=0.5, work_s=20.0, max_writing_frac=0.1)
    assert advice.shortest_s == advice.longest_s == 20.0


CONSTANTS = Catalog((packaged_data(),)).constants()


def beside(num_gpu_hours: float, *, is_searched: bool = True) -> Campaign:
    return campaign_of(steps_device_s=num_gpu_hours * HOUR_S, is_searched=is_searched, constants=CONSTANTS)


def test_a_job_of_a_few_gpu_hours_runs_as_its_steps_and_a_campaign_does_not() -> None:
    short, long = beside(10.0), beside(30_000.0)
    assert sum(short.shares_frac.values()) < 0.01
    assert short.factor_high_frac < 1.01
    assert sum(long.shares_frac.values()) > 0.1
    assert long.factor_low_frac < 1.0 < long.factor_high_frac


@given(hours=st.floats(1e-3, 1e7), more=st.floats(1.0, 1.05))
def test_what_a_campaign_costs_grows_smoothly_with_its_device_time(hours: float, more: float) -> None:
    """A little more work costs a little more: neither the share of it nor the hours have a jump or a fall."""
    less, greater = beside(hours), beside(hours * more)
    shares, others = sum(less.shares_frac.values()), sum(greater.shares_frac.values())
    assert shares <= others <= shares * more * (1 + 1e-9)
    assert less.factor_frac <= greater.factor_frac <= less.factor_frac**more * (1 + 1e-9)


@settings(deadline=None)
@given(
    hours=st.floats(1.0, 1e6),
    devices=st.sampled_from([4, 16, 64, 256, 1024]),
    loss=st.floats(1.0, 1.5),
    step=st.floats(0.05, 30.0),
)
def test_the_same_work_on_more_devices_never_needs_fewer_gpu_hours(
    hours: float, devices: int, loss: float, step: float
) -> None:
    """Twice the devices that take the same device time a step, or more, lose no less to failures and campaign."""
    saving, mttf_s = Saving(size_bytes=1e12, write_s=20.0, stall_s=2.0, read_s=20.0), 2111 * DAY_S

    def gpu_hours(num_devices: int, step_s: float) -> float:
        steps = max(round(hours * HOUR_S / (devices * step)), 1)
        stops = Interruptions(mttf_s=mttf_s / num_devices, restart_s=600.0, startup_s=180.0)
        advice = save_range(
            saving=saving, interruptions=stops, step_s=step_s, work_s=steps * step_s, max_writing_frac=0.1
        )
        time = run_time(
            num_steps=steps, step_s=step_s, every_s=advice.every_s, saving=saving, interruptions=stops, num_jobs=1,
            campaign=beside(steps * step_s * num_devices / HOUR_S),
        )  # fmt: skip
        return float(time.total) * num_devices / HOUR_S

    assert gpu_hours(2 * devices, step / 2 * loss) >= gpu_hours(devices, step) * (1 - 1e-3)


@given(mttf=st.floats(HOUR_S, 1e4 * DAY_S), longer=st.floats(1.0, 1.02), stall=st.floats(0.05, 60.0))
def test_what_failures_and_saving_cost_follows_the_failure_rate_smoothly(
    mttf: float, longer: float, stall: float
) -> None:
    """No threshold: a device that fails a little less often costs at most as much, and nearly as much."""

    def cost_frac(mttf_s: float) -> float:
        saving = Saving(size_bytes=1e12, write_s=max(20.0, stall), stall_s=stall, read_s=20.0)
        stops = Interruptions(mttf_s=mttf_s, restart_s=600.0, startup_s=180.0)
        advice = save_range(saving=saving, interruptions=stops, step_s=0.1, work_s=1e8, max_writing_frac=0.1)
        return save_cost_frac(every_s=advice.every_s, saving=saving, interruptions=stops)

    often, rarely = cost_frac(mttf), cost_frac(mttf * longer)
    assert rarely <= often * 1.01 + 1e-5
    assert rarely >= often / longer**2 - 1e-3


def test_a_given_layout_has_no_gap_to_the_best() -> None:
    given_layout = beside(30_000.0, is_searched=False)
    assert given_layout.shares_frac["layout_gap"] == 0.0
    assert given_layout.shares_frac["evaluation"] > 0.0


def test_parts_of_a_campaign_add_up_to_its_factor() -> None:
    extra = beside(3000.0)
    plain, whole = run(interruptions=NEVER, saving=FREE), run(interruptions=NEVER, saving=FREE, campaign=extra)
    named = 1.0 + sum(extra.shares_frac.values())
    assert float(whole.total) == pytest.approx(float(plain.total) * named * extra.factor_frac, rel=1e-6)
    assert float(whole.total) == pytest.approx(sum(float(part.total) for part in whole.parts))


def test_saving_beside_training_stops_less_and_loses_more_at_each_failure() -> None:
    beside = Saving(size_bytes=2.3e12, write_s=40.0, stall_s=2.0, read_s=60.0)
    waiting, going_on = run(), run(saving=beside)
    assert float(going_on.part("checkpoint_stalls").total) < float(waiting.part("checkpoint_stalls").total)
    assert float(going_on.part("lost_work").total) > float(waiting.part("lost_work").total) * 0.99


def test_epochs_add_their_fixed_cost() -> None:
    extra = float(run(num_epochs=90, epoch_fixed_s=30.0).part("epoch_ends").total)
    assert extra == 2700.0


def test_llama_3_is_interrupted_as_often_as_published() -> None:
    assert num_failures(time_s=54 * DAY_S, mttf_s=2111.5 * DAY_S / 16384) == pytest.approx(419, rel=1e-3)


def test_a_job_that_fails_while_it_saves_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves no time to save"):
        run(interruptions=Interruptions(mttf_s=60.0, restart_s=600.0, startup_s=180.0))


def test_a_slice_is_its_limit() -> None:
    one = slice_parts(limit_s=20 * HOUR_S, saving=SAVING, interruptions=STOPS, margin_frac=0.1)
    assert float(one.total) == pytest.approx(20 * HOUR_S)
    assert [p.name for p in one.parts] == ["start_up", "restore", "work", "last_checkpoint", "margin"]
    assert float(one.part("margin").total) == pytest.approx(0.1 * (20 * HOUR_S - float(one.part("margin").total)))


def test_a_limit_too_short_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves no time to work"):
        slice_parts(limit_s=300.0, saving=SAVING, interruptions=STOPS, margin_frac=0.1)


def test_energy_of_nothing_but_steps_is_that_of_its_steps() -> None:
    time = run(saving=FREE, interruptions=NEVER, every_s=1e6)
    energy = run_energy(time=time, num_devices=8, busy_w=400.0, waiting_w=70.0, overhead_w=1000.0, pue_frac=1.2)
    steps = energy_use(time_s=1e6, num_devices=8, device_w=400.0, overhead_w=1000.0, pue_frac=1.2)
    assert float(energy.total) == pytest.approx(float(steps.total), rel=1e-6)


def test_waiting_draws_less_than_working() -> None:
    draws = {"num_devices": 8, "waiting_w": 70.0, "overhead_w": 0.0, "pue_frac": 1.0}
    energy = run_energy(time=run(), busy_w=400.0, **draws)
    assert float(energy.total) < 8 * 400.0 * float(run().total)
    assert float(energy.total) > 8 * 400.0 * 1e6
