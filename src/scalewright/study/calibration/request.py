"""What a calibration measures: which machine, under which name, for how long, and in which folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from scalewright.catalog import calibration as calibrations
from scalewright.catalog import calibration_quality
from scalewright.catalog.calibration import Calibration, Fingerprint
from scalewright.catalog.library import Catalog
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.here.devices import device_here
from scalewright.here.place import base_system, default_name, fingerprint_here, versions_here
from scalewright.records.host_load import load_now
from scalewright.records.run_directory import new_run_id
from scalewright.study.calibration.points import Calibrated
from scalewright.workload.run_options import DeviceKind

STUDY = "calibrate"
RESULT = "calibration.json"
SHORTEST_BUDGET_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRequest:
    """A calibration with every name resolved."""

    name: str
    base: Machine
    system: str
    partition: str
    fingerprint: Fingerprint
    num_ranks: int
    budget_s: float
    folder: Path
    """Where the run directories go."""
    workload: Calibrated = "all"
    force: bool = False
    """Replace a calibration of another machine."""

    def __post_init__(self) -> None:
        calibrations.check_name(self.name)
        if self.workload not in get_args(Calibrated):
            raise ConfigError(f"--for {self.workload!r} is not known: choose from {', '.join(get_args(Calibrated))}")
        if not SHORTEST_BUDGET_S <= self.budget_s < float("inf"):
            raise ConfigError(
                f"a budget of {self.budget_s:g} s is too short to measure anything: give --budget of "
                f"{SHORTEST_BUDGET_S:.0f} s or more"
            )
        if self.num_ranks < 1:
            raise ConfigError(f"--ranks {self.num_ranks}: give 1 or more")

    @property
    def device(self) -> DeviceKind:
        return self.fingerprint.device


def calibration_here(
    catalog: Catalog, *, budget_s: float, name: str | None = None, device: str = "auto", ranks: int | None = None,
    system: str | None = None, out: Path | None = None, workload: str = "all", force: bool = False,
) -> CalibrationRequest:  # fmt: skip
    """A calibration of this machine. What is not given follows from its devices."""
    device_kind = device_here(device, num_ranks=ranks or 1)
    fingerprint = fingerprint_here(device_kind)
    base, partition = base_system(catalog, fingerprint, system)
    calibration_name = calibrations.check_name(name or default_name(catalog, fingerprint))
    default_ranks = min(2, fingerprint.num_cores) if device_kind == "cpu" else fingerprint.num_devices
    return CalibrationRequest(
        name=calibration_name,
        base=machine_from_system(catalog, base, partition_name=partition),
        system=base,
        partition=partition,
        fingerprint=fingerprint,
        num_ranks=default_ranks if ranks is None else ranks,
        budget_s=budget_s,
        folder=study_folder(Path("results") / STUDY if out is None else out, calibration_name),
        workload=cast(Calibrated, workload),
        force=force,
    )


def check_replaceable(request: CalibrationRequest) -> None:
    """Refuse to replace a calibration of another machine, of other versions, or of a quieter time."""
    path = calibrations.path_of(request.name)
    if request.force or not path.exists():
        return
    stored = calibrations.read(path)
    difference = calibrations.why_not_here(stored, request.fingerprint, versions_here())
    if difference:
        raise ConfigError(
            f"{path} does not describe this machine as it is now ({difference}): choose another name with --as, or "
            "replace it with --force"
        )
    load = load_now()
    if request.device == "cpu" and load.is_busy and not stored.is_disturbed:
        raise EnvironmentFailedError(
            f"this machine is busy (load {load.load:.1f} on {load.num_cores} cores), and {path} was measured when it "
            "was quiet: wait until it is quiet, choose another name with --as, or replace it with --force"
        )


def check_better(catalog: Catalog, request: CalibrationRequest, calibration: Calibration) -> None:
    """Refuse to replace a calibration that predicts its own left-out runs by one that does so worse."""
    path = calibrations.path_of(request.name)
    if request.force or not path.exists():
        return
    stored = calibrations.read(path)
    if not calibration_quality.is_worse(catalog, calibration, stored):
        return
    weakness = calibration_quality.doubt(catalog, calibration) or "others used this machine"
    raise EnvironmentFailedError(
        f"the new calibration is worse than the stored one ({weakness}), so {path} is kept; to use the new one, copy "
        f"{request.folder / RESULT} there, or calibrate again with --force"
    )


def fitted_engines(request: CalibrationRequest) -> list[str]:
    """Training programs whose factors a stored calibration of this name has; they multiply its values only."""
    path = calibrations.path_of(request.name)
    try:
        return [fit.engine for fit in calibrations.read(path).engines] if path.exists() else []
    except ConfigError:  # replaced with --force
        return []


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFailedError(
            f"{path}: cannot be made: {error.strerror}; choose another place with --out"
        ) from error


def study_folder(root: Path, name: str) -> Path:
    """Where the points of this calibration go: the newest unfinished attempt, or else a new folder."""
    attempts = sorted(path for path in root.glob(f"*-{name}") if path.is_dir())
    if attempts and not (attempts[-1] / RESULT).exists():
        return attempts[-1]
    return root / new_run_id(name)
