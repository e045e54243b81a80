"""Sensors of a node: CPU, memory, disks, GPUs, energy counters, network ports. A missing sensor is reported."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scalewright import units
from scalewright.records import metric_names as names
from scalewright.run.micro.boards import NVIDIA_HW_SLOWDOWN, NVIDIA_SLOWDOWNS

SYS = Path("/sys")
INFINIBAND_WORD_BYTES = 4
"""port_xmit_data counts 32-bit words (InfiniBand architecture specification, PortCounters)."""
SLOWED = NVIDIA_HW_SLOWDOWN | sum(NVIDIA_SLOWDOWNS)
"""Bits of the clock event reasons that make a measurement wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorReading:
    """One number of one device or port."""

    name: str
    value: float
    of: str = ""
    """Which device or port; empty: the node."""


class Sensor(Protocol):
    name: str

    def read(self) -> Iterator[SensorReading]: ...


class HostSensor:
    """CPU, memory and disks through psutil."""

    name = "host"

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        psutil.cpu_percent(interval=None)  # the first call always returns zero: it starts the interval

    def read(self) -> Iterator[SensorReading]:
        yield SensorReading(name=names.CPU_USE, value=self._psutil.cpu_percent(interval=None) / 100.0)
        yield SensorReading(name=names.HOST_MEMORY, value=float(self._psutil.virtual_memory().used))
        disks = self._psutil.disk_io_counters()
        if disks is not None:
            yield SensorReading(name=names.DISK_READ, value=float(disks.read_bytes))
            yield SensorReading(name=names.DISK_WRITTEN, value=float(disks.write_bytes))


class KernelNetworkSensor:
    """The kernel's counters of network interfaces. They count TCP but not RDMA."""

    name = "kernel network"

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil

    def read(self) -> Iterator[SensorReading]:
        for port, counts in self._psutil.net_io_counters(pernic=True).items():
            yield SensorReading(name=names.NETWORK_SENT, value=float(counts.bytes_sent), of=port)
            yield SensorReading(name=names.NETWORK_RECEIVED, value=float(counts.bytes_recv), of=port)


class PortSensor:
    """Counters of network ports under /sys. They also count RDMA."""

    name = "network ports"

    def __init__(self, sys: Path = SYS) -> None:
        self._files = [*_infiniband_files(sys), *_slingshot_files(sys)]

    @property
    def is_available(self) -> bool:
        return bool(self._files)

    def read(self) -> Iterator[SensorReading]:
        for name, port, path, factor in self._files:
            count = _leading_number(path)
            if count is not None:
                yield SensorReading(name=name, value=count * factor, of=port)


def _infiniband_files(sys: Path) -> Iterator[tuple[str, str, Path, float]]:
    for port in sorted((sys / "class/infiniband").glob("*/ports/*")):
        label = f"{port.parent.parent.name}/{port.name}"
        for name, file in ((names.NETWORK_SENT, "port_xmit_data"), (names.NETWORK_RECEIVED, "port_rcv_data")):
            path = port / "counters" / file
            if path.is_file():
                yield name, label, path, float(INFINIBAND_WORD_BYTES)


def _slingshot_files(sys: Path) -> Iterator[tuple[str, str, Path, float]]:
    """Cassini counters; the file holds `value@seconds`."""
    for device in sorted((sys / "class/cxi").glob("*")):
        for name, direction in ((names.NETWORK_SENT, "tx"), (names.NETWORK_RECEIVED, "rx")):
            path = device / "device/telemetry" / f"hni_sts_{direction}_ok_octets"
            if path.is_file():
                yield name, device.name, path, 1.0


class EnergySensor:
    """Energy counters in files: RAPL packages in microjoules, which wrap, and the whole node's on Cray EX in joules."""

    name = "energy counters"

    def __init__(self, sys: Path = SYS) -> None:
        self._packages: list[tuple[str, Path, float]] = []
        for zone in sorted((sys / "class/powercap").glob("intel-rapl:[0-9]*")):
            package = _text(zone / "name")
            if package.startswith("package") and _leading_number(zone / "energy_uj") is not None:
                wrap = _leading_number(zone / "max_energy_range_uj") or 0.0
                self._packages.append((package, zone / "energy_uj", wrap))
        self._node = sys / "cray/pm_counters/energy"
        self._last: dict[str, float] = {}
        self._wrapped_uj: dict[str, float] = {}

    @property
    def is_available(self) -> bool:
        return bool(self._packages) or _leading_number(self._node) is not None

    def read(self) -> Iterator[SensorReading]:
        for package, path, wrap in self._packages:
            count = _leading_number(path)
            if count is None:
                continue
            if count < self._last.get(package, count):
                self._wrapped_uj[package] = self._wrapped_uj.get(package, 0.0) + wrap
            self._last[package] = count
            yield SensorReading(
                name=names.CPU_ENERGY, value=(count + self._wrapped_uj.get(package, 0.0)) * units.MICRO, of=package
            )
        joules = _leading_number(self._node)
        if joules is not None:
            yield SensorReading(name=names.NODE_ENERGY, value=joules)


class NvidiaSensor:
    """NVIDIA GPUs through NVML. Values that a board does not offer are left out."""

    name = "nvml"

    def __init__(self, env: Mapping[str, str], *, local_world_size: int) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        self._handles = {
            i: pynvml.nvmlDeviceGetHandleByIndex(i) for i in gpus_of_job(env, count, local_world_size=local_world_size)
        }

    def read(self) -> Iterator[SensorReading]:
        nvml = self._nvml
        readers: tuple[tuple[str, Callable[[Any], float]], ...] = (
            (names.GPU_USE, lambda h: nvml.nvmlDeviceGetUtilizationRates(h).gpu / 100.0),
            (names.GPU_MEMORY, lambda h: float(nvml.nvmlDeviceGetMemoryInfo(h).used)),
            (names.GPU_POWER, lambda h: nvml.nvmlDeviceGetPowerUsage(h) * units.MILLI),
            (names.GPU_ENERGY, lambda h: nvml.nvmlDeviceGetTotalEnergyConsumption(h) * units.MILLI),
            (names.GPU_TEMPERATURE, lambda h: float(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU))),
            (names.GPU_SLOWED, lambda h: float(bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(h) & SLOWED))),
        )
        for index, handle in self._handles.items():
            for name, value_of in readers:
                with contextlib.suppress(nvml.NVMLError):
                    yield SensorReading(name=name, value=value_of(handle), of=f"gpu{index}")


class AmdSensor:
    """AMD GPUs through AMD SMI."""

    name = "amd smi"

    def __init__(self, env: Mapping[str, str], *, local_world_size: int) -> None:
        import amdsmi

        self._smi = amdsmi
        amdsmi.amdsmi_init()
        handles = amdsmi.amdsmi_get_processor_handles()
        self._handles = {i: handles[i] for i in gpus_of_job(env, len(handles), local_world_size=local_world_size)}

    def read(self) -> Iterator[SensorReading]:
        smi = self._smi
        readers: tuple[tuple[str, Callable[[Any], float]], ...] = (
            (names.GPU_USE, lambda h: float(smi.amdsmi_get_gpu_activity(h)["gfx_activity"]) / 100.0),
            (names.GPU_MEMORY, lambda h: float(smi.amdsmi_get_gpu_vram_usage(h)["vram_used"]) * units.MIB),
            (names.GPU_POWER, lambda h: float(smi.amdsmi_get_power_info(h)["average_socket_power"])),
            (names.GPU_ENERGY, lambda h: _amd_energy_j(smi.amdsmi_get_energy_count(h))),
        )
        for index, handle in self._handles.items():
            for name, value_of in readers:
                with contextlib.suppress(smi.AmdSmiException, KeyError, TypeError, ValueError):
                    yield SensorReading(name=name, value=value_of(handle), of=f"gpu{index}")


def _amd_energy_j(counter: Mapping[str, Any]) -> float:
    """Ticks times the resolution in microjoules; older releases call the ticks `power`."""
    ticks = counter["energy_accumulator"] if "energy_accumulator" in counter else counter["power"]
    return float(ticks) * float(counter["counter_resolution"]) * units.MICRO


def gpus_of_job(env: Mapping[str, str], count: int, *, local_world_size: int) -> list[int]:
    """Devices of the node that belong to the job: Slurm's list of the step or job, else the visible ones, else all.

    None where devices are hidden by an empty list. A list that is shorter than the number of local ranks is ignored: it
    names one rank's device only.
    """
    if any(not env.get(variable, "all").strip() for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")):
        return []
    for variable in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        written = [part.strip() for part in env.get(variable, "").split(",") if part.strip()]
        named = [int(part) for part in written if re.fullmatch(r"\d+", part)]
        whole = len(named) == len(written) and len(named) >= min(local_world_size, count)
        if named and whole and max(named) < count:
            return named
    return list(range(count))


def open_sensors(env: Mapping[str, str], *, local_world_size: int, sys: Path = SYS) -> tuple[list[Sensor], list[str]]:
    """The sensors that work on this node, and a message about each that does not."""
    sensors: list[Sensor] = []
    missing: list[str] = []
    try:
        sensors.append(HostSensor())
    except ImportError:
        missing.append("CPU, memory and disks: psutil is not installed (pip install 'scalewright[run]')")
    problems = []
    for gpu_sensor in (NvidiaSensor, AmdSensor):
        try:
            sensors.append(gpu_sensor(env, local_world_size=local_world_size))
        except Exception as error:  # each vendor's library fails in its own ways where there is no device
            problems.append(f"{gpu_sensor.name}: {type(error).__name__}")
    if len(problems) == 2:
        missing.append(f"no GPU is visible ({', '.join(problems)})")
    energy, ports = EnergySensor(sys), PortSensor(sys)
    if energy.is_available:
        sensors.append(energy)
    else:
        missing.append("CPU energy: no readable counter in /sys/class/powercap or /sys/cray/pm_counters")
    if ports.is_available:
        sensors.append(ports)
    else:
        missing.append("no InfiniBand or Slingshot port: the kernel's interfaces are counted instead")
        with contextlib.suppress(ImportError):
            sensors.append(KernelNetworkSensor())
    return sensors, missing


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _leading_number(path: Path) -> float | None:
    match = re.match(r"\d+", _text(path))
    return float(match.group()) if match else None
