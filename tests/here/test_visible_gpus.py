"""GPUs that are hidden from programs are hidden from plans and default devices too."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from scalewright.here.devices import device_here, visible_gpus

TWO = "GPU-aa11, NVIDIA H200\nGPU-ab22, NVIDIA H200\n"


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi as a program that prints two GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'E'\n{TWO}E\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("variable", "num"),
    [
        (None, 2), ("", 0), ("0", 1), ("1,0", 2), ("1,1", 1), ("-1", 0), ("0,-1,1", 1), ("GPU-ab", 1), ("GPU-a", 0),
        ("7", 0), ("MIG-3f", 1),
    ],
)  # fmt: skip
def test_hidden_gpus_are_not_counted(monkeypatch: pytest.MonkeyPatch, variable: str | None, num: int) -> None:
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus() == ["NVIDIA H200"] * num
    assert device_here("auto", num_ranks=1) == ("cuda" if num else "cpu")
