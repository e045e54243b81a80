"""Continuous batching: iterations and running sequences against an event simulation, and what must never happen."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs import generation
from scalewright.costs.generation import Load, Serving
from scalewright.costs.machine import machine_from_hardware
from scalewright.workload.lengths import LogNormalLength, fixed, parse_lengths
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import RECIPES

CATALOG = Catalog((packaged_data(),))
MACHINE = machine_from_hardware(
    CATALOG, gpu="h200-sxm", gpus_per_node=8, scale_up_bytes_per_s=None, network_bytes_per_s_per_gpu=50e9
)


def serving(engine: str = "tensorrt-llm", *, tp: int = 1, pp: int = 1, name: str = "llama3-8b") -> Serving:
    return Serving(
        shape=from_catalog(CATALOG.model(name)).transformer, machine=MACHINE, stack=CATALOG.stack("megatron-core"),
        recipe=RECIPES["bf16"], tp=tp, pp=pp, weight_bytes=2.0, cache_bytes=2.0, engine=CATALOG.engine(engine),
    )  # fmt: skip


def simulated(load: Load, num_prefill_tokens: float, seed: int) -> tuple[int, float]:
    """Iterations until all requests are answered, and running sequences on average: one token each an iteration."""
    rng = np.random.default_rng(seed)
    num = int(load.num_requests)
    prompts, answers = load.prompts.sample(rng, num), load.answers.sample(rng, num)
    waiting, steps, tokens = 0, 0, 0
    running = np.zeros(0, dtype=np.int64)
    while waiting < num or len(running):
        budget, start = num_prefill_tokens, waiting
        while waiting < num and len(running) + waiting - start < load.num_at_once and budget > 0:
            budget -= prompts[waiting]
            waiting += 1
        running = np.concatenate([running, answers[start:waiting]]) - 1
        tokens += len(running)
        running = running[running > 0]
        steps += 1
    return steps, tokens / steps


CASES = [
    (64, 64, "200", "300", 8192),
    (64, 64, "200", "lognormal:mean=300,cv=0.8", 8192),
    (256, 256, "200", "pareto:mean=300,alpha=1.8,max=4000", 8192),
    (512, 64, "200", "lognormal:mean=300,cv=0.8", 8192),
    (512, 64, "uniform:100-300", "uniform:100-500", 8192),
    (500, 64, "200", "300", 8192),
    (300, 100, "200", "300", 8192),
    (640, 64, "2000", "100", 2048),
    (1000, 32, "200", "pareto:mean=200,alpha=2.2,max=2000", 8192),
    (40, 256, "50", "lognormal:mean=100,cv=1.5,max=1000", 8192),
]


@pytest.mark.parametrize(("num", "most", "prompt", "answer", "budget"), CASES)
def test_iterations_are_those_of_a_simulated_queue(num: int, most: int, prompt: str, answer: str, budget: int) -> None:
    load = Load(num_requests=num, prompts=parse_lengths(prompt), answers=parse_lengths(answer), num_at_once=most)
    plan = generation.phases(load)
    steps, running = np.array([simulated(load, budget, seed) for seed in range(16)]).T
    assert plan.num_all_steps == pytest.approx(np.mean(steps), rel=0.10)
    assert plan.num_mean_running == pytest.approx(np.sum(steps * running) / np.sum(steps), rel=0.10)


def test_tokens_are_conserved() -> None:
    for num, most, prompt, answer, _ in CASES:
        load = Load(num_requests=num, prompts=parse_lengths(prompt), answers=parse_lengths(answer), num_at_once=most)
        plan = generation.phases(load)
        written = float(np.sum(plan.num_steps * plan.num_running))
        assert written == pytest.approx(num * load.answers.mean)


def time_s(given_: Serving, load: Load) -> float:
    return float(generation.load_time(given_, load)[0].total)


SERVED = st.sampled_from([("llama3-8b", 1, 1), ("llama3-70b", 8, 1), ("qwen3-30b-a3b", 2, 1), ("llama3-70b", 2, 4)])
MORE = st.one_of(st.floats(1.0, 1.01), st.floats(1.0, 3.0))
"""A little more, or much more."""
LOADS = st.builds(
    lambda num, most, prompt, mean, cv, longest: Load(
        num_requests=num, prompts=fixed(prompt), num_at_once=most,
        answers=LogNormalLength(num_mean=mean, cv=cv, num_max=longest * mean),
    ),
    st.integers(1, 3000), st.floats(1.0, 512.0), st.integers(1, 4096), st.integers(16, 2048), st.floats(0.05, 2.0),
    st.one_of(st.floats(1.5, 20.0), st.just(math.inf)),
)  # fmt: skip
EXACT = 1.0 + 1e-9
"""What floating point is allowed."""


def grown(load: Load, times: float, what: str) -> Load:
    """More of one thing, the others as they are."""
    lengths = load.answers
    assert isinstance(lengths, LogNormalLength)
    changed: dict[str, dict[str, Any]] = {
        "room": {"num_at_once": load.num_at_once * times},
        "requests": {"num_requests": load.num_requests * times},
        "prompts": {"prompts": fixed(load.prompts.mean * times)},
        "answers": {
            "answers": replace(lengths, num_mean=lengths.num_mean * times, num_max=lengths.num_max * times)
        },
        "spread": {"answers": replace(lengths, cv=lengths.cv * times)},
        "longest": {"answers": replace(lengths, num_max=lengths.num_max * times)},
    }  # fmt: skip
    return replace(load, **changed[what])


@settings(deadline=None, max_examples=60)
@given(served=SERVED, load=LOADS, times=MORE)
def test_more_room_is_never_slower(served: tuple[str, int, int], load: Load, times: float) -> None:
    own = serving(name=served[0], tp=served[1], pp=served[2])
    assert time_s(own, grown(load, times, "room")) <= EXACT * time_s(own, load)


@settings(deadline=None, max_examples=100)
@given(
    served=SERVED, load=LOADS, times=MORE, what=st.sampled_from(["requests", "prompts", "answers", "spread", "longest"])
)  # fmt: skip
def test_more_work_and_a_longer_tail_are_never_faster(
    served: tuple[str, int, int], load: Load, times: float, what: str
) -> None:
    own = serving(name=served[0], tp=served[1], pp=served[2])
    assert EXACT * time_s(own, grown(load, times, what)) >= time_s(own, load)


@settings(deadline=None, max_examples=60)
@given(load=LOADS, what=st.sampled_from(["room", "requests", "prompts", "answers", "spread", "longest"]))
def test_a_little_more_of_anything_changes_the_time_a_little(load: Load, what: str) -> None:
    """A thousandth more is at most two thousandths of the time."""
    before, after = (time_s(serving(), each) for each in (load, grown(load, 1.001, what)))
    assert abs(math.log(after / before)) <= 0.002


@given(load=LOADS)
def test_no_order_of_answers_takes_fewer_iterations_than_the_least(load: Load) -> None:
    assert generation.num_least_iterations(load) <= EXACT * generation.num_iterations(load)


def test_prompts_shared_by_their_answers_are_read_once() -> None:
    alone = Load(num_requests=512, prompts=fixed(4096), answers=fixed(128), num_at_once=512)
    prefill = [
        float(generation.load_time(serving(), load)[0].part("prompt_weights").total)
        for load in (alone, replace(alone, num_per_prompt=8.0))
    ]
    assert prefill[0] / prefill[1] == pytest.approx(8.0, rel=0.1)


def test_a_pipeline_gives_more_tokens_than_one_device_and_fewer_than_tensor_parallelism_of_small_batches() -> None:
    load = Load(num_requests=512, prompts=fixed(128), answers=fixed(512), num_at_once=512)
    assert time_s(serving(pp=4, name="llama3-70b"), load) < time_s(serving(name="llama3-70b"), load)
    one = replace(load, num_requests=1, num_at_once=1)
    assert time_s(serving(pp=4, name="llama3-70b"), one) > time_s(serving(tp=4, name="llama3-70b"), one)


@pytest.mark.parametrize("rate", [0.5, 2.0, 8.0])
def test_arrivals_below_saturation_are_carried(rate: float) -> None:
    load = Load(num_requests=1000, prompts=fixed(512), answers=fixed(256), num_at_once=256)
    state = generation.steady_state(serving(), load, num_requests_per_s=rate)
    assert state.load_frac < 1.0
    assert state.num_running == pytest.approx(rate * 256 * state.iteration_s, rel=1e-3)
    assert 0.0 < state.waiting_s < 1.0


def test_arrivals_above_saturation_wait_without_end() -> None:
    load = Load(num_requests=1000, prompts=fixed(512), answers=fixed(256), num_at_once=256)
    state = generation.steady_state(serving(), load, num_requests_per_s=1e4)
    assert state.load_frac > 1.0
    assert math.isinf(state.waiting_s)
    busy = [generation.steady_state(serving(), load, num_requests_per_s=rate).iteration_s for rate in (1.0, 4.0, 16.0)]
    assert busy == sorted(busy)


def test_engines_that_reserve_hold_fewer_sequences_and_read_nothing_again() -> None:
    prompts, answers = fixed(512), parse_lengths("lognormal:mean=512,cv=1.0,max=8192")
    lengths = [
        generation.held_len(serving(name), prompts=prompts, answers=answers, per_prompt=1.0)
        for name in ("tensorrt-llm", "vllm")
    ]
    assert lengths[0] == 512 + 8192
    assert 512 + 256 < lengths[1] < 512 + 2048
    assert generation.num_read_again(serving("tensorrt-llm"), num_at_once=64, answers=answers) == 0.0
    again = [generation.num_read_again(serving("vllm"), num_at_once=n, answers=answers) for n in (4, 64, 1024)]
    assert again == sorted(again, reverse=True)
    assert 0.0 < again[-1] < 0.05 * answers.mean


def test_one_size_of_batch_waits_as_long_as_its_step() -> None:
    load = Load(num_requests=32, prompts=fixed(64), answers=fixed(200), num_at_once=32)
    _, plan = generation.load_time(serving(), load)
    step_s = float(generation.decode_step(serving(), num_sequences=32.0, num_context=plan.num_mean_context).total)
    assert generation.median_wait_s(serving(), load) == pytest.approx(step_s, rel=0.02)


def test_a_tail_of_few_answers_hardly_counts_between_tokens() -> None:
    """256 answers, a few of them twenty times as long: most iterations have few answers, most tokens have many."""
    load = Load(
        num_requests=256, prompts=fixed(64), answers=parse_lengths("pareto:mean=300,alpha=1.5,max=6000"),
        num_at_once=256,
    )  # fmt: skip
    _, plan = generation.load_time(serving(), load)
    one_s, mean_s = (
        float(generation.decode_step(serving(), num_sequences=n, num_context=plan.num_mean_context).total)
        for n in (1.0, plan.num_mean_running)
    )
    assert one_s < mean_s < generation.median_wait_s(serving(), load)
