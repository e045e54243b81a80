"""Time on the device: products by tiles and on the roofline, attention, memory traffic, head, optimizer, host."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases import CATALOG, MODELS, STACKS, changed, setting
from scalewright.catalog.types import MoeShape, Stack
from scalewright.costs.attention import attention_times, flash_attention_time_s
from scalewright.costs.compute import (
    cast_bytes,
    elementwise_bytes_per_layer,
    elementwise_times,
    expert_load,
    expert_times,
    gemm_time_s,
    head_times,
    host_times,
    host_wait_s,
    num_output_rows,
    optimizer_time_s,
    tiled_product_time_s,
)
from scalewright.costs.machine import machine_from_system
from scalewright.costs.selection import expected_largest
from scalewright.costs.step import step_time
from scalewright.workload.precision import RECIPES

CONSTANTS = CATALOG.constants()
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
UNITS = 108.0
RATE = 271.2e12
ONE_TILE = CONSTANTS.model_copy(update={"tile_share": {"256x128": CONSTANTS.tile_share["256x128"]}})


def tiled(m: float, n: float, k: float, *, one_tile: bool = False) -> float:
    constants = ONE_TILE if one_tile else CONSTANTS
    return float(tiled_product_time_s(m=m, n=n, k=k, flop_per_s=RATE, num_units=UNITS, constants=constants))


def test_product_takes_as_long_for_any_part_of_a_wave_and_steps_at_whole_ones() -> None:
    """NVIDIA's guide: 108 tiles run at once on an A100; the 109th needs a second wave."""
    one_wave = tiled(256, 128, 4096, one_tile=True)
    assert tiled(256 * 108, 128, 4096, one_tile=True) == one_wave
    assert tiled(256 * 108 + 1, 128, 4096, one_tile=True) == pytest.approx(2 * one_wave)
    assert tiled(256 * 216, 128, 4096, one_tile=True) == pytest.approx(2 * one_wave)
    assert tiled(256 * 216 + 1, 128, 4096, one_tile=True) == pytest.approx(3 * one_wave)


def test_smaller_tiles_are_chosen_only_where_they_help() -> None:
    # One 64x64 tile wastes less of a wave than one of 256x128; a large product is best in the largest tile.
    assert tiled(64, 64, 4096) < tiled(64, 64, 4096, one_tile=True)
    large = (256 * 108, 128 * 64, 8192)
    assert tiled(*large) == tiled(*large, one_tile=True)


@pytest.mark.parametrize("depth", [8192, 16384])
def test_large_products_reach_the_rate_within_two_percent(depth: int) -> None:
    m, n = 256 * 108, 128 * 64
    assert tiled(m, n, depth) == pytest.approx(2.0 * m * n * depth / RATE, rel=0.02)


@given(m=st.integers(1, 40_000), n=st.integers(1, 40_000), k=st.integers(1, 40_000))
@settings(deadline=None, max_examples=100)
def test_no_product_is_faster_than_its_arithmetic(m: int, n: int, k: int) -> None:
    assert tiled(m, n, k) >= 2.0 * m * n * k / RATE


def gemm(m: float, n: float, k: float, *, num_units: float | None = None, bytes_per_s: float = 1.7e12) -> float:
    return float(
        gemm_time_s(
            m=m, n=n, k=k, flop_per_s=RATE, bytes_per_s=bytes_per_s, width_bytes=2.0, num_units=num_units,
            constants=CONSTANTS,
        )
    )  # fmt: skip


def test_roofline_has_both_regimes() -> None:
    # 8192 cubed does 2730 FLOP per byte, well above the ridge of 160; one row does 1 per byte, well below.
    assert gemm(8192, 8192, 8192) == pytest.approx(2.0 * 8192**3 / RATE)
    assert gemm(8192, 8192, 8192, bytes_per_s=1e15) == gemm(8192, 8192, 8192)
    assert gemm(1, 8192, 8192) == pytest.approx(2.0 * (8192 + 8192**2 + 8192) / 1.7e12)
    assert gemm(1, 8192, 8192, bytes_per_s=0.85e12) == pytest.approx(2 * gemm(1, 8192, 8192))


def test_units_only_ever_add_to_the_roofline() -> None:
    for shape in ((1, 8192, 8192), (300, 300, 300), (8192, 8192, 8192), (4096, 51200, 1024)):
        assert gemm(*shape, num_units=UNITS) >= gemm(*shape)


def flash(seq: int, *, causal: bool = True, head_dim: float = 128.0) -> float:
    return float(
        flash_attention_time_s(
            seq=seq, micro_batch=2, heads=32, head_dim=head_dim, causal=causal, flop_per_s=RATE, constants=CONSTANTS
        )
    )


@pytest.mark.parametrize("seq", [512, 2048, 32768])
def test_causal_attention_is_half(seq: int) -> None:
    assert flash(seq) == pytest.approx(flash(seq, causal=False) / 2)


def test_attention_is_quadratic_once_the_sequence_is_long() -> None:
    assert flash(2**21) == pytest.approx(4 * flash(2**20), rel=1e-3)
    assert flash(2**21, causal=False) == pytest.approx(4.0 * 2 * (2.0**21) ** 2 * 32 * 128 / RATE, rel=1e-3)


def test_attention_of_the_h200_table_is_met_with_one_rate() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_micro.jsonl"
    rows = [r for r in map(json.loads, path.read_text().splitlines()) if r["kind"] == "attention"]
    ratios = []
    for r in rows:
        forward = flash_attention_time_s(
            seq=r["seq"], micro_batch=r["batch"], heads=r["heads"], head_dim=-(-r["head_dim"] // 64) * 64.0,
            causal=True, flop_per_s=620e12, constants=CONSTANTS,
        )  # fmt: skip
        ratios.append(float(forward) * 3.5 / (r["forward_s"] + r["backward_s"]))
    assert len(ratios) == 28
    assert max(abs(r - 1.0) for r in ratios) < 0.20


def test_attention_is_split_by_tensor_and_context_parallelism() -> None:
    """Each device has its part of the work, never less: smaller kernels fill it worse, and a ring merges its parts."""
    whole = attention_times(setting(mbs=2, gbs=2))
    for parts in ({"tp": 4}, {"cp": 4}, {"tp": 2, "cp": 2}):
        split = attention_times(setting(mbs=2, gbs=2, **parts))
        for one, all_of_it in ((split.forward_s, whole.forward_s), (split.backward_s, whole.backward_s)):
            assert all_of_it / 4 < one < 2.0 * all_of_it / 4
    by_ring = [attention_times(setting(mbs=1, gbs=1, cp=cp)).forward_s * cp for cp in (1, 2, 4, 8)]
    assert by_ring == sorted(by_ring)
    assert len(set(by_ring)) == len(by_ring)


@given(
    seq=st.sampled_from([1024, 4096, 8192, 65536]), samples=st.sampled_from([1, 2, 8]), cp=st.sampled_from([2, 4, 8]),
    model=st.sampled_from(["gpt3-6.7b", "llama3-8b", "mixtral-8x7b"]), machine=st.sampled_from(["selene", "lumi"]),
)  # fmt: skip
def test_a_context_parallel_ring_is_never_free(seq: int, samples: int, cp: int, model: str, machine: str) -> None:
    """The same samples on the same devices, each of them whole on one or cut over a ring."""
    case = setting(model=model, machine=machine, dp=cp, mbs=samples, gbs=cp * samples)
    case = replace(case, shape=case.shape.model_copy(update={"seq": seq}))
    ring = changed(case, dp=1, cp=cp, mbs=samples, gbs=cp * samples)
    assert step_time(ring).total > 1.001 * step_time(case).total


@given(
    mbs=st.sampled_from([2, 4, 8]),
    stack=st.sampled_from(sorted(STACKS)),
    model=st.sampled_from(["gpt2-xl", "llama3-8b"]),
)
def test_gradient_accumulation_is_never_free(mbs: int, stack: str, model: str) -> None:
    """The same samples of one device in one pass, or one by one."""
    case = setting(model=model, machine="generic-h100", precision="bf16", stack=stack, mbs=mbs, gbs=mbs)
    assert step_time(changed(case, mbs=1)).total > 1.001 * step_time(case).total


def test_unfused_attention_is_slower_than_fused() -> None:
    fused, unfused = (
        attention_times(setting(stack=stack, mbs=1, gbs=1)) for stack in ("megatron-core", "eager-unfused")
    )
    assert unfused.forward_s > fused.forward_s
    assert unfused.backward_s > fused.backward_s


def crossings(num_tokens: float, *, tp: int = 1, norm_split: int = 1) -> float:
    return float(
        elementwise_bytes_per_layer(
            hidden=4096, ffn_width=16384.0, num_tokens=num_tokens, tp=tp, norm_split=norm_split, passes=20.0,
            width_bytes=2.0,
        )
    )  # fmt: skip


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_elementwise_traffic_is_linear_in_tokens_and_never_more_with_sequence_parallelism(tp: int) -> None:
    assert crossings(6144, tp=tp) == pytest.approx(3 * crossings(2048, tp=tp))
    assert crossings(2048, tp=tp, norm_split=tp) <= crossings(2048, tp=tp)
    assert crossings(2048, tp=tp, norm_split=tp) == pytest.approx(crossings(2048) / tp)


def test_head_is_linear_in_vocabulary() -> None:
    """Whole waves of the largest tile, so that quantisation adds nothing."""
    case = setting(mbs=1, gbs=1)
    columns = 128 * 108

    def seconds(vocab: int) -> np.ndarray:
        times = head_times(replace(case, shape=case.shape.model_copy(update={"vocab": vocab})))
        return np.array([times.forward_s, times.backward_s])

    grown = seconds(3 * columns) - seconds(2 * columns)
    assert seconds(4 * columns) == pytest.approx(seconds(3 * columns) + grown, rel=0.01)
    assert seconds(4 * columns) == pytest.approx(2 * seconds(2 * columns), rel=0.02)


def test_head_of_a_split_vocabulary_takes_its_share() -> None:
    shape = MODELS["gpt3-6.7b"].transformer.model_copy(update={"vocab": 51200})
    whole, split = (head_times(replace(setting(mbs=4, gbs=4, tp=tp), shape=shape)) for tp in (1, 4))
    assert split.forward_s == pytest.approx(whole.forward_s / 4, rel=0.05)


@given(device=st.floats(1e-6, 10.0), blend=st.floats(1.0, 8.0))
@settings(deadline=None, max_examples=80)
def test_nothing_is_waited_for_without_host_time(device: float, blend: float) -> None:
    assert host_wait_s(device_s=device, host_s=0.0, blend=blend) == 0


@given(host=st.floats(1e-5, 1e-2), blend=st.floats(1.0, 8.0))
@settings(deadline=None, max_examples=80)
def test_hosts_time_is_waited_for_when_the_device_has_none(host: float, blend: float) -> None:
    assert host_wait_s(device_s=1e-12, host_s=host, blend=blend) == pytest.approx(host, rel=1e-3)


@given(device=st.floats(1e-6, 1.0), host=st.floats(1e-6, 1.0), blend=st.floats(1.0, 8.0))
@settings(deadline=None, max_examples=80)
def test_layer_takes_at_least_the_longer_of_both_and_at_most_their_sum(
    device: float, host: float, blend: float
) -> None:
    whole = device + host_wait_s(device_s=device, host_s=host, blend=blend)
    assert max(device, host) * (1 - 1e-9) <= whole <= (device + host) * (1 + 1e-9)


def test_optimizer_is_linear_in_parameters() -> None:
    once = optimizer_time_s(num_params=1e9, bytes_per_param=30.0, bytes_per_s=1.5e12)
    assert once == pytest.approx(0.02)
    assert optimizer_time_s(num_params=7e9, bytes_per_param=30.0, bytes_per_s=1.5e12) == pytest.approx(7 * once)


def test_padded_head_costs_attention_of_the_padded_size() -> None:
    """Fused kernels exist in steps of 32: a head of 80 is computed as one of 96."""
    shape = MODELS["gpt3-6.7b"].transformer.model_copy(update={"head_dim": 96})
    case = replace(setting(mbs=1, gbs=1), shape=shape)
    narrow = replace(case, shape=shape.model_copy(update={"head_dim": 80}))
    assert attention_times(narrow).forward_s == attention_times(case).forward_s
    half = attention_times(case).forward_s / 2
    assert half < attention_times(changed(case, tp=2)).forward_s < 1.3 * half  # fewer tiles fill the device worse


def test_odd_vocabulary_costs_more_than_the_next_multiple_of_128_and_is_filled_up_once_split() -> None:
    """GPT-2's 50,257 entries beside 50,304."""

    def head_s(vocab: int, tp: int) -> float:
        case = setting(mbs=4, gbs=4, tp=tp)
        times = head_times(replace(case, shape=case.shape.model_copy(update={"vocab": vocab})))
        return float(times.forward_s + times.backward_s)

    assert head_s(50257, 1) > 1.5 * head_s(50304, 1)
    assert head_s(50257, 2) == pytest.approx(head_s(50432, 2))  # 2 x 128 divides 50,432
    rows = [num_output_rows(replace(case, shape=case.shape.model_copy(update={"vocab": 50257})))
            for case in (setting(tp=1), setting(tp=8))]  # fmt: skip
    assert rows == [50257, 51200]


def test_sustained_rate_is_the_measured_one_where_there_is_one() -> None:
    assert machine_from_system(CATALOG, "generic-h200").sustained_flop_per_s("bf16") == 664e12


def test_hoppers_of_one_power_hold_what_one_of_them_was_measured_at_and_a_lower_limit_holds_less() -> None:
    h100, h200 = (machine_from_system(CATALOG, f"generic-{name}") for name in ("h100", "h200"))
    assert h100.sustained_flop_per_s("bf16") == pytest.approx(h200.sustained_flop_per_s("bf16"), rel=0.01)
    limited = replace(h100, accelerator=CATALOG.accelerator("h100-sxm-96gb-500w"))
    for precision in ("bf16", "fp8"):
        assert limited.sustained_flop_per_s(precision) <= h100.sustained_flop_per_s(precision)
    assert limited.sustained_flop_per_s("bf16") < 0.9 * h100.sustained_flop_per_s("bf16")


@pytest.mark.parametrize("name", [i for i in CATALOG.ids("accelerators") if CATALOG.accelerator(i).kind == "gpu"])
def test_products_in_8_bit_hold_no_more_than_their_best(name: str) -> None:
    machine = replace(setting().machine, accelerator=CATALOG.accelerator(name))
    for precision in ("bf16", "fp8"):
        if precision in machine.accelerator.peak:
            best = machine.matmul_flop_per_s(precision)
            assert 0 < machine.sustained_flop_per_s(precision) <= best


@pytest.mark.parametrize(("draws", "largest"), [(1000, 3.24), (100, 2.51), (10000, 3.85)])
def test_largest_of_many_normal_draws(draws: int, largest: float) -> None:
    assert expected_largest(draws) == pytest.approx(largest, rel=0.06)
    assert expected_largest(1) == 0.0


def test_busiest_experts_hold_up_a_group_the_more_the_more_devices_and_the_fewer_tokens() -> None:
    shape = MODELS["deepseek-v3"].transformer
    alone, few_devices, many, long = (
        float(expert_load(replace(setting(ep=ep, dp=256, mbs=mbs, gbs=256 * mbs), shape=shape)))
        for ep, mbs in ((1, 1), (8, 1), (64, 1), (64, 16))
    )
    assert alone == 1.0
    assert many > few_devices > 1.0 + CONSTANTS.expert_imbalance.value
    assert many > long


def test_softmax_falls_back_where_score_matrices_do_not_come_by_four() -> None:
    """Sixteen heads on eight ranks: two matrices for one sequence, four for two (Megatron-LM, fused_softmax.py)."""
    shape = MODELS["gpt3-6.7b"].transformer.model_copy(update={"heads": 16})
    unfused = CATALOG.stack("eager-unfused")

    def host_s(mbs: int, stack: Stack) -> float:
        return float(host_times(replace(setting(tp=8, mbs=mbs, gbs=mbs), shape=shape, stack=stack)).forward_s)

    assert host_s(1, unfused) > 1.1 * host_s(2, unfused)
    fused = CATALOG.stack("megatron-core")
    assert host_s(1, fused) == host_s(2, fused)


def test_gated_feed_forward_moves_more_than_a_plain_one() -> None:
    case = setting(mbs=1, gbs=1)
    plain = replace(case, shape=case.shape.model_copy(update={"gated": False}))
    gated = replace(case, shape=case.shape.model_copy(update={"gated": True}))
    assert elementwise_times(gated).forward_s > elementwise_times(plain).forward_s


def test_experts_of_block_scaled_recipes_each_cost_the_host() -> None:
    shape = MODELS["deepseek-v3"].transformer

    def host_s(recipe: str, ep: int) -> float:
        case = replace(setting(ep=ep, dp=64, gbs=64), shape=shape, recipe=RECIPES[recipe])
        return float(host_times(case).forward_s)

    assert host_s("mxfp8", 8) > host_s("mxfp8", 64) > host_s("fp8", 64)
    assert host_s("fp8", 8) == host_s("fp8", 64)


KERNELS = [json.loads(line) for line in (RESULTS / "h200_narrow.jsonl").read_text(encoding="utf-8").splitlines()]
EXPERTS = [row for row in KERNELS if row["kind"] == "grouped" and row["rows"] >= 128]


def grouped_times_s(row: dict[str, float], *, plain: bool = False) -> tuple[float, float]:
    """Forward and backward of the grouped products of `experts` experts with so many rows on one H200."""
    num = int(row["experts"])
    moe = MoeShape(num_experts=num, top_k=1, num_shared=0, expert_ffn=int(row["n"]), num_dense_layers=0)
    base = setting(tp=1, dp=1)
    shape = base.shape.model_copy(
        update={"moe": moe, "hidden": int(row["k"]), "gated": False, "seq": int(num * row["rows"])}
    )
    machine = machine_from_system(CATALOG, "generic-h200")
    machine = replace(machine, hbm_bytes_per_s=1e30) if plain else machine
    case = replace(base, shape=shape, machine=machine, stack=CATALOG.stack("compiled"))
    times = expert_times(case, flop_per_s=1e12 * row["plain"])
    return float(times.forward_s), float(times.backward_s)


def test_grouped_products_lose_to_one_product_what_an_h200_measured() -> None:
    """Products of 16 experts over one of the same size, forward and both gradients, at 128 to 4,096 rows an expert."""
    errors = []
    for row in EXPERTS:
        measured = (2.0 / row["grouped"] + 1.0 / row["weight"]) * row["plain"] / 3.0
        predicted = sum(grouped_times_s(row)) / sum(grouped_times_s(row, plain=True))
        errors.append(predicted / measured - 1.0)
    assert len(errors) == 36
    assert np.abs(errors).mean() < 0.12
    assert abs(np.mean(errors)) < 0.08


def test_casts_exist_in_8_bit_only_and_cost_more_where_a_compiler_writes_them() -> None:
    case = setting(tp=1)
    assert float(cast_bytes(case).forward_s) == 0.0
    narrow = replace(case, recipe=RECIPES["fp8"], stack=CATALOG.stack("megatron-core"))
    twice = replace(narrow, layout=replace(narrow.layout, mbs=2 * int(narrow.layout.mbs)))
    assert float(cast_bytes(twice).forward_s) == pytest.approx(2.0 * float(cast_bytes(narrow).forward_s))
    compiled = replace(narrow, stack=CATALOG.stack("compiled"))
    assert float(cast_bytes(compiled).forward_s) > 2.0 * float(cast_bytes(narrow).forward_s)
    blocks = replace(compiled, recipe=RECIPES["mxfp8"])
    assert float(cast_bytes(blocks).backward_s) > float(cast_bytes(compiled).backward_s)


def test_attention_written_for_ampere_loses_rate_on_later_devices_only() -> None:
    new = CATALOG.stack("compiled")
    old = new.model_copy(update={"has_ampere_attention": True})
    for name, share in (("generic-a100", 1.0), ("generic-h100", CONSTANTS.ampere_attention_share.value)):
        machine = machine_from_system(CATALOG, name)
        rates = [machine.attention_flop_per_s("bf16", stack) for stack in (old, new)]
        assert rates[0] == pytest.approx(share * rates[1])


def test_a_processor_on_the_module_leaves_the_gpu_less_power() -> None:
    """On JUPITER a GH200 has 680 W for both: its products are held further below their best than those of an H100."""
    h100 = machine_from_system(CATALOG, "generic-h100")
    gh200 = replace(h100, accelerator=CATALOG.accelerator("gh200-96gb"))
    shares = [m.sustained_flop_per_s("bf16") / m.matmul_flop_per_s("bf16") for m in (gh200, h100)]
    assert shares[0] < shares[1]


def test_8_bit_products_without_a_figure_reach_the_share_of_the_peak_that_16_bit_ones_reach() -> None:
    machine = replace(setting().machine, accelerator=CATALOG.accelerator("mi300x"))
    wide, narrow = (machine.matmul_flop_per_s(p) / machine.peak_flop_per_s(p) for p in ("bf16", "fp8"))
    assert narrow == pytest.approx(wide)
