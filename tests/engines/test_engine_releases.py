"""A release of an engine that the tests do not cover: refused in one sentence, and started with --force."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import Cli

SAYS = "deepspeed 0.99.0 is outside the tested releases"
LAYOUT = ("--layout", "dp=1,mbs=1,gbs=1")
MODEL = ("--model", "layers=1,hidden=32,heads=2,vocab=64,seq=16")


@pytest.fixture
def newer(tmp_path: Path) -> str:
    """An interpreter whose environment has a release of the future; as a rank it ends at once."""
    path = tmp_path / "python"
    installed = json.dumps({"python": "3.11.2", "torch": "2.13.0", "deepspeed": "0.99.0"})
    path.write_text(
        f"#!/bin/sh\n[ \"$1\" = -c ] && echo '{installed}' && exit 0\necho 'ImportError: too new'\nexit 1\n"
    )
    path.chmod(0o755)
    return str(path)


def test_bench_refuses_it_without_force(cli: Cli, newer: str, tmp_path: Path) -> None:
    words = ("bench", "engine", "deepspeed", *MODEL, *LAYOUT, "--device", "cpu", "--python", newer, "--run-dir", "run")
    done = cli(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert SAYS in done.stderr
    assert "or go on with --force" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()
    forced = cli(*words, "--force", "--system", "generic-h100", cwd=tmp_path)
    assert forced.returncode == 3, "it was started, and ended with its own error"
    assert "ImportError: too new" in forced.stderr
    assert "ImportError: too new" in (tmp_path / "run" / "exit_info.json").read_text()


def test_launch_refuses_it_without_force(cli: Cli, newer: str, tmp_path: Path) -> None:
    planned = cli(
        "plan", "--model", "gpt2-medium", "--system", "generic-h100", "--gpus", "2", "--global-batch", "8", "--steps",
        "10", "--fix", "tp=1,pp=1,zero=1", "--out", "plan.json", cwd=tmp_path,
    )  # fmt: skip
    assert planned.returncode == 0, planned.stderr
    words = ("launch", "plan.json", "--engine", "deepspeed", "--site", "generic", "--data", "synthetic", "--python",
             newer, "--run-dir", "run")  # fmt: skip
    done = cli(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert SAYS in done.stderr
    assert not (tmp_path / "run").exists()
    forced = cli(*words, "--force", cwd=tmp_path, env={"PATH": "/nonexistent"})
    assert SAYS not in forced.stderr
    assert forced.returncode == 3, "it went on as far as sbatch, which is not there"
