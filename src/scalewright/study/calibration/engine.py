"""`calibrate --engine X`: fit the stack of a training program to a few short runs of it on this machine.

The factors go into the machine's calibration, beside what `calibrate` itself measured, so that `predict --stack X`
uses them. If anything fails, the calibration stays as it was.
"""

from __future__ import annotations

import shlex
import signal
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from scalewright import units
from scalewright.catalog import calibration as calibrations
from scalewright.catalog.calibration import Calibration, EngineFit
from scalewright.catalog.library import Catalog
from scalewright.engines.environment import check_installed, engine_python
from scalewright.engines.info import EngineInfo, find_engine
from scalewright.engines.prepare import settings_of
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.here.devices import device_here
from scalewright.here.place import calibrated_here, fingerprint_here, versions_here
from scalewright.observe.engine_fit import MIN_RUNS, fit_engine, machines_of, read_engine_steps, usual_factors
from scalewright.records.documents import to_json, write_text
from scalewright.records.host_load import load_now
from scalewright.records.run_directory import RunDirectory, new_run_id
from scalewright.records.types import ExitCode
from scalewright.study.calibration.engine_points import EnginePoint, engine_points
from scalewright.study.calibration.measure import CalibrationStoppedError, Say
from scalewright.study.calibration.request import STUDY, make_folder
from scalewright.study.calibration.result import disturbance_note
from scalewright.study.execute import RunObserver, execute, execution_of
from scalewright.study.expressions import Value
from scalewright.workload.run_options import DeviceKind

NUM_STEPS = {"cpu": 12, "cuda": 14}
"""Of each run; the first three do not count."""
FIRST_RUN_S = {"cpu": 20.0, "cuda": 30.0}
"""Assumed time of a run until one was measured: its imports, the model, the steps, and compiling."""
ZERO = {"deepspeed": (1, 1), "torchtitan": (0, 3)}
"""ZeRO stage with one rank and with several; of other engines 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCalibrationRequest:
    """A fit of one engine, with every name resolved."""

    info: EngineInfo
    base: Calibration
    """What the machine's own calibration measured; the factors go into it."""
    device: DeviceKind
    python: str
    num_ranks: int
    budget_s: float
    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    force: bool = False
    """Go on with a release that the tests do not cover."""

    @property
    def stack(self) -> str:
        """Catalogued stack that the factors multiply."""
        return self.info.stack_with(self.settings, device=self.device)

    @property
    def zero(self) -> int:
        alone, several = ZERO.get(self.info.id, (0, 0))
        return alone if self.num_ranks == 1 else several


def engine_calibration_here(
    catalog: Catalog, *, engine: str, budget_s: float, name: str | None = None, device: str = "auto",
    ranks: int | None = None, python: str = "", settings: str = "", out: Path | None = None, force: bool = False,
) -> EngineCalibrationRequest:  # fmt: skip
    """A fit of an engine on this machine, over the calibration that the machine has."""
    info = find_engine(engine)
    kind = cast(DeviceKind, device_here(device, num_ranks=ranks or 1))
    _check_possible(info, device=kind, budget_s=budget_s, num_ranks=ranks or 1)
    root = Path("results") / STUDY if out is None else out
    return EngineCalibrationRequest(
        info=info, base=_base(catalog, name, kind), device=kind, python=engine_python(python), num_ranks=ranks or 1,
        budget_s=budget_s, folder=root / new_run_id(info.id), settings=settings_of(settings), force=force,
    )  # fmt: skip


def _check_possible(info: EngineInfo, *, device: DeviceKind, budget_s: float, num_ranks: int) -> None:
    """Refuse what a calibration of the machine would not change."""
    if "language" not in info.trains:
        raise ConfigError(f"{info.title} trains no language model by steps: nothing can be fitted to it")
    shortest_s = MIN_RUNS * FIRST_RUN_S[device]
    if not shortest_s <= budget_s < float("inf"):
        raise ConfigError(
            f"a budget of {units.format(budget_s, units.SECONDS)} is too small for {MIN_RUNS} runs of {info.title}: "
            f"give --budget of {shortest_s:.0f} s or more"
        )
    if num_ranks < 1:
        raise ConfigError(f"--ranks {num_ranks}: give 1 or more")


def _base(catalog: Catalog, name: str | None, device: DeviceKind) -> Calibration:
    """The calibration of this machine that the factors go into."""
    if name is not None:
        calibration = calibrations.load(name)
        why = calibrations.why_not_here(calibration, fingerprint_here(device), versions_here())
        if why:
            raise ConfigError(f"calibration {name} is not of this machine as it is now: {why}; calibrate it again")
        return calibration
    place = calibrated_here(catalog, num_ranks=1, device=device)
    if place is None or place.calibration is None:
        raise ConfigError(
            "this machine has no calibration that an engine's factors could be added to: run scalewright calibrate "
            "first, without --engine"
        )
    return place.calibration


@dataclass(slots=True)
class _Runs:
    """Runs so far, and the time that they took."""

    begun_s: float = field(default_factory=time.monotonic)
    took_s: list[float] = field(default_factory=list)
    done: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def remaining_s(self, request: EngineCalibrationRequest) -> float:
        return request.budget_s - (time.monotonic() - self.begun_s)

    def next_s(self, request: EngineCalibrationRequest) -> float:
        return statistics.median(self.took_s) if self.took_s else FIRST_RUN_S[request.device]


class _RunTooLongError(Exception):
    """A run exceeded the budget: its ranks are ended."""


def calibrate_engine(catalog: Catalog, request: EngineCalibrationRequest, say: Say) -> Calibration:
    """Run, fit, and write the calibration with the engine's factors."""
    installed = check_installed(request.info, request.python, force=request.force)
    calibrations.check_writable()
    make_folder(request.folder / "models")
    if busy := load_now().note():
        say(busy)
    runs = _measure(catalog, request, say)
    fit = engine_fit_of(catalog, request, runs.done, installed=installed, spent_s=time.monotonic() - runs.begun_s,
                        notes=runs.notes)  # fmt: skip
    kept = [other for other in request.base.engines if other.engine != fit.engine]
    calibration = Calibration.model_validate({**request.base.document(), "engines": [
        one.model_dump(mode="json") for one in (*kept, fit)
    ]})  # fmt: skip
    calibrations.write(calibration)
    return calibration


def engine_fit_of(
    catalog: Catalog, request: EngineCalibrationRequest, paths: list[Path], *, installed: Mapping[str, str],
    spent_s: float, notes: list[str],
) -> EngineFit:  # fmt: skip
    """The factors that these run directories give. Writes nothing."""
    info = request.info
    steps, short = read_engine_steps(catalog, (RunDirectory(path) for path in paths))
    if len(steps) < MIN_RUNS:
        why = "; ".join([*notes, *short]) or "see the run directories"
        raise EnvironmentFailedError(
            f"{len(steps)} of the runs of {info.title} can be used, and {MIN_RUNS} are needed ({why}): nothing is "
            "written; give a longer --budget"
        )
    fitted = fit_engine(
        steps, engine=info.id, stack=request.stack, machine_of=machines_of(catalog, request.base),
        usual=usual_factors(catalog.stack(request.stack), info.id, device=request.device),
    )  # fmt: skip
    disturbed = disturbance_note(paths) if request.device == "cpu" else ""
    return EngineFit(
        engine=info.id, stack=request.stack, release=installed[info.installed_as(installed)],
        versions=dict(installed), settings=dict(request.settings),
        created=datetime.now(UTC).replace(microsecond=0), spent_s=max(spent_s, 0.1), factors=fitted.factors,
        steps=fitted.steps, notes=tuple(filter(None, [*notes, *short, disturbed])),
    )  # fmt: skip


def _measure(catalog: Catalog, request: EngineCalibrationRequest, say: Say) -> _Runs:
    runs, every = _Runs(), engine_points(request.device)
    for number, point in enumerate(every, start=1):
        if runs.remaining_s(request) < runs.next_s(request):
            left = len(every) - number + 1
            needed_s = request.budget_s - runs.remaining_s(request) + left * runs.next_s(request)
            runs.notes.append(f"the budget ended before {left} of {len(every)} runs: give --budget {needed_s:.0f}s")
            break
        say(f"[{number}/{len(every)}] {request.info.id} {point.name}")
        _run(catalog, request, point, runs)
    return runs


def _run(catalog: Catalog, request: EngineCalibrationRequest, point: EnginePoint, runs: _Runs) -> None:
    begun_s = time.monotonic()
    execution = execution_of(
        catalog, "engine", _options(request, point), path=request.folder / point.name, where=STUDY, predicts=False
    )
    signals: list[int] = []
    observer = RunObserver(on_events=lambda _: _check_time(runs, request), on_signal=signals.append)
    try:
        code = execute(execution, observer)
    except _RunTooLongError:
        runs.notes.append(f"{point.name} was ended with the budget")
        return
    if signals:
        raise CalibrationStoppedError(ExitCode.INTERRUPTED if signal.SIGINT in signals else ExitCode.REQUEUE)
    if code != ExitCode.YES:
        info = execution.directory.read_exit_info()
        reason = "it left no reason, see its logs" if info is None else info.reason
        raise EnvironmentFailedError(f"{execution.path}: {reason}; nothing is written")
    runs.took_s.append(time.monotonic() - begun_s)
    runs.done.append(execution.path)


def _check_time(runs: _Runs, request: EngineCalibrationRequest) -> None:
    if runs.remaining_s(request) < 0.0:
        raise _RunTooLongError


def _options(request: EngineCalibrationRequest, point: EnginePoint) -> dict[str, Value]:
    """The point as `bench engine` takes it, with the model as a file beside the runs."""
    path = request.folder / "models" / point.name / "config.json"
    make_folder(path.parent)
    write_text(path, to_json(point.config()))
    return {
        "engine": request.info.id, "model": str(path), "layout": point.layout(request.num_ranks, request.zero),
        "seq": point.seq, "steps": NUM_STEPS[request.device], "device": request.device, "python": request.python,
        "set": shlex.join(f"{key}={value}" for key, value in request.settings.items()), "force": request.force,
    }  # fmt: skip
