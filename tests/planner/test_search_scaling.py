"""Node counts: efficiencies, what is dominated, Amdahl's fit and the count it recommends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_cases import CATALOG, request_for
from scalewright.planner.plan import make_plan
from scalewright.planner.search.pareto import Amdahl, counts_around, fit_amdahl, scaling, search_counts
from scalewright.planner.search.recommended import recommended

PARTS = st.floats(0.01, 100.0)


@given(serial=PARTS, parallel=PARTS, first=st.integers(1, 64))
def test_fit_finds_the_law_it_was_given(serial: float, parallel: float, first: int) -> None:
    law = Amdahl(serial_s=serial, parallel_s=parallel)
    nodes = [first * 2**i for i in range(5)]
    fitted = fit_amdahl(nodes, [law.time_s(n) for n in nodes])
    for n in nodes:
        assert fitted.time_s(n) == pytest.approx(law.time_s(n), rel=1e-6)


@given(serial=PARTS, parallel=PARTS)
def test_doublings_pay_below_the_knee_and_not_above(serial: float, parallel: float) -> None:
    law = Amdahl(serial_s=serial, parallel_s=parallel)

    def costs_more_than_it_saves(nodes: float) -> bool:
        ratio = law.time_s(2 * nodes) / law.time_s(nodes)
        return 2 * ratio - 1 > 1 - ratio

    assert not costs_more_than_it_saves(0.9 * law.num_nodes_at_knee)
    assert costs_more_than_it_saves(1.1 * law.num_nodes_at_knee)


def test_perfect_scaling_has_no_knee() -> None:
    fitted = fit_amdahl([1, 2, 4, 8], [8.0, 4.0, 2.0, 1.0])
    assert fitted.serial_s == pytest.approx(0.0, abs=1e-9)
    assert fit_amdahl([1, 2, 4], [9.0, 4.0, 1.9]).num_nodes_at_knee == np.inf  # better than perfect counts as perfect


PLAN = make_plan(CATALOG, request_for("gpt3-13b", "lumi", counts=(128,), global_batch=256))


def test_efficiencies_are_relative_to_the_first_row_that_fits() -> None:
    rows = [r for r in PLAN.rows if r.strong is not None]
    first = rows[0]
    assert first.strong_frac == 1.0
    for row in rows[1:]:
        speedup = first.fastest_s / row.fastest_s
        assert row.strong_frac == pytest.approx(speedup * first.num_gpus / row.num_gpus)


def test_weak_rows_keep_the_layout_and_the_batch_per_device() -> None:
    assert PLAN.best is not None
    best = PLAN.best.question.layout
    weak = [r for r in PLAN.rows if r.weak is not None]
    assert len(weak) >= 3
    for row in weak:
        assert row.weak is not None
        assert int(row.weak.question.layout.gbs) * int(best.num_gpus) == int(best.gbs) * row.num_gpus
        assert (row.weak.question.layout.tp, row.weak.question.layout.pp, row.weak.question.layout.mbs) == (
            best.tp,
            best.pp,
            best.mbs,
        )
    assert weak[0].weak_frac == 1.0


def test_row_that_another_beats_in_time_and_cost_is_marked() -> None:
    rows = [r for r in PLAN.rows if r.strong is not None]
    for row in rows:
        time, cost = row.fastest_s, row.fastest_s * row.num_gpus
        beaten = any(o.fastest_s <= time and o.fastest_s * o.num_gpus <= cost for o in rows if o is not row)
        assert row.is_efficient == (not beaten)


def test_asked_count_is_in_the_table_with_the_plans_own_best() -> None:
    assert PLAN.best is not None
    (row,) = [r for r in PLAN.rows if r.num_gpus == 128]
    assert row.strong is not None
    assert row.strong.question.layout == PLAN.best.question.layout


def test_recommended_count_is_the_one_nearest_to_the_knee() -> None:
    recommended = PLAN.recommended
    assert recommended is not None
    counts = [r.num_nodes for r in PLAN.rows if r.strong is not None]
    assert recommended.num_nodes == min(counts, key=lambda n: abs(np.log(n / recommended.knee)))
    assert recommended.num_gpus == recommended.num_nodes * PLAN.request.machine.gpus_per_node
    assert recommended.knee_interval[0] <= recommended.knee <= recommended.knee_interval[1]
    assert recommended.costs_frac == pytest.approx(2 * (1 - recommended.saves_frac) - 1)


def test_gain_of_the_next_doubling_is_that_of_the_table() -> None:
    plan = make_plan(CATALOG, request_for("gpt3-175b", "lumi", counts=(1024,), global_batch=1536))
    recommended, times = plan.recommended, {r.num_nodes: r.paid_s for r in plan.rows if r.strong is not None}
    assert recommended is not None
    assert 2 * recommended.num_nodes in times
    assert recommended.saves_frac == pytest.approx(1 - times[2 * recommended.num_nodes] / times[recommended.num_nodes])


def test_a_step_that_grows_with_the_nodes_is_recommended_by_its_rows() -> None:
    """A small model on most of a small machine, whose network then slows it: no law of Amdahl's goes through that."""
    plan = make_plan(CATALOG, request_for("gpt2", "karolina", counts=(256,), global_batch=256, mode="offload"))
    times = [(r.num_nodes, r.paid_s) for r in plan.rows if r.strong is not None]
    shortest = min(times, key=lambda row: row[1])[0]
    assert plan.recommended is not None
    assert times[0][0] <= plan.recommended.num_nodes <= shortest < times[-1][0]
    assert plan.recommended.saves_frac < plan.recommended.costs_frac


def test_two_rows_recommend_nothing() -> None:
    assert recommended(PLAN.rows[:2]) is None


def test_counts_inside_one_node_are_recommended_by_devices() -> None:
    plan = make_plan(CATALOG, request_for("llama3.2-1b", "generic-gb200-nvl72", counts=(16,), global_batch=64))
    assert {row.num_nodes for row in plan.rows} == {1}
    assert plan.recommended is not None
    assert plan.recommended.num_gpus in {row.num_gpus for row in plan.rows}
    assert "devices" in plan.recommended.sentence or np.isinf(plan.recommended.knee)


def test_counts_stay_within_the_machine() -> None:
    space = PLAN.result.space
    most = space.machine.gpus_per_node * (space.machine.num_nodes or 0)
    assert counts_around(space) == [32, 64, 128, 256, 512]
    assert max(counts_around(space.on(most))) == most
    assert counts_around(space.on(4)) == [1, 2, 4, 8, 16]


def test_searches_already_made_are_not_repeated() -> None:
    searches = search_counts(PLAN.result.space, [64, 128], [PLAN.result])
    assert searches[0] is PLAN.result
    assert [r.space.num_gpus for r in searches] == [128, 64]


def test_count_on_which_nothing_fits_says_what_it_lacks() -> None:
    request = request_for("gpt3-175b", "lumi", counts=(64,), global_batch=64)
    plan = make_plan(CATALOG, request)
    (least, *_) = plan.rows
    assert least.strong is None
    assert least.reason.startswith("needs ")
    assert least.as_dict()["fits"] is False
    assert scaling([], replace(plan).best) == []  # type: ignore[arg-type]
