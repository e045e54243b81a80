"""`bench convolution`: what the training step of a convolutional network calls, operator by operator.

Rows of convolutions: op (convolution), way (library; product: a 1x1 as a matrix product), precision, layout, batch,
channels_in, channels_out, kernel, in_size, out_size, count, direction (forward, input, weight), time_s, time_low_s,
time_high_s, repeats, flop_per_s. Of norms, activations and pooling: op (norm, activation, pool), precision, layout,
batch, channels_out, out_size, count, direction (forward, backward), bytes, times, bytes_per_s.

A tensor that fits a cache is found there: in a step, too, the operator before has just written it.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from scalewright.errors import ConfigError
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.device import make_bf16_products_work
from scalewright.run.metrics import MetricWriter
from scalewright.run.micro.captured import prepared, time_prepared
from scalewright.run.micro.convolution_calls import (
    ACTIVATION_PASSES,
    NORM_PASSES,
    POOL_PASSES,
    WAYS,
    Pixels,
    Setting,
    activation_calls,
    convolution_calls,
    norm_calls,
    operand_bytes,
    operands_of,
    pixels_of,
    pool_calls,
    way_of,
)
from scalewright.run.micro.free_memory import free_bytes
from scalewright.run.micro.precisions import available
from scalewright.run.micro.session import Session, run_micro
from scalewright.run.micro.timing import BATCH_S, Timing, Work
from scalewright.run.signals import StopSignals
from scalewright.run.vision.session import allow_tf32, search_kernels
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World
from scalewright.workload.convolution_run import ConvolutionCase, ConvolutionRun

MEMORY_FRAC = 0.5
"""Of the free memory that the operands of one call may take; the library's work space needs some as well."""
MOVING_FRAC = 0.2
"""Of a series' time that norms, activations and pooling may take."""
LEAST_CALLS = 3
"""Calls without which there is no figure: one to warm up, one that counts, and one to be on the safe side."""
SAFETY = 1.5
"""On what a case is expected to take: small ones have lower rates than large ones."""
TOO_SHORT = "the budget is too short"
DIRECTIONS, BOTH_WAYS = ("forward", "input", "weight"), ("forward", "backward")


def run(
    directory: RunDirectory, world: World, metrics: MetricWriter, stop: StopSignals, watchdog: Watchdog
) -> ExitCode:
    return run_micro("convolution", ConvolutionRun, measure_convolutions, directory, world, metrics, stop, watchdog)


def measure_convolutions(config: ConvolutionRun, session: Session) -> None:
    precisions = available(config.precisions, session, skips_missing=config.skips_missing)
    if session.device.type == "cpu" and set(precisions) & {"bf16", "fp16"}:
        done = make_bf16_products_work()
        if done is not None:
            session.note(done)
    series = [
        Setting(precision=precision, layout=layout, batch=config.batch, device=session.device)
        for precision in precisions
        for layout in config.layouts
    ]
    for setting in series:
        _wake_libraries(setting)
    session.begin()
    for number, setting in enumerate(series):
        until_s = session.left_s * (1.0 - 1.0 / (len(series) - number))
        allow_tf32(setting.precision == "tf32")
        search_kernels(setting.precision, session.device)
        if config.measures_norms:  # first: how long a search for kernels takes is known only afterwards
            kept_s = (1.0 - MOVING_FRAC) * (session.left_s - until_s)
            _measure_moving(config.cases, setting, session, until_s=until_s + kept_s)
        _measure_cases(config.cases, setting, session, until_s=until_s)
    if not session.rows:
        raise ConfigError("nothing could be measured: give a longer --budget, a smaller --batch or another --precision")
    session.summary["network"] = [_sum_of(config, setting, session.rows) for setting in series]


def _wake_libraries(setting: Setting) -> None:
    """Once in a process they load their kernels, which takes a second or two and is no call's own time."""
    setting = replace(setting, batch=1)
    case = ConvolutionCase(channels_in=8, channels_out=8, kernel=1, in_size=8, out_size=8)
    for way in WAYS:
        for call in convolution_calls(operands_of(case, setting), way).values():
            call()


@dataclass(slots=True, kw_only=True)
class Pace:
    """What calls of one kind took so far, to tell what others would; work is in operations or in bytes."""

    session: Session
    until_s: float
    """How much of the budget is for others."""
    num_left: int
    _num_done: int = 0
    _work_done: float = 0.0
    _each_ready_s: list[float] = field(default_factory=list)
    _called_s: float = 0.0

    @property
    def left_s(self) -> float:
        return self.session.left_s - self.until_s

    def allows(self, work: float, *, num: int = 1) -> bool:
        """Whether `num` calls with so much work together fit into the time; the first need not."""
        if self._num_done == 0:
            return self.left_s > 0.0
        least_s = LEAST_CALLS * self._called_s * work / self._work_done
        if self.session.device.type == "cuda":
            least_s += num * BATCH_S
        return SAFETY * (num * self._ready_s + least_s) <= self.left_s

    @property
    def _ready_s(self) -> float:
        """Before a call: the median, for one search that takes seconds says nothing about the others."""
        return statistics.median(self._each_ready_s) * len(self._each_ready_s) / self._num_done

    @contextlib.contextmanager
    def getting_ready(self) -> Iterator[None]:
        """Around what precedes the timing of calls: their operands, the search for kernels, the recording."""
        begun_s = time.monotonic()
        yield
        self._each_ready_s.append(time.monotonic() - begun_s)

    def pass_over(self, *, num: int = 1) -> None:
        self.num_left -= num

    def time(self, call: Work, work: float) -> Timing:
        """Get ready for a call, then time it with its share of what the others' getting ready will leave."""
        self.num_left -= 1
        with self.getting_ready():
            ready = prepared(call, self.session)
        self._num_done += 1
        self._work_done += work
        others_s = self.num_left * self._ready_s
        timing = time_prepared(ready, self.session, share_s=(self.left_s - others_s) / (self.num_left + 1))
        self._called_s += timing.time_s
        return timing


@contextlib.contextmanager
def _refusals_noted(words: str, session: Session) -> Iterator[None]:
    """What PyTorch or the memory refuses is left out; what was measured before stays."""
    try:
        yield
    except torch.OutOfMemoryError:
        session.leave_out(words, "it needs more memory than is free")
    except RuntimeError as error:
        first = (str(error).strip().splitlines() or [""])[0][:120]
        session.leave_out(words, f"PyTorch cannot do it here ({first})")


def _measure_cases(cases: tuple[ConvolutionCase, ...], setting: Setting, session: Session, *, until_s: float) -> None:
    """Those with the most work in the network first."""
    ordered = sorted(cases, key=lambda case: case.count * case.num_directions * case.flop_per_sample, reverse=True)
    pace = Pace(session=session, until_s=until_s, num_left=sum(case.num_directions for case in ordered))
    for case in ordered:
        words = f"{_words(case)} in {setting.precision}, channels {setting.layout}"
        flop = case.flop_per_sample * setting.batch
        why = ""
        if operand_bytes(case, setting) > MEMORY_FRAC * free_bytes(session.device):
            why = "its images need more than half of the free memory"
        elif not pace.allows(case.num_directions * flop, num=case.num_directions):
            why = TOO_SHORT
        if why:
            session.leave_out(words, why)
            pace.pass_over(num=case.num_directions)
            continue
        session.part(words)
        with _refusals_noted(words, session):
            _measure_case(case, setting, session, pace, words)


def _measure_case(case: ConvolutionCase, setting: Setting, session: Session, pace: Pace, words: str) -> None:
    """A row for each direction; of a first case that takes far longer than the time, only those that fit."""
    flop, way = case.flop_per_sample * setting.batch, way_of(case, setting)
    with pace.getting_ready():
        calls = convolution_calls(operands_of(case, setting), way)
    for direction, call in calls.items():
        if not pace.allows(flop):
            session.leave_out(f"{direction} of {words}", TOO_SHORT)
            pace.pass_over()
            continue
        with _refusals_noted(f"{direction} of {words}", session):
            timing = pace.time(call, flop)
            row: dict[str, Any] = {
                "op": "convolution", "way": way, "precision": setting.precision, "layout": setting.layout,
                "batch": setting.batch, "channels_in": case.channels_in, "channels_out": case.channels_out,
                "kernel": case.kernel, "in_size": case.in_size, "out_size": case.out_size, "count": case.count,
                "direction": direction, **timing.row(), "flop_per_s": flop / timing.time_s,
            }  # fmt: skip
            session.rows.append(row)


def _words(case: ConvolutionCase) -> str:
    stride = f" with stride {case.stride}" if case.stride > 1 else ""
    return (
        f"{case.kernel}x{case.kernel}{stride} from {case.channels_in} to {case.channels_out} channels, "
        f"{case.out_size} pixels"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """An operator that is bound by memory, forward and backward."""

    op: str
    pixels: Pixels
    count: int
    passes: Mapping[str, float]
    calls: Callable[[Pixels, Setting], dict[str, Work]]

    def moved_bytes(self, direction: str, setting: Setting) -> float:
        return self.passes[direction] * self.pixels.tensor_bytes(setting)


def _moving(cases: tuple[ConvolutionCase, ...]) -> list[Moving]:
    """Norms and activations of every size that is written, and the pooling that follows a strided first convolution."""
    found = []
    for pixels in pixels_of(cases):
        norm = Moving(op="norm", pixels=pixels, count=pixels.num_norms, passes=NORM_PASSES, calls=norm_calls)
        found.append(norm)
        if pixels.num_activations:
            count = pixels.num_activations
            found.append(replace(norm, op="activation", count=count, passes=ACTIVATION_PASSES, calls=activation_calls))
    stems = tuple(case for case in cases if not case.has_input_gradient and case.stride > 1)
    for pixels in pixels_of(stems)[:1]:
        found.append(Moving(op="pool", pixels=pixels, count=1, passes=POOL_PASSES, calls=pool_calls))
    return found


def _measure_moving(cases: tuple[ConvolutionCase, ...], setting: Setting, session: Session, *, until_s: float) -> None:
    """Those that move the most bytes in the network first."""

    def all_bytes(moving: Moving) -> float:
        return sum(moving.moved_bytes(direction, setting) for direction in BOTH_WAYS)

    ordered = sorted(_moving(cases), key=lambda moving: moving.count * all_bytes(moving), reverse=True)
    pace = Pace(session=session, until_s=until_s, num_left=len(BOTH_WAYS) * len(ordered))
    for moving in ordered:
        pixels = moving.pixels
        words = f"{moving.op} of {pixels.channels_out} channels, {pixels.out_size} pixels in {setting.precision}"
        if not pace.allows(all_bytes(moving), num=len(BOTH_WAYS)):
            session.leave_out(words, TOO_SHORT)
            pace.pass_over(num=len(BOTH_WAYS))
            continue
        session.part(words)
        with _refusals_noted(words, session):
            with pace.getting_ready():
                calls = moving.calls(pixels, setting)
            for direction, call in calls.items():
                moved_bytes = moving.moved_bytes(direction, setting)
                timing = pace.time(call, moved_bytes)
                row: dict[str, Any] = {
                    "op": moving.op, "precision": setting.precision, "layout": setting.layout, "batch": setting.batch,
                    "channels_out": pixels.channels_out, "out_size": pixels.out_size, "count": moving.count,
                    "direction": direction, "bytes": int(moved_bytes), **timing.row(),
                    "bytes_per_s": moved_bytes / timing.time_s,
                }  # fmt: skip
                session.rows.append(row)


def _sum_of(config: ConvolutionRun, setting: Setting, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds of a batch over the network; None where a part of the sum was not measured."""
    mine = [row for row in rows if (row["precision"], row["layout"]) == (setting.precision, setting.layout)]
    num_moving = Counter(moving.op for moving in _moving(config.cases))

    def sum_s(op: str, directions: tuple[str, ...], num: int) -> float | None:
        parts = [row["count"] * row["time_s"] for row in mine if row["op"] == op and row["direction"] in directions]
        return float(sum(parts)) if len(parts) == num else None

    num_input = sum(case.has_input_gradient for case in config.cases)
    num_calls = {"forward": len(config.cases), "input": num_input, "weight": len(config.cases)}
    convolutions_s = sum_s("convolution", DIRECTIONS, sum(num_calls.values()))
    done = [row for row in mine if row["op"] == "convolution"]
    done_flop = sum(row["count"] * row["flop_per_s"] * row["time_s"] for row in done)
    all_flop = sum(case.count * case.num_directions * case.flop_per_sample for case in config.cases) * setting.batch
    return {
        "precision": setting.precision,
        "layout": setting.layout,
        "batch": setting.batch,
        **{f"{way}_s": sum_s("convolution", (way,), num) for way, num in num_calls.items()},
        **{f"{op}_s": sum_s(op, BOTH_WAYS, 2 * num_moving[op]) for op in ("norm", "activation", "pool")},
        "convolution_images_per_s": setting.batch / convolutions_s if convolutions_s else None,
        "measured_frac": min(1.0, done_flop / all_flop),
    }
