"""Parts of the language benchmark that need one process: data order, steady state, the split of a step, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
import torch

from scalewright.data.tokens.reader import samples_of_rank
from scalewright.data.tokens.synthetic import synthetic_tokens
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.run.breakdown import TimedStep, covered, profiler, split_step, step_split
from scalewright.run.device import choose_device, make_bf16_products_work
from scalewright.run.language.mesh_position import check_world_size, chunk_layers, local_positions
from scalewright.run.language.precision import numbers
from scalewright.run.steady import steady_state
from scalewright.run.world import World
from scalewright.workload.language_run import resolve
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_shape

ALONE = World.from_environment({}, host="here")


@pytest.mark.parametrize(("dp", "mbs"), [(1, 1), (1, 4), (2, 2), (4, 1), (8, 1)])
def test_ranks_divide_a_batch_without_gap_or_overlap(dp: int, mbs: int) -> None:
    taken = [index for rank in range(dp) for index in samples_of_rank(gbs=8, dp=dp, mbs=mbs, dp_rank=rank)]
    assert sorted(taken) == list(range(8))


def test_synthetic_words_are_as_frequent_as_their_rank_says() -> None:
    counts = np.bincount(synthetic_tokens(vocab=64, seed=0), minlength=64)
    assert counts[0] / counts[1] == pytest.approx(2.0, rel=0.05)
    assert counts[0] / counts[9] == pytest.approx(10.0, rel=0.05)


def test_steady_state_leaves_out_a_slow_start() -> None:
    verdict = steady_state([3.0] * 10 + [1.0, 1.01] * 30, "steady")
    assert verdict.is_steady
    assert verdict.first == 10
    assert verdict.median_s == pytest.approx(1.0, rel=0.02)


def test_a_run_that_keeps_slowing_down_is_not_steady() -> None:
    assert not steady_state([1.0 + 0.02 * i for i in range(60)], "steady").is_steady
    assert not steady_state([1.0 + 0.1 * i for i in range(30)], "epicure").is_steady


def test_epicure_counts_from_the_first_stable_steps_on() -> None:
    verdict = steady_state([5.0, 2.0, 1.5, *([1.0, 1.01] * 10)], "epicure")
    assert (verdict.is_steady, verdict.first) == (True, 3)


def test_few_steps_are_no_steady_state() -> None:
    assert not steady_state([1.0] * 5, "steady").is_steady
    assert not steady_state([], "steady").is_steady


@pytest.mark.parametrize(
    ("intervals", "length"), [([], 0.0), ([(0, 2), (1, 3)], 3.0), ([(0, 1), (5, 6)], 2.0), ([(0, 9), (1, 2)], 9.0)]
)
def test_covered_time_counts_overlap_once(intervals: list[tuple[float, float]], length: float) -> None:
    assert covered(intervals) == length


SECONDS = st.floats(min_value=0.0, max_value=100.0)


@given(step_s=SECONDS, data_wait_s=SECONDS, compute_s=SECONDS, exposed_s=SECONDS)
def test_parts_of_a_step_add_up_to_it(step_s: float, data_wait_s: float, compute_s: float, exposed_s: float) -> None:
    split = step_split(step_s=step_s, data_wait_s=data_wait_s, compute_s=compute_s, exposed_s=exposed_s)
    parts = (split.compute_s, split.communication_s, split.data_wait_s, split.idle_s)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(step_s)


def test_split_is_that_of_ordinary_steps_not_of_the_profiled_one() -> None:
    with profiler(torch.device("cpu")) as trace:
        torch.ones(8).sum()
    slow_start = [TimedStep(step=0, wall_s=90.0, thread_cpu_s=80.0, data_wait_s=9.0)]
    usual = [TimedStep(step=i, wall_s=1.0, thread_cpu_s=0.75, data_wait_s=0.125) for i in range(1, 8)]
    split = split_step(trace, slow_start + usual, device=torch.device("cpu"))
    assert (split.compute_s, split.communication_s, split.data_wait_s, split.idle_s) == (0.75, 0.0, 0.125, 0.125)


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_context_ranks_share_positions_and_the_causal_triangle_evenly(cp: int) -> None:
    parts = [local_positions(16, cp=cp, cp_rank=rank, device=torch.device("cpu")) for rank in range(cp)]
    assert sorted(int(p) for part in parts for p in part) == list(range(16))
    assert len({int((part + 1).sum()) for part in parts}) == 1


def test_stages_are_consecutive_and_as_even_as_can_be() -> None:
    ranges = chunk_layers(10, num_chunks=4)
    assert [layer for part in ranges for layer in part] == list(range(10))
    assert {len(part) for part in ranges} == {2, 3}


def test_more_or_fewer_ranks_than_the_layout_are_refused() -> None:
    with pytest.raises(ConfigError, match="is for 4 ranks"):
        check_world_size(parse_layout("dp=2,tp=2"), 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_where_there_is_none_is_the_environments_fault() -> None:
    with pytest.raises(EnvironmentFailedError, match="no GPU"):
        choose_device("cuda", ALONE)
    assert choose_device("auto", ALONE).type == "cpu"


def test_fp8_on_a_cpu_is_refused() -> None:
    run = resolve(from_shape("layers=1,hidden=16,heads=1"), parse_layout("dp=1"), precision="fp8", device="cpu")
    with pytest.raises(ConfigError, match="fp8 needs a GPU"):
        numbers(run, torch.device("cpu"))


def test_products_that_kill_the_process_are_found_before_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter that dies of SIGILL unless the safe instructions are chosen stands for such a CPU."""
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\n[ "$ONEDNN_MAX_CPU_ISA" = AVX512_CORE ] || kill -ILL $$\n')
    fake.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(fake))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    note = make_bf16_products_work(torch.device("cpu"), ["bf16"])
    assert note is not None
    assert "AVX512_CORE" in note
    fake.write_text("#!/bin/sh\nkill -ILL $$\n")
    with pytest.raises(EnvironmentFailedError, match="fp32"):
        make_bf16_products_work(torch.device("cpu"), ["bf16"])
