"""One run, fully resolved: what is started, in which folder, and what is written beside its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright.engines.types import EngineJob
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.engine_run import EngineRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A point of a study, or a single benchmark, ready to start."""

    kind: str
    """Name of the program, as `python -m scalewright.run` knows it."""
    config: dict[str, Any]
    """The configuration's document."""
    path: Path
    """The run directory."""
    num_ranks: int = 1
    engine_ranks: tuple[int, ...] = ()
    """Ranks of each engine that runs beside these; empty: none does."""
    plan_id: str = ""
    point_id: str = ""
    study_id: str = ""
    plan: dict[str, Any] | None = None
    machine: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    forecast: str = ""
    """One sentence for people: how long the run is predicted to take, or why there is no prediction."""
    note: str = ""
    """What differs from what the point asked for, in one sentence; empty: nothing."""
    script: str = ""
    """Shell script that repeats or resumes this run."""
    expected_s: float | None = None
    """Predicted duration, start included; None without a prediction."""
    link_bytes_per_s: float | None = None
    """If set, every rank runs in its own network namespace, behind a link shaped to this rate."""

    engine_job: EngineJob | None = None
    """Of kind `engine`: the files and the command of another training program."""
    engine_run: EngineRun | None = None
    engine_releases: Mapping[str, str] = field(default_factory=dict)
    """What is installed beside that program."""

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.path)

    @property
    def is_finished(self) -> bool:
        """Whether the folder holds a finished run of this configuration. Another configuration is refused."""
        if not self.directory.holds(self.config):
            return False
        info = self.directory.read_exit_info()
        return info is not None and info.finished

    @property
    def num_steps(self) -> int:
        return num_steps_of(self.config)


def num_steps_of(config: dict[str, Any]) -> int:
    """Steps that a run's configuration asks for, over all its epochs; 0 for a run without steps."""
    steps, epochs, steps_per_epoch = (config.get(name) for name in ("steps", "epochs", "steps_per_epoch"))
    if isinstance(steps, int):
        return steps
    return epochs * steps_per_epoch if isinstance(epochs, int) and isinstance(steps_per_epoch, int) else 0
