"""Sensors read a copy of /sys as InfiniBand, Slingshot, RAPL and Cray nodes have it; the sampler runs once per node."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from sys import modules as sys_modules

import pytest

from scalewright.records import metric_names as names
from scalewright.records.documents import document
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory
from scalewright.run.sampler import NodeSampler
from scalewright.run.sensors import (
    AmdSensor,
    EnergySensor,
    NvidiaSensor,
    PortSensor,
    SensorReading,
    gpus_of_job,
    open_sensors,
)
from scalewright.run.world import World

WORLD = World.from_environment({}, host="node1")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    root = tmp_path / "sys"
    for port, sent in (("mlx5_0/ports/1", 1000), ("mlx5_1/ports/1", 2000)):
        put(root / "class/infiniband" / port / "counters/port_xmit_data", str(sent))
        put(root / "class/infiniband" / port / "counters/port_rcv_data", str(sent // 2))
    telemetry = root / "class/cxi/cxi0/device/telemetry"
    put(telemetry / "hni_sts_tx_ok_octets", "987654321@1681234567.123")
    put(telemetry / "hni_sts_rx_ok_octets", "123456789@1681234567.123")
    put(root / "class/powercap/intel-rapl:0/name", "package-0")
    put(root / "class/powercap/intel-rapl:0/energy_uj", "5000000")
    put(root / "class/powercap/intel-rapl:0/max_energy_range_uj", "10000000")
    put(root / "class/powercap/intel-rapl:0:0/name", "core")
    put(root / "class/powercap/intel-rapl:0:0/energy_uj", "1")
    put(root / "cray/pm_counters/energy", "777 J 1681234567")
    return root


def test_ports_count_bytes_that_the_kernel_does_not_see(sys: Path) -> None:
    assert list(PortSensor(sys).read()) == [
        SensorReading(name=names.NETWORK_SENT, value=4000.0, of="mlx5_0/1"),
        SensorReading(name=names.NETWORK_RECEIVED, value=2000.0, of="mlx5_0/1"),
        SensorReading(name=names.NETWORK_SENT, value=8000.0, of="mlx5_1/1"),
        SensorReading(name=names.NETWORK_RECEIVED, value=4000.0, of="mlx5_1/1"),
        SensorReading(name=names.NETWORK_SENT, value=987654321.0, of="cxi0"),
        SensorReading(name=names.NETWORK_RECEIVED, value=123456789.0, of="cxi0"),
    ]


def test_energy_of_packages_goes_on_when_the_counter_wraps(sys: Path) -> None:
    sensor = EnergySensor(sys)
    assert list(sensor.read()) == [
        SensorReading(name=names.CPU_ENERGY, value=5.0, of="package-0"),
        SensorReading(name=names.NODE_ENERGY, value=777.0),
    ]
    put(sys / "class/powercap/intel-rapl:0/energy_uj", "1000000")
    assert next(iter(sensor.read())).value == 11.0


def test_node_without_sensors_says_what_is_missing(tmp_path: Path) -> None:
    sensors, missing = open_sensors({}, local_world_size=1, sys=tmp_path)
    assert {sensor.name for sensor in sensors} >= {"host", "kernel network"}
    assert any("energy" in text for text in missing)
    assert any("InfiniBand" in text for text in missing)


@pytest.mark.parametrize(
    ("env", "local_world_size", "chosen"),
    [
        ({}, 4, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 2, [2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "4,5,6,7"}, 4, [4, 5, 6, 7]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 4, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1234"}, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"CUDA_VISIBLE_DEVICES": "9"}, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"CUDA_VISIBLE_DEVICES": ""}, 1, []),
    ],
)
def test_devices_of_the_job(env: dict[str, str], local_world_size: int, chosen: list[int]) -> None:
    assert gpus_of_job(env, 8, local_world_size=local_world_size) == chosen


PYNVML = """
from types import SimpleNamespace
NVML_TEMPERATURE_GPU = 0
class NVMLError(Exception): ...
def nvmlInit(): ...
def nvmlDeviceGetCount(): return 4
def nvmlDeviceGetHandleByIndex(i): return i
def nvmlDeviceGetUtilizationRates(h): return SimpleNamespace(gpu=50)
def nvmlDeviceGetMemoryInfo(h): return SimpleNamespace(used=1 << 30)
def nvmlDeviceGetPowerUsage(h): return 300_000 + h
def nvmlDeviceGetTemperature(h, kind): return 40
def nvmlDeviceGetCurrentClocksThrottleReasons(h): return 0x24 if h == 2 else 0x05
def nvmlDeviceGetTotalEnergyConsumption(h):
    if h == 3:
        raise NVMLError("not supported")
    return 5_000
"""
AMDSMI = """
class AmdSmiException(Exception): ...
def amdsmi_init(): ...
def amdsmi_get_processor_handles(): return ["a", "b"]
def amdsmi_get_gpu_activity(h): return {"gfx_activity": 25}
def amdsmi_get_gpu_vram_usage(h): return {"vram_used": 2048}
def amdsmi_get_power_info(h): return {"average_socket_power": "N/A" if h == "b" else 400}
def amdsmi_get_energy_count(h): return {"energy_accumulator": 1_000_000, "counter_resolution": 15.3}
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a library of this name and text first on the path, as the vendor's would be."""

    def install(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys_modules, name, raising=False)

    return install


def test_nvidia_gpus_of_the_job_in_si_units(library: Callable[[str, str], None]) -> None:
    library("pynvml", PYNVML)
    readings = list(NvidiaSensor({"CUDA_VISIBLE_DEVICES": "2,3"}, local_world_size=2).read())
    assert {reading.of for reading in readings} == {"gpu2", "gpu3"}
    values = {(reading.name, reading.of): reading.value for reading in readings}
    assert values[names.GPU_USE, "gpu2"] == 0.5
    assert values[names.GPU_MEMORY, "gpu2"] == 2.0**30
    assert values[names.GPU_POWER, "gpu2"] == pytest.approx(300.002)
    assert values[names.GPU_ENERGY, "gpu2"] == pytest.approx(5.0)
    assert (names.GPU_ENERGY, "gpu3") not in values
    assert values[names.GPU_SLOWED, "gpu2"] == 1.0  # a thermal slowdown beside the power cap
    assert values[names.GPU_SLOWED, "gpu3"] == 0.0  # idle and the power cap are as the board is set up


def test_amd_gpus_in_si_units(library: Callable[[str, str], None]) -> None:
    library("amdsmi", AMDSMI)
    values = {(reading.name, reading.of): reading.value for reading in AmdSensor({}, local_world_size=2).read()}
    assert values[names.GPU_USE, "gpu0"] == 0.25
    assert values[names.GPU_MEMORY, "gpu1"] == 2.0**31
    assert values[names.GPU_POWER, "gpu0"] == 400.0
    assert values[names.GPU_ENERGY, "gpu0"] == pytest.approx(15.3)
    assert (names.GPU_POWER, "gpu1") not in values


def test_sampler_writes_once_per_node(tmp_path: Path, sys: Path) -> None:
    directory = RunDirectory.create_or_resume(tmp_path / "r", document("language-run", {}))
    placed = replace(WORLD, switch="group1.switch2")
    second = replace(placed, rank=1, local_rank=1, world_size=2, local_world_size=2)
    first_on_node = NodeSampler(directory, placed, interval_s=0.05, env={}, sys=sys)
    with first_on_node, NodeSampler(directory, second, interval_s=0.05, env={}, sys=sys):
        time.sleep(0.3)
    (path,) = directory.all_node_events()
    assert path.name == "node-node1.jsonl"
    events = list(read_events(path))
    assert {event.rank for event in events} == {-1}
    assert [e.detail for e in events if e.name == names.EVENT_PLACE] == ["group1.switch2"]
    metric_names = {event.name for event in events}
    assert {
        names.CPU_USE,
        names.HOST_MEMORY,
        names.CPU_ENERGY,
        names.NETWORK_SENT,
        names.SAMPLER_CPU_TIME,
    } <= metric_names
    spent = [e.value for e in events if e.name == names.SAMPLER_CPU_TIME]
    assert len(spent) > 1
    assert spent == sorted(spent)
    assert all(event.unit == names.UNITS[event.name] for event in events if event.name in names.UNITS)
