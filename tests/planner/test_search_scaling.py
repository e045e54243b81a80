"""Node counts: efficiencies, what is dominated, Amdahl's fit and the count it recommends."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_cases import CATALOG, request_for
from scalewright.errors import ConfigError
from scalewright.planner.plan import make_plan
from scalewright.planner.request import PlanOptions, resolve_request
from scalewright.planner.search.pareto import Amdahl, counts_around, fit_amdahl, scaling, search_counts
from scalewright.planner.search.recommended import MostNodes, most_nodes_of, recommended, rows_that_pay
from scalewright.planner.search.search import Objective
from scalewright.sites.types import SizeBin
from scalewright.workload.layout import Layout

MOST = MostNodes(num_nodes=1e6, rule="a machine without end")

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


def split(layout: Layout) -> dict[str, object]:
    """A layout without copies and batch."""
    return {k: v for k, v in layout.as_dict().items() if k not in ("dp", "gbs")}


def test_efficiencies_compare_one_layout_with_itself() -> None:
    assert PLAN.best is not None
    own = PLAN.best.question.layout
    rows = [r for r in PLAN.rows if r.strong is not None]
    assert rows[0].strong_frac == 1.0
    for row in rows:
        assert row.strong is not None
        assert rows[0].strong is not None
        assert split(row.strong.question.layout) == split(own)
        assert int(row.strong.question.layout.gbs) == int(own.gbs)
        speedup = rows[0].strong.time_s / row.strong.time_s
        assert row.strong_frac == pytest.approx(speedup * rows[0].num_gpus / row.num_gpus)


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
    rows = [r for r in PLAN.rows if r.best is not None]
    for row in rows:
        own = (row.time_s, row.num_gpu_hours)
        beaten = any(o.time_s <= own[0] and o.num_gpu_hours <= own[1] for o in rows if o is not row)
        assert row.is_efficient == (not beaten)


def test_asked_count_is_in_the_table_with_the_plans_own_best() -> None:
    assert PLAN.best is not None
    (row,) = [r for r in PLAN.rows if r.num_gpus == 128]
    assert row.best is not None
    assert row.best.question.layout == PLAN.best.question.layout


OBJECTIVES: tuple[Objective, ...] = ("time", "gpu-hours", "energy", "money")
MACHINES = ("leonardo", "lumi", "marenostrum5", "jupiter", "perlmutter", "generic-h100")
COUNTS = ("4-32", "8,16", "2-64", "16,64", None, "8")
TOKENS = (1e8, 1e10, 1e11, 4e11)


@settings(deadline=None, max_examples=15)
@given(
    objective=st.sampled_from(OBJECTIVES),
    system=st.sampled_from(MACHINES),
    nodes=st.sampled_from(COUNTS),
    num_tokens=st.sampled_from(TOKENS),
    gpu_hours=st.one_of(st.none(), st.floats(10.0, 1e5)),
    site_nodes=st.one_of(st.none(), st.integers(2, 64)),
)
def test_the_recommended_count_is_the_best_of_the_table_by_its_objective(
    objective: Objective, system: str, nodes: str | None, num_tokens: float, gpu_hours: float | None,
    site_nodes: int | None,
) -> None:  # fmt: skip
    """Of the counts that are allowed; by time, where the user listed none, of those up to which more devices pay."""
    budget = None if gpu_hours is None else f"gpu-hours={gpu_hours:.0f}"
    options = PlanOptions(
        model="llama2-7b", nodes=nodes, global_batch=256, tokens=f"{num_tokens:.0f}", objective=objective, budget=budget
    )
    request = resolve_request(CATALOG, system, options)
    if site_nodes is not None and request.site is not None:
        bins = (SizeBin(min_nodes=1, max_nodes=site_nodes, max_time="24:00:00", source=request.site.select.source),)
        request = replace(request, site=request.site.model_copy(update={"size_bins": bins}))
    try:
        plan = make_plan(CATALOG, request)
    except ConfigError as error:
        assert "budget" in str(error) or "price" in str(error)  # noqa: PT017
        return
    if plan.recommended is None:
        assert not any(row.is_allowed for row in plan.rows) or len([r for r in plan.rows if r.best is not None]) < 3
        return
    advice, (taken,) = plan.recommended, [r for r in plan.rows if r.num_gpus == plan.recommended.num_gpus]
    allowed = [row for row in plan.rows if row.is_allowed]
    is_open = nodes is None or nodes == "8"
    among = rows_that_pay(allowed) if objective == "time" and is_open else allowed
    assert taken.is_allowed
    assert taken.value(objective) == min(row.value(objective) for row in among)
    assert taken.is_efficient or not all(row.is_allowed for row in plan.rows if row.best is not None)
    if nodes != "8":
        assert plan.best is not None
        assert plan.best.question.num_gpus == advice.num_gpus
    if advice.saves_frac is not None:
        assert advice.num_nodes <= advice.most.num_nodes or not np.isfinite(advice.knee)
    if np.isfinite(advice.knee):
        assert advice.knee <= advice.most.num_nodes
    if plan.request.site is not None and site_nodes is not None:
        assert taken.num_nodes <= site_nodes


def test_more_devices_pay_while_they_save_more_than_they_add() -> None:
    rows = rows_that_pay([row for row in PLAN.rows if row.best is not None])
    for less, more in itertools.pairwise(rows):
        saves, costs = 1 - more.time_s / less.time_s, more.num_gpu_hours / less.num_gpu_hours - 1
        assert saves > 0
        assert costs <= saves


def test_gain_of_the_next_doubling_is_that_of_the_table() -> None:
    plan = make_plan(CATALOG, request_for("gpt3-175b", "lumi", counts=(512, 1024, 2048), global_batch=1536))
    advice = recommended(plan.rows, most=MOST, objective="gpu-hours", must_choose=True)
    times = {r.num_nodes: r.time_s for r in plan.rows if r.best is not None}
    assert advice is not None
    assert 2 * advice.num_nodes in times
    assert advice.saves_frac == pytest.approx(1 - times[2 * advice.num_nodes] / times[advice.num_nodes])


def test_a_step_that_grows_with_the_nodes_is_recommended_by_its_rows() -> None:
    """A small model on most of a small machine, whose network then slows it: no law of Amdahl's goes through that."""
    plan = make_plan(CATALOG, request_for("gpt2", "karolina", counts=(256,), global_batch=256, mode="offload"))
    times = [(r.num_nodes, r.time_s) for r in plan.rows if r.best is not None]
    shortest = min(times, key=lambda row: row[1])[0]
    assert plan.recommended is not None
    assert times[0][0] <= plan.recommended.num_nodes <= shortest < times[-1][0]


def test_two_rows_recommend_nothing() -> None:
    assert recommended(PLAN.rows[:2], most=MOST) is None


@given(nodes=st.integers(1, 400))
def test_no_more_nodes_are_named_than_machine_site_and_batch_have(nodes: int) -> None:
    most = most_nodes_of(PLAN.rows, site_name="X", site_nodes=nodes)
    assert most.num_nodes <= nodes
    advice = recommended(PLAN.rows, most=most)
    assert advice is not None
    if np.isfinite(advice.knee):
        assert 2 * advice.knee <= most.num_nodes


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
    assert least.best is None
    assert least.reason.startswith("needs ")
    assert least.as_dict()["fits"] is False
    assert scaling([], plan.best) == []
