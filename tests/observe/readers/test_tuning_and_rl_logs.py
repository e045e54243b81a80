"""Logs of Hugging Face's Trainer and of reinforcement learning: steps that dicts do not say, renamed keys, parts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.observe.readers.log_cases import assert_step, read_text

GIB = 2.0**30


def bar(step: int, elapsed: str, rate: str = "20.20s/it", total: int = 200) -> str:
    return f"\r {100 * step // total:3d}%|▍         | {step}/{total} [{elapsed}<1:04:17, {rate}]"


def test_steps_of_dicts_come_from_the_bar(tmp_path: Path) -> None:
    text = (
        bar(0, "00:00", "?it/s") + bar(9, "03:00") + "\r" + " " * 60 + "\r{'loss': 3.5534, 'grad_norm': 1.41, 'learning_rate': 2e-06, 'epoch': 0.01}\n"
        + bar(9, "03:00") + bar(18, "06:00") + bar(19, "06:20") + "{'loss': '0.04867', 'grad_norm': 'nan', 'learning_rate': '1e-06'}\n"
        + bar(5, "00:01", "4.2it/s", 10) + bar(10, "00:02", "4.2it/s", 10) + "{'eval_loss': 2.3, 'eval_runtime': 2.2, 'epoch': 0.02}\n"
        + bar(29, "09:40") + "\n{'loss': 0.5, 'epoch': 0.03}\n"
        + "{'train_runtime': 26.87, 'train_samples_per_second': 2.977, 'train_steps_per_second': 0.372, 'train_loss': 1.2}\n"
    )  # fmt: skip
    evidence = read_text(tmp_path, text)
    first, second, third = evidence.steps
    assert_step(first, step=9, loss=3.5534, grad_norm=1.41, learning_rate=2e-6, last_step=200, time_s=None)
    assert_step(second, step=19, loss=0.04867, time_s=20.0, num_steps=10)
    assert second.grad_norm is not None
    assert math.isnan(second.grad_norm)
    assert_step(third, step=29, time_s=20.0, loss=0.5)
    assert [(one.kind, one.step) for one in evidence.happenings] == [("validation", 19), ("finished", 200)]
    assert evidence.happenings[1].values["train_runtime"] == 26.87


def test_fast_steps_take_the_bar_after_the_dict(tmp_path: Path) -> None:
    text = bar(97, "00:05", "20.0it/s", 1000) + "\r{'loss': 1.0}\n" + bar(100, "00:05", "20.0it/s", 1000) + "\n"
    (fact,) = read_text(tmp_path, text).steps
    assert fact.step == 100


def test_bars_of_other_loops_are_no_steps(tmp_path: Path) -> None:
    text = bar(9, "03:00") + "\nMap: 100%|██████| 400/400 [00:01<00:00, 400.0it/s]\n{'loss': 1.0}\n"
    (fact,) = read_text(tmp_path, text).steps
    assert fact.step == 9


def test_dicts_without_any_step_are_counted_and_said(tmp_path: Path) -> None:
    evidence = read_text(tmp_path, "{'loss': 2.0, 'epoch': 0.1}\n{'loss': 1.0, 'epoch': 0.2}\n")
    assert [(fact.step, fact.loss) for fact in evidence.steps] == [(1, 2.0), (2, 1.0)]
    assert any("without a step number" in note for note in evidence.notes)


def test_dicts_that_say_their_step(tmp_path: Path) -> None:
    text = (
        "{'loss': 2.0, 'global_step/max_steps': '5/100', 'memory(GiB)': 10.5, 'train_speed(iter/s)': 0.1}\n"
        '{"current_steps": 6, "total_steps": 100, "loss": 1.5, "elapsed_time": "0:00:33"}\n'
    )
    first, second = read_text(tmp_path, text).steps
    assert_step(first, step=5, last_step=100, memory_bytes=10.5 * GIB)
    assert_step(second, step=6, last_step=100, loss=1.5)


def test_trl(tmp_path: Path) -> None:
    values = "'loss': '0.01', 'num_tokens': '{tokens}', 'completions/mean_length': '753.2', 'completions/clipped_ratio': '0.25', 'reward': '0.5', 'step_time': '21.5'"
    text = "".join(bar(step, f"0{step}:00") + "{" + values.format(tokens=1000 * step * step) + "}\n" for step in (1, 2))
    first, second = read_text(tmp_path, text).steps
    assert_step(first, step=1, dialect="trl", time_s=21.5, response_len=753.2, reward=0.5, num_tokens=1000.0)
    assert_step(second, step=2, num_tokens=3000.0)
    assert second.values["completions/clipped_ratio"] == 0.25


VERL = (
    "(TaskRunner pid=678203) step:0 - val-core/gsm8k/acc/mean@1:0.31\n"
    "\x1b[36m(TaskRunner pid=678203)\x1b[0m step:1 - global_seqlen/min:1000 - actor/pg_loss:np.float64(-0.01) - perf/mfu/actor:0.277 - "
    "perf/max_memory_allocated_gb:66.088 - response_length/mean:308.049 - timing_s/generate_sequences:59.778 - timing_s/gen:74.891 - "
    "timing_s/reward:1.479 - timing_s/old_log_prob:35.029 - timing_s/ref:5.0 - timing_s/update_actor:140.568 - timing_s/testing:3.0 - "
    "timing_s/step:252.485 - perf/total_num_tokens:1000000 - perf/throughput:1036.956\n"
)


def test_verl_of_today(tmp_path: Path) -> None:
    evidence = read_text(tmp_path, VERL)
    (fact,) = evidence.steps
    assert_step(
        fact, step=1, time_s=252.485, num_tokens=1e6, tokens_per_s=1036.956, is_per_device=True, loss=-0.01, mfu_frac=0.277,
        memory_bytes=66.088 * GIB, response_len=308.049,
    )  # fmt: skip
    assert dict(fact.parts_s) == pytest.approx(
        {"generation": 74.891, "reward": 1.479, "log_probs": 40.029, "training": 140.568, "validation": 3.0}
    )
    assert [(one.kind, one.step) for one in evidence.happenings] == [("validation", 0)]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("step:3 - timing/gen:10.5 - timing/update_actor:20.5 - actor/pg_loss:0.02 - critic/rewards/mean:0.5", {"time_s": 31.0, "reward": 0.5}),
        ("step:3 - timing_s/gen:10.5 - timing_s/step:40.0 - mfu/actor:0.3 - Tokens/Sec/GPU:900 - critic/score/mean:0.4", {"time_s": 40.0, "mfu_frac": 0.3, "tokens_per_s": 900.0, "reward": 0.4}),
        ("step:3 - train/loss:0.5 - train/lr(1e-3):0.01 - train/grad_norm:2.0", {"loss": 0.5, "learning_rate": 1e-5}),
    ],
)  # fmt: skip
def test_verl_of_other_years(tmp_path: Path, line: str, fields: dict[str, float]) -> None:
    (fact,) = read_text(tmp_path, f"(main_task pid=1) {line}\n").steps
    assert_step(fact, step=3, **fields)


def test_nemo_rl_blocks(tmp_path: Path) -> None:
    text = (
        "========================= Step 2/4 =========================\n📊 Training Results:\n  • Loss: 0.0123\n  • Avg Reward: 0.7500\n"
        "  • Mean Generation Length: 512.5\n\n⏱️  Timing:\n  • Total step time: 66.55s\n  • exposed_generation: 32.52s (48.9%)\n"
        "  • policy_training: 20.00s (30.0%)\n  • policy_and_reference_logprobs: 5.00s (7.5%)\n  • policy_logprobs: 2.00s (3.0%)\n"
        "  • weight_sync: 2.00s (3.0%)\n\n🔍 Performance Metrics:\n  • Throughputs (per GPU):\n    - E2E (Tokens/sec/gpu): 1000.00\n"
        "  • Throughputs (per Group):\n    - E2E (Tokens/sec): 8000.00\n"
        "📈 Validation Results:\n  • Loss: 9.0\n========================= Step 3/4 =========================\n"
    )
    (fact,) = read_text(tmp_path, text).steps
    assert_step(
        fact,
        step=2,
        last_step=4,
        time_s=66.55,
        loss=0.0123,
        reward=0.75,
        response_len=512.5,
        tokens_per_s=1000.0,
        num_tokens=8000 * 66.55,
    )
    assert dict(fact.parts_s) == {"generation": 32.52, "training": 20.0, "log_probs": 5.0, "weight_sync": 2.0}


def test_slime_joins_what_its_processes_print(tmp_path: Path) -> None:
    text = (
        "(RolloutManager pid=2) [2026-04-15 07:57:53] rollout.py:1193 - perf 0: {'rollout/response_len/mean': 2773.7, 'perf/rollout_time': np.float64(98.6)}\n"
        "(RolloutManager pid=2) rollout 0: {'rollout/raw_reward': 0.32}\n"
        "(MegatronTrainRayActor pid=1) model.py:847 - step 0: {'train/loss': tensor(0.5), 'train/grad_norm': 0.62}\n"
        "(MegatronTrainRayActor pid=1) perf 0: {'perf/train_wait_time': 101.2, 'perf/actor_train_time': 41.3, 'perf/update_weights_time': 2.5, 'perf/step_time': 142.5}\n"
    )
    (fact,) = read_text(tmp_path, text).steps
    assert_step(fact, step=0, time_s=142.5, loss=0.5, reward=0.32, response_len=2773.7)
    assert dict(fact.parts_s) == {"generation": 98.6, "training": 41.3, "weight_sync": 2.5}


def test_optimizer_steps_of_slime_are_no_rollouts(tmp_path: Path) -> None:
    text = "".join(
        "".join(f"step {4 * rollout + one}: {{'train/loss': 0.{one}}}\n" for one in range(4))
        + f"perf {rollout}: {{'perf/step_time': 3.0}}\n"
        for rollout in range(3)
    )
    facts = read_text(tmp_path, text).steps
    assert [fact.loss for fact in facts if fact.dialect == "slime"] == [None] * 3
    assert len([fact for fact in facts if fact.dialect == "slime optimizer"]) == 12


def test_prime_rl(tmp_path: Path) -> None:
    text = (
        "20:35:47 [SUCCESS] Step 1 |    8.5s | Loss 1.1080 | Grad. Norm 12.9495 | LR 2.00e-05 | Throughput 0 tokens/s | MFU 0.0% | Peak Mem. 10.7/139.8 GiB (7.7%)\n"
        "20:36:52 [SUCCESS] Step 2 |  1m 2s | Loss 0.9996 | Entropy 0.5000 | Mismatch KL 0.0010 | Grad. Norm 7.4464 | LR 2.00e-05 | Throughput 6704 tokens/s | MFU 2.9% | Peak Mem. 10.7 GiB\n"
        "20:36:53 [SUCCESS] Step 2 | 12.4s | Reward 0.5000 | Seq. Length 300.5 tokens/sample\n"
    )
    first, second, third = read_text(tmp_path, text).steps
    assert_step(first, step=1, time_s=8.5, tokens_per_s=None, memory_bytes=10.7 * GIB)
    assert_step(second, step=2, time_s=62.0, tokens_per_s=6704.0, is_per_device=False, mfu_frac=0.029, loss=0.9996)
    assert_step(third, dialect="prime-rl orchestrator", time_s=12.4, reward=0.5)


def test_areal_table(tmp_path: Path) -> None:
    text = (
        "20250624-13:37:12.456 StatsLogger INFO: Epoch 1/5 Step 7/935 Train step 7/4675 done.\n20250624-13:37:12.456 StatsLogger INFO: Stats (1/1):\n"
        "│ timeperf/rollout                │ 8.8992e+01 │ ppo_actor/update/lr     │ 5.0000e-06 │\n"
        "│ ppo_actor/update/actor_loss/avg │ 2.2102e-01 │ timeperf/update_weights │ 2.0000e+00 │\n"
        "│ timeperf/train_step             │ 1.0000e+01 │ rollout/reward          │ 2.6204e-01 │\n"
    )
    (fact,) = read_text(tmp_path, text).steps
    assert_step(fact, step=7, last_step=4675, time_s=100.992, loss=0.22102, reward=0.26204)
    assert dict(fact.parts_s) == {"generation": 88.992, "weight_sync": 2.0, "training": 10.0}


def test_roll_may_report_the_total_of_the_step_before(tmp_path: Path) -> None:
    text = "".join(
        f"[2025-06-01 00:00:0{step}] pipeline step {step} start...\n"
        f'[2025-06-01 00:00:0{step}] {{"time/step_total": {total}, "time/step_rollout": 12.5, "time/step_train": 30.5, "actor/pg_loss": 0.1}}\n'
        for step, total in enumerate((0, 55.5, 44.5))
    )
    facts = read_text(tmp_path, text).steps
    assert [(fact.step, fact.time_s) for fact in facts] == [(0, 55.5), (1, 44.5), (2, None)]
    assert dict(facts[0].parts_s) == {"generation": 12.5, "training": 30.5}


def test_deepspeed_chat(tmp_path: Path) -> None:
    text = (
        "Epoch: 0 | Step: 9 | PPO Epoch: 1 | Actor Loss: 0.0123 | Critic Loss: 0.2 | Unsupervised Loss: 0.0\n"
        "|E2E latency=3.72s |Gather latency=0.00s (0.00%) |Generate time=2.43s (65.28%) |Training time=1.06s (28.45%) |Others=0.23 (6.27%)"
        "|CurSamplesPerSec=17.18 |AvgSamplesPerSec=16.41\nAverage reward score: 1.25\n"
    )
    (fact,) = read_text(tmp_path, text).steps
    assert_step(fact, step=9, time_s=3.72, loss=0.0123, reward=1.25, num_samples=64.0)
    assert (fact.parts_s["generation"], fact.parts_s["training"]) == (2.43, 1.06)


def test_servers(tmp_path: Path) -> None:
    text = (
        "INFO 03-14 10:11:12 [loggers.py:100] Engine 000: Avg prompt throughput: 6949.8 tokens/s, Avg generation throughput: 5108.0 tokens/s, "
        "Running: 2005 reqs, Waiting: 2995 reqs, GPU KV cache usage: 67.7%, Prefix cache hit rate: 1.0%\n"
        "[2025-01-01 00:00:00] Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0, full token usage: 0.02, #running-req: 3, "
        "#queue-req: 0, input throughput (token/s): 14.39, cuda graph: False\n"
        "[2025-01-01 00:00:09 TP0] Decode batch. #running-req: 12, #token: 100, token usage: 0.01, gen throughput (token/s): 120.5, #queue-req: 4\n"
    )
    vllm, prefill, decode = read_text(tmp_path, text).steps
    assert_step(vllm, dialect="vllm", tokens_per_s=5108.0)
    assert vllm.values["kv_cache_frac"] == pytest.approx(0.677)
    assert (vllm.values["waiting_requests"], prefill.values["prompt_tokens_per_s"]) == (2995.0, 14.39)
    assert_step(decode, dialect="sglang", tokens_per_s=120.5)


def test_trainer_state(tmp_path: Path) -> None:
    history = [
        {"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 1e-5, "loss": 2.5, "step": 10},
        {"epoch": 0.2, "loss": 2.25, "step": 20},
        {"epoch": 0.2, "eval_loss": 2.4, "eval_runtime": 3.0, "step": 20},
        {"epoch": 0.2, "step": 20, "train_loss": 2.4, "train_runtime": 60.0},
    ]
    state = {
        "best_metric": None,
        "global_step": 20,
        "max_steps": 40,
        "is_world_process_zero": True,
        "log_history": history,
    }
    evidence = read_text(tmp_path, json.dumps(state, indent=2), "anything")
    assert [(fact.step, fact.loss, fact.num_steps, fact.last_step) for fact in evidence.steps] == [
        (10, 2.5, 1, 40),
        (20, 2.25, 10, 40),
    ]
    assert [one.kind for one in evidence.happenings] == ["validation", "finished"]
    assert evidence.sources[0].kind == "hugging face trainer state"
    cut = read_text(tmp_path, json.dumps(state, indent=2)[:300], "cut")
    assert "no whole JSON" in cut.sources[0].problem
