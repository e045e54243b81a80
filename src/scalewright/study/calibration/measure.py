"""Measure a machine within a time budget, and write its calibration.

Every point has its own run directory. An interrupted calibration continues where it stopped;
a finished one starts anew.
"""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalewright import units
from scalewright.catalog import calibration as calibrations
from scalewright.catalog.calibration import Calibration
from scalewright.catalog.library import Catalog
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.errors import EnvironmentFailedError, ScalewrightError
from scalewright.observe.real_steps import MIN_STEPS, language_step_s, num_steps_of, vision_step_s
from scalewright.records.documents import read_document, write_document
from scalewright.records.host_load import load_now
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.study.calibration.points import CalibrationPoint, MicroPoint, TrainingRun, points
from scalewright.study.calibration.request import (
    RESULT,
    STUDY,
    CalibrationRequest,
    check_better,
    check_replaceable,
    fitted_engines,
    make_folder,
)
from scalewright.study.calibration.result import calibration_of, disturbance_note, draft_calibration, sources_of
from scalewright.study.execute import RunObserver, execute, execution_of
from scalewright.study.execution import Execution
from scalewright.units import MINUTE_S
from scalewright.workload import language_run, vision_run

FIRST_START_S = {"cpu": 4.0, "cuda": 9.0}
"""Assumed time to start a process until one was measured: imports, context, loading of kernels."""
FIT_FRAC, LEAST_FIT_S = 0.03, 2.0
"""Share of the budget that is kept for the fits and the file."""
MICRO_FRAC = 0.55
"""Share of the time, starts not counted, that micro benchmarks get beside training runs, which get the rest."""
FEWEST_STEPS, MOST_STEPS = 10, 60
LONGEST_TRAINING_S = 15.0
SLOWEST_TRAINING = 2.0
"""A training run is ended after this many times its share. The steps that it made by then count."""

Say = Callable[[str], None]


class CalibrationStoppedError(Exception):
    """A signal stopped the calibration; run again, it continues."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


class _OutOfTimeError(Exception):
    """A point exceeded the budget, or its own share of it by far: its ranks are ended."""


@dataclass(slots=True)
class _Progress:
    """What has been done so far, and the time that remains."""

    request: CalibrationRequest
    begun_s: float = field(default_factory=time.monotonic)
    starts_s: list[float] = field(default_factory=list)
    slowness: list[float] = field(default_factory=list)
    """Measured over predicted time of the training runs' steps."""
    done: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    late: list[tuple[CalibrationPoint, float]] = field(default_factory=list)
    """Points that did not fit in the budget, and the seconds that each needs at least."""

    @property
    def remaining_s(self) -> float:
        kept_s = max(LEAST_FIT_S, FIT_FRAC * self.request.budget_s)
        return self.request.budget_s - kept_s - (time.monotonic() - self.begun_s)

    @property
    def start_s(self) -> float:
        """Time to start a point, as measured so far."""
        return statistics.median(self.starts_s) if self.starts_s else FIRST_START_S[self.request.device]

    @property
    def sufficient_budget_s(self) -> float:
        """A budget that would have been enough for all points, in whole minutes."""
        needed_s = time.monotonic() - self.begun_s + sum(needs_s for _, needs_s in self.late)
        return MINUTE_S * math.ceil(max(needed_s, self.request.budget_s + 1.0) / MINUTE_S)

    def late_note(self) -> str:
        """One sentence about the points that did not fit in the budget; empty where all did."""
        if not self.late:
            return ""
        budget = units.format(self.request.budget_s, units.SECONDS)
        names = [point.name for point, _ in self.late if isinstance(point, MicroPoint)]
        num_training = len(self.late) - len(names)
        training = [f"{num_training} short training run{'s' if num_training > 1 else ''}"] if num_training else []
        return (
            f"the budget of {budget} ended before {', '.join(names + training)}: "
            f"give --budget {self.sufficient_budget_s:.0f}s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """The part of the budget that a point gets."""

    work: float
    """Seconds of a micro benchmark, or steps of a training run; 0: it cannot end within the budget."""
    needs_s: float
    """The least time that it takes, start included."""
    work_s: float
    """Predicted time of this work, without the start."""


def calibrate(catalog: Catalog, request: CalibrationRequest, say: Say) -> Calibration:
    """Measure within the budget, fit, and write the calibration. If anything fails, nothing is written."""
    check_replaceable(request)
    progress = _Progress(request)
    scratch = request.folder / "scratch"
    make_folder(scratch)
    calibrations.check_writable()
    if busy := load_now().note():
        say(busy)
    every = points(
        request.device, num_ranks=request.num_ranks, scratch=str(scratch.resolve()), workload=request.workload
    )
    for index, point in enumerate(every):
        share = _share(catalog, point, every[index + 1 :], progress, every)
        if share.work <= 0.0:
            say(f"[{index + 1}/{len(every)}] {point.name}: left out, the budget is used up")
            _leave_out(point, progress, share.needs_s)
            continue
        say(f"[{index + 1}/{len(every)}] {point.name}")
        _run(catalog, point, share, progress)
    skipped = [*progress.skipped, *filter(None, [progress.late_note()])]
    spent_s = time.monotonic() - progress.begun_s
    calibration = calibration_of(catalog, request, progress.done, spent_s=spent_s, skipped=skipped)
    num_missing = len(every) - len(progress.done)
    calibration = calibration.model_copy(update={"num_parts": len(every), "num_missing": num_missing})
    if request.device == "cpu" and (note := disturbance_note(progress.done)):
        calibration = calibration.model_copy(update={"notes": (*calibration.notes, note), "is_disturbed": True})
    write_document(request.folder / RESULT, calibration.document())
    check_better(catalog, request, calibration)
    for engine in fitted_engines(request):
        say(f"the factors of {engine} belong to the replaced calibration: run scalewright calibrate --engine {engine}")
    calibrations.write(calibration)
    return calibration


def _share(
    catalog: Catalog, point: CalibrationPoint, later: list[CalibrationPoint], progress: _Progress,
    every: list[CalibrationPoint],
) -> _Share:  # fmt: skip
    """Seconds of a micro benchmark or steps of a training run; none where it could not end in time."""
    if _is_done(progress.request.folder / point.name):
        return _Share(work=1.0, needs_s=0.0, work_s=0.0)
    if isinstance(point, MicroPoint):
        return _micro_share(point, progress, every)
    return _training_share(catalog, point, later, progress)


def _micro_share(point: MicroPoint, progress: _Progress, every: list[CalibrationPoint]) -> _Share:
    remaining_s, needs_s = progress.remaining_s - progress.start_s, progress.start_s + point.least_s
    if remaining_s < point.least_s:
        return _Share(work=0.0, needs_s=needs_s, work_s=point.least_s)
    compiling_s = sum(other.compile_s for other in every if isinstance(other, TrainingRun))
    startups_s = len(every) * progress.start_s + compiling_s
    free_s = max(progress.request.budget_s - startups_s, 0.3 * progress.request.budget_s)
    frac = MICRO_FRAC if any(isinstance(other, TrainingRun) for other in every) else 1.0
    scale = frac * free_s / sum(other.most_s for other in every if isinstance(other, MicroPoint))
    work_s = min(remaining_s, point.most_s, max(point.least_s, scale * point.most_s))
    return _Share(work=work_s, needs_s=needs_s, work_s=work_s)


def _training_share(catalog: Catalog, point: TrainingRun, later: list[CalibrationPoint], progress: _Progress) -> _Share:
    predicted_s = _step_s(catalog, point, progress)
    # Other work on the machine, or a wrong prediction, delays the next run as much as the last.
    step_s = predicted_s * max([1.0, *progress.slowness[-1:]])
    needs_s = progress.start_s + point.compile_s + FEWEST_STEPS * step_s
    if progress.remaining_s < needs_s:
        return _Share(work=0.0, needs_s=needs_s, work_s=needs_s - progress.start_s)
    starts_s = (1 + len(later)) * progress.start_s
    free_s = max(progress.remaining_s - starts_s - point.compile_s, 0.0)
    num_training = 1 + sum(isinstance(other, TrainingRun) for other in later)
    share_s = min(LONGEST_TRAINING_S, free_s / num_training)
    num_steps = min(MOST_STEPS, max(FEWEST_STEPS, int(share_s / step_s)))
    return _Share(work=float(num_steps), needs_s=needs_s, work_s=point.compile_s + num_steps * predicted_s)


def _leave_out(point: CalibrationPoint, progress: _Progress, needs_s: float) -> None:
    """The budget ends before this point does. Without a point that is needed there is no calibration."""
    progress.late.append((point, needs_s))
    if isinstance(point, MicroPoint) and point.is_needed:
        raise EnvironmentFailedError(f"{progress.late_note()}; without it there is no calibration, and none is written")


def _step_s(catalog: Catalog, point: TrainingRun, progress: _Progress) -> float:
    """The time of a step, predicted from the values measured so far."""
    try:
        sources = sources_of(progress.done)
        draft = draft_calibration(progress.request, sources, spent_s=1.0, skipped=())
        machine = machine_from_calibration(catalog, draft, num_ranks=point.num_ranks)
        config = _execution(catalog, point, FEWEST_STEPS, progress.request).config
        if point.kind == "vision":
            return vision_step_s(catalog, vision_run.from_document(config, where=point.name), machine)
        return language_step_s(catalog, language_run.from_document(config, where=point.name), machine)
    except ScalewrightError:
        return point.fallback_step_s


def _is_done(path: Path) -> bool:
    info = RunDirectory(path).read_exit_info() if path.is_dir() else None
    return info is not None and info.finished


def _execution(catalog: Catalog, point: CalibrationPoint, work: float, request: CalibrationRequest) -> Execution:
    """The run of a point; one that was begun before keeps its configuration."""
    options = point.options(work) if isinstance(point, MicroPoint) else point.options(int(work))
    path = request.folder / point.name
    execution = execution_of(catalog, point.kind, options, path=path, where=STUDY, predicts=False)
    if execution.directory.config.exists():
        stored = read_document(execution.directory.config, f"{point.kind}-run")
        execution = replace(execution, config=stored)
    return replace(execution, study_id=STUDY)


def _run(catalog: Catalog, point: CalibrationPoint, share: _Share, progress: _Progress) -> None:
    """Run a point. A failure is noted, unless there is no calibration without the point."""
    path = progress.request.folder / point.name
    if _is_done(path):
        progress.done.append(path)
        return
    is_resumed = RunDirectory(path).config.exists()
    execution = _execution(catalog, point, share.work, progress.request)
    begun_s = time.monotonic()
    ends_s = begun_s + progress.start_s + _longest_s(point, share)
    signals: list[int] = []
    try:
        code = execute(
            execution, RunObserver(on_events=lambda _: _check_time(progress, ends_s), on_signal=signals.append)
        )
    except _OutOfTimeError:
        _end_late(point, share, progress, took_s=time.monotonic() - begun_s)
        return
    if signals:  # a rank that was just starting may have died of the signal, which is not the point's fault
        raise CalibrationStoppedError(ExitCode.INTERRUPTED if signal.SIGINT in signals else ExitCode.REQUEUE)
    took_s = time.monotonic() - begun_s
    if isinstance(point, MicroPoint):
        progress.starts_s.append(max(took_s - (0.0 if is_resumed else share.work), 1.0))
    elif code == ExitCode.YES:
        progress.slowness.append(max(took_s - progress.start_s, 0.0) / share.work_s)
    _note_end(point, execution.directory, code, progress)


def _end_late(point: CalibrationPoint, share: _Share, progress: _Progress, *, took_s: float) -> None:
    """A point was ended because it took too long. The steps of a training run count as far as it got."""
    path = progress.request.folder / point.name
    if isinstance(point, TrainingRun):
        progress.slowness.append(max(took_s - progress.start_s, 0.0) / share.work_s)
        if num_steps_of(RunDirectory(path)) >= MIN_STEPS:
            progress.done.append(path)
            return
    _leave_out(point, progress, progress.start_s + 2.0 * share.work_s)


def _note_end(point: CalibrationPoint, directory: RunDirectory, code: int, progress: _Progress) -> None:
    if code == ExitCode.YES:
        progress.done.append(directory.path)
        return
    if code in (ExitCode.REQUEUE, ExitCode.INTERRUPTED):
        raise CalibrationStoppedError(code)
    info = directory.read_exit_info()
    reason = "it left no reason, see its logs" if info is None else info.reason
    if isinstance(point, MicroPoint) and point.is_needed:
        raise EnvironmentFailedError(f"{directory.path}: {reason}")
    progress.skipped.append(f"{point.name}: {reason}")


def _longest_s(point: CalibrationPoint, share: _Share) -> float:
    """After its start: twice the share of a training run, so that others get their turn. Benchmarks keep to theirs."""
    if isinstance(point, MicroPoint):
        return math.inf
    return SLOWEST_TRAINING * (point.compile_s + max(LONGEST_TRAINING_S, share.work_s))


def _check_time(progress: _Progress, ends_s: float) -> None:
    if progress.remaining_s < 0.0 or time.monotonic() > ends_s:
        raise _OutOfTimeError
