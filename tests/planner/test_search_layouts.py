"""The search finds what trying every layout one by one finds, says why it rejects, and counts each layout once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.footprint import step_memory
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.errors import ConfigError, LayoutError, NotExpressedError
from scalewright.planner.answer import answer
from scalewright.planner.energy_use import facility_of
from scalewright.planner.question import Question, resolve_recipe, resolve_stack
from scalewright.planner.search.constraints import (
    BEATEN,
    DEGREE_RULES,
    SPLIT_RULES,
    TOO_LARGE,
    kept,
    memory_problem,
    reasons,
    span_problem,
)
from scalewright.planner.search.search import SearchResult, objective_value, search, search_each
from scalewright.planner.search.space import Fixed, Space, divisors, parse_fixed, stacks_by_zero
from scalewright.workload.layout import COLUMNS, Layout, divisibility_problems
from scalewright.workload.model import from_catalog, from_shape
from scalewright.workload.precision import recipe
from scalewright.workload.training import TrainingMode

CATALOG = Catalog((packaged_data(),))
MACHINES: dict[str, Machine] = {
    name: machine_from_system(CATALOG, name) for name in ("selene", "lumi", "generic-h100", "laptop", "jupiter")
}
SMALL = from_shape("layers=6,hidden=768,heads=12,seq=512")
UNEVEN = from_shape("layers=7,hidden=768,heads=12,seq=512")


def space_of(
    model: str = "", system: str = "selene", num_gpus: int = 16, global_batch: int = 24, fix: str = "", **more: Any
) -> Space:
    machine = MACHINES[system]
    return Space(
        spec=from_catalog(CATALOG.model(model)) if model else SMALL,
        machine=machine,
        num_gpus=num_gpus,
        global_batch=global_batch,
        recipes=(resolve_recipe("auto", machine),),
        fixed=parse_fixed(fix),
        **{"stack_of": stacks_by_zero("auto", CATALOG, machine), "is_auto_stack": True} | more,
    )


def one_by_one(space: Space) -> dict[Layout, float]:
    """Step time of every layout that divides, stays in a node, shards something and fits, through `predict`."""
    time_s_of = {}
    experts = divisors(space.shape.moe.num_experts) if space.shape.moe else (1,)
    n = space.num_gpus
    for tp, pp, cp in itertools.product(divisors(n), repeat=3):
        if n % (tp * pp * cp) or span_problem(tp, space.machine, num_gpus=n):
            continue
        chunks = range(1, space.shape.layers + 1)
        knobs = itertools.product(chunks, experts, divisors(space.global_batch), space.choices())
        for vpp, ep, mbs, choice in knobs:
            dp = n // (tp * pp * cp)
            layout = choice.layout(
                {"tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "ep": ep, "dp": dp, "mbs": mbs, "gbs": space.global_batch}
            )
            kept_to = all(getattr(layout, k) == v for k, v in space.fixed.values.items())
            if not kept_to or reasons(layout, space) or (choice.zero and dp * cp == 1):
                continue
            cost = answer(
                Question(
                    spec=space.spec, machine=space.machine, layout=layout, recipe=choice.recipe, stack=choice.stack
                )
            )
            if cost.fits:
                time_s_of[layout] = float(cost.time.total)
    return time_s_of


@pytest.mark.parametrize(
    "space",
    [
        space_of(num_gpus=4, global_batch=4),
        replace(space_of(num_gpus=4, global_batch=4, fix="recompute=none,sp=0"), spec=UNEVEN),
        space_of(num_gpus=16, global_batch=6, fix="recompute=selective"),
        space_of("gpt3-6.7b", num_gpus=8, global_batch=4, fix="recompute=none"),
        space_of("qwen1.5-moe-a2.7b", "generic-h100", num_gpus=8, global_batch=8, fix="sp=0,recompute=full,cp=1,vpp=1"),
    ],
    ids=lambda s: f"{s.spec.id}-{s.num_gpus}",
)
def test_every_layout_has_the_time_that_predict_gives_it_alone(space: Space) -> None:
    expected, result = one_by_one(space), search(space)
    fits = np.flatnonzero(np.isfinite(result.step_time_s))
    time_s_of = {result.layout(int(i)): float(result.step_time_s[i]) for i in fits}
    assert len(time_s_of) == result.feasible == result.costed
    assert time_s_of == pytest.approx(expected, rel=1e-12)
    best = result.best(1, "time")[0]
    assert best.time_s == pytest.approx(min(expected.values()), rel=1e-12)


@settings(deadline=None, max_examples=12)
@given(
    system=st.sampled_from(["selene", "lumi", "jupiter"]),
    model=st.sampled_from(["gpt3-13b", "llama3-8b", "mixtral-8x7b"]),
    num_nodes=st.sampled_from([1, 2, 8, 12]),
    batch=st.sampled_from([64, 96, 120]),
    mode=st.sampled_from(["full", "lora", "offload"]),
    data=st.data(),
)
def test_columns_of_a_search_are_predictions(
    system: str, model: str, num_nodes: int, batch: int, mode: Any, data: st.DataObject
) -> None:
    """Whatever layout is drawn from a search, `predict` gives its time and memory, and agrees whether it fits."""
    space = space_of(
        model, system, num_nodes * MACHINES[system].gpus_per_node, batch, "recompute=selective",
        mode=TrainingMode(name=mode),
    )  # fmt: skip
    result = search(space)
    for index in data.draw(st.lists(st.integers(0, len(result.split) - 1), min_size=3, max_size=3)):
        alone = result.prediction(index)
        searched = float(result.step_time_s[index])
        assert bool(alone.fits) == np.isfinite(searched)
        if alone.fits:
            assert searched == pytest.approx(float(alone.time.total), rel=1e-12)
            assert float(result.needed_bytes[index]) == pytest.approx(float(alone.needed_bytes), rel=1e-12)
        else:  # of those that do not fit, a bound from below is kept
            assert float(result.needed_bytes[index]) <= float(alone.needed_bytes) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("model", "system", "num_gpus", "batch"),
    [("gpt3-175b", "lumi", 512, 768), ("gpt3-13b", "selene", 96, 240), ("deepseek-v2-lite", "jupiter", 64, 128)],
)
def test_each_layout_counts_once_as_rejected_or_feasible(model: str, system: str, num_gpus: int, batch: int) -> None:
    result = search(space_of(model, system, num_gpus, batch))
    assert result.considered == sum(result.rejected.values()) + result.feasible
    assert result.feasible > 0
    assert result.rejected[TOO_LARGE] > 0


@pytest.mark.parametrize(
    ("model", "system", "num_gpus", "batch"),
    [
        ("gpt3-175b", "lumi", 512, 768),
        ("gpt3-175b", "selene", 1024, 1536),
        ("llama3-70b", "jupiter", 128, 256),
        ("mixtral-8x7b", "generic-h100", 64, 512),
        ("deepseek-v3", "jupiter", 1024, 2048),
        ("gpt3-6.7b", "selene", 8, 8),
    ],
)
def test_leaving_out_what_is_always_beaten_keeps_the_best(model: str, system: str, num_gpus: int, batch: int) -> None:
    space = space_of(model, system, num_gpus, batch)
    whole, (short,) = search(space), search_each([space], only_best=True)
    assert short.rejected[BEATEN] > 0
    assert short.costed < whole.costed
    assert np.min(short.step_time_s) == np.min(whole.step_time_s)


def test_several_counts_together_give_what_each_gives_alone() -> None:
    space = space_of("gpt3-13b", "selene", 64, 384)
    counts = (16, 64, 96)
    for count, together in zip(counts, search_each([space.on(c) for c in counts]), strict=True):
        alone = search(space.on(count))
        assert together.considered == alone.considered
        assert together.rejected == alone.rejected
        assert together.best(1, "time")[0].question.layout == alone.best(1, "time")[0].question.layout
        np.testing.assert_allclose(together.step_time_s, alone.step_time_s, rtol=1e-12)


def rows_of(space: Space) -> list[Layout]:
    columns = space.splits(space.degrees())
    return [Layout(**{name: int(columns[name][i]) for name in COLUMNS}) for i in range(len(columns["tp"]))]


@pytest.mark.parametrize(
    "space",
    [
        space_of(num_gpus=24, global_batch=12),
        space_of("llama3-8b", "lumi", 32, 8, "mbs=1"),
        space_of("deepseek-v2-lite", "jupiter", 16, 8, "vpp=1"),
    ],
    ids=lambda s: s.spec.id,
)
def test_masks_keep_exactly_what_has_no_reason_against_it(space: Space) -> None:
    degrees, _ = kept(space.degrees(), space, DEGREE_RULES)
    columns, _ = kept(space.splits(degrees), space, SPLIT_RULES)
    left = {tuple(int(columns[n][i]) for n in COLUMNS) for i in range(len(columns["tp"]))}
    expected = {tuple(getattr(row, n) for n in COLUMNS) for row in rows_of(space) if not reasons(row, space)}
    assert left == expected
    assert len(left) < len(rows_of(space))


def test_reason_names_the_nodes_that_a_tensor_group_spans() -> None:
    lumi, jupiter = MACHINES["lumi"], MACHINES["jupiter"]
    assert span_problem(16, lumi, num_gpus=64) == "tp 16 spans two nodes of 8"
    assert span_problem(16, jupiter, num_gpus=64) == "tp 16 spans four nodes of 4"
    assert span_problem(8, lumi, num_gpus=64) is None
    rack = machine_from_system(CATALOG, "generic-gb200-nvl72")
    assert span_problem(16, rack, num_gpus=144) == "tp 16 spans two nodes of 72"
    assert span_problem(16, rack, num_gpus=64) is None


def test_reason_names_the_memory_needed_and_there() -> None:
    small = replace(MACHINES["lumi"], memory_bytes=64 * 2.0**30)
    assert memory_problem(93 * 2**30, small) == "needs 93.0 GiB of 64.0 GiB"


def test_group_across_nodes_is_searched_where_the_user_asks_for_it() -> None:
    fixed_tp = search(space_of("gpt3-13b", "jupiter", 64, 64, "tp=8"))
    assert fixed_tp.feasible > 0
    assert not fixed_tp.having("tp", 4).any()
    assert not search(space_of("gpt3-13b", "jupiter", 64, 64)).having("tp", 8).any()


def test_knobs_that_are_fixed_stay() -> None:
    result = search(space_of("gpt3-13b", "selene", 64, 64, "pp=4,zero=1,sp=1,recompute=full,mbs=2"))
    assert result.feasible > 0
    for layout in (result.layout(int(i)) for i in range(0, len(result.split), 7)):
        assert (layout.pp, layout.zero, layout.sp, layout.recompute, layout.mbs) == (4, 1, True, "full", 2)


@pytest.mark.parametrize("text", ["tp=8,pp=4", "recompute=full,zero=0", "sp=0", ""])
def test_fixed_knobs_read_back(text: str) -> None:
    assert str(parse_fixed(text)) == text


@pytest.mark.parametrize("text", ["tq=8", "tp=", "recompute=some", "zero=4", "tp=8,tp=4", "sp=2", "mbs=0"])
def test_fixed_knobs_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_fixed(text)


def with_energy(result: SearchResult) -> dict[Layout, float]:
    facility = facility_of(CATALOG, "selene", result.space.machine.accelerator.id)
    fits = np.flatnonzero(np.isfinite(result.step_time_s))
    predictions = [result.prediction(int(i), facility=facility) for i in fits]
    return {p.question.layout: objective_value(p, "energy") for p in predictions}


def test_least_energy_is_the_least_of_all_layouts() -> None:
    result = search(space_of(num_gpus=4, global_batch=6))
    facility = facility_of(CATALOG, "selene", result.space.machine.accelerator.id)
    best = result.best(3, "energy", facility=facility)
    expected = sorted(set(with_energy(result).values()))
    assert [objective_value(p, "energy") for p in best] == pytest.approx(expected[:3], rel=1e-12)


@pytest.mark.parametrize("model", ["gpt3-13b", "deepseek-v2-lite"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_memory_never_falls_with_micro_batch_or_interleaving(model: str, recompute: str) -> None:
    """What lets a split that does not fit stand for those that differ in these two only."""
    space = space_of(model, "selene", 16, 16, f"recompute={recompute},zero=1,sp=0")
    columns, _ = kept(space.splits(space.degrees()), space, (*DEGREE_RULES, *SPLIT_RULES))
    choice = space.choices()[0]
    sizes = step_memory(space.setting(choice, choice.layout(columns))).total
    rows = zip(*(columns[name].tolist() for name in COLUMNS), strict=True)
    size = {Layout(**dict(zip(COLUMNS, row, strict=True))): used for row, used in zip(rows, sizes, strict=True)}
    for layout, used in size.items():
        for smaller in (replace(layout, mbs=1), replace(layout, vpp=1)):
            assert size[smaller] <= used * (1 + 1e-9), (layout.brief, smaller.brief)


def test_stack_of_a_search_is_the_one_predict_takes() -> None:
    machine = MACHINES["selene"]
    stack_of = stacks_by_zero("auto", CATALOG, machine)
    for zero in range(4):
        assert stack_of(zero).id == resolve_stack("auto", CATALOG, Layout(zero=zero), machine).id


@pytest.mark.parametrize(("stack", "stages"), [("megatron-core", {0, 1}), ("compiled", {0, 1, 2, 3})])
def test_a_named_stack_is_searched_up_to_the_zero_stage_that_it_has(stack: str, stages: set[int]) -> None:
    more = {"stack_of": stacks_by_zero(stack, CATALOG, MACHINES["selene"]), "is_auto_stack": False}
    assert {choice.zero for choice in space_of("gpt3-13b", **more).choices()} == stages
    assert {choice.zero for choice in space_of("gpt3-13b", fix="zero=3", **more).choices()} == {3}


@pytest.mark.parametrize(
    ("space", "error"),
    [
        (space_of("t5-base"), NotExpressedError),
        (space_of("gpt3-13b", "laptop", 64), LayoutError),
        (space_of("gpt3-13b", "selene", 10**6), LayoutError),
    ],
    ids=["encoder-decoder", "one node", "too many nodes"],
)
def test_space_that_no_layout_answers_is_refused(space: Space, error: type[Exception]) -> None:
    with pytest.raises(error):
        search(space)


def test_search_that_would_not_fit_memory_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="such as mbs=1"):
        search(space_of("qwen3-235b-a22b", "lumi", 5040, 720720))


def test_precisions_are_searched_together() -> None:
    space = replace(space_of("llama3-8b", "generic-h100", 8, 64), recipes=(recipe("bf16"), recipe("fp8")))
    best = search(space).best(1, "time")[0]
    alone = {r.name: search(replace(space, recipes=(r,))).best(1, "time")[0] for r in space.recipes}
    assert best.question.layout == min(alone.values(), key=lambda p: p.time_s).question.layout


def test_divisibility_of_the_masks_is_that_of_the_layout_grammar() -> None:
    space = space_of("gpt3-13b", "selene", 64, 64)
    shape, result = space.shape, search(space_of("gpt3-13b", "selene", 64, 64, "recompute=full"))
    for i in range(0, len(result.split), 101):
        layout = result.layout(i)
        assert not divisibility_problems(
            layout, layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads, seq=shape.seq
        )
        assert int(layout.num_gpus) == 64


def test_nothing_fixed_is_the_default() -> None:
    assert space_of().fixed == Fixed()
