"""`bench convolution`: times of the operators that a training step of a convolutional network calls.

Rows of convolutions: op (convolution), way (library; product: a 1x1 as a matrix product), precision, layout, batch,
channels_in, channels_out, kernel, in_size, out_size, count, direction (forward, input, weight), time_s, time_low_s,
time_high_s, repeats, flop_per_s. Of norms, activations and pooling: op (norm, activation, pool), precision, layout,
batch, channels_out, out_size, count, direction (forward, backward), bytes, times, bytes_per_s.

A tensor that fits in a cache may be cached. That is so in a step too: the operator before has just written it.
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
from scalewright.records.types import ExitCode
from scalewright.run.micro.captured import prepared, time_prepared
from scalewright.run.micro.convolution_calls import (
    ACTIVATION_PASSES,
    METHODS,
    NORM_PASSES,
    POOL_PASSES,
    Pixels,
    TensorSetting,
    activation_calls,
    convolution_calls,
    method_of,
    norm_calls,
    operand_bytes,
    operands_of,
    pixels_of,
    pool_calls,
)
from scalewright.run.micro.free_memory import free_bytes
from scalewright.run.micro.precisions import available
from scalewright.run.micro.session import BenchSession, run_micro
from scalewright.run.micro.timing import BATCH_S, Timing, Work
from scalewright.run.rank_context import RankContext
from scalewright.run.vision.session import allow_tf32, search_kernels
from scalewright.workload.convolution_run import ConvolutionCase, ConvolutionRun

MEMORY_FRAC = 0.5
"""Share of the free memory that the operands of one call may take; the library needs work space as well."""
MEMORY_BOUND_FRAC = 0.2
"""Share of a series' time for norms, activations and pooling."""
MIN_CALLS = 3
"""Calls that a figure needs at least: one to warm up, one that counts, and one in reserve."""
SAFETY = 1.5
"""Factor on the expected time of a case: small cases have lower rates than large ones."""
TOO_SHORT = "the budget is too short"
DIRECTIONS, PASSES = ("forward", "input", "weight"), ("forward", "backward")


def run(rank: RankContext) -> ExitCode:
    return run_micro("convolution", ConvolutionRun, measure_convolutions, rank)


def measure_convolutions(config: ConvolutionRun, session: BenchSession) -> None:
    precisions = available(config.precisions, session, skips_missing=config.skips_missing)
    session.prepare_cpu(precisions)
    series = [
        TensorSetting(precision=precision, layout=layout, batch=config.batch, device=session.device)
        for precision in precisions
        for layout in config.layouts
    ]
    for setting in series:
        _wake_libraries(setting)
    session.begin()
    for number, setting in enumerate(series):
        until_s = session.budget.left_s * (1.0 - 1.0 / (len(series) - number))
        allow_tf32(setting.precision == "tf32")
        search_kernels(setting.precision, session.device)
        if config.measures_norms:  # first: the time of a search for kernels is known only afterwards
            kept_s = (1.0 - MEMORY_BOUND_FRAC) * (session.budget.left_s - until_s)
            _measure_memory_bound(config.cases, setting, session, until_s=until_s + kept_s)
        _measure_cases(config.cases, setting, session, until_s=until_s)
    if not session.rows:
        raise ConfigError(
            "no operator could be measured: give a longer --budget, a smaller --batch or another --precision"
        )
    session.summary["network"] = [_sum_of(config, setting, session.rows) for setting in series]


def _wake_libraries(setting: TensorSetting) -> None:
    """Let the libraries load their kernels: once per process, a second or two that belong to no call."""
    setting = replace(setting, batch=1)
    case = ConvolutionCase(channels_in=8, channels_out=8, kernel=1, in_size=8, out_size=8)
    for method in METHODS:
        for call in convolution_calls(operands_of(case, setting), method).values():
            call()


@dataclass(slots=True, kw_only=True)
class Pace:
    """Times of the calls of one kind so far, to predict those of others. Work is in operations or in bytes."""

    session: BenchSession
    until_s: float
    """How much of the budget is reserved for others."""
    num_left: int
    _num_done: int = 0
    _work_done: float = 0.0
    _preparations_s: list[float] = field(default_factory=list)
    _called_s: float = 0.0

    @property
    def left_s(self) -> float:
        return self.session.budget.left_s - self.until_s

    def allows(self, work: float, *, num: int = 1) -> bool:
        """Whether `num` calls with this total work fit into the time. The first calls are always allowed."""
        if self._num_done == 0:
            return self.left_s > 0.0
        least_s = MIN_CALLS * self._called_s * work / self._work_done
        if self.session.device.type == "cuda":
            least_s += num * BATCH_S
        return SAFETY * (num * self._preparation_s + least_s) <= self.left_s

    @property
    def _preparation_s(self) -> float:
        """Preparation time of a call, from the median: one search may take seconds, and others do not."""
        return statistics.median(self._preparations_s) * len(self._preparations_s) / self._num_done

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Use around preparations of calls: making operands, searching for kernels, recording."""
        begun_s = time.monotonic()
        yield
        self._preparations_s.append(time.monotonic() - begun_s)

    def skip(self, *, num: int = 1) -> None:
        self.num_left -= num

    def time(self, call: Work, work: float) -> Timing:
        """Prepare a call, then time it with its share of the time that the other preparations leave."""
        self.num_left -= 1
        with self.preparing():
            prepared_call = prepared(call, self.session)
        self._num_done += 1
        self._work_done += work
        others_s = self.num_left * self._preparation_s
        timing = time_prepared(prepared_call, self.session, share_s=(self.left_s - others_s) / (self.num_left + 1))
        self._called_s += timing.time_s
        return timing


@contextlib.contextmanager
def _noting_refusals(words: str, session: BenchSession) -> Iterator[None]:
    """Leave out and note what PyTorch or the memory refuses; earlier measurements stay."""
    try:
        yield
    except torch.OutOfMemoryError:
        session.leave_out(words, "it needs more memory than is free")
    except RuntimeError as error:
        first = (str(error).strip().splitlines() or [""])[0][:120]
        session.leave_out(words, f"PyTorch cannot do it here ({first})")


def _measure_cases(
    cases: tuple[ConvolutionCase, ...], setting: TensorSetting, session: BenchSession, *, until_s: float
) -> None:
    """Measure all cases, those with the most work in the network first."""
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
            pace.skip(num=case.num_directions)
            continue
        session.part(words)
        with _noting_refusals(words, session):
            _measure_case(case, setting, session, pace, words)


def _measure_case(case: ConvolutionCase, setting: TensorSetting, session: BenchSession, pace: Pace, words: str) -> None:
    """Add a row for each direction; if the time is too short, only for those that fit."""
    flop, method = case.flop_per_sample * setting.batch, method_of(case, setting)
    with pace.preparing():
        calls = convolution_calls(operands_of(case, setting), method)
    for direction, call in calls.items():
        if not pace.allows(flop):
            session.leave_out(f"{direction} of {words}", TOO_SHORT)
            pace.skip()
            continue
        with _noting_refusals(f"{direction} of {words}", session):
            timing = pace.time(call, flop)
            row: dict[str, Any] = {
                "op": "convolution", "way": method, "precision": setting.precision, "layout": setting.layout,
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
class MemoryBound:
    """An operator whose time is bound by memory, forward and backward."""

    op: str
    pixels: Pixels
    count: int
    passes: Mapping[str, float]
    calls: Callable[[Pixels, TensorSetting], dict[str, Work]]

    def moved_bytes(self, direction: str, setting: TensorSetting) -> float:
        return self.passes[direction] * self.pixels.tensor_bytes(setting)


def _memory_bound(cases: tuple[ConvolutionCase, ...]) -> list[MemoryBound]:
    """Norms and activations of every output size, and the pooling after a strided first convolution."""
    operators = []
    for pixels in pixels_of(cases):
        norm = MemoryBound(op="norm", pixels=pixels, count=pixels.num_norms, passes=NORM_PASSES, calls=norm_calls)
        operators.append(norm)
        if pixels.num_activations:
            count = pixels.num_activations
            operators.append(
                replace(norm, op="activation", count=count, passes=ACTIVATION_PASSES, calls=activation_calls)
            )
    stems = tuple(case for case in cases if not case.has_input_gradient and case.stride > 1)
    for pixels in pixels_of(stems)[:1]:
        operators.append(MemoryBound(op="pool", pixels=pixels, count=1, passes=POOL_PASSES, calls=pool_calls))
    return operators


def _measure_memory_bound(
    cases: tuple[ConvolutionCase, ...], setting: TensorSetting, session: BenchSession, *, until_s: float
) -> None:
    """Measure memory-bound operators, those that move the most bytes in the network first."""

    def all_bytes(operator: MemoryBound) -> float:
        return sum(operator.moved_bytes(direction, setting) for direction in PASSES)

    ordered = sorted(_memory_bound(cases), key=lambda operator: operator.count * all_bytes(operator), reverse=True)
    pace = Pace(session=session, until_s=until_s, num_left=len(PASSES) * len(ordered))
    for operator in ordered:
        pixels = operator.pixels
        words = f"{operator.op} of {pixels.channels_out} channels, {pixels.out_size} pixels in {setting.precision}"
        if not pace.allows(all_bytes(operator), num=len(PASSES)):
            session.leave_out(words, TOO_SHORT)
            pace.skip(num=len(PASSES))
            continue
        session.part(words)
        with _noting_refusals(words, session):
            with pace.preparing():
                calls = operator.calls(pixels, setting)
            for direction, call in calls.items():
                moved_bytes = operator.moved_bytes(direction, setting)
                timing = pace.time(call, moved_bytes)
                row: dict[str, Any] = {
                    "op": operator.op, "precision": setting.precision, "layout": setting.layout, "batch": setting.batch,
                    "channels_out": pixels.channels_out, "out_size": pixels.out_size, "count": operator.count,
                    "direction": direction, "bytes": int(moved_bytes), **timing.row(),
                    "bytes_per_s": moved_bytes / timing.time_s,
                }  # fmt: skip
                session.rows.append(row)


def _sum_of(config: ConvolutionRun, setting: TensorSetting, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Times of one batch through the network; None where a part of the sum was not measured."""
    own_rows = [row for row in rows if (row["precision"], row["layout"]) == (setting.precision, setting.layout)]
    num_memory_bound = Counter(operator.op for operator in _memory_bound(config.cases))

    def sum_s(op: str, directions: tuple[str, ...], num: int) -> float | None:
        parts = [row["count"] * row["time_s"] for row in own_rows if row["op"] == op and row["direction"] in directions]
        return float(sum(parts)) if len(parts) == num else None

    num_input = sum(case.has_input_gradient for case in config.cases)
    num_calls = {"forward": len(config.cases), "input": num_input, "weight": len(config.cases)}
    convolutions_s = sum_s("convolution", DIRECTIONS, sum(num_calls.values()))
    done = [row for row in own_rows if row["op"] == "convolution"]
    done_flop = sum(row["count"] * row["flop_per_s"] * row["time_s"] for row in done)
    all_flop = sum(case.count * case.num_directions * case.flop_per_sample for case in config.cases) * setting.batch
    return {
        "precision": setting.precision,
        "layout": setting.layout,
        "batch": setting.batch,
        **{f"{direction}_s": sum_s("convolution", (direction,), num) for direction, num in num_calls.items()},
        **{f"{op}_s": sum_s(op, PASSES, 2 * num_memory_bound[op]) for op in ("norm", "activation", "pool")},
        "convolution_images_per_s": setting.batch / convolutions_s if convolutions_s else None,
        "measured_frac": min(1.0, done_flop / all_flop),
    }
