"""Starting ranks of `rank_script.py` the way our launcher starts real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from scalewright.launch.ranks.local import rank_environment
from scalewright.records.documents import document
from scalewright.records.run_directory import RunDirectory

SCRIPT = Path(__file__).with_name("rank_script.py")
StartRanks = Callable[..., list[subprocess.Popen[bytes]]]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create_or_resume(tmp_path / "run", document("language-run", {"steps": 30}))


@pytest.fixture
def start_ranks(directory: RunDirectory) -> StartRanks:
    def start(
        behaviour: str, *, num_ranks: int = 1, of_rank: Mapping[int, Mapping[str, str]] | None = None, **env: str
    ) -> list[subprocess.Popen[bytes]]:
        return [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(directory.path), behaviour],
                env=rank_environment(
                    {**os.environ, **env, **(of_rank or {}).get(rank, {})},
                    rank=rank,
                    num_ranks=num_ranks,
                    num_cores=2,
                    port=20000,
                    job="j",
                ),
                stderr=subprocess.PIPE,
            )
            for rank in range(num_ranks)
        ]

    return start
