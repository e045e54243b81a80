"""What every micro benchmark of one device shares: the watch over it, its time, and how its rows are written down."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from scalewright.catalog.library import open_catalog
from scalewright.catalog.types import Accelerator
from scalewright.errors import UnknownNameError
from scalewright.records.documents import read_document
from scalewright.records.loader import restore
from scalewright.records.measurements import Measurements, write_measurements
from scalewright.records.metric_names import EVENT_PART
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.device import choose_device
from scalewright.run.metrics import MetricWriter
from scalewright.run.micro.conditions import Watch, open_board
from scalewright.run.micro.timing import Timing, Work, measure
from scalewright.run.probe import processor_name
from scalewright.run.provenance import driver
from scalewright.run.signals import StopSignals
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World
from scalewright.workload.language_run import DeviceKind

LONGEST_POINT_S = 2.0
"""More time than this tells nothing new about one call."""


class MicroRun(Protocol):
    """What the configurations of these benchmarks have in common."""

    KIND: ClassVar[str]

    @property
    def device(self) -> DeviceKind: ...

    @property
    def budget_s(self) -> float: ...


Config = TypeVar("Config", bound=MicroRun)


class StoppedError(Exception):
    """A signal asked the benchmark to stop: nothing is written, it can be run again."""


@dataclass(slots=True, kw_only=True)
class Session:
    """One benchmark on its way: rows, notes and the time that is left."""

    device: torch.device
    watch: Watch
    metrics: MetricWriter
    stop: StopSignals
    watchdog: Watchdog
    budget_s: float
    begun_s: float = field(default_factory=time.monotonic)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    _num_points: int = 0
    _left_out: dict[str, list[str]] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.begun_s)

    def begin(self) -> None:
        """The budget is for measuring: what had to be found out first comes on top, as starting PyTorch does."""
        self.begun_s = time.monotonic()

    def part(self, text: str) -> None:
        """Say what comes next; here a benchmark that was asked to stop does."""
        if self.stop.requested is not None:
            raise StoppedError
        done = min(1.0, max(0.0, 1.0 - self.left_s / self.budget_s))
        self.metrics.event(step=-1, name=EVENT_PART, detail=text, value=done)

    def time(self, work: Work, *, share_s: float, before: Work | None = None) -> Timing:
        """Time `work` steadily within its share of the time."""
        if self.stop.requested is not None:
            raise StoppedError
        budget_s = min(LONGEST_POINT_S, max(0.0, share_s))
        begun_s = time.monotonic()
        timing = self.watch.steadily(lambda: measure(work, device=self.device, budget_s=budget_s, before=before))
        self.beat(time.monotonic() - begun_s)
        return timing

    def has_time_for(self, expected_s: float, *, until_s: float = 0.0) -> bool:
        """Whether something fits before only `until_s` are left; a hundredth of the budget always does."""
        return expected_s <= max(self.left_s - until_s, 0.01 * self.budget_s)

    def beat(self, took_s: float) -> None:
        """Tell the watchdog that one more point is done."""
        self._num_points += 1
        self.watchdog.step_done(step=self._num_points, seconds_s=took_s, loss=None, flop_per_s=0.0)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def leave_out(self, what: str, why: str) -> None:
        """Note that something was not measured; many of them for one reason make one sentence."""
        self._left_out.setdefault(why, []).append(what)

    def all_notes(self) -> list[str]:
        said = [
            f"{what[0]}{f' and {len(what) - 1} more' if len(what) > 1 else ''}: not measured, {why}"
            for why, what in self._left_out.items()
        ]
        return [*self.notes, *said, *self.watch.notes()]


def run_micro(
    kind: str,
    config_kind: type[Config],
    work: Callable[[Config, Session], None],
    directory: RunDirectory,
    world: World,
    metrics: MetricWriter,
    stop: StopSignals,
    watchdog: Watchdog,
) -> ExitCode:
    """Run one micro benchmark on the device of this rank; the first rank's measurements are written.

    Several ranks measure at the same time, each its own device or its share of the cores: what one has beside others.
    """
    config = restore(read_document(directory.config, config_kind.KIND), config_kind, where=str(directory.config))
    device = choose_device(config.device, world)
    watch = Watch(open_board(device))
    session = Session(
        device=device, watch=watch, metrics=metrics, stop=stop, watchdog=watchdog, budget_s=config.budget_s
    )
    try:
        with watch, torch.no_grad():
            work(config, session)
    except StoppedError:
        return ExitCode.REQUEUE
    found = Measurements(
        kind=kind,
        device=device_identity(device, world),
        versions=software_versions(device),
        rows=session.rows,
        conditions=watch.conditions().document(),
        summary=session.summary,
        notes=session.all_notes(),
    )
    if world.is_first:
        write_measurements(directory, found)
    return ExitCode.YES


def device_identity(device: torch.device, world: World) -> dict[str, Any]:
    """What tells this device from others, for reports and for the fingerprint of a calibration."""
    common = {"num_ranks": world.world_size, "num_nodes": world.num_nodes, "host": world.host}
    if device.type == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {
            "type": "cpu", "name": processor_name(), "memory_bytes": memory, "num_threads": torch.get_num_threads(),
            "num_cores": len(os.sched_getaffinity(0)), "architecture": platform.machine(), **common,
        }  # fmt: skip
    about: Any = torch.cuda.get_device_properties(device)
    return {
        "type": "cuda", "name": about.name, "memory_bytes": int(about.total_memory),
        "num_compute_units": int(about.multi_processor_count), "cache_bytes": int(getattr(about, "L2_cache_size", 0)),
        "architecture": about.gcnArchName if torch.version.hip else f"sm_{about.major}{about.minor}",
        "num_cores": len(os.sched_getaffinity(0)), "host_name": processor_name(), **common,
    }  # fmt: skip


def software_versions(device: torch.device) -> dict[str, str]:
    """Versions that a figure depends on."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if device.type == "cuda":
        runtime = {"hip": torch.version.hip, "cuda": torch.version.cuda}
        found |= {name: version for name, version in runtime.items() if version}
        number = re.search(r"\d+\.\d+(?:\.\d+)*", driver())
        found |= {"driver": number.group() if number else ""}
    return {name: version for name, version in found.items() if version}


def catalogued(device: torch.device) -> Accelerator | None:
    """The catalogue's entry of this device; None where it has none, for then no share of a peak can be told."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    try:
        return open_catalog().accelerator(name)
    except UnknownNameError:
        return None
