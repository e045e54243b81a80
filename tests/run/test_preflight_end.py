"""Pre-flight leaves no thread behind that an exit of the interpreter could abort."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from scalewright.records.preflight import PreflightRequest
from scalewright.records.run_directory import RunDirectory
from scalewright.run.preflight import check
from scalewright.run.world import World


def test_the_threads_of_a_check_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "")
    monkeypatch.setenv("NCCL_DEBUG_SUBSYS", "")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "")
    # A look at the store that takes a moment, as it does on a busy machine.
    slow = threading.Event()
    monkeypatch.setattr(check._Meeting, "look", lambda meeting, name: slow.wait(0.3) or _look(meeting, name))
    world = World.from_environment({}, host="n1")
    assert check.run_preflight(RunDirectory(tmp_path), world, PreflightRequest(device="cpu")) == 0
    assert {"judge", "verdict"} & {thread.name for thread in threading.enumerate()} == set()


_look = check._Meeting.look
