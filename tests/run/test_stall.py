"""Two ranks, one stuck: both say where they stand and leave with the requeue code."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from scalewright.records import metric_names as names
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory


@pytest.mark.kills
def test_stuck_run_dumps_the_stacks_of_every_rank_and_asks_for_a_requeue(
    directory: RunDirectory, start_ranks: Callable[..., list[subprocess.Popen[bytes]]]
) -> None:
    # Only rank 0 watches closely: rank 1 dumps because it is asked to.
    first = start_ranks(
        "hang", num_ranks=2, of_rank={r: {"SCALEWRIGHT_WATCHDOG_S": s} for r, s in ((0, "1"), (1, "60"))}
    )
    for rank in first:
        rank.communicate(timeout=60)
    assert [rank.returncode for rank in first] == [75, 75]
    stacks = [directory.stack(rank).read_text() for rank in (0, 1)]
    assert "waits_for_the_other" in stacks[0]
    assert "stuck_here" in stacks[1]
    info = directory.read_exit_info()
    assert info is not None
    assert info.code == 75
    assert "no step for" in info.reason
    assert "after step 20" in info.reason
    stalls = [e for rank in (0, 1) for e in read_events(directory.rank_events(rank)) if e.name == names.EVENT_STALL]
    assert [stall.rank for stall in stalls] == [0]
    steps = [e.step for e in read_events(directory.rank_events(1)) if e.name == names.STEP_TIME]
    assert steps == list(range(1, 21)), "buffered metrics were lost"
