"""What runs the tasks of a phase: processes of this machine, or workers on many nodes. All give the same bytes.

A task is named by three plain values: the work folder, the phase and its number. `run_task` does it and returns a short
summary, which it also writes to the work folder. So a back end only calls `run_task` somewhere that sees that folder.
A task that is done twice writes the same bytes, so a back end may repeat one whose worker was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Summary = dict[str, Any]
"""Counts, seconds, bytes and examples of a task; JSON values only."""
OnDone = Callable[[int, Summary], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTasks:
    """The tasks of one phase that are still to do. They do not depend on each other."""

    work: Path
    """The work folder, which every worker sees under this path."""
    phase: str
    numbers: tuple[int, ...]


class Backend(Protocol):
    """Runs the tasks of one phase after the other."""

    @property
    def num_workers(self) -> int:
        """Tasks that run at once."""
        ...

    def run(self, tasks: PhaseTasks, on_done: OnDone) -> None:
        """Do every task with `run_task`, in any order; `on_done` gets each summary. An error of a task is raised."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...
