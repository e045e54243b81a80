"""Readings of a device: clock, power, temperature, and why it runs slower than it could."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scalewright import units

SYS, PROC = Path("/sys"), Path("/proc")

NVIDIA_SLOWDOWNS = {
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Clock event reasons that make a measurement wrong (NVML API reference, nvmlClocksEventReasons)."""
NVIDIA_HW_SLOWDOWN = 0x08
"""Set with each of the two hardware reasons; set alone if the board does not report which."""
NVIDIA_LIMITS = {0x02: "application clocks", 0x04: "software power cap", 0x10: "sync boost", 0x200: "board limit"}
"""Reasons that follow from the board's settings. They describe a figure and are not faults."""
AMD_SLOWDOWNS = {
    "prochot_residency_acc": "processor hot",
    "socket_thm_residency_acc": "socket thermal limit",
    "vr_thm_residency_acc": "voltage regulator thermal limit",
    "hbm_thm_residency_acc": "memory thermal limit",
}
"""Counters of AMD SMI's GPU metrics that grow only while the limit acts."""
AMD_LIMITS = {"ppt_residency_acc": "package power limit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One reading; None where the device does not report a value."""

    clock_hz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    slowdowns: frozenset[str] = frozenset()
    """Why the device is slower now than a healthy one."""
    limits: frozenset[str] = frozenset()
    """Settings that hold its clock, such as the ordinary power cap."""


class Board(Protocol):
    name: str
    is_refused_when_slow: bool
    """Whether a measurement during a slowdown is refused: yes for GPUs; for CPUs slowdowns are normal."""

    def read(self) -> Snapshot: ...


class SilentBoard:
    """A device that cannot be read here, and the reason."""

    is_refused_when_slow = False

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why

    def read(self) -> Snapshot:
        return Snapshot()


class NvidiaBoard:
    is_refused_when_slow = True

    def __init__(self, name: str, *, uuid: str) -> None:
        import pynvml

        self.name, self._nvml = name, pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def read(self) -> Snapshot:
        nvml, handle = self._nvml, self._handle
        current = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        bits = int(self._value(current or nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0)
        slow = {text for bit, text in NVIDIA_SLOWDOWNS.items() if bits & bit}
        if bits & NVIDIA_HW_SLOWDOWN and not slow:
            slow = {"hardware slowdown"}
        return Snapshot(
            clock_hz=self._value(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM, factor=units.MEGA),
            power_w=self._value(nvml.nvmlDeviceGetPowerUsage, handle, factor=units.MILLI),
            power_limit_w=self._value(nvml.nvmlDeviceGetEnforcedPowerLimit, handle, factor=units.MILLI),
            temperature_c=self._value(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            slowdowns=frozenset(slow),
            limits=frozenset(text for bit, text in NVIDIA_LIMITS.items() if bits & bit),
        )

    def _value(self, reader: Callable[..., Any], *arguments: Any, factor: float = 1.0) -> float | None:
        try:
            return float(reader(*arguments)) * factor
        except self._nvml.NVMLError:
            return None


class AmdBoard:
    """Readings from the kernel's hardware monitor, and slowdowns from AMD SMI if it is installed."""

    is_refused_when_slow = True

    def __init__(self, name: str, *, bus: str, sys: Path = SYS) -> None:
        self.name = name
        monitors = sorted((sys / "bus/pci/devices" / bus / "hwmon").glob("hwmon*"))
        if not monitors:
            raise FileNotFoundError(f"no hardware monitor of {bus} under {sys}")
        self._monitor = monitors[0]
        self._metrics = _amd_metrics(bus)
        self._last: dict[str, float] = {}
        self._grown(AMD_SLOWDOWNS | AMD_LIMITS)

    def read(self) -> Snapshot:
        grown = self._grown(AMD_SLOWDOWNS | AMD_LIMITS)
        power_w = self._number("power1_average", units.MICRO)
        return Snapshot(
            clock_hz=self._number("freq1_input"),
            power_w=self._number("power1_input", units.MICRO) if power_w is None else power_w,
            power_limit_w=self._number("power1_cap", units.MICRO),
            temperature_c=self._number("temp1_input", units.MILLI),
            slowdowns=frozenset(grown & set(AMD_SLOWDOWNS.values())),
            limits=frozenset(grown & set(AMD_LIMITS.values())),
        )

    def _number(self, file: str, factor: float = 1.0) -> float | None:
        value = number_in(self._monitor / file)
        return None if value is None else value * factor

    def _grown(self, counters: Mapping[str, str]) -> set[str]:
        """Limits whose counter has grown since the last reading."""
        limits: set[str] = set()
        for key, value in self._metrics().items():
            if key in counters and isinstance(value, int | float):
                if value > self._last.get(key, value):
                    limits.add(counters[key])
                self._last[key] = value
        return limits


def _amd_metrics(bus: str) -> Callable[[], Mapping[str, Any]]:
    try:
        import amdsmi

        amdsmi.amdsmi_init()
        handle = amdsmi.amdsmi_get_processor_handle_from_bdf(bus)
    except Exception:  # the library fails in its own ways where it or the device is missing
        return dict

    def metrics() -> Mapping[str, Any]:
        with contextlib.suppress(amdsmi.AmdSmiException):
            return dict(amdsmi.amdsmi_get_gpu_metrics_info(handle))
        return {}

    return metrics


class CpuBoard:
    """Clocks of the cores that this process may use, and their thermal throttle counters."""

    is_refused_when_slow = False

    def __init__(self, name: str, *, cores: set[int], sys: Path = SYS) -> None:
        self.name = name
        self._cores = [sys / f"devices/system/cpu/cpu{core}" for core in sorted(cores)]
        self._last = self._throttles()

    def read(self) -> Snapshot:
        clocks = [c for core in self._cores if (c := number_in(core / "cpufreq/scaling_cur_freq")) is not None]
        now, before = self._throttles(), self._last
        self._last = now
        return Snapshot(
            clock_hz=units.KILO * min(clocks) if clocks else None,
            slowdowns=frozenset({"thermal throttling of the processor"} if now > before else ()),
        )

    def _throttles(self) -> float:
        """Throttle counts of the cores and of the package, which each core repeats: only the growth matters."""
        files = ("thermal_throttle/core_throttle_count", "thermal_throttle/package_throttle_count")
        return sum(number_in(core / file) or 0.0 for core in self._cores for file in files)


def cpu_cache_bytes(sys: Path = SYS) -> int | None:
    """Size of the last-level cache of the first core, as the kernel reports it."""
    caches = [(number_in(index / "level") or 0.0, text_in(index / "size")) for index in _caches(sys)]
    if not caches:
        return None
    match = re.fullmatch(r"(\d+)([KM]?)", max(caches)[1])
    return int(match.group(1)) * {"": 1, "K": units.KIB, "M": units.MIB}[match.group(2)] if match else None


def _caches(sys: Path) -> Iterator[Path]:
    yield from sorted((sys / "devices/system/cpu/cpu0/cache").glob("index*"))


def text_in(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def number_in(path: Path) -> float | None:
    match = re.match(r"-?\d+", text_in(path))
    return float(match.group()) if match else None
