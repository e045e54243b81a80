"""The bound of a step's time: what no run can beat, so neither may the low end of an interval."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
from hypothesis import given, settings

from properties.cases import cost_of, setting, settings_of
from scalewright.costs.setting import Setting

Cli = Callable[..., CompletedProcess[str]]
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, SEQ = 32, 4096, 32, 8, 128, 14336, 128256, 8192
"""Llama 3 8B at its own sequence length."""
PEAK_FLOP_PER_S = 989.4e12


def by_hand_s(*, is_fused: bool, is_recomputed: bool) -> float:
    """One sample a device: products, and scores, of which a fused causal kernel computes half."""
    layer = HIDDEN * HEAD_DIM * (HEADS + 2 * KV_HEADS) + HEADS * HEAD_DIM * HIDDEN + 3 * HIDDEN * FFN
    scores = 4.0 * SEQ * HEADS * HEAD_DIM * (0.5 if is_fused else 1.0)
    forward = LAYERS * (2.0 * layer + scores)
    num_passes = 4.0 if is_recomputed else 3.0
    return SEQ * (num_passes * forward + 3.0 * 2.0 * HIDDEN * VOCAB) / PEAK_FLOP_PER_S


@pytest.mark.parametrize("stack", ["megatron-core", "eager-unfused"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_bound_is_the_executed_arithmetic_at_peak(stack: str, recompute: str) -> None:
    case = setting(model="llama3-8b", machine="generic-h100", stack=stack, dp=8, gbs=8, recompute=recompute)
    expected = by_hand_s(is_fused=stack == "megatron-core", is_recomputed=recompute == "full")
    assert cost_of(case).bound_s == pytest.approx(expected, rel=1e-3)


@given(case=settings_of())
@settings(deadline=None, max_examples=60)
def test_nothing_runs_above_peak(case: Setting) -> None:
    cost = cost_of(case)
    assert 0 < cost.bound_s <= cost.interval_s[0]


def test_interval_of_a_long_sequence_lies_above_the_bound_that_is_printed(cli: Cli) -> None:
    done = cli(
        "predict", "--model", "layers=32,hidden=1024,heads=8,vocab=32000,seq=1048576", "--system", "generic-a100",
        "--layout", "cp=64,zero=1", "--stack", "compiled", "--json",
    )  # fmt: skip
    prediction = json.loads(done.stdout)
    assert prediction["step_time_bound_s"] <= prediction["step_time_interval_s"][0]
