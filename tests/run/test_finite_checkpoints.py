"""Checkpoints of a run that diverges: the last finite ones stay, and the run goes on from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from scalewright.errors import ConfigError
from scalewright.records.run_directory import RunDirectory
from scalewright.run.checkpoint import Checkpointer


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Checkpointer]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        checkpointer = Checkpointer(RunDirectory(tmp_path), keep=2, layout="dp=1")
        yield checkpointer
        checkpointer.close()
    finally:
        dist.destroy_process_group()


def test_a_run_that_diverges_keeps_its_finite_checkpoints(saver: Checkpointer, tmp_path: Path) -> None:
    weight, count = torch.zeros(4), torch.tensor(7)
    for step in range(1, 9):
        weight.fill_(step if step < 5 else float("nan") if step % 2 else float("inf"))
        saver.save_async(step, {"weight": weight, "count": count}, {})
        saver.before_update()
    saver.finish()
    assert RunDirectory(tmp_path).checkpoint_steps() == [3, 4, 8]
    loaded = saver.load_newest({"weight": weight, "count": count})
    assert loaded is not None
    assert (loaded.manifest.step, weight.tolist()) == (4, [4.0] * 4)
    assert "not finite" in loaded.skipped[0]


def test_without_a_finite_checkpoint_a_resume_is_refused(saver: Checkpointer) -> None:
    weight = torch.full((4,), float("nan"))
    saver.save(1, {"weight": weight}, {})
    with pytest.raises(ConfigError, match="not finite, and no earlier checkpoint is left"):
        saver.load_newest({"weight": weight})
