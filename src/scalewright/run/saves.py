"""Saves: when a training run saves, and how it resumes. Language and vision runs share it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.costs.failures import daly_interval_s, job_mttf_s
from scalewright.errors import ConfigError
from scalewright.records import metric_names as names
from scalewright.records.run_directory import RunDirectory
from scalewright.run.checkpoint import NO_DOCUMENTS, Checkpointer, Documents, Loaded
from scalewright.run.rank_context import RankContext

SHORTEST_SAVE_S = 1e-3
"""Assumed at least, so that an interval can be computed from it."""


class SaveSettings(Protocol):
    """What a run's configuration says about saving."""

    @property
    def checkpoint_every(self) -> int | str: ...

    @property
    def checkpoint_async(self) -> bool: ...

    @property
    def checkpoint_keep(self) -> int: ...

    @property
    def device_mttf_s(self) -> float: ...

    @property
    def steps(self) -> int: ...


class Saves:
    """Saves of one rank. Every rank calls the same methods in the same order."""

    def __init__(
        self,
        settings: SaveSettings,
        rank: RankContext,
        *,
        layout: str,
        tensors: Callable[[], dict[str, Tensor]],
        state: Callable[[int], dict[str, Any]],
        documents: Callable[[], Documents] = lambda: NO_DOCUMENTS,
    ) -> None:
        self._settings, self._rank, self._tensors, self._state = settings, rank, tensors, state
        self._documents = documents
        self._saver = Checkpointer(rank.directory, keep=settings.checkpoint_keep, layout=layout)
        self.held_s = 0.0
        """Time that the latest step's update waited for a save; the step resets it."""
        self._saved_step = -1
        self._saved_at_s = time.monotonic()

    @property
    def is_writing(self) -> bool:
        return self._saver.is_writing

    def make_room(self) -> None:
        """Allocate host memory for copies before training starts, if they will be needed."""
        if self._settings.checkpoint_every and self._settings.checkpoint_async:
            self._saver.make_room(self._tensors())

    def hold_update(self) -> None:
        """Called before the weights change: a running save may still copy them."""
        started_s = time.perf_counter()
        self._saver.before_update()
        held_s = time.perf_counter() - started_s
        self.held_s += held_s if self._saver.is_writing else 0.0

    def after_step(self, done: int, *, stop: bool) -> bool:
        """Save if a save is due or a signal asks to stop. True: all ranks stop here and can resume later."""
        stopping, due = self.agree(stop, self._is_due(done))
        if done >= self._settings.steps:
            return False
        if stopping:
            self.save(done, wait=True)
        elif due:
            self.save(done, wait=not self._settings.checkpoint_async)
        return stopping

    def finish(self) -> None:
        """The last save of a run that saves, once all steps are done."""
        if self._settings.checkpoint_every:
            self.save(self._settings.steps, wait=True)

    def close(self) -> None:
        self._saver.close()

    def agree(self, *flags: bool) -> list[bool]:
        """Each flag is true if it is true on any rank: ranks must stop and save at the same step."""
        if self._rank.world.world_size == 1:
            return list(flags)
        votes = torch.tensor([int(flag) for flag in flags], dtype=torch.int32)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX)
        return [bool(vote) for vote in votes.tolist()]

    def save(self, done: int, *, wait: bool) -> None:
        if self._saved_step == done:
            return
        started_s = time.perf_counter()
        tensors, state, documents = self._tensors(), self._state(done), self._documents()
        with self._rank.watchdog.saving():
            if wait:
                self._saver.save(done, tensors, state, documents)
            else:
                self._saver.save_async(done, tensors, state, documents)
        blocked_s = time.perf_counter() - started_s
        self._saved_step, self._saved_at_s = done, time.monotonic()
        name = names.CHECKPOINT_BLOCK
        self._rank.metrics.write(step=done - 1, name=name, value=blocked_s, unit=names.UNITS[name])
        detail = f"{'saved' if wait else 'saving'} {done}"
        self._rank.metrics.event(step=done - 1, name=names.EVENT_CHECKPOINT, detail=detail)

    def resume(self, restore: Callable[[Loaded, dict[str, Tensor]], None], *, start_from: str = "") -> int:
        """Load the newest whole checkpoint, or else the one to start from. Returns the next step."""
        tensors = self._tensors()
        with self._rank.watchdog.saving():
            loaded = self._saver.load_newest(tensors)
            if loaded is None and start_from:
                loaded = self._saver.load(_checkpoint_in(Path(start_from)), tensors)
        if loaded is None:
            return 0
        restore(loaded, tensors)
        done = loaded.manifest.step
        for problem in loaded.skipped:
            self._rank.metrics.event(step=done, name=names.EVENT_CHECKPOINT, detail=f"skipped: {problem}")
        self._rank.metrics.event(step=done, name=names.EVENT_RESUME, detail=f"from {loaded.folder.name}")
        if loaded.folder.parent == self._rank.directory.checkpoints:
            self._saved_step = done
        return done

    def _is_due(self, done: int) -> bool:
        every = self._settings.checkpoint_every
        if isinstance(every, int):
            return every > 0 and done % every == 0
        if self._saved_step < 0:
            return True  # the first save shows how long one takes
        mttf_s = job_mttf_s(device_mttf_s=self._settings.device_mttf_s, num_devices=self._rank.world.world_size)
        cost_s = max(self._saver.last_write_s, SHORTEST_SAVE_S)
        return time.monotonic() - self._saved_at_s >= daly_interval_s(checkpoint_s=cost_s, mttf_s=mttf_s)


def _checkpoint_in(path: Path) -> Path:
    """A checkpoint folder, or the newest one of a run directory."""
    newest = RunDirectory(path).last_checkpoint()
    if newest is not None:
        return newest
    if not path.is_dir():
        raise ConfigError(f"{path}: no such checkpoint; name a folder such as runs/ID/checkpoints/step-00000100")
    return path
