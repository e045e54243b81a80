"""Options of `bench language` from outside: another layout's checkpoint, a stored plan, intervals and protocols."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.records import metric_names as names
from scalewright.records.events import Event, read_events
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.layout import parse_layout

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
SMALL = [
    "bench", "language", "--model", "layers=2,hidden=32,heads=2,seq=32,vocab=64", "--device", "cpu",
    "--system", "discoverer", "--budget", "60 min",
]  # fmt: skip


def events_of(directory: RunDirectory, name: str) -> list[Event]:
    return [event for event in read_events(directory.rank_events(0)) if event.name == name]


@pytest.mark.ranks
def test_a_checkpoint_of_one_layout_is_where_another_starts_from(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    first, second = RunDirectory(tmp_path / "a"), RunDirectory(tmp_path / "b")
    split = ["--layout", "tp=2,mbs=2,gbs=4", "--steps", "9", "--checkpoint-every", "3"]
    done = cli(*SMALL, *split, "--keep", "3", "--seed", "7", "--checkpoint", "sync", "--run-dir", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert first.checkpoint_steps() == [3, 6, 9]

    start = ["--layout", "dp=2,mbs=2,gbs=4", "--seed", "7", "--start-from", str(first.checkpoint(3))]
    assert "it has 3 steps already" in refused(cli(*SMALL, *start, "--steps", "3", cwd=tmp_path))
    options = ["--steps", "9", "--protocol", "epicure", "--checkpoint-every", "auto", "--run-dir", "b"]
    done = cli(*SMALL, *start, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    losses = {event.step: event.value for event in events_of(first, names.LOSS)}
    continued = {event.step: event.value for event in events_of(second, names.LOSS)}
    assert list(continued) == list(range(3, 9))
    assert continued == pytest.approx({step: losses[step] for step in continued}, rel=1e-4)
    assert [event.detail for event in events_of(second, names.EVENT_RESUME)] == ["from step-00000003"]
    # `auto` saves at once to learn what a save costs, and then as the failure model says: hours later
    assert [e.detail for e in events_of(second, names.EVENT_CHECKPOINT)] == ["saving 4", "saved 9"]
    assert "10 steps in a row" in events_of(second, names.EVENT_STEADY)[0].detail  # EPICURE's rule, not MSER


@pytest.mark.ranks
def test_a_stored_plan_says_model_layout_and_precision(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    question = ["--model", "layers=2,hidden=64,heads=2,seq=64,vocab=256", "--system", "meluxina", "--gpus", "1"]
    more = ["--global-batch", "4", "--steps", "100", "--precision", "fp32", "--out", "plan.json"]
    assert cli("plan", *question, *more, cwd=tmp_path).returncode == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    bench = ["bench", "language", "--plan", "plan.json", "--device", "cpu", "--system", "discoverer"]
    assert "both say it" in refused(cli(*bench, "--layout", "dp=1", cwd=tmp_path))
    done = cli(*bench, "--steps", "3", "--budget", "60 min", "--run-dir", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    directory = RunDirectory.open(tmp_path / "r")
    assert json.loads(directory.plan.read_text()) == plan
    assert json.loads(directory.run.read_text())["plan"] == plan["id"]
    config = json.loads(directory.config.read_text())
    assert parse_layout(config["layout"]) == parse_layout(plan["best"]["layout_text"])
    assert config["precision"] == "fp32"
