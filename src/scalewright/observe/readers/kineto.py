"""Traces of PyTorch's profiler (Kineto): the time of each step of a rank, whatever the size of the file.

Times of different ranks are never compared with each other: clocks of hosts disagree. Lengths are.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from scalewright import units
from scalewright.observe.breakdown.steps import steps_of
from scalewright.observe.breakdown.sweep import num_devices, rank_times
from scalewright.observe.breakdown.timeline import TimelineBuilder, TraceTimeline
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Spot
from scalewright.observe.readers.event_scan import ScanResult, scan_events
from scalewright.observe.readers.source import Head, Source

_EVENT_KEYS = (b'"ph"', b'"ts"')
_RANK_IN_NAME = re.compile(r"rank[-_. ]?(\d{1,6})", re.IGNORECASE)
_STEP_IN_NAME = re.compile(r"step[-_. ]?(\d{1,9})", re.IGNORECASE)
_HOST_IN_NAME = re.compile(r"^(?P<host>[A-Za-z][\w.-]*?)_\d+\.\d{10,}\.pt\.trace\.json")
"""The name that `tensorboard_trace_handler` gives: host, process, time."""
CHUNK_BYTES = units.MIB
MOST_SPANS = 8_000_000
"""Of one file: more than 2 GB of a real trace. It bounds memory, also for packed files that expand without end."""


class KinetoReader:
    """Reads Chrome traces as PyTorch writes them, for a GPU or a CPU."""

    kind: ClassVar[str] = "kineto trace"

    def sees(self, head: Head) -> float:
        start = head.raw.lstrip(b"\xef\xbb\xbf \t\r\n")
        if start[:1] not in (b"{", b"["):
            return 0.0
        if start[:1] == b"{" and b'"traceEvents"' in head.raw:
            return 0.95
        if start[:1] == b"{" and b'"schemaVersion"' in head.raw and b'"deviceProperties"' in head.raw:
            return 0.9
        is_list = re.match(rb"\[\s*\{", start) is not None
        return 0.8 if is_list and all(key in head.raw for key in _EVENT_KEYS) else 0.0

    def read(self, source: Source, into: Evidence) -> None:
        result, builder = ScanResult(), TimelineBuilder()
        for event in scan_events(source.chunks(CHUNK_BYTES), result):
            builder.take(event)
            if builder.num_spans >= MOST_SPANS:
                source.problem(f"it has more than {MOST_SPANS:,} spans: the rest is left out; trace fewer steps")
                break
        line = builder.end()
        rank, is_stated = _rank(result.metadata, source.path, into)
        times = rank_times(line, rank=rank, spot=_spot(source, result, line), host=_host(result.metadata, source.path))
        for problem in _problems(result, line, num_times=len(times)):
            source.problem(problem)
        if len(times) == 1 and times[0].step is None and (match := _STEP_IN_NAME.search(source.path.name)):
            times = [replace(times[0], step=int(match.group(1)))]
        remark = _how_steps_are_marked(line) if times else ""
        if remark and remark not in into.notes:
            into.notes.append(remark)
        if times and not is_stated:
            into.notes.append(f"{source.name} does not say its rank: it is counted as rank {rank}.")
        into.add(times)
        _settings(result.metadata, source, into)


def _rank(metadata: dict[str, Any], path: Path, into: Evidence) -> tuple[int, bool]:
    """The rank that the trace states, else the one in the file's name, else the lowest that is free."""
    info = metadata.get("distributedInfo")
    stated = info.get("rank") if isinstance(info, dict) else None
    if isinstance(stated, str) and stated.isdecimal():
        stated = int(stated)
    if type(stated) is int and stated >= 0:
        return stated, True
    if match := _RANK_IN_NAME.search(path.name):
        return int(match.group(1)), True
    taken = {time.rank for time in into.rank_times}
    return next(rank for rank in range(len(taken) + 1) if rank not in taken), False


def _host(metadata: dict[str, Any], path: Path) -> str:
    if isinstance(stated := metadata.get("host_name"), str):
        return stated[:100]
    match = _HOST_IN_NAME.match(path.name)
    return match["host"] if match else ""


def _spot(source: Source, result: ScanResult, line: TraceTimeline) -> Spot:
    num_kernels = len(line.kernels) + len(line.collectives) + len(line.copies)
    what = f"{num_kernels} spans of a device" if line.has_device else f"{len(line.operators)} operators of the host"
    return Spot(file=source.name, text=f"{result.num_events} events, {what}")


def _problems(result: ScanResult, line: TraceTimeline, *, num_times: int) -> list[str]:
    """What was not understood, in sentences."""
    problems = []
    until = f" up to {line.last_s - line.first_s:.3g} s" if math.isfinite(line.last_s) else ""
    if result.is_truncated:
        problems.append(f"the file ends in the middle: {result.num_events} events{until} were read")
    if result.num_broken:
        problems.append(f"{result.num_broken} events are no JSON and were left out or repaired")
    if result.left_out:
        problems.append(f"these keys are no JSON or too long: {', '.join(result.left_out[:5])}")
    if line.num_without_time:
        problems.append(f"{line.num_without_time} events have no duration and count as none")
    if line.num_unclosed:
        problems.append(f"{line.num_unclosed} events begin and never end")
    if num_devices(line) > 1:
        problems.append(f"kernels of {num_devices(line)} devices in one trace: the busiest one is counted")
    if not num_times:
        problems.append(_why_nothing(result, line))
    return problems


def _how_steps_are_marked(line: TraceTimeline) -> str:
    """A remark where a trace has no annotation of its steps; empty where it has."""
    return {
        "optimizer": "Traces without ProfilerStep annotations: calls of the optimizer bound their steps.",
        "nothing": "Traces without ProfilerStep annotations: each counts as one step.",
    }.get(steps_of(line).marked_by, "")


def _why_nothing(result: ScanResult, line: TraceTimeline) -> str:
    if not result.has_events_key:
        return "there is no list of events in it"
    if len(line.launches):
        return "it has launches but no kernel: the device's part is missing, record with ProfilerActivity.CUDA"
    return "it has neither kernels nor operators"


def _settings(metadata: dict[str, Any], source: Source, into: Evidence) -> None:
    """What the trace says of its run: number of ranks, device, versions."""
    spot = Spot(file=source.name)
    info = metadata.get("distributedInfo")
    if isinstance(info, dict):
        if type(info.get("world_size")) is int:
            into.settings.setdefault("num_ranks", (str(info["world_size"]), spot))
        if isinstance(info.get("nccl_version"), str):
            into.versions.setdefault("nccl", info["nccl_version"])
    devices = metadata.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    if isinstance(name, str) and name:
        into.settings.setdefault("accelerator", (name, spot))
    for key in ("cuda_driver_version", "cuda_runtime_version", "hip_runtime_version"):
        if isinstance(value := metadata.get(key), int | str):
            into.versions.setdefault(key, str(value))
