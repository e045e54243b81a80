"""Record each step of a benchmark in the run directory: time, rates, and the parts of the time in profiled steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.profiler import profile

from scalewright.records import metric_names as names
from scalewright.run.breakdown import TimedStep, profiler, split_step
from scalewright.run.host_use import HostUse
from scalewright.run.peak_memory import peak_memory_bytes
from scalewright.run.rank_context import RankContext
from scalewright.run.saves import Saves


@dataclass(slots=True)
class StepClock:
    """Times of a running step. The caller sets how long it waited for data."""

    trace: profile | None
    started_s: float = 0.0
    wall_s: float = 0.0
    thread_cpu_s: float = 0.0
    data_wait_s: float = 0.0
    own_s: float | None = None
    """Until this rank had its own gradients; None: not measured."""
    core_wait_s: float | None = None


class StepLog:
    """Times and records the steps of one rank."""

    def __init__(
        self,
        *,
        rank: RankContext,
        saves: Saves,
        device: torch.device,
        keep_trace: bool,
        records_shapes: bool = False,
    ) -> None:
        self._records_shapes = records_shapes
        self._rank, self._saves, self._device, self._keep_trace = rank, saves, device, keep_trace
        self._peak_flop_per_s = rank.directory.peak_flop_per_s()
        self._host = HostUse(rank.metrics, device)
        self.timed: list[TimedStep] = []
        """Steps since this process started that were neither profiled nor delayed by a checkpoint."""

    def write(self, step: int, name: str, value: float) -> None:
        self._rank.metrics.write(step=step, name=name, value=value, unit=names.UNITS[name])

    @contextlib.contextmanager
    def timing(self, *, is_profiled: bool, step: int = 0) -> Iterator[StepClock]:
        """Time the body of the `with`. It must wait for the device before it ends. A trace names the step."""
        self._saves.held_s = 0.0
        with (
            profiler(self._device, records_shapes=self._records_shapes)
            if is_profiled
            else contextlib.nullcontext() as trace
        ):
            waited_s = self._host.waited_s()
            clock, cpu_started_s = StepClock(trace, time.perf_counter()), time.thread_time()
            with torch.profiler.record_function(f"ProfilerStep#{step}") if is_profiled else contextlib.nullcontext():
                yield clock
            clock.wall_s = time.perf_counter() - clock.started_s
            clock.thread_cpu_s = time.thread_time() - cpu_started_s
            now_s = self._host.waited_s()
            clock.core_wait_s = None if now_s is None or waited_s is None else max(now_s - waited_s, 0.0)

    def done(
        self,
        step: int,
        clock: StepClock,
        *,
        loss: float,
        device_flop: float,
        others: Mapping[str, float],
        counts: bool = True,
    ) -> None:
        """Record a step, with metrics of this benchmark in `others`. Without `counts`, it is left out of `timed`."""
        flop_per_s = device_flop / clock.wall_s
        self.write(step, names.STEP_TIME, clock.wall_s)
        self.write(step, names.LOSS, loss)
        for name, value in others.items():
            self.write(step, name, value)
        self.write(step, names.FLOP_PER_S, flop_per_s)
        if self._peak_flop_per_s is not None:
            self.write(step, names.MFU, flop_per_s / self._peak_flop_per_s)
        self.write(step, names.PEAK_MEMORY, peak_memory_bytes(self._device))
        if clock.own_s is not None:
            self.write(step, names.OWN_TIME, clock.own_s)
        if clock.core_wait_s is not None:
            self.write(step, names.CORE_WAIT, clock.core_wait_s)
        self._host.check(step=step)
        self._rank.watchdog.step_done(
            step=step, seconds_s=clock.wall_s, loss=loss, flop_per_s=flop_per_s, peak_flop_per_s=self._peak_flop_per_s
        )
        if self._saves.held_s:
            self.write(step, names.CHECKPOINT_BLOCK, self._saves.held_s)
        self._split(step, clock, counts=counts)

    def _split(self, step: int, clock: StepClock, *, counts: bool) -> None:
        timed = TimedStep(
            step=step, wall_s=clock.wall_s, thread_cpu_s=clock.thread_cpu_s, data_wait_s=clock.data_wait_s
        )
        if clock.trace is None:
            self.write(step, names.DATA_WAIT, clock.data_wait_s)
            if counts and not self._saves.is_writing and not self._saves.held_s:
                self.timed.append(timed)
            return
        split = split_step(clock.trace, self.timed or [timed], device=self._device)
        self.write(step, names.DATA_WAIT, split.data_wait_s)
        self.write(step, names.COMPUTE_TIME, split.compute_s)
        self.write(step, names.COMMUNICATION_TIME, split.communication_s)
        self.write(step, names.IDLE_TIME, split.idle_s)
        if self._keep_trace:
            path = self._rank.directory.trace(rank=self._rank.world.rank, step=step)
            path.parent.mkdir(exist_ok=True)
            clock.trace.export_chrome_trace(str(path))
