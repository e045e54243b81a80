"""A handful of faults, injected into real runs: `explain` ranks the injected cause first, and nothing is left."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("wrong-key", "wrong-configuration-key"),
        ("missing-file", "missing-file"),
        ("nan-loss", "loss-nan"),
        ("killed-rank", "rank-killed"),
    ],
)
def test_an_injected_fault_is_ranked_first(cli: Cli, tmp_path: Path, kind: str, rule: str) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    done = cli("lab", "fault", "run", kind, "--run-dir", str(tmp_path / "f"), "--json", timeout=170, env=state)
    assert done.returncode == 0, done.stdout + done.stderr
    doc = json.loads(done.stdout)
    assert (doc["kind"], doc["is_first"], doc["findings"][0]["rule"]) == (kind, True, rule)
    truth = json.loads((tmp_path / "f" / "fault.json").read_text())
    assert truth["rules"] == doc["rules"]
    assert not list((tmp_path / "f" / "evidence").rglob("fault.json"))
    assert list((tmp_path / "state").rglob("scalewright-fault-*")) == []
