"""A small GRPO stage with engines beside its trainer, and what must hold of it whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from scalewright.records.hybrid import HybridRecord, read_hybrid
from scalewright.records.reasoning import CurvePoint, read_curve
from scalewright.records.run_directory import RunDirectory

TASK = ("--numbers", "2", "--largest", "11", "--operators", "+")
QUICK = ("--device", "cpu", "--eval-problems", "16")
SFT = (
    "reason", "sft", "--model", "layers=1,hidden=32,heads=2", *TASK, *QUICK, "--steps", "300", "--batch", "32",
    "--num-traces", "512", "--learning-rate", "0.02",
)  # fmt: skip
NUM_PROMPTS, NUM_ANSWERS = 8, 4


def grpo(start: Path, *, steps: int, run_dir: Path) -> tuple[str, ...]:
    return (
        "reason", "grpo", *QUICK, "--start-from", str(start), "--steps", str(steps), "--num-prompts", str(NUM_PROMPTS),
        "--answers", str(NUM_ANSWERS), "--batch", "16", "--run-dir", str(run_dir),
    )  # fmt: skip


def curve(path: Path) -> list[CurvePoint]:
    return read_curve(RunDirectory(path))


def record(path: Path) -> HybridRecord:
    whole = read_hybrid(RunDirectory(path))
    assert whole is not None
    return whole


def processes_of(path: Path, role: str) -> list[int]:
    """Ids of a role's processes; none while it is being started."""
    directory = RunDirectory(path if role == "trainer" else RunDirectory(path).role(role))
    try:
        return [row["pid"] for row in json.loads(directory.processes.read_text())["processes"]]
    except (OSError, ValueError):
        return []


def kill(path: Path, role: str) -> bool:
    """Kill a role's processes at once; false if none was running."""
    num_killed = 0
    for pid in processes_of(path, role):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        num_killed += 1
    return num_killed > 0


def check_whole(path: Path, *, steps: int, staleness: int = 0) -> None:
    """Every step is there once, with all its answers, within the bound of staleness, and nobody is left running."""
    points, whole = curve(path), record(path)
    assert [point.step for point in points] == list(range(steps))
    assert [step.step for step in whole.steps] == list(range(steps))
    for step in whole.steps:
        assert step.staleness_max <= staleness
        num_trained = sum(step.num_trained_by_staleness.values())
        assert num_trained + step.num_dropped == NUM_PROMPTS * NUM_ANSWERS
    for name in ("trainer", "controller", *(f"engine-{number}" for number in range(len(whole.settings.engine_ranks)))):
        assert processes_of(path, name) == []
