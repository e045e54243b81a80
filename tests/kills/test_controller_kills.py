"""Roles of a run are killed at random: the controller loses no finished rollout, and none is trained twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from killed_roles import run_with_kills

pytestmark = pytest.mark.kills


def test_fifty_kills_lose_nothing_and_the_run_ends(tmp_path: Path) -> None:
    result = run_with_kills(tmp_path / "run", num_kills=50, seed=19, most_s=120.0)
    assert not result.problems, str(result)
    assert result.num_kills == 50
    assert result.num_trained >= 400
    assert result.num_acknowledged >= 400
