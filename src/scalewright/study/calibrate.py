"""The calibrate study: micro benchmarks and short real steps within a time budget, then one calibration file.

Every point has its own run directory, made by the one executor. A calibration that was interrupted goes on where it
stopped; one that was finished is made anew.
"""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalewright import __version__, units
from scalewright.catalog import calibration as calibrations
from scalewright.catalog.calibration import SCHEMA, Calibration, Fingerprint, Step
from scalewright.catalog.library import Catalog
from scalewright.costs.calibrated import machine_from_calibration
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.errors import ConfigError, EnvironmentFailedError, ScalewrightError
from scalewright.here.devices import device_here
from scalewright.here.place import base_system, default_name, fingerprint_here, versions_here
from scalewright.observe.calibrate import Source, convolution_rows, read_sources, unmeasured_words, values_from
from scalewright.observe.real_steps import MIN_STEPS, language_step_s, num_steps_of, read_steps, vision_step_s
from scalewright.observe.residuals import fit_residuals
from scalewright.records.documents import read_document, write_document
from scalewright.records.events import Event
from scalewright.records.host_load import load_now
from scalewright.records.run_directory import RunDirectory, new_run_id
from scalewright.records.types import ExitCode
from scalewright.study.calibrate_points import Micro, Point, RealRun, points
from scalewright.study.conditions import read_attempts
from scalewright.study.execute import Execution, Watch, execute
from scalewright.units import MINUTE_S
from scalewright.workload import language_run, vision_run
from scalewright.workload.language_run import DeviceKind

STUDY = "calibrate"
FIRST_START_S = {"cpu": 4.0, "cuda": 9.0}
"""What starting a process takes, until one was seen: imports, context, kernels loaded."""
FIT_FRAC, LEAST_FIT_S = 0.03, 2.0
"""Kept back for the fits and the file."""
MICRO_FRAC = 0.55
"""Of the time that is not spent on starting: the rest is for real steps."""
FEWEST_STEPS, MOST_STEPS = 10, 60
LONGEST_REAL_S = 15.0
SLOWEST_REAL = 2.0
CONTRADICTED_FRAC, FEWEST_WITNESSES = 1.0, 2
"""Mean error of the fitted steps beyond which a calibration is worth less than a probe, and steps that it takes."""
"""Times its share that a real run may take before it is ended; the steps that it made by then count."""
DISTURBED_FRAC = 0.15
"""Of a CPU's cores: what others may have on average before rates are what they left."""
RESULT = "calibration.json"
SHORTEST_BUDGET_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for, settled."""

    name: str
    base: Machine
    system: str
    partition: str
    fingerprint: Fingerprint
    num_ranks: int
    budget_s: float
    folder: Path
    """Where the run directories go."""
    force: bool = False

    def __post_init__(self) -> None:
        calibrations.check_name(self.name)
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


def wanted_here(
    catalog: Catalog, *, budget_s: float, name: str | None = None, device: str = "auto", ranks: int | None = None,
    system: str | None = None, out: Path | None = None, force: bool = False,
) -> Wanted:  # fmt: skip
    """A calibration of this machine: what is not said follows from its devices."""
    place = device_here(device, num_ranks=ranks or 1)
    fingerprint = fingerprint_here(place)
    base, partition = base_system(catalog, fingerprint, system)
    chosen = calibrations.check_name(name or default_name(catalog, fingerprint))
    usual = min(2, fingerprint.num_cores) if place == "cpu" else fingerprint.num_devices
    return Wanted(
        name=chosen,
        base=machine_from_system(catalog, base, partition_name=partition),
        system=base,
        partition=partition,
        fingerprint=fingerprint,
        num_ranks=usual if ranks is None else ranks,
        budget_s=budget_s,
        folder=study_folder(Path("results") / STUDY if out is None else out, chosen),
        force=force,
    )


class StoppedError(Exception):
    """The study was asked to stop; run again, it goes on."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


class _OutOfTimeError(Exception):
    """A point went past the end of the budget, or far past its share of it: its ranks are ended."""


@dataclass(slots=True)
class _Progress:
    """What has been done so far, and the time that is left."""

    wanted: Wanted
    begun_s: float = field(default_factory=time.monotonic)
    starts_s: list[float] = field(default_factory=list)
    slowness: list[float] = field(default_factory=list)
    """Time that the steps of real runs took over what was predicted of them."""
    done: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    late: list[tuple[Point, float]] = field(default_factory=list)
    """Points that the budget ended before, or during, and the seconds that each of them needs at least."""

    @property
    def left_s(self) -> float:
        kept_s = max(LEAST_FIT_S, FIT_FRAC * self.wanted.budget_s)
        return self.wanted.budget_s - kept_s - (time.monotonic() - self.begun_s)

    @property
    def start_s(self) -> float:
        """What starting a point takes, as seen so far."""
        return statistics.median(self.starts_s) if self.starts_s else FIRST_START_S[self.wanted.device]

    @property
    def enough_s(self) -> float:
        """A budget that would have been enough for what came too late, in whole minutes."""
        needed_s = time.monotonic() - self.begun_s + sum(needs_s for _, needs_s in self.late)
        return MINUTE_S * math.ceil(max(needed_s, self.wanted.budget_s + 1.0) / MINUTE_S)

    def late_words(self) -> str:
        """One sentence about what came too late, with the budget to give; empty where nothing did."""
        if not self.late:
            return ""
        budget = units.format(self.wanted.budget_s, units.SECONDS)
        named = [point.name for point, _ in self.late if isinstance(point, Micro)]
        num = len(self.late) - len(named)
        steps = [f"{num} short real run{'s' if num > 1 else ''}"] if num else []
        return f"the budget of {budget} ended before {', '.join(named + steps)}: give --budget {self.enough_s:.0f}s"


Say = Callable[[str], None]


def check_free(wanted: Wanted) -> None:
    """Refuse to write over a calibration of another machine, of other versions or of a quieter hour."""
    path = calibrations.path_of(wanted.name)
    if wanted.force or not path.exists():
        return
    before = calibrations.read(path)
    why = calibrations.why_not_here(before, wanted.fingerprint, versions_here())
    if why:
        raise ConfigError(
            f"{path} is not of this machine as it is now ({why}): choose another name with --as, or replace it with "
            "--force"
        )
    load = load_now()
    if wanted.device == "cpu" and load.is_busy and not before.is_disturbed:
        raise EnvironmentFailedError(
            f"this machine is at work (load {load.load:.1f} on {load.num_cores} cores), and {path} was measured when "
            "it was quiet: wait until it is, choose another name with --as, or replace it with --force"
        )


def calibrate(catalog: Catalog, wanted: Wanted, say: Say) -> Calibration:
    """Measure within the budget, fit, and write the calibration; nothing is written unless all of it worked."""
    check_free(wanted)
    state = _Progress(wanted)
    scratch = wanted.folder / "scratch"
    make_folder(scratch)
    calibrations.check_writable()
    if busy := load_now().note():
        say(busy)
    every = points(wanted.device, num_ranks=wanted.num_ranks, scratch=str(scratch.resolve()))
    for number, (point, rest) in enumerate(_with_rest(every), start=1):
        told = _share(catalog, point, rest, state, every)
        if told.work <= 0.0:
            say(f"[{number}/{len(every)}] {point.name}: left out, no time left")
            _leave_out(point, state, told.needs_s)
            continue
        say(f"[{number}/{len(every)}] {point.name}")
        _run(point, told, state)
    skipped = [*state.skipped, *filter(None, [state.late_words()])]
    calibration = finish(catalog, wanted, state.done, spent_s=time.monotonic() - state.begun_s, skipped=skipped)
    if wanted.device == "cpu" and (others := others_words(state.done)):
        calibration = calibration.model_copy(update={"notes": (*calibration.notes, others), "is_disturbed": True})
    calibrations.write(calibration)
    write_document(wanted.folder / RESULT, calibration.document())
    return calibration


def others_words(runs: Sequence[Path]) -> str:
    """What others had of the cores while the runs were measured; empty where it was too little to matter."""
    every = [one for path in runs for one in read_attempts(RunDirectory(path))]
    took_s = sum(one.took_s for one in every)
    had = sum(one.others_cores * one.took_s for one in every) / took_s if every else 0.0
    if not every or had <= DISTURBED_FRAC * every[0].num_cores:
        return ""
    return (
        f"other work had {had:.1f} of {every[0].num_cores} cores meanwhile: calibrate again when this machine is quiet"
    )


def _with_rest(every: list[Point]) -> Iterator[tuple[Point, list[Point]]]:
    for index, point in enumerate(every):
        yield point, every[index + 1 :]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What of the time a point is given."""

    work: float
    """Seconds of a micro benchmark, steps of a real run; 0: it cannot end within the budget."""
    needs_s: float
    """The least that it takes, its start included."""
    work_s: float
    """What this work is predicted to take, without its start."""


def _share(catalog: Catalog, point: Point, rest: list[Point], state: _Progress, every: list[Point]) -> _Share:
    """Seconds of a micro benchmark or steps of a real run; nothing where it could not end in time."""
    if _is_done(state.wanted.folder / point.name):
        return _Share(work=1.0, needs_s=0.0, work_s=0.0)
    left_s = state.left_s - state.start_s
    if isinstance(point, Micro):
        needs_s = state.start_s + point.least_s
        if left_s < point.least_s:
            return _Share(work=0.0, needs_s=needs_s, work_s=point.least_s)
        startups_s = len(every) * state.start_s + sum(p.compile_s for p in every if isinstance(p, RealRun))
        free_s = max(state.wanted.budget_s - startups_s, 0.3 * state.wanted.budget_s)
        scale = MICRO_FRAC * free_s / sum(p.most_s for p in every if isinstance(p, Micro))
        work_s = min(left_s, point.most_s, max(point.least_s, scale * point.most_s))
        return _Share(work=work_s, needs_s=needs_s, work_s=work_s)
    # Others on the machine, or a prediction that is off, make the next run late as they made the last.
    predicted_s = _step_s(catalog, point, state)
    step_s = predicted_s * max([1.0, *state.slowness[-1:]])
    needs_s = state.start_s + point.compile_s + FEWEST_STEPS * step_s
    if state.left_s < needs_s:
        return _Share(work=0.0, needs_s=needs_s, work_s=needs_s - state.start_s)
    others = sum(isinstance(p, RealRun) for p in rest) + 1
    share_s = min(LONGEST_REAL_S, max(left_s - point.compile_s - len(rest) * state.start_s, 0.0) / others)
    num_steps = min(MOST_STEPS, max(FEWEST_STEPS, int(share_s / step_s)))
    return _Share(work=float(num_steps), needs_s=needs_s, work_s=point.compile_s + num_steps * predicted_s)


def _leave_out(point: Point, state: _Progress, needs_s: float) -> None:
    """The budget ends before this point does; without one that is needed there is no calibration."""
    state.late.append((point, needs_s))
    if isinstance(point, Micro) and point.is_needed:
        raise EnvironmentFailedError(f"{state.late_words()}; without it there is no calibration, and none is written")


def _step_s(catalog: Catalog, point: RealRun, state: _Progress) -> float:
    """A step as the values measured so far predict it."""
    try:
        sources = _sources(state.done)
        draft = _draft(state.wanted, sources, state.wanted.base, spent_s=1.0, skipped=())
        machine = machine_from_calibration(catalog, draft, num_ranks=point.num_ranks)
        config = point.config(FEWEST_STEPS)
        if point.kind == "vision":
            return vision_step_s(catalog, vision_run.from_document(config, where=point.name), machine)
        return language_step_s(catalog, language_run.from_document(config, where=point.name), machine)
    except ScalewrightError:
        return point.fallback_step_s


def _is_done(path: Path) -> bool:
    info = RunDirectory(path).read_exit_info() if path.is_dir() else None
    return info is not None and info.finished


def _run(point: Point, share: _Share, state: _Progress) -> None:
    """Run a point; its failure is noted, unless there is no calibration without it."""
    path = state.wanted.folder / point.name
    directory = RunDirectory(path)
    if _is_done(path):
        state.done.append(path)
        return
    if directory.config.exists():  # begun before: what it was told then holds
        config: dict[str, Any] = read_document(directory.config, f"{point.kind}-run")
        spent_on_work_s = 0.0
    else:
        config = point.config(share.work) if isinstance(point, Micro) else point.config(int(share.work))
        spent_on_work_s = share.work if isinstance(point, Micro) else 0.0
    begun_s = time.monotonic()
    ends_s = begun_s + state.start_s + _longest_s(point, share)
    execution = Execution(kind=point.kind, config=config, path=path, num_ranks=point.num_ranks, study_id=STUDY)
    signals: list[int] = []
    try:
        code = execute(
            execution, Watch(on_events=lambda events: _look(events, state, ends_s), on_signal=signals.append)
        )
    except _OutOfTimeError:
        if isinstance(point, RealRun):
            state.slowness.append(max(time.monotonic() - begun_s - state.start_s, 0.0) / share.work_s)
        if isinstance(point, RealRun) and num_steps_of(directory) >= MIN_STEPS:  # they count as far as it got
            state.done.append(path)
        else:
            _leave_out(point, state, state.start_s + 2.0 * share.work_s)  # it takes longer than predicted
        return
    if signals:  # a rank that was just starting may have died of it, which is no fault of the point
        raise StoppedError(ExitCode.INTERRUPTED if signal.SIGINT in signals else ExitCode.REQUEUE)
    took_s = time.monotonic() - begun_s
    if isinstance(point, Micro):
        state.starts_s.append(max(took_s - spent_on_work_s, 1.0))
    elif code == ExitCode.YES:
        state.slowness.append(max(took_s - state.start_s, 0.0) / share.work_s)
    if code == ExitCode.YES:
        state.done.append(path)
        return
    if code in (ExitCode.REQUEUE, ExitCode.INTERRUPTED):
        raise StoppedError(code)
    info = directory.read_exit_info()
    reason = "it left no reason, see its logs" if info is None else info.reason
    if isinstance(point, Micro) and point.is_needed:
        raise EnvironmentFailedError(f"{path}: {reason}")
    state.skipped.append(f"{point.name}: {reason}")


def _longest_s(point: Point, share: _Share) -> float:
    """After its start: twice what a real run was given, so that others have their turn; benchmarks keep to theirs."""
    if isinstance(point, Micro):
        return math.inf
    return SLOWEST_REAL * (point.compile_s + max(LONGEST_REAL_S, share.work_s))


def _look(events: list[Event], state: _Progress, ends_s: float) -> None:
    del events
    if state.left_s < 0.0 or time.monotonic() > ends_s:
        raise _OutOfTimeError


def _sources(paths: list[Path]) -> list[Source]:
    return read_sources(RunDirectory(path) for path in paths)


def finish(catalog: Catalog, wanted: Wanted, paths: list[Path], *, spent_s: float, skipped: list[str]) -> Calibration:
    """The calibration that these run directories make; writes nothing."""
    sources = _sources(paths)
    _check_same_machine(wanted, sources)
    steps, notes = read_steps(catalog, (RunDirectory(p) for p in paths if not RunDirectory(p).measurements.exists()))
    skipped = [*unmeasured_words(sources), *skipped, *notes]
    draft = _draft(wanted, sources, wanted.base, spent_s=spent_s, skipped=tuple(skipped))
    if not draft.values:
        raise EnvironmentFailedError("nothing was measured: give a longer --budget, or look into the run directories")
    fitted = fit_residuals(catalog, draft, steps)
    _check_holds(fitted.steps)
    return draft.model_copy(
        update={
            "residuals": fitted.residuals,
            "steps": fitted.steps,
            "language_interval": fitted.language_interval,
            "vision_interval": fitted.vision_interval,
        }
    )


def _check_holds(steps: Sequence[Step]) -> None:
    """Values that do not even give back the steps they were fitted to are those of a machine that others used."""
    if len(steps) < FEWEST_WITNESSES:
        return
    off = statistics.mean(abs(step.after_s / step.measured_s - 1.0) for step in steps)
    if off > CONTRADICTED_FRAC:
        raise EnvironmentFailedError(
            f"the real steps of this calibration are {off:.0%} off what its own values predict, as when others use the "
            "machine meanwhile: nothing is written; calibrate again when it is quiet"
        )


def _check_same_machine(wanted: Wanted, sources: list[Source]) -> None:
    for source in sources:
        name = str(source.found.device.get("name", wanted.fingerprint.name))
        if name != wanted.fingerprint.name:
            raise ConfigError(
                f"{wanted.folder / source.run} was measured on {name}, not on {wanted.fingerprint.name}: choose "
                "another folder with --out"
            )


def _draft(
    wanted: Wanted, sources: list[Source], base: Machine, *, spent_s: float, skipped: tuple[str, ...]
) -> Calibration:
    versions = {key: value for source in sources for key, value in source.found.versions.items()}
    versions = {**versions, **versions_here(), "scalewright": __version__}
    throttled = [
        f"{source.run}: the device slowed itself down ({', '.join(map(str, reasons))})"
        for source in sources
        if (reasons := source.found.conditions.get("throttled"))
    ]
    return Calibration.model_validate(
        {
            "schema": SCHEMA,
            "name": wanted.name,
            "base": wanted.system,
            "partition": wanted.partition,
            "fingerprint": wanted.fingerprint,
            "versions": versions,
            "created": datetime.now(UTC).replace(microsecond=0),
            "budget_s": wanted.budget_s,
            "spent_s": max(spent_s, 0.1),
            "values": values_from(sources, base),
            "collectives": [fit for source in sources for fit in source.found.fits],
            "convolutions": convolution_rows(sources),
            "skipped": skipped,
            "notes": throttled,
        }
    )


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFailedError(
            f"{path}: cannot be made: {error.strerror}; choose another place with --out"
        ) from error


def study_folder(root: Path, name: str) -> Path:
    """Where the points of this calibration go: the newest unfinished attempt, else a new one."""
    before = sorted(path for path in root.glob(f"*-{name}") if path.is_dir())
    if before and not (before[-1] / RESULT).exists():
        return before[-1]
    return root / new_run_id(name)
