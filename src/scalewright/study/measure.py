"""Run a study here, or continue an earlier run. A point that fails does not stop the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from scalewright import units
from scalewright.catalog.calibration_quality import doubt
from scalewright.catalog.library import Catalog
from scalewright.errors import EnvironmentFailedError, ScalewrightError
from scalewright.here.place import calibrated_here
from scalewright.launch.prepare.outlook import RunTooLargeError
from scalewright.launch.ranks.allocation import is_inside
from scalewright.records.events import Event
from scalewright.records.host_load import load_now
from scalewright.records.types import WARNING, ExitCode, Point
from scalewright.study.calibration.measure import calibrate
from scalewright.study.calibration.request import calibration_here
from scalewright.study.execute import RunObserver, execute, execution_of
from scalewright.study.execution import Execution
from scalewright.study.file import Measure
from scalewright.study.pipeline.progress import block_of
from scalewright.study.points import Study
from scalewright.study.store import Store

State = Literal["finished", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One repeat of one point."""

    index: int
    """Index of the point in the study."""
    point: Point
    repeat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a try ended."""

    tried: Try
    state: State
    reason: str = ""


class Listener(Protocol):
    """Is called as the study proceeds."""

    def begins(self, tried: Try, execution: Execution) -> None: ...

    def see(self, events: list[Event]) -> None: ...

    def ends(self, ended: Ended) -> None: ...


@dataclass(slots=True)
class Spent:
    """Time and device time that a run of the study has used so far."""

    limits: Measure
    clock: Callable[[], float] = time.monotonic
    started_s: float = field(init=False)
    device_s: float = 0.0

    def __post_init__(self) -> None:
        self.started_s = self.clock()

    @property
    def left_s(self) -> float:
        return self.limits.time_limit_s - (self.clock() - self.started_s)

    def refusal(self, execution: Execution) -> str:
        """Why this run may not start in the remaining time; empty if it may."""
        left_s, expected_s = self.left_s, execution.expected_s or 0.0
        if left_s <= 0 or expected_s > left_s:
            would = f"would take {units.format(expected_s, units.SECONDS)}" if expected_s else "is not started"
            remaining = units.format(max(left_s, 0.0), units.SECONDS)
            advice = "run the study again to continue"
            if expected_s > self.limits.time_limit_s:
                advice = "raise measure.time_limit in a copy of the study, or calibrate again when the machine is quiet"
            return f"{would}, but only {remaining} of the study's {self.limits.time_limit} remain: {advice}"
        if self.limits.gpu_hours_limit is not None:
            limit_s = self.limits.gpu_hours_limit * units.HOUR_S
            if self.device_s + expected_s * execution.num_ranks > limit_s:
                return f"would exceed the study's {self.limits.gpu_hours_limit} GPU-hours: raise gpu_hours_limit"
        return ""


def tries(study: Study) -> Iterator[Try]:
    """All repeats of all points, interleaved, so that a drift of the machine affects every point alike."""
    limits = study.file.measure or Measure()
    for repeat in range(limits.repeats):
        seen: set[str] = set()
        for index, point in enumerate(study.points):
            if point.id not in seen:
                seen.add(point.id)
                yield Try(index=index, point=point, repeat=repeat)


def calibrate_first(catalog: Catalog, study: Study, say: Callable[[str], None]) -> None:
    """Calibrate this machine, if the study wants that and it has no calibration. Predictions then use it."""
    limits = study.file.measure
    if limits is None or not limits.calibrate or is_inside(os.environ):
        return
    place = calibrated_here(catalog, num_ranks=1, device="auto")
    if place is not None and place.calibration is not None:
        name, weakness = place.calibration.name, place.doubt
        if not weakness and place.calibration.is_disturbed:
            weakness = "others used this machine when it was made"
        if not weakness:
            say(f"this machine is already calibrated ({name})")
            return
        if load_now().is_busy:
            say(f"calibration {name} is weak ({weakness}), and this machine is busy: calibrate again when it is quiet")
            return
        say(f"calibration {name} is weak ({weakness}): this machine is calibrated again")
    budget_s = units.parse(limits.calibrate, units.SECONDS)
    try:
        calibration = calibrate(catalog, calibration_here(catalog, budget_s=budget_s), say)
    except EnvironmentFailedError as error:
        basis = place.basis if place is not None and place.is_trusted else "a short probe"
        say(f"not calibrated, so predictions use {basis}: {error}")
        return
    say(f"calibrated as {calibration.name}")
    if weakness := doubt(catalog, calibration):
        say(f"{WARNING}{calibration.name} is a weak calibration: {weakness}")


def run_here(
    catalog: Catalog, study: Study, store: Store, listener: Listener, order: Sequence[Try] | None = None
) -> list[Ended]:
    """Run every try that is not finished yet, one after the other. Ctrl-C ends the study; the next run continues."""
    ended: list[Ended] = []
    spent = Spent(study.file.measure or Measure())
    with store.held():
        for tried in tries(study) if order is None else order:
            end = _one(catalog, study, store, tried, listener, spent)
            listener.ends(end)
            ended.append(end)
    return ended


def _one(catalog: Catalog, study: Study, store: Store, tried: Try, listener: Listener, spent: Spent) -> Ended:
    problem = store.problem(tried.point, tried.repeat)
    if study.pipeline is not None:
        block = block_of(study.pipeline, store, study.pipeline.runs[tried.index], tried.repeat)
        if block is not None:
            return Ended(tried=tried, state="skipped", reason=block.reason)
    try:
        execution = execution_of_try(catalog, study, store, tried)
        if execution.is_finished:
            return Ended(tried=tried, state="finished")
        refusal = spent.refusal(execution)
        if refusal:
            return Ended(tried=tried, state="skipped", reason=refusal)
        problem.unlink(missing_ok=True)
        listener.begins(tried, execution)
        begun_s = spent.clock()
        code = execute(execution, RunObserver(on_events=listener.see))
        spent.device_s += (spent.clock() - begun_s) * execution.num_ranks
    except (ScalewrightError, RunTooLargeError) as error:
        reason = " ".join(str(error).split())
        reason += f" (in {study.path.name}: keys of [point])" if isinstance(error, RunTooLargeError) else ""
        store.write_problem(tried.point, tried.repeat, reason)
        return Ended(tried=tried, state="failed", reason=reason)
    if code == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code == ExitCode.YES:
        return Ended(tried=tried, state="finished")
    info = store.run(tried.point, tried.repeat).read_exit_info()
    return Ended(tried=tried, state="failed", reason=f"exit code {code}" if info is None else info.reason)


def execution_of_try(catalog: Catalog, study: Study, store: Store, tried: Try) -> Execution:
    """The run of one repeat of a point. A folder that has one already must hold the same configuration."""
    kind = str(tried.point.resolved["kind"])
    options = store.options_of(study.combinations[tried.index].options, tried.repeat)
    path = store.run(tried.point, tried.repeat).path
    execution = execution_of(catalog, kind, options, path=path, where=study.where)
    return replace(execution, point_id=tried.point.id, study_id=study.id)
