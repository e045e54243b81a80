"""Doubts about a measured figure: a busy machine, unsteady steps, held-back clocks, missing steps or repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scalewright import units
from scalewright.observe.collect import CollectedRun
from scalewright.records import metric_names as names
from scalewright.records.host_load import BUSY_FRAC
from scalewright.records.measurements import Measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import Doubt, Number
from scalewright.study.conditions import Attempt, read_attempts
from scalewright.study.execution import num_steps_of
from scalewright.study.metrics import Metric

BUSY_CPU_FRAC = 0.05
"""Share of a CPU's cores that other work may use before it lengthens times by more than their spread."""
NOT_STEADY = "not steady: "
"""Start of the steady-state detector's verdict for a run without a steady part."""


def doubts_of_training(run: CollectedRun) -> tuple[Doubt, ...]:
    """Doubts about the figures of a training run."""
    attempts = read_attempts(run.directory)
    busy_notes = [event.detail for event in run.happenings if event.name == names.EVENT_BUSY]
    return (
        *_busy(attempts, busy_notes, on_cpu=run.config.get("device") != "cuda"),
        *_unsteady(run),
        *_throttled(attempts, slowed=any(run.samples.get(names.GPU_SLOWED, ()))),
        *_fewer_steps(run),
    )


def doubts_of_measurements(directory: RunDirectory, measurements: Measurements) -> tuple[Doubt, ...]:
    """Doubts about a micro benchmark, which watches its device itself."""
    attempts = read_attempts(directory)
    reasons = [str(reason) for reason in measurements.conditions.get("throttled") or ()]
    return (
        *_busy(attempts, (), on_cpu=measurements.device.get("type") != "cuda"),
        *(Doubt(sort="throttled", text=f"the device slowed itself down: {reason}") for reason in reasons[:1]),
        *(() if reasons else _throttled(attempts, slowed=False)),
    )


def outside_interval(metric: Metric, predicted: Number, measured: Number) -> Doubt | None:
    """A doubt if the measured figure lies outside its predicted interval."""
    low, high = predicted.low, predicted.high
    if low is None or high is None or low <= measured.value <= high:
        return None
    side = "above" if measured.value > high else "below"
    unit = f" {metric.unit}" if metric.dimension is units.COUNT else ""
    value, least, most = (units.format(number, metric.dimension) + unit for number in (measured.value, low, high))
    return Doubt(sort="outside", text=f"{metric.title} of {value} is {side} the predicted {least} to {most}")


def fewer_repeats(num_done: int, num_repeats: int) -> tuple[Doubt, ...]:
    if num_done >= num_repeats:
        return ()
    return (Doubt(sort="fewer", text=f"{num_done} of {num_repeats} repeats were measured"),)


def merged(repeats: Sequence[tuple[Doubt, ...]]) -> tuple[Doubt, ...]:
    """Doubts about several repeats: one of each sort, with the number of repeats that it concerns."""
    if len(repeats) == 1:
        return repeats[0]
    by_sort: dict[str, list[Doubt]] = {}
    for doubts in repeats:
        for doubt in doubts:
            by_sort.setdefault(doubt.sort, []).append(doubt)
    return tuple(
        replace(same[0], text=f"in {len(same)} of {len(repeats)} repeats: {same[0].text}") for same in by_sort.values()
    )


def _busy(attempts: Sequence[Attempt], busy_notes: Sequence[str], *, on_cpu: bool) -> Iterator[Doubt]:
    """From the cores that other work used; if they were not counted, as on another node, from the load at the start."""
    if attempts:
        worst = max(attempts, key=lambda attempt: attempt.others_cores / attempt.num_cores)
        if worst.others_cores > (BUSY_CPU_FRAC if on_cpu else BUSY_FRAC) * worst.num_cores:
            cores = "its only core" if worst.num_cores == 1 else f"{worst.num_cores} cores"
            used = f"other work used {worst.others_cores:.1f} of {cores} meanwhile"
            yield Doubt(sort="busy", text=f"{used}: measure again when the machine is quiet")
    elif busy_notes and on_cpu:
        yield Doubt(sort="busy", text=busy_notes[-1])


def _unsteady(run: CollectedRun) -> Iterator[Doubt]:
    verdicts = [event.detail for event in run.happenings if event.name == names.EVENT_STEADY]
    if verdicts and verdicts[-1].startswith(NOT_STEADY):
        yield Doubt(sort="unsteady", text=f"steps were {verdicts[-1]}")


def _throttled(attempts: Sequence[Attempt], *, slowed: bool) -> Iterator[Doubt]:
    times = sum(attempt.num_throttles for attempt in attempts)
    if slowed:
        yield Doubt(sort="throttled", text="a device lowered its clock because of heat or its power limit")
    elif times:
        yield Doubt(sort="throttled", text=f"cores were throttled for heat {times:.0f} times meanwhile")


def _fewer_steps(run: CollectedRun) -> Iterator[Doubt]:
    num_steps = num_steps_of(run.config)
    if num_steps and len(run.step_numbers) < num_steps:
        yield Doubt(sort="fewer", text=f"{len(run.step_numbers)} of {num_steps} steps were measured")
