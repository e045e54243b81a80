"""A few mutated inputs of every kind: each is read or refused, without a traceback, quickly and in little memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzed_inputs import fuzz
from inputs import INPUTS, NEEDS_TORCH

NUM_CASES = {"study": 15, "catalogue": 25, "site": 25, "config": 25, "plan": 30, "run": 40, "trace": 25, "words": 300}
FEW = 60


@pytest.mark.parametrize("kind", [kind for kind in INPUTS if kind not in NEEDS_TORCH])
def test_mutated_inputs_are_read_or_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setenv("SCALEWRIGHT_SYSTEM", "laptop")
    monkeypatch.chdir(tmp_path)
    counts = fuzz(kind, seed=1, count=NUM_CASES.get(kind, FEW), folder=tmp_path)
    assert not counts.failures, "\n".join(counts.failures)


@pytest.mark.ranks
@pytest.mark.parametrize("kind", NEEDS_TORCH)
def test_mutated_tensors_are_read_or_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    counts = fuzz(kind, seed=1, count=FEW, folder=tmp_path)
    assert not counts.failures, "\n".join(counts.failures)
