"""The one executor: a point becomes a run directory, its ranks are started, and how it ended is returned."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright.errors import ConfigError, ScalewrightError
from scalewright.here.devices import num_cores
from scalewright.lab.network import ShapedNetwork
from scalewright.lab.ranks import run_on_network
from scalewright.launch.ranks.allocation import is_inside, run_in_allocation
from scalewright.launch.ranks.as_rank import become_rank, place_here, run_first
from scalewright.launch.ranks.local import run_ranks
from scalewright.observe.alpha_beta import add_fits
from scalewright.observe.rollup import write_rollup
from scalewright.records.documents import write_document, write_text
from scalewright.records.events import Event, EventTail
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.study.conditions import watched

SUMMED_UP: dict[str, Callable[[RunDirectory], None]] = {"collectives": add_fits}
"""What is worked out from a kind's measurements once its ranks have ended."""


LONGEST_ON_LINKS_S = 3600.0
MOST_RANKS_PER_CORE = 8
"""Beyond it processes only wait for each other; hundreds take all memory and the machine with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One point, resolved: what is run, where, and what goes into its run directory beside the configuration."""

    kind: str
    """As `python -m scalewright.run` knows it."""
    config: dict[str, Any]
    """The configuration's document."""
    path: Path
    num_ranks: int = 1
    plan_id: str = ""
    point_id: str = ""
    study_id: str = ""
    plan: dict[str, Any] | None = None
    machine: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    script: str = ""
    """The command that makes this run again."""
    expected_s: float | None = None
    """How long it is predicted to take, start included; None where nobody can say."""

    link_bytes_per_s: float | None = None
    """Where set, every rank runs in a network namespace of its own, behind a link shaped to this rate."""

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.path)

    @property
    def is_finished(self) -> bool:
        """Done before, with this configuration; another configuration in its place is refused."""
        if not self.directory.holds(self.config):
            return False
        info = self.directory.read_exit_info()
        return info is not None and info.finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who is told while ranks run."""

    on_events: Callable[[list[Event]], None] = field(default=lambda _: None)
    on_signal: Callable[[int], None] = field(default=lambda _: None)


def execute(point: Execution, watch: Watch | None = None) -> int:
    """Run a point to its end, or resume it; one that is finished is left alone. The exit code is the run's."""
    if point.is_finished:
        return ExitCode.YES
    watch = watch or Watch()
    place = place_here(os.environ)
    if place is None and not is_inside(os.environ) and point.num_ranks > MOST_RANKS_PER_CORE * num_cores():
        raise ConfigError(
            f"{point.num_ranks} ranks: that many processes on {num_cores()} cores would only wait for each other; "
            f"give {MOST_RANKS_PER_CORE * num_cores()} or fewer, or more nodes"
        )
    if place is not None and place[0] > 0:
        become_rank(point.directory, point.config, kind=point.kind)
    directory = RunDirectory.create_or_resume(
        point.path, point.config, plan_id=point.plan_id, point_id=point.point_id, study_id=point.study_id
    )
    with directory.held():
        _write_once(directory, point)
        code = _start(directory, point, watch)
        with contextlib.suppress(ScalewrightError, OSError):  # on a full disk, why the run ended is what matters
            write_rollup(directory)
        if code == ExitCode.YES and point.kind in SUMMED_UP:
            SUMMED_UP[point.kind](directory)
    return code


def _write_once(directory: RunDirectory, point: Execution) -> None:
    """What the first attempt was told stays: a resumed run is held against the same prediction."""
    documents: Iterable[tuple[Path, dict[str, Any] | None]] = (
        (directory.plan, point.plan),
        (directory.machine, _machine(point)),
        (directory.prediction, point.prediction),
    )
    for path, content in documents:
        if content is not None and not path.exists():
            write_document(path, content)
    if point.script and not directory.script.exists():
        write_text(directory.script, point.script)


def _machine(point: Execution) -> dict[str, Any] | None:
    if point.machine is None or point.link_bytes_per_s is None:
        return point.machine
    return {**point.machine, "link_bytes_per_s": point.link_bytes_per_s}


def _start(directory: RunDirectory, point: Execution, watch: Watch) -> int:
    if point.link_bytes_per_s is not None:
        names = [f"r{rank}" for rank in range(point.num_ranks)]
        with watched(directory), ShapedNetwork(names, rate_bytes_per_s=point.link_bytes_per_s) as network:
            return run_on_network(network, directory, kind=point.kind, timeout_s=LONGEST_ON_LINKS_S)
    if place_here(os.environ) is not None:
        tail = EventTail(directory.rank_events(0))
        tail.skip_to_end()
        return run_first(directory, kind=point.kind, look=lambda: watch.on_events(tail.read()))
    if is_inside(os.environ):
        return run_in_allocation(
            os.environ, directory, kind=point.kind, num_ranks=point.num_ranks, on_events=watch.on_events
        )
    with watched(directory):
        return run_ranks(
            directory,
            kind=point.kind,
            num_ranks=point.num_ranks,
            num_cores=num_cores(),
            on_events=watch.on_events,
            on_signal=watch.on_signal,
        )
