"""What must hold of a step's cost whatever the model, machine and layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from properties.cases import (
    DENSE,
    EXPERTS,
    MACHINES,
    RECOMPUTE,
    changed,
    cost_of,
    degrees,
    policies,
    setting,
    settings_of,
    surroundings,
)
from scalewright.catalog.facts import Fact
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.footprint import memory_on, step_memory
from scalewright.costs.machine import Machine
from scalewright.costs.memory import stored_bytes_per_layer
from scalewright.costs.setting import Setting
from scalewright.costs.step import StepCost, step_time
from scalewright.workload.layout import COLUMNS, Layout

MANY = settings(deadline=None, max_examples=60)
STATE = ("weights", "gradients", "optimizer")
# The device waits for its host, and what it computes hides a part of the gathered weights.
HOST_BOUND = setting(model="gpt2-xl", machine="generic-b200", precision="fp8", stack="compiled", dp=2, gbs=4, zero=3)
NARROW_EXPERTS = setting(model="mixtral-8x7b", machine="generic-b200", precision="fp8")


def leaves(breakdown: Breakdown) -> dict[str, float]:
    return {term.name: float(term.total) for _, term in breakdown.walk() if not term.parts}


def numbers(cost: StepCost) -> dict[str, float]:
    """Every number of a cost, by name."""
    return {
        **leaves(cost.time),
        **leaves(cost.memory),
        "time": float(cost.time.total),
        "memory": float(cost.memory.total),
        "low": float(cost.interval_s[0]),
        "high": float(cost.interval_s[1]),
        "reserved": float(cost.reserved_bytes),
        "device": float(cost.device_bytes),
        "needed": float(cost.needed_bytes),
        "fits": float(cost.fits),
        "model_flop": float(cost.model_flop),
        "hardware_flop": float(cost.hardware_flop),
        "mfu": float(cost.mfu_frac),
        "hfu": float(cost.hfu_frac),
    }


@given(case=settings_of())
@MANY
def test_parts_are_finite_never_negative_and_add_up(case: Setting) -> None:
    cost = cost_of(case)
    for tree in (cost.time, cost.memory):
        for _, term in tree.walk():
            assert np.isfinite(term.total)
            assert term.total >= 0, term.name
            if term.parts:
                assert term.total == pytest.approx(sum(p.total for p in term.parts))
        assert tree.total == pytest.approx(sum(leaves(tree).values()))
        assert tree.total > 0


@given(where=surroundings(), chosen=policies(), data=st.data())
@settings(deadline=None, max_examples=100)
def test_column_of_layouts_gives_what_each_gives_alone(
    where: dict[str, str], chosen: dict[str, object], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(degrees(where["model"]), min_size=2, max_size=5))
    columns = {name: np.array([row[name] for row in rows]) for name in COLUMNS}
    together = cost_of(setting(**where, **columns, **chosen))
    for index, row in enumerate(rows):
        alone = cost_of(setting(**where, **row, **chosen))
        assert numbers(together.at(index)) == pytest.approx(numbers(alone), rel=1e-9), row


@given(where=surroundings(), chosen=policies(), data=st.data())
@settings(deadline=None, max_examples=30)
def test_order_of_layouts_in_a_column_changes_nothing(
    where: dict[str, str], chosen: dict[str, object], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(degrees(where["model"]), min_size=2, max_size=4))
    columns = {name: np.array([row[name] for row in rows]) for name in COLUMNS}
    reversed_columns = {name: column[::-1].copy() for name, column in columns.items()}
    one, other = cost_of(setting(**where, **columns, **chosen)), cost_of(setting(**where, **reversed_columns, **chosen))
    for index in range(len(rows)):
        assert numbers(one.at(index)) == numbers(other.at(len(rows) - 1 - index))


@given(case=settings_of())
@settings(deadline=None, max_examples=30)
def test_names_of_machine_stack_and_tiles_in_another_order_change_nothing(case: Setting) -> None:
    constants = case.constants
    tiles = dict(reversed(constants.tile_share.items()))
    machine = replace(case.machine, name="other", constants=constants.model_copy(update={"tile_share": tiles}))
    other = replace(case, machine=machine, stack=case.stack.model_copy(update={"name": "Other"}))
    assert numbers(cost_of(other)) == numbers(cost_of(case))


@given(case=settings_of())
@settings(deadline=None, max_examples=30)
def test_a_stack_that_no_fitted_run_used_takes_as_long_and_is_known_no_better(case: Setting) -> None:
    known = cost_of(case)
    unknown = cost_of(replace(case, stack=case.stack.model_copy(update={"id": "other"})))
    assert unknown.time.total == known.time.total
    assert unknown.interval_s[0] <= known.interval_s[0]
    assert unknown.interval_s[1] >= known.interval_s[1]


def scaled(fact: Fact, factor: float) -> Fact:
    return fact.model_copy(update={"value": fact.value * factor})


def faster(machine: Machine, what: str, factor: float) -> Machine:
    if what != "peak":
        return replace(machine, **{what: getattr(machine, what) * factor})
    device = machine.accelerator
    peak = {name: scaled(fact, factor) for name, fact in device.peak.items()}
    best = {name: scaled(fact, factor) for name, fact in device.best_matmul.items()}
    # With its power: more peak for the same watts can tip a device into the power limit, where those of a job differ.
    power = scaled(device.tdp, factor)
    return replace(machine, accelerator=device.model_copy(update={"peak": peak, "best_matmul": best, "tdp": power}))


@pytest.mark.parametrize(
    "what", ["hbm_bytes_per_s", "scale_up_bytes_per_s", "network_bytes_per_s_per_gpu", "peak"], ids=str
)
@given(case=settings_of(), factor=st.floats(1.0, 20.0))
@example(case=HOST_BOUND, factor=2.0)
@MANY
def test_faster_part_never_makes_a_step_slower(what: str, case: Setting, factor: float) -> None:
    better = replace(case, machine=faster(case.machine, what, factor))
    assert cost_of(better).time.total <= cost_of(case).time.total * (1 + 1e-9)


@given(case=settings_of())
@MANY
def test_tp_of_one_has_no_tensor_parallel_time(case: Setting) -> None:
    time = cost_of(changed(case, tp=1, ep=1)).time
    assert time.part("tensor_parallel").total == 0


@given(case=settings_of())
@MANY
def test_pp_of_one_has_neither_bubble_nor_transfer(case: Setting) -> None:
    time = cost_of(changed(case, pp=1, vpp=1)).time
    assert time.part("pipeline_bubble").total == 0
    assert time.part("pipeline_transfer").total == 0


@given(case=settings_of())
@MANY
def test_dp_of_one_has_no_data_parallel_time(case: Setting) -> None:
    gbs = case.layout.mbs * case.layout.num_micro_batches
    time = cost_of(changed(case, dp=1, cp=1, ep=1, gbs=gbs)).time
    assert time.part("data_parallel").total == 0


@given(case=settings_of())
@MANY
def test_cp_and_ep_of_one_have_no_time_of_theirs(case: Setting) -> None:
    time = cost_of(changed(case, cp=1, ep=1)).time
    assert time.part("context_parallel").total == 0
    assert time.part("expert_parallel").total == 0


@given(case=settings_of(), first=st.integers(1, 8), more=st.integers(1, 8))
@MANY
def test_time_grows_by_the_same_for_each_micro_batch(case: Setting, first: int, more: int) -> None:
    """Without a pipeline the rest is once per step: update, and the exchange of gradients that are not sharded."""
    per_round = int(case.layout.dp) * int(case.layout.mbs)

    def time_s(rounds: int) -> float:
        return float(cost_of(changed(case, pp=1, vpp=1, gbs=per_round * rounds)).time.total)

    slope = (time_s(first + more) - time_s(first)) / more
    assert slope > 0
    assert time_s(first + 3 * more) == pytest.approx(time_s(first) + 3 * more * slope, rel=1e-6)


@given(case=settings_of(), factor=st.sampled_from([2, 4]))
@MANY
def test_memory_never_grows_with_tensor_parallelism(case: Setting, factor: int) -> None:
    wider = changed(case, tp=int(case.layout.tp) * factor)
    assert step_memory(wider).total <= step_memory(case).total * (1 + 1e-9)


@given(case=settings_of())
@MANY
def test_each_zero_stage_keeps_no_more_state_than_the_one_before(case: Setting) -> None:
    kept = []
    for zero in range(4):
        memory = memory_on(changed(case, zero=zero), 0)
        kept.append(sum(float(memory.part(name).total) for name in STATE))
    assert kept == sorted(kept, reverse=True)
    if int(case.layout.dp) > 1 and int(case.layout.pp) == 1 and case.stack.keeps_gradients:
        assert len(set(kept)) == 4


@given(case=settings_of())
@example(case=NARROW_EXPERTS)
@MANY
def test_the_more_is_computed_again_the_less_is_kept(case: Setting) -> None:
    kept = [float(memory_on(changed(case, recompute=r), 0).part("activations").total) for r in RECOMPUTE]
    for less, more in zip(kept[1:], kept[:-1], strict=True):
        assert less <= more * (1 + 1e-12)


@pytest.mark.parametrize("layout", [{"dp": 8, "gbs": 8}, {"cp": 8}, {"dp": 2, "cp": 4, "gbs": 2}], ids=str)
def test_weights_that_are_sharded_are_gathered_somewhere(layout: dict[str, int]) -> None:
    """State is sharded over data and context parallelism, so two whole units are in flight with either."""
    whole, sharded = (memory_on(setting(zero=zero, **layout), 0) for zero in (0, 3))
    assert sharded.part("weights").total == pytest.approx(whole.part("weights").total / 8)
    assert sharded.part("gathered_weights").total > 0


@given(case=settings_of(DENSE))
@MANY
def test_worst_stage_of_a_dense_model_is_the_one_counted(case: Setting) -> None:
    worst = max(float(memory_on(case, stage).total) for stage in range(int(case.layout.pp)))
    assert step_memory(case).total == pytest.approx(worst)


@given(case=settings_of(EXPERTS), pp=st.sampled_from([2, 4, 8, 16, 27]))
@MANY
def test_worst_stage_of_a_mixture_of_experts_is_the_one_counted(case: Setting, pp: int) -> None:
    deep = changed(case, pp=min(pp, case.shape.layers), vpp=1)
    worst = max(float(memory_on(deep, stage).total) for stage in range(int(deep.layout.pp)))
    assert step_memory(deep).total == pytest.approx(worst)


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_worst_stage_is_counted_where_dense_layers_fill_the_first_two(recompute: str) -> None:
    """DeepSeek-V3 on 31 stages of two layers: three dense layers come first, so only the third has two of experts."""
    case = setting(
        model="deepseek-v3",
        machine="generic-h100",
        precision="bf16",
        pp=31,
        dp=8,
        ep=8,
        gbs=8 * 62,
        recompute=recompute,
    )
    worst = max(float(memory_on(case, stage).total) for stage in range(31))
    assert step_memory(case).total == pytest.approx(worst)


@given(case=settings_of(("mixtral-8x7b",)), width=st.integers(1, 100_000))
@example(case=NARROW_EXPERTS, width=1)
@MANY
def test_dense_width_of_a_model_without_dense_layers_does_not_matter(case: Setting, width: int) -> None:
    other = replace(case, shape=case.shape.model_copy(update={"ffn_hidden": width}))
    for recompute in ("none", "operators", "full"):
        kept = [stored_bytes_per_layer(s, recompute, s.moe_frac) for s in (case, other)]
        assert kept[0] == pytest.approx(kept[1], rel=1e-9), recompute
    assert cost_of(other).time.total == pytest.approx(cost_of(case).time.total)


@given(case=settings_of())
@MANY
def test_fits_says_whether_the_needed_memory_is_there(case: Setting) -> None:
    cost = cost_of(case)
    assert cost.device_bytes > cost.reserved_bytes > cost.memory.total
    assert cost.device_bytes >= cost.needed_bytes > cost.memory.total
    assert bool(cost.fits) == (cost.needed_bytes <= case.machine.memory_bytes)
    exact = replace(case.machine, memory_bytes=float(cost.needed_bytes))
    assert cost_of(replace(case, machine=exact)).fits == 1.0
    short = replace(case.machine, memory_bytes=float(cost.needed_bytes) * (1 - 1e-9))
    assert cost_of(replace(case, machine=short)).fits == 0.0


@given(case=settings_of())
@MANY
def test_interval_brackets_the_prediction(case: Setting) -> None:
    cost = cost_of(case)
    assert 0 < cost.interval_s[0] < cost.time.total < cost.interval_s[1]


@given(case=settings_of())
@MANY
def test_utilisation_is_a_share_and_hardware_work_is_at_least_the_models(case: Setting) -> None:
    cost = cost_of(case)
    assert 0 < cost.mfu_frac <= cost.hfu_frac
    assert (cost.hardware_flop == cost.model_flop) == (case.layout.recompute == "none")
    assert cost.mfu_frac < 1


@given(case=settings_of(), nodes=st.sampled_from([2, 4, 8]))
@settings(deadline=None, max_examples=30)
def test_each_device_works_as_long_when_copies_and_batch_grow_together(case: Setting, nodes: int) -> None:
    """More copies of the model with their own samples change what is exchanged, not what is computed; where power
    limits the products, the slowest of more devices is a little slower. The head is left out: on a last pipeline rank
    with fewer layers it hides behind layers that take longer when exchange does."""
    assume(case.layout.ep == 1)
    more = changed(case, dp=int(case.layout.dp) * nodes, gbs=int(case.layout.gbs) * nodes)
    one, other = (
        sum(float(part.total) for part in cost_of(given).time.part("compute").parts if part.name != "head_and_loss")
        for given in (case, more)
    )
    if not case.machine.is_power_limited:
        assert other == pytest.approx(one)
    else:
        assert one * (1.0 - 1e-9) <= other <= one * 1.15


def test_no_machine_of_the_cases_lacks_a_network() -> None:
    assert all(m.network_bytes_per_s_per_gpu for m in MACHINES.values())


def test_layout_as_a_column_of_one_is_that_layout() -> None:
    column = Layout(**{name: np.array([2]) for name in COLUMNS})
    assert column.at(0) == Layout(**dict.fromkeys(COLUMNS, 2))


def test_multi_token_prediction_adds_a_layer_and_a_head_on_the_last_stage() -> None:
    case = setting(model="deepseek-v3", machine="generic-h100", precision="bf16", ep=8, dp=8, gbs=8)
    more = replace(case, shape=case.shape.model_copy(update={"num_mtp_layers": 1}))
    one_layer = float(step_time(case).total) / case.shape.layers
    added = float(step_time(more).total) - float(step_time(case).total)
    assert 0.5 * one_layer < added < 6 * one_layer
