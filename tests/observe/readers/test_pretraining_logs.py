"""Logs of pre-training: step, time, tokens, loss and memory, in SI units, with each program's traps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.observe.readers.log_cases import assert_step, read_text

MIB, GIB = 2.0**20, 2.0**30

MEGATRON = (
    " [2026-01-02 03:04:{second:02d}.500000] iteration {step:8d}/     100 | consumed samples: {consumed:12d} | elapsed time per "
    "iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate: 1.500000E-04 | global batch size:   256 | "
    "lm loss: {loss} | loss scale: 1.0 | grad norm: 0.512 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def megatron(step: int, loss: str = "2.500000E+00") -> str:
    return MEGATRON.format(step=step, second=step % 60, consumed=256 * step, loss=loss)


def test_megatron_with_its_arguments(tmp_path: Path) -> None:
    dump = "  seq_length ...................................... 4096\n  tensor_model_parallel_size ...................... 8\n"
    evidence = read_text(tmp_path, dump + megatron(10) + megatron(20))
    first, second = evidence.steps
    assert_step(
        first, step=10, dialect="megatron", time_s=1.2345, num_samples=256.0, num_tokens=256 * 4096.0, loss=2.5, last_step=100,
        flop_per_s=412.3e12, learning_rate=1.5e-4, grad_norm=0.512, at_s=1767323050.5,
    )  # fmt: skip
    assert (first.num_steps, second.num_steps) == (1, 10)
    assert evidence.settings["tp"][0] == "8"
    assert evidence.sources[0].kind == "megatron log + settings in a log"
    assert (first.spot.line, first.spot.text) == (3, megatron(10)[:300])


def test_megatron_in_seconds_and_old_names(tmp_path: Path) -> None:
    line = (
        "[default7]: iteration    12695/  115311 | consumed samples: 25999360 | elapsed time per iteration (s): 105.22 | learning "
        "rate: 5.9E-05 | global batch size:  2048 | lm loss: 2.1E+00 | samples per second: 19.464 | TFLOPs: 151.88 |\n"
    )
    (fact,) = read_text(tmp_path, line).steps
    assert_step(fact, step=12695, rank=7, time_s=105.22, flop_per_s=151.88e12, loss=2.1, num_samples=2048.0)


PRIMUS = (
    "\x1b[32m[20250601 10:11:12]\x1b[0m[rank-4/8][INFO ] [trainer.py:100] : iteration {step:8d}/      50 | consumed samples: 640 | "
    "elapsed time per iteration (ms): 32053.1/32706.3 | throughput per GPU (TFLOP/s/GPU): 239.6/235.3  | tokens per GPU "
    "(tokens/s/GPU): 14312.3/14057.9 | global batch size:   128 | lm loss: 8.1E+00 | hip mem usage/free/total/usage_ratio: "
    "248.58GB/39.40GB/287.98GB/86.32% | rank-4 rocm max mem usage/usage_ratio: 251.53GB/87.34% |\n"
)


def test_primus_pairs_and_a_line_printed_twice(tmp_path: Path) -> None:
    text = "".join(2 * PRIMUS.format(step=step) for step in (5, 6))
    evidence = read_text(tmp_path, text)
    assert [fact.step for fact in evidence.steps] == [5, 6]
    assert_step(
        evidence.steps[0], rank=4, time_s=32.0531, flop_per_s=239.6e12, tokens_per_s=14312.3, is_per_device=True,
        memory_bytes=251.53 * GIB, memory_free_bytes=39.40 * GIB, loss=8.1,
    )  # fmt: skip
    assert evidence.steps[0].values["elapsed time per iteration (average)"] == pytest.approx(32.7063)


def test_a_fork_with_labels_of_srun(tmp_path: Path) -> None:
    line = (
        "3:  [2026-05-29 03:52:45] iteration      300/     300 | consumed samples:        76800 | consumed tokens:       1.258B | "
        "elapsed time per iteration (ms): 512.0 | global batch size:   256 | lm loss: 3.1E+00 | eta: 0:00:00 | tokens/sec/gpu: 8000.5 |\n"
    )
    (fact,) = read_text(tmp_path, line).steps
    assert_step(fact, step=300, rank=3, time_s=0.512, tokens_per_s=8000.5, is_per_device=True)
    assert fact.values["consumed tokens"] == 1.258e9


def test_megatron_timers_memory_and_events(tmp_path: Path) -> None:
    text = megatron(10) + (
        "(min, max) time across ranks (ms):\n"
        "    forward-backward ...............................: (4301.50, 4302.41)\n"
        "    optimizer ......................................: (11.50, 12.50)\n"
        "[Rank 0] (after 10 iterations) memory (MB) | allocated: 9554.88 | max allocated: 12003.60 | reserved: 12232.0 | max reserved: 12232.0\n"
        "[Rank 8] (after 10 iterations) memory (MB) | allocated: 9554.88 | max allocated: 13003.60 | reserved: 12232.0 | max reserved: 14232.0\n"
        " validation loss at iteration 10 | lm loss value: 2.600000E+00 | lm loss PPL: 1.346374E+01 |\n"
        "  successfully saved checkpoint from iteration      10 to /scratch/run\n"
    )
    evidence = read_text(tmp_path, text)
    (fact,) = evidence.steps
    assert dict(fact.parts_s) == pytest.approx({"forward-backward": 4.30241, "optimizer": 0.0125})
    assert_step(fact, memory_bytes=13003.60 * MIB, memory_reserved_bytes=14232.0 * MIB, time_s=1.2345)
    assert [(one.kind, one.step) for one in evidence.happenings] == [("validation", 10), ("checkpoint_saved", 10)]


def test_old_timers_in_one_line(tmp_path: Path) -> None:
    (fact,) = read_text(
        tmp_path, megatron(10) + "time (ms) | forward-compute: 105.94 | backward-compute: 155.04 | optimizer: 4.0\n"
    ).steps
    assert dict(fact.parts_s) == pytest.approx({"forward": 0.10594, "backward": 0.15504, "optimizer": 0.004})


def test_nan_of_megatron_is_kept_and_other_losses_are_no_loss(tmp_path: Path) -> None:
    text = megatron(10, "nan") + megatron(11, "2.0E+00 | mtp_1 loss: 5.0E+00 | load_balancing_loss: 1.0E+00")
    first, second = read_text(tmp_path, text).steps
    assert first.loss is not None
    assert math.isnan(first.loss)
    assert second.loss == 2.0


def test_megatron_bridge_and_neox(tmp_path: Path) -> None:
    bridge = "Step Time : 1.23s GPU utilization: 812.4MODEL_TFLOP/s/GPU\n" + megatron(3).replace(
        " throughput per GPU (TFLOP/s/GPU): 412.3 |", ""
    )
    neox = (
        " samples/sec: 12.3 | iteration       10/  320000 | elapsed time per iteration (ms): 4321.0 | learning rate: 1.2E-05 | "
        "approx flops per GPU: 48.5TFLOPS | lm_loss: 1.03E+01 | loss scale: 4096.0 |\n"
    )
    assert_step(read_text(tmp_path, bridge).steps[0], flop_per_s=812.4e12, step=3)
    assert_step(read_text(tmp_path, neox).steps[0], flop_per_s=48.5e12, time_s=4.321, loss=10.3)


def test_torchtitan_of_two_ages(tmp_path: Path) -> None:
    old = "[rank0]:[titan] 2025-06-26 18:23:04,486 - root - INFO - "
    text = (
        old + "Training starts at step 1, with local batch size 8, global batch size 64, sequence length 8192, total steps 1000\n"
        + old + "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory\n"
        + old + "\x1b[31mstep:  1  \x1b[32mloss: 12.2709  \x1b[33mmemory:  2.66GiB(2.80%)  \x1b[34mtps: 1,340  \x1b[36mtflops: 12.14  mfu: N/A\x1b[39m\n"
        + "[rank0]:[titan] 2025-06-26 18:23:24,486 - root - INFO - step: 11  loss:  8.17091  grad_norm:  1.2345  memory: "
        "47.50GiB(60.05%)  tps: 168,877  tflops: 1,212.14  mfu: 41.23%\n"
    )  # fmt: skip
    evidence = read_text(tmp_path, text)
    first, second = evidence.steps
    assert_step(first, step=1, time_s=None, loss=12.2709, memory_bytes=2.66 * GIB, tokens_per_s=1340.0, mfu_frac=None)
    assert_step(
        second, step=11, time_s=2.0, num_steps=10, num_tokens=64 * 8192.0, tokens_per_s=168877.0, is_per_device=True,
        flop_per_s=1212.14e12, mfu_frac=0.4123, grad_norm=1.2345, memory_bytes=47.5 * GIB,
    )  # fmt: skip
    assert evidence.settings["accelerator"][0] == "NVIDIA H100 80GB HBM3"


def test_deepspeed_engine_and_its_timer_are_one_report(tmp_path: Path) -> None:
    text = (
        "[2023-04-18 01:46:59,142] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=6, lr=[9.65e-06, 9.65e-06], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
        "[2023-04-18 01:46:59,143] [INFO] [timer.py:199:stop] epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=173.44, "
        "CurrSamplesPerSec=171.98, MemAllocated=3.96GB, MaxMemAllocated=22.95GB\n"
        "[2023-04-18 01:47:19,142] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=6, lr=[9.65e-06], mom=[(0.9, 0.95)]\n"
    )
    first, second = read_text(tmp_path, text).steps
    assert_step(first, step=10, memory_bytes=22.95 * GIB, learning_rate=9.65e-6, loss=None)
    assert first.values["samples_per_s"] == 171.98
    assert_step(second, step=20, time_s=2.0, num_steps=10)


def test_deepspeed_reports_step_zero_before_any_step_is_made(tmp_path: Path) -> None:
    line = "[2026-11-17 13:41:{:02d},000] [INFO] [logging.py:123:log_dist] [Rank 0] step={}, skipped=0, lr=[0.0003]\n"
    facts = read_text(tmp_path, "".join(line.format(10 + 2 * step, step) for step in range(3))).steps
    assert [fact.step for fact in facts] == [1, 2]
    assert_step(facts[0], time_s=2.0)


def test_deepspeed_time_from_its_batch(tmp_path: Path) -> None:
    text = (
        "[2023-04-18 01:46:00,142] [INFO] [config.py:957:print]   train_batch_size ............. 256\n"
        "[2022-08-29 06:58:56,176] [INFO] [timer.py:198:stop] 0/20, RunningAvgSamplesPerSec=232.73, CurrSamplesPerSec=128.0, "
        "MemAllocated=0.36GB, MaxMemAllocated=15.06GB\n"
    )
    (fact,) = read_text(tmp_path, text).steps
    assert_step(fact, step=20, time_s=2.0, num_samples=256.0)


def test_deepspeed_pipeline_engine(tmp_path: Path) -> None:
    (fact,) = read_text(tmp_path, "steps: 10 loss: 2.3456 iter time (s): 1.250 samples/sec: 51.200\n").steps
    assert_step(fact, step=10, loss=2.3456, time_s=1.25, num_samples=64.0)


def test_nemo_with_both_memories_and_a_tail_of_validation(tmp_path: Path) -> None:
    text = (
        "Training epoch 0, iteration 45/99 | lr: 6.897e-06 | global_batch_size: 128 | global_step: 45 | max_memory_reserved: 127785762816 | "
        "max_memory_allocated: 115792977920 | reduced_train_loss: 11.96 | train_step_timing in s: 6.08 | TFLOPS_per_GPU: 1.249e+03 | consumed_samples: 5888\n"
        "Training epoch 0, iteration 46/99 | lr: 5.8e-06 | global_batch_size: 128 | global_step: 46 | peak_memory_usage: 72972500992 | "
        "memory_allocated: 34466545664 | reduced_train_loss: 2.782 | train_step_timing in s: 0.1903 | tokens_per_sec_per_gpu: 6.859e+03 | val_loss: 2.861\n"
    )
    first, second = read_text(tmp_path, text).steps
    assert_step(
        first, step=45, time_s=6.08, loss=11.96, num_samples=128.0, memory_bytes=115792977920.0, memory_reserved_bytes=127785762816.0,
        flop_per_s=1.249e15, last_step=99,
    )  # fmt: skip
    assert_step(second, step=46, memory_bytes=72972500992.0, tokens_per_s=6859.0, is_per_device=True, loss=2.782)


def test_progress_bar_of_nemo_1_keeps_every_redraw_with_values(tmp_path: Path) -> None:
    bars = "".join(
        f"\rEpoch 0: :   1%|▏  | {step}/1000 [00:40<1:05:00, reduced_train_loss=1{step}.9, global_step={step}.0, "
        f"consumed_samples=1280.0, train_step_timing in s=3.5{step}]"
        for step in (1, 2, 3)
    )
    facts = read_text(tmp_path, bars + "\n").steps
    assert [(fact.step, fact.loss, fact.time_s) for fact in facts] == [
        (1, 11.9, 3.51),
        (2, 12.9, 3.52),
        (3, 13.9, 3.53),
    ]


def test_llm_foundry_block(tmp_path: Path) -> None:
    text = (
        "[batch=20/3200]:\n\t Train time/token: 1000000\n\t Train memory/peak_reserved_mem: 21.5820\n\t Train loss/train/total: 8.4213\n"
        "\t Train throughput/device/tokens_per_sec: 1255.1776\n\t Train time/train: 0.5249\n\t Train time/remaining_estimate: 9.0\n"
        "[batch=30/3200]:\n\t Train time/token: 1400000\n\t Train loss/train/total: 8.1000\n\t Train time/train: 0.5349\n"
    )
    first, second = read_text(tmp_path, text).steps
    assert_step(
        first, step=20, loss=8.4213, memory_bytes=21.582e9, tokens_per_s=1255.1776, is_per_device=True, last_step=3200
    )
    assert_step(second, step=30, num_steps=10, time_s=3.6, num_tokens=40000.0)


def test_maxtext(tmp_path: Path) -> None:
    line = "completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758, total_weights: 196608, loss: 10.374\n"
    (fact,) = read_text(tmp_path, line).steps
    assert_step(fact, step=9, time_s=5.667, num_tokens=196608.0, loss=10.374, flop_per_s=134.924e12, is_per_device=True)


def test_mlperf_with_and_without_time(tmp_path: Path) -> None:
    text = (
        ':::MLLOG {"namespace": "", "time_ms": 1759904825527, "event_type": "POINT_IN_TIME", "key": "tracked_stats", "value": '
        '{"train_loss": 2.15}, "metadata": {"file": "a.py", "samples_count": 80, "lr": 0.001, "step": 10}}\n'
        ':::MLLOG {"event_type": "POINT_IN_TIME", "key": "tracked_stats", "value": {"train_step_time": 471.2, "policy_training_time": '
        '245.1, "exposed_generation_time": 3.75, "weight_sync_time": 14.75, "valid_tokens_per_sec_per_gpu": 10.6}, "metadata": {"step": 11}}\n'
        ':::MLLOG {"key": "tracked_stats", "value": {"tra\n'
    )
    first, second = read_text(tmp_path, text).steps
    assert_step(first, step=10, loss=2.15, learning_rate=0.001, at_s=1759904825.527)
    assert_step(second, step=11, time_s=471.2, tokens_per_s=10.6, is_per_device=True)
    assert dict(second.parts_s) == {"training": 245.1, "generation": 3.75, "weight_sync": 14.75}


def test_mlperf_that_counts_samples_and_calls_them_steps(tmp_path: Path) -> None:
    def line(time_ms: int, key: str, value: str, metadata: str) -> str:
        return f':::MLLOG {{"time_ms": {time_ms}, "key": "{key}", "value": {value}, "metadata": {{{metadata}}}}}\n'

    text = (
        line(1_000_000, "global_batch_size", "32", "") + line(1_000_000, "max_sequence_length", "8192", "")
        + line(1_000_000, "run_start", "null", "")
        + line(1_400_000, "tracked_stats", '{"throughput": 32.0}', '"step": 12800') + line(1_400_000, "block_stop", "null", '"samples_count": 12800')
        + line(1_410_000, "eval_accuracy", "5.5", '"samples_count": 12800')
        + line(1_810_000, "tracked_stats", '{"throughput": 32.0}', '"step": 25600') + line(1_810_000, "block_stop", "null", '"samples_count": 25600')
    )  # fmt: skip
    evidence = read_text(tmp_path, text)
    first, second = evidence.steps
    assert_step(first, step=400, num_samples=32.0, num_tokens=32 * 8192.0, time_s=1.0, at_s=1400.0)
    assert_step(second, step=800, num_steps=400)
    assert [one.kind for one in evidence.happenings] == ["started", "validation"]
