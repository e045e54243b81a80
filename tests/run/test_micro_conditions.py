"""Conditions: what boards tell in SI units; a slowdown is repeated once and then refused, a power cap is a fact."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from sys import modules as sys_modules

import pytest
import torch

from scalewright.errors import EnvironmentFailedError
from scalewright.records.host_load import HostLoad
from scalewright.records.measurements import read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.metrics import MetricWriter
from scalewright.run.micro.boards import AmdBoard, CpuBoard, NvidiaBoard, Snapshot, cpu_cache_bytes
from scalewright.run.micro.conditions import ConditionsWatch, open_board
from scalewright.run.micro.memory import run as run_memory
from scalewright.run.rank_context import RankContext
from scalewright.run.signals import StopSignals
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World
from scalewright.workload.micro_run import MemoryRun

NVML = """
NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
BITS = {bits}
class NVMLError(Exception): ...
def nvmlInit(): ...
def nvmlDeviceGetHandleByUUID(uuid):
    assert uuid == "GPU-1234", uuid
    return 7
def nvmlDeviceGetCurrentClocksEventReasons(h): return BITS
def nvmlDeviceGetClockInfo(h, kind): return 1980
def nvmlDeviceGetPowerUsage(h): return 690_500
def nvmlDeviceGetEnforcedPowerLimit(h): return 700_000
def nvmlDeviceGetTemperature(h, kind): raise NVMLError("not supported")
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    def install(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys_modules, name, raising=False)

    return install


@pytest.mark.parametrize(
    ("bits", "slowdowns", "limits"),
    [
        (0x00, set(), set()),
        (0x01, set(), set()),
        (0x04, set(), {"software power cap"}),
        (0x48, {"hardware thermal slowdown"}, set()),
        (0x88, {"hardware power brake"}, set()),
        (0x08, {"hardware slowdown"}, set()),
        (0x24, {"software thermal slowdown"}, {"software power cap"}),
    ],
)
def test_reasons_of_an_nvidia_board(
    library: Callable[[str, str], None], bits: int, slowdowns: set[str], limits: set[str]
) -> None:
    """Bits of nvmlClocksEventReasons in NVIDIA's NVML reference."""
    library("pynvml", NVML.format(bits=bits))
    snapshot = NvidiaBoard("H200", uuid="1234").read()
    assert (snapshot.slowdowns, snapshot.limits) == (slowdowns, limits)
    assert (snapshot.clock_hz, snapshot.power_w, snapshot.power_limit_w) == (1.98e9, pytest.approx(690.5), 700.0)
    assert snapshot.temperature_c is None


AMDSMI = """
class AmdSmiException(Exception): ...
CALLS = []
def amdsmi_init(): ...
def amdsmi_get_processor_handle_from_bdf(bus): return bus
def amdsmi_get_gpu_metrics_info(h):
    CALLS.append(h)
    n = len(CALLS)
    return {"ppt_residency_acc": 10 * n, "socket_thm_residency_acc": 5 if n < 3 else 6, "prochot_residency_acc": "N/A"}
"""


def test_amd_board_by_the_kernels_monitor_and_counters_that_move(
    tmp_path: Path, library: Callable[[str, str], None]
) -> None:
    library("amdsmi", AMDSMI)
    monitor = tmp_path / "bus/pci/devices/0000:c1:00.0/hwmon/hwmon3"
    monitor.mkdir(parents=True)
    readings = {"power1_average": 480_000_000, "power1_cap": 560_000_000, "freq1_input": 1_700_000_000,
                "temp1_input": 61_000}  # fmt: skip
    for name, value in readings.items():
        (monitor / name).write_text(f"{value}\n")
    board = AmdBoard("MI250X", bus="0000:c1:00.0", sys=tmp_path)
    first, second = board.read(), board.read()
    assert (first.clock_hz, first.power_w, first.power_limit_w, first.temperature_c) == (1.7e9, 480.0, 560.0, 61.0)
    assert (first.slowdowns, first.limits) == (set(), {"package power limit"})
    assert second.slowdowns == {"socket thermal limit"}


def test_cpu_board_and_caches_from_sys(tmp_path: Path) -> None:
    core = tmp_path / "devices/system/cpu/cpu0"
    for name, text in {
        "cpufreq/scaling_cur_freq": "2100000",
        "thermal_throttle/core_throttle_count": "4",
        "cache/index0/level": "1",
        "cache/index0/size": "48K",
        "cache/index3/level": "3",
        "cache/index3/size": "32M",
    }.items():
        (core / name).parent.mkdir(parents=True, exist_ok=True)
        (core / name).write_text(text + "\n")
    board = CpuBoard("CPU", cores={0}, sys=tmp_path)
    assert board.read() == Snapshot(clock_hz=2.1e9)
    (core / "thermal_throttle/core_throttle_count").write_text("5\n")
    assert board.read().slowdowns == {"thermal throttling of the processor"}
    assert board.read().slowdowns == set()
    assert cpu_cache_bytes(tmp_path) == 32 * 2**20


class PlannedBoard:
    """A board that slows down in the given readings."""

    name = "H200"

    def __init__(self, slow: Iterator[bool], *, refused: bool = True) -> None:
        self.is_refused_when_slow = refused
        self._slow = slow

    def read(self) -> Snapshot:
        hot = next(self._slow, False)
        reasons = frozenset({"hardware thermal slowdown"} if hot else ())
        return Snapshot(
            clock_hz=1.2e9 if hot else 1.98e9, power_w=650.0, power_limit_w=700.0, temperature_c=92.0 if hot else 60.0,
            slowdowns=reasons, limits=frozenset({"software power cap"}),
        )  # fmt: skip


def watched(board: PlannedBoard, *, load: float = 0.0) -> ConditionsWatch:
    return ConditionsWatch(
        board, every_s=3600.0, load=HostLoad(load=load, num_cores=2)
    )  # only before and after each try


def test_steady_work_is_done_once() -> None:
    calls: list[int] = []
    with watched(PlannedBoard(iter([]))) as watch:
        assert watch.steadily(lambda: calls.append(1) or len(calls)) == 1
    assert watch.conditions().throttled == ()
    assert watch.conditions().limits == ("software power cap",)
    assert watch.notes()[0] == "the clock was held by: software power cap"


def test_work_during_a_slowdown_is_done_again() -> None:
    calls: list[int] = []
    with watched(PlannedBoard(iter([False, False, True]))) as watch:
        assert watch.steadily(lambda: calls.append(1) or len(calls)) == 2
    conditions = watch.conditions()
    assert conditions.throttled == ("hardware thermal slowdown",)
    assert (conditions.clock_low_hz, conditions.clock_high_hz, conditions.temperature_c) == (1.2e9, 1.98e9, 92.0)
    assert conditions.document()["throttled"] == ["hardware thermal slowdown"]


def test_slowdown_in_both_tries_is_refused_with_what_was_seen() -> None:
    with watched(PlannedBoard(iter([True] * 99))) as watch, pytest.raises(EnvironmentFailedError) as refused:
        watch.steadily(lambda: None)
    assert refused.value.exit_code == 3
    message = str(refused.value)
    assert "H200 slowed itself down in both tries" in message
    assert "hardware thermal slowdown; down to 1200 MHz at 92 C" in message
    assert "no figure is reported" in message


def test_slow_processor_still_answers_and_says_so() -> None:
    with watched(PlannedBoard(iter([True] * 99), refused=False)) as watch:
        assert watch.steadily(lambda: 5) == 5
    assert any("slowed itself down during the measurement" in note for note in watch.notes())


@pytest.mark.parametrize("load", [0.4, 7.0])
def test_figures_of_a_busy_machine_say_so(load: float) -> None:
    with watched(PlannedBoard(iter([])), load=load) as watch:
        pass
    assert watch.conditions().document()["load_before"] == load
    assert any("load 7.0 on 2 cores" in note for note in watch.notes()) is (load > 1.0)


def test_this_machine_can_be_watched() -> None:
    with ConditionsWatch(open_board(torch.device("cpu")), every_s=0.01) as watch:
        sum(range(200_000))
    conditions = watch.conditions()
    assert conditions.power_w is None or conditions.power_w > 0
    assert conditions.steal_frac is None or 0.0 <= conditions.steal_frac <= 1.0


@pytest.mark.parametrize("is_slow_for", [1, 99], ids=["once", "always"])
def test_a_benchmark_whose_device_throttles_repeats_the_point_or_refuses_all(
    is_slow_for: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of `bench memory` on a board that slows down: in one reading, or in every one."""
    config = MemoryRun(sizes_bytes=(2**16,), device="cpu", budget_s=1.0)
    directory = RunDirectory.create_or_resume(tmp_path / "run", config.document())
    world = World(
        rank=0, world_size=1, local_rank=0, local_world_size=1, num_nodes=1, host="h", job_id="j",
        master_addr="127.0.0.1", master_port=1, launcher="local",
    )  # fmt: skip
    slow = iter([False, False, *[True] * is_slow_for])
    monkeypatch.setattr("scalewright.run.micro.session.open_board", lambda _: PlannedBoard(slow))
    with contextlib.closing(MetricWriter(directory, world)) as metrics:
        watchdog = Watchdog(directory, world, metrics, factor=100.0, minimum_s=600.0)
        rank = RankContext(directory=directory, world=world, metrics=metrics, stop=StopSignals(), watchdog=watchdog)
        if is_slow_for > 1:
            with pytest.raises(EnvironmentFailedError, match="slowed itself down in both tries"):
                run_memory(rank)
            assert not directory.measurements.exists()
            return
        assert run_memory(rank) == ExitCode.YES
    measurements = read_measurements(directory)
    assert measurements.conditions["throttled"] == ["hardware thermal slowdown"]
    assert any("slowed itself down during the measurement" in note for note in measurements.notes)
    assert {row["op"] for row in measurements.rows} == {"copy", "add", "read", "write"}
