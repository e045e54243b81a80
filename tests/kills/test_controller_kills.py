"""Roles of a run are killed: the controller loses no finished rollout, and none is trained twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from killed_roles import kill_after_answers, run_with_kills

pytestmark = pytest.mark.kills


def test_fifty_kills_lose_nothing_and_the_run_ends(tmp_path: Path) -> None:
    result = run_with_kills(tmp_path / "run", num_kills=50, seed=19, most_s=200.0)
    assert not result.problems, str(result)
    assert result.num_kills == 50
    assert result.num_trained >= 300
    assert result.num_acknowledged >= 300


def test_what_is_acknowledged_is_on_disk_already(tmp_path: Path) -> None:
    """The disk is slow, and the kill comes at once after the answer."""
    assert kill_after_answers(tmp_path / "run", num_kills=8) == []
