"""Conditions of a measurement: clocks, power, temperature, and whether the device slowed itself down.

`ConditionsWatch` reads the board before, during and after. Its `steadily` repeats once what was measured during a
slowdown, and then refuses it. A software power cap is normal at full load: it is recorded, not refused.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from scalewright import units
from scalewright.errors import EnvironmentFailedError
from scalewright.records.host_load import HostLoad, load_now
from scalewright.run.micro.boards import PROC, SYS, AmdBoard, Board, CpuBoard, NvidiaBoard, SilentBoard, Snapshot
from scalewright.run.probe import processor_name

READ_EVERY_S = 0.1
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What was read while measuring; None where the device does not report it."""

    power_limit_w: float | None
    power_w: float | None
    """Mean while measuring."""
    power_high_w: float | None
    clock_low_hz: float | None
    clock_high_hz: float | None
    temperature_c: float | None
    """The highest reading."""
    throttled: tuple[str, ...]
    """Why the device was slower than a healthy one at some moment."""
    limits: tuple[str, ...]
    """Settings that held its clock at some moment, such as the software power cap."""
    steal_frac: float | None
    """Share of this machine's CPU time that its host gave to other machines."""
    load_before: float
    """Mean number of runnable processes in the minute before."""

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"throttled": list(self.throttled), "limits": list(self.limits)}


def open_board(device: torch.device, *, sys: Path = SYS) -> Board:
    """The board that reads this device; a SilentBoard if none can."""
    if device.type != "cuda":
        return CpuBoard(processor_name(), cores=os.sched_getaffinity(0), sys=sys)
    about: Any = torch.cuda.get_device_properties(device)
    try:
        if torch.version.hip is None:
            return NvidiaBoard(about.name, uuid=str(about.uuid))
        bus = f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
        return AmdBoard(about.name, bus=bus, sys=sys)
    except Exception as error:  # each vendor's library fails in its own ways
        return SilentBoard(about.name, f"{type(error).__name__}: {error}")


class ConditionsWatch:
    """Reads a board from a thread while the block runs."""

    def __init__(
        self, board: Board, *, every_s: float = READ_EVERY_S, proc: Path = PROC, load: HostLoad | None = None
    ) -> None:
        self._board, self._every_s, self._proc = board, every_s, proc
        self._load = load_now() if load is None else load
        self._readings: list[Snapshot] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_reading, name="conditions", daemon=True)
        self._cpu_begun = _cpu_ticks(proc)

    def __enter__(self) -> Self:
        self._read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._read()

    def _keep_reading(self) -> None:
        while not self._done.wait(self._every_s):
            self._read()

    def _read(self) -> None:
        with self._lock:
            self._readings.append(self._board.read())

    def steadily(self, work: Callable[[], T]) -> T:
        """The result of `work`. If the device slows itself down meanwhile, it is repeated once and then refused."""
        result, slow = self._watched(work)
        if slow:
            result, slow = self._watched(work)
        if slow and self._board.is_refused_when_slow:
            raise EnvironmentFailedError(self._refusal(slow))
        return result

    def _watched(self, work: Callable[[], T]) -> tuple[T, list[Snapshot]]:
        first = len(self._readings)
        self._read()
        result = work()
        self._read()
        return result, [reading for reading in self._readings[first:] if reading.slowdowns]

    def _refusal(self, slow: list[Snapshot]) -> str:
        why = ", ".join(sorted({text for reading in slow for text in reading.slowdowns}))
        clocks = [reading.clock_hz for reading in slow if reading.clock_hz is not None]
        warmth = [reading.temperature_c for reading in slow if reading.temperature_c is not None]
        details = [f"down to {min(clocks) / units.MEGA:.0f} MHz"] if clocks else []
        details += [f"at {max(warmth):.0f} C"] if warmth else []
        return (
            f"{self._board.name} slowed itself down in both tries of a measurement ({why}{'; ' if details else ''}"
            f"{' '.join(details)}): no figure is reported; let it cool, check fans and power, or use another device"
        )

    def conditions(self) -> Conditions:
        """Conditions over all readings so far."""
        with self._lock:
            readings = list(self._readings)
        power = [s.power_w for s in readings if s.power_w is not None]
        limit = [s.power_limit_w for s in readings if s.power_limit_w is not None]
        clocks = [s.clock_hz for s in readings if s.clock_hz is not None]
        warmth = [s.temperature_c for s in readings if s.temperature_c is not None]
        return Conditions(
            power_limit_w=min(limit, default=None),
            power_w=statistics.fmean(power) if power else None,
            power_high_w=max(power, default=None),
            clock_low_hz=min(clocks, default=None),
            clock_high_hz=max(clocks, default=None),
            temperature_c=max(warmth, default=None),
            throttled=tuple(sorted({text for s in readings for text in s.slowdowns})),
            limits=tuple(sorted({text for s in readings for text in s.limits})),
            steal_frac=_steal_frac(self._cpu_begun, _cpu_ticks(self._proc)),
            load_before=self._load.load,
        )

    def notes(self) -> list[str]:
        """Sentences that a reader of the figures must know."""
        notes = []
        if isinstance(self._board, SilentBoard):
            notes.append(f"clocks, power and slowdowns were not measured ({self._board.why})")
        conditions = self.conditions()
        if conditions.throttled:
            notes.append(
                f"{self._board.name} slowed itself down during the measurement: {', '.join(conditions.throttled)}"
            )
        if conditions.limits:
            notes.append(f"the clock was held by: {', '.join(conditions.limits)}")
        if conditions.steal_frac is not None and conditions.steal_frac > 0.02:
            notes.append(f"the host gave {conditions.steal_frac:.0%} of this machine's CPU time to other machines")
        return [*notes, *filter(None, [self._load.note()])]


def _cpu_ticks(proc: Path) -> tuple[float, float] | None:
    """All ticks and stolen ones since boot (proc(5), /proc/stat)."""
    try:
        first = (proc / "stat").read_text().splitlines()[0].split()
        ticks = [float(word) for word in first[1:9]]
    except (OSError, IndexError, ValueError):
        return None
    return (sum(ticks), ticks[7]) if len(ticks) == 8 else None


def _steal_frac(begun: tuple[float, float] | None, now: tuple[float, float] | None) -> float | None:
    if begun is None or now is None or now[0] <= begun[0]:
        return None
    return (now[1] - begun[1]) / (now[0] - begun[0])
