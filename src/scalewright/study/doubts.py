"""Why a measured figure may not say what it seems to: found in the run that it comes from, told with it."""

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
"""Share of a CPU's cores that others may have before its times are longer than their own spread."""
NOT_STEADY = "not steady: "
"""How the steady-state detector's verdict begins where no part of a run was even."""


def doubts_of_training(run: CollectedRun) -> tuple[Doubt, ...]:
    """All that a run of training steps knows against its own figures."""
    attempts = read_attempts(run.directory)
    told = [event.detail for event in run.happenings if event.name == names.EVENT_BUSY]
    return (
        *_busy(attempts, told, on_cpu=run.config.get("device") != "cuda"),
        *_unsteady(run),
        *_throttled(attempts, slowed=any(run.samples.get(names.GPU_SLOWED, ()))),
        *_fewer_steps(run),
    )


def doubts_of_measurements(directory: RunDirectory, found: Measurements) -> tuple[Doubt, ...]:
    """The same of a micro benchmark, which watches its device itself."""
    attempts = read_attempts(directory)
    reasons = [str(reason) for reason in found.conditions.get("throttled") or ()]
    return (
        *_busy(attempts, (), on_cpu=found.device.get("type") != "cuda"),
        *(Doubt(sort="throttled", text=f"the device slowed itself down: {reason}") for reason in reasons[:1]),
        *(() if reasons else _throttled(attempts, slowed=False)),
    )


def outside(metric: Metric, told: Number, seen: Number) -> Doubt | None:
    """Where a measured figure lies beside the interval that was predicted for it before."""
    if told.low is None or told.high is None or told.low <= seen.value <= told.high:
        return None
    named = f" {metric.unit}" if metric.dimension is units.COUNT else ""
    low, value, high = (units.format(end, metric.dimension) + named for end in (told.low, seen.value, told.high))
    side = "above" if seen.value > told.high else "below"
    return Doubt(sort="outside", text=f"{metric.title} of {value} is {side} the predicted {low} to {high}")


def fewer_repeats(num_done: int, num_asked: int) -> tuple[Doubt, ...]:
    if num_done >= num_asked:
        return ()
    return (Doubt(sort="fewer", text=f"{num_done} of {num_asked} repeats were measured"),)


def together(repeats: Sequence[tuple[Doubt, ...]]) -> tuple[Doubt, ...]:
    """Doubts about some of several repeats: one of each sort, and how many it is about."""
    if len(repeats) == 1:
        return repeats[0]
    found: dict[str, list[Doubt]] = {}
    for doubts in repeats:
        for doubt in doubts:
            found.setdefault(doubt.sort, []).append(doubt)
    return tuple(
        replace(same[0], text=f"in {len(same)} of {len(repeats)} repeats: {same[0].text}") for same in found.values()
    )


def _busy(attempts: Sequence[Attempt], told: Sequence[str], *, on_cpu: bool) -> Iterator[Doubt]:
    """By what others had while it ran; where nobody kept count, as on another node, by the load that it met there."""
    if attempts:
        worst = max(attempts, key=lambda one: one.others_cores / one.num_cores)
        if worst.others_cores > (BUSY_CPU_FRAC if on_cpu else BUSY_FRAC) * worst.num_cores:
            cores = "its only core" if worst.num_cores == 1 else f"{worst.num_cores} cores"
            had = f"other work had {worst.others_cores:.1f} of {cores} while it ran"
            yield Doubt(sort="busy", text=f"{had}: measure again when the machine is quiet")
    elif told and on_cpu:
        yield Doubt(sort="busy", text=told[-1])


def _unsteady(run: CollectedRun) -> Iterator[Doubt]:
    verdicts = [event.detail for event in run.happenings if event.name == names.EVENT_STEADY]
    if verdicts and verdicts[-1].startswith(NOT_STEADY):
        yield Doubt(sort="unsteady", text=f"steps were {verdicts[-1]}")


def _throttled(attempts: Sequence[Attempt], *, slowed: bool) -> Iterator[Doubt]:
    times = sum(one.num_throttles for one in attempts)
    if slowed:
        yield Doubt(sort="throttled", text="a device held its clock back for heat or for want of power")
    elif times:
        yield Doubt(sort="throttled", text=f"cores were slowed down for heat {times:.0f} times while it ran")


def _fewer_steps(run: CollectedRun) -> Iterator[Doubt]:
    num_steps = num_steps_of(run.config)
    if num_steps and len(run.step_numbers) < num_steps:
        yield Doubt(sort="fewer", text=f"{len(run.step_numbers)} of {num_steps} steps were measured")
