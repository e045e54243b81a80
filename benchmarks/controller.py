"""Rollouts per second through the controller of separate roles, on one core, with the journal synced to disk.

    .venv/bin/python benchmarks/controller.py [--steps 6] [--tokens 512] [--folder DIR]

The controller is the real process, held on one core. Another process, on another core where there is one, plays eight
engines and the trainer: they pull rollouts, report each as finished with all its tokens, and take every batch. The time
of the controller's own core is printed beside the rate, because on a busy machine the rate is that of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scalewright.data.reasoning.settings import TaskSettings
from scalewright.records.run_directory import RunDirectory
from scalewright.run.hybrid.client import ControllerClient
from scalewright.run.hybrid.messages import FinishedRow
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_shape
from scalewright.workload.reasoning.role_settings import RoleSettings
from scalewright.workload.reasoning.stage_run import EngineSettings, GrpoSettings, ReasonRun

NUM_PROMPTS, NUM_ANSWERS, NUM_ENGINES, ROWS_AT_ONCE = 64, 8, 8, 16
CAPACITY = NUM_PROMPTS * NUM_ANSWERS // NUM_ENGINES


def stage(num_steps: int) -> ReasonRun:
    return ReasonRun(
        stage="grpo", model_id="tiny", shape=from_shape("layers=1,hidden=32,heads=2,vocab=40,seq=16").transformer,
        layout=Layout(mbs=8, gbs=8), steps=num_steps, device="cpu", engine=EngineSettings(max_running=CAPACITY),
        settings=GrpoSettings(
            num_prompts=NUM_PROMPTS, num_answers=NUM_ANSWERS, roles=RoleSettings(engine_ranks=(1,) * NUM_ENGINES)
        ),
        task=TaskSettings(numbers=2, largest=11, values=24, operators="+", attempts=1),
    )  # fmt: skip


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(directory: RunDirectory, core: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "scalewright.run", "controller", "--run-dir", str(directory.path)]
    process = subprocess.Popen(command)
    os.sched_setaffinity(process.pid, {core})
    while not directory.controller_address.exists():
        assert process.poll() is None
        time.sleep(0.01)
    return process


def rows_of(ids: list[str], answer: tuple[list[int], list[float]], version: int) -> list[FinishedRow]:
    tokens, log_probs = answer
    return [
        FinishedRow(id=rollout, tokens=tokens, log_probs=log_probs, version=version, reason="stop") for rollout in ids
    ]


def write_answers(engine: ControllerClient, answer: tuple[list[int], list[float]], version: int) -> int:
    """Be one engine in one step; the number of its rollouts."""
    assert engine.poll().sync is not None
    engine.synced(version, {"way": "peers", "bytes": 1.0, "seconds": 1.0})
    total = 0
    while ids := [one.id for one in engine.pull(ROWS_AT_ONCE)]:
        total += len(engine.finished(rows_of(ids, answer, version)).taken)
    return total


def drive(directory: RunDirectory, num_steps: int, num_tokens: int) -> int:
    """Be the engines and the trainer; the number of rollouts."""
    engines = [ControllerClient(directory.path, "engine", number) for number in range(NUM_ENGINES)]
    trainer = ControllerClient(directory.path, "trainer", 0)
    trainer.resume(0)
    trainer.publish(0, ["nowhere"], "peers")
    for number, engine in enumerate(engines):
        engine.join(number, CAPACITY)
    draws, total = random.Random(0), 0
    answer = ([draws.randrange(39) for _ in range(num_tokens)], [-draws.random() for _ in range(num_tokens)])
    with ThreadPoolExecutor(NUM_ENGINES) as pool:
        for step in range(num_steps):
            total += sum(pool.map(lambda engine: write_answers(engine, answer, step), engines))  # noqa: B023
            while (batch := trainer.batch(step)) is None:
                pass
            assert len(batch.groups) == NUM_PROMPTS
            trainer.done(step, step + 1, ["nowhere"], "peers")
            trainer.checkpointed(step + 1)
    for client in (trainer, *engines):
        client.close()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--folder", type=Path, help="where the journal is written; default: the folder of temporaries")
    chosen = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        directory = RunDirectory.create_or_resume(Path(folder) / "run", stage(chosen.steps).document())
        process = start(directory, cores[0])
        try:
            before_s, begun_s = cpu_s(process.pid), time.perf_counter()
            total = drive(directory, chosen.steps, chosen.tokens)
            took_s, used_s = time.perf_counter() - begun_s, cpu_s(process.pid) - before_s
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    answer = {
        "num_rollouts": total, "num_tokens_each": chosen.tokens, "rollouts_per_s": round(total / took_s, 1),
        "rollouts_per_core_s": round(total / used_s, 1), "controller_cpu_frac": round(used_s / took_s, 3),
    }  # fmt: skip
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
