"""BenchSession: what the micro benchmarks of one device share: watch over the device, time budget, rows and notes."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Collection
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
from scalewright.records.types import ExitCode
from scalewright.run.device import choose_device, make_bf16_products_work
from scalewright.run.metrics import MetricWriter
from scalewright.run.micro.conditions import ConditionsWatch, open_board
from scalewright.run.micro.time_budget import TimeBudget
from scalewright.run.micro.timing import Timing, Work, measure
from scalewright.run.probe import processor_name
from scalewright.run.provenance import driver
from scalewright.run.rank_context import RankContext
from scalewright.run.signals import StopRequestedError, StopSignals
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World
from scalewright.workload.run_options import DeviceKind

LONGEST_POINT_S = 2.0
"""More time than this does not make one call's figure better."""


class MicroRun(Protocol):
    """What the configurations of these benchmarks have in common."""

    KIND: ClassVar[str]

    @property
    def device(self) -> DeviceKind: ...

    @property
    def budget_s(self) -> float: ...


Config = TypeVar("Config", bound=MicroRun)


@dataclass(slots=True, kw_only=True)
class BenchSession:
    """One running benchmark: rows, notes and the time that is left."""

    device: torch.device
    watch: ConditionsWatch
    metrics: MetricWriter
    stop: StopSignals
    watchdog: Watchdog
    budget: TimeBudget
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    _num_points: int = 0
    _left_out: dict[str, list[str]] = field(default_factory=dict)

    def begin(self) -> None:
        """Start the budget now: it is for measuring, and preparations such as starting PyTorch are not part of it."""
        self.budget.restart()

    def part(self, text: str) -> None:
        """Report what comes next. A benchmark that a signal asks to stop stops here."""
        if self.stop.requested is not None:
            raise StopRequestedError
        self.metrics.event(step=-1, name=EVENT_PART, detail=text, value=self.budget.used_frac)

    def time(self, work: Work, *, share_s: float, before: Work | None = None) -> Timing:
        """Time `work` within its share of the time; a time taken during a slowdown of the device does not count."""
        if self.stop.requested is not None:
            raise StopRequestedError
        budget_s = min(LONGEST_POINT_S, max(0.0, share_s))
        begun_s = time.monotonic()
        timing = self.watch.steadily(lambda: measure(work, device=self.device, budget_s=budget_s, before=before))
        self.beat(time.monotonic() - begun_s)
        return timing

    def has_time_for(self, expected_s: float, *, until_s: float = 0.0) -> bool:
        """Whether work fits before only `until_s` are left. Work of a hundredth of the budget always fits."""
        return expected_s <= max(self.budget.left_s - until_s, 0.01 * self.budget.total_s)

    def prepare_cpu(self, precisions: Collection[str]) -> None:
        """Make 16-bit products work on a CPU; the budget starts afterwards."""
        note = make_bf16_products_work(self.device, precisions)
        if note is not None:
            self.note(note)
        self.begin()

    def beat(self, took_s: float) -> None:
        """Tell the watchdog that one more point is done."""
        self._num_points += 1
        self.watchdog.step_done(step=self._num_points, seconds_s=took_s, loss=None, flop_per_s=0.0)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def leave_out(self, what: str, why: str) -> None:
        """Note that something was not measured. All omissions with the same reason make one sentence."""
        self._left_out.setdefault(why, []).append(what)

    def all_notes(self) -> list[str]:
        omissions = [
            f"{what[0]}{f' and {len(what) - 1} more' if len(what) > 1 else ''}: not measured, {why}"
            for why, what in self._left_out.items()
        ]
        return [*self.notes, *omissions, *self.watch.notes()]


def run_micro(
    kind: str,
    config_kind: type[Config],
    work: Callable[[Config, BenchSession], None],
    rank: RankContext,
) -> ExitCode:
    """Run one micro benchmark on the device of this rank, and write the measurements of rank 0.

    Several ranks measure at the same time, each on its own device or its share of the cores.
    """
    where = rank.directory.config
    config = restore(read_document(where, config_kind.KIND), config_kind, where=str(where))
    device = choose_device(config.device, rank.world)
    watch = ConditionsWatch(open_board(device))
    session = BenchSession(
        device=device, watch=watch, metrics=rank.metrics, stop=rank.stop, watchdog=rank.watchdog,
        budget=TimeBudget(total_s=config.budget_s),
    )  # fmt: skip
    try:
        with watch, torch.no_grad():
            work(config, session)
    except StopRequestedError:
        return ExitCode.REQUEUE
    measurements = Measurements(
        kind=kind,
        device=device_identity(device, rank.world),
        versions=software_versions(device),
        rows=session.rows,
        conditions=watch.conditions().document(),
        summary=session.summary,
        notes=session.all_notes(),
    )
    if rank.world.is_first:
        write_measurements(rank.directory, measurements)
    return ExitCode.YES


def device_identity(device: torch.device, world: World) -> dict[str, Any]:
    """What distinguishes this device, for reports and for the fingerprint of a calibration."""
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
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if device.type == "cuda":
        runtime = {"hip": torch.version.hip, "cuda": torch.version.cuda}
        versions |= {name: version for name, version in runtime.items() if version}
        number = re.search(r"\d+\.\d+(?:\.\d+)*", driver())
        versions |= {"driver": number.group() if number else ""}
    return {name: version for name, version in versions.items() if version}


def catalogued(device: torch.device) -> Accelerator | None:
    """The catalogue's entry of this device; None if it has none."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    try:
        return open_catalog().accelerator(name)
    except UnknownNameError:
        return None
