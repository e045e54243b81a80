"""The controller as a process: how it starts, what it says when it cannot, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_roles import CLIENTS, FakeEngine, FakeTrainer, is_right
from killed_roles import make_run, roles_run
from scalewright.records.hybrid import read_hybrid, read_timeline
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.reasoning.role_settings import RoleSettings

START_S = 20.0
"""Most time for a start on a busy machine; a free one takes well below a second."""


def start(path: Path, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "scalewright.run", "controller", "--run-dir", str(path)]
    return subprocess.Popen(
        command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def listening(process: subprocess.Popen[str], directory: RunDirectory) -> None:
    deadline_s = time.monotonic() + START_S
    while not directory.controller_address.exists() or (
        json.loads(directory.controller_address.read_text())["pid"] != process.pid
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def train(trainer: FakeTrainer, engine: FakeEngine, *, num_steps: int) -> None:
    while len(trainer.weights) < num_steps:
        engine.turn()
        if trainer.client.batch(len(trainer.weights), wait_s=0.0) is not None:
            trainer.step()


def test_it_runs_without_torch_and_ends_by_a_signal(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", roles_run(num_steps=3))
    process = start(directory.path)
    try:
        listening(process, directory)
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
        trainer, engine = FakeTrainer(directory.path, num_steps=3), FakeEngine(directory.path, 0)
        trainer.resume()
        engine.join()
        train(trainer, engine, num_steps=2)
        second = start(directory.path)
        _, words = second.communicate(timeout=START_S)
        assert second.returncode == 3
        assert "another controller is active" in words
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=START_S)
        assert process.returncode == 75, "the run is not over: start it again"
        again = start(directory.path)
        try:
            listening(again, directory)
            train(trainer, engine, num_steps=3)
            again.send_signal(signal.SIGTERM)
            again.communicate(timeout=START_S)
            assert again.returncode == 0
        finally:
            again.kill()
    finally:
        process.kill()
        for client in CLIENTS:
            client.close()
    assert all(is_right(one.rollout) for batch in trainer.batches for group in batch.groups for one in group.answers)
    record = read_hybrid(directory)
    assert record is not None
    assert [line.step for line in record.steps] == [0, 1, 2]
    assert record.settings.mode == "sync"
    assert record.syncs[0].engine == 0
    assert {span.kind for span in read_timeline(directory)} == {"reward"}


@pytest.mark.parametrize(
    ("settings", "env", "code", "words"),
    [
        ({"roles": RoleSettings()}, {}, 2, "has no separate roles to control: give --engines"),
        ({"token_budget": 5}, {}, 2, "the token budget is 5, and one answer may have 11 tokens"),
        ({}, {"SCALEWRIGHT_LEASE_S": "soon"}, 2, "SCALEWRIGHT_LEASE_S is 'soon': give seconds above 0"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, settings: dict[str, object], env: dict[str, str], code: int, words: str
) -> None:
    directory = make_run(tmp_path / "run", roles_run(**settings))
    process = start(directory.path, **env)
    _, said_words = process.communicate(timeout=START_S)
    assert process.returncode == code
    assert words in said_words
    assert len(said_words.strip().splitlines()) == 1


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", roles_run())
    directory.controller_token.parent.mkdir(parents=True)
    directory.controller_token.write_text("0" * 64)
    directory.controller_token.chmod(0o644)
    process = start(directory.path)
    _, said_words = process.communicate(timeout=START_S)
    assert process.returncode == 3
    assert "others may read the token (mode 644)" in said_words
