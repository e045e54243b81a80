"""The time of each step of a rank, by one sweep over everything that its timeline holds.

Between two neighbouring times nothing begins and nothing ends, so each slice has one part. Of a device:

1. validation: inside its annotation, whatever runs
2. compute: some kernel that is no collective runs (communication beside it is overlapped)
3. exposed communication: a collective runs and no other kernel
4. checkpoint: the host is inside its annotation, and the device computes and exchanges nothing
5. memory copy: only copies run
6. data: the device runs nothing, and the host waits for its loader
7. idle: the device runs nothing; idle after which a kernel starts that was launched during it is the host's

A trace without a device shows the host's operators: there the phases of the host come first (a loader and a checkpoint
run operators themselves), and a thread that waits inside of an operator of the distributed package does not compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalewright.observe.breakdown.intervals import (
    EMPTY,
    Flags,
    Floats,
    Spans,
    TimeGrid,
    innermost,
    joined,
    merged,
    spans_of,
)
from scalewright.observe.breakdown.kernels import compute_kind, copy_way
from scalewright.observe.breakdown.steps import Steps, launch_times, steps_of
from scalewright.observe.breakdown.timeline import Columns, TraceTimeline
from scalewright.observe.evidence.facts import RankTime, Spot

NUM_TOP_KERNELS = 12
MOST_CALLS = 20_000
"""Calls of one collective in one step whose times are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Swept:
    """The slices of a timeline: the part of each, and the window that it is in."""

    grid: TimeGrid
    window: NDArray[np.int64]
    steps: Steps
    validation: Flags
    compute: Flags
    communication: Flags

    def per_step(self, chosen: Flags, weights: Floats | None = None) -> Floats:
        """Seconds of the chosen slices in each step."""
        inside = chosen & (self.window >= 0)
        lengths = self.grid.lengths if weights is None else weights
        sums = np.bincount(self.window[inside], weights=lengths[inside], minlength=len(self.steps.windows))
        return sums.astype(np.float64)


def rank_times(line: TraceTimeline, *, rank: int, spot: Spot, host: str = "") -> list[RankTime]:
    """One for each step of the trace; none where it shows neither a device nor operators.

    Launches without kernels are a device whose part is missing: its host's operators are not its time.
    """
    steps = steps_of(line)
    if not len(steps.windows) or not (line.has_device or (len(line.operators) and not len(line.launches))):
        return []
    line_device = _main_device(line)
    busy = _Busy.of_device(line, line_device) if line.has_device else _Busy.of_host(line)
    return list(_rank_times(line, steps, busy, rank=rank, spot=spot, host=host))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Busy:
    """What ran, where times are counted: on the device, or in the operators of a host."""

    compute: Spans
    compute_names: NDArray[np.int64]
    optimizer: Flags
    """Of each kernel: whether it updates weights."""
    copies: Spans
    copy_names: NDArray[np.int64]
    collectives: Spans
    collective_labels: NDArray[np.int64]
    blocked: Spans
    on_device: bool

    @classmethod
    def of_device(cls, line: TraceTimeline, device: int) -> _Busy:
        kernels, copies, collectives = (_of(one, device) for one in (line.kernels, line.copies, line.collectives))
        return cls(
            compute=kernels.spans, compute_names=kernels.names, optimizer=_updates(line, kernels),
            copies=copies.spans, copy_names=copies.names, collectives=collectives.spans,
            collective_labels=collectives.names, blocked=EMPTY, on_device=True,
        )  # fmt: skip

    @classmethod
    def of_host(cls, line: TraceTimeline) -> _Busy:
        spans, places = innermost(line.operators.spans, line.operators.lanes)
        names = line.operators.names[places]
        update = line.phase_spans("optimizer")
        optimizer = _starts_inside(spans.starts, update) if len(update) else _named_updates(line, names)
        return cls(
            compute=spans, compute_names=names, optimizer=optimizer, copies=EMPTY,
            copy_names=np.empty(0, dtype=np.int64),
            collectives=line.host_collectives.spans, collective_labels=line.host_collectives.names,
            blocked=line.dispatches.spans, on_device=False,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Kept:
    """Columns of one device."""

    spans: Spans
    names: NDArray[np.int64]
    lanes: NDArray[np.int64]
    links: NDArray[np.int64]


def _of(columns: Columns, device: int) -> _Kept:
    chosen = columns.devices == device
    return _Kept(columns.spans.where(chosen), columns.names[chosen], columns.lanes[chosen], columns.links[chosen])


def num_devices(line: TraceTimeline) -> int:
    return len(np.unique(line.kernels.devices))


def _main_device(line: TraceTimeline) -> int:
    """A process drives one device; where a trace has several, the one that computes most."""
    columns = line.kernels if len(line.kernels) else line.collectives if len(line.collectives) else line.copies
    if not len(columns):
        return 0
    spans = columns.spans
    devices, places = np.unique(columns.devices, return_inverse=True)  # a damaged trace may have number 2^31 - 1
    return int(devices[np.argmax(np.bincount(places, weights=spans.ends - spans.starts))])


def _starts_inside(times: Floats, phases: Spans) -> Flags:
    windows = merged(phases)
    if not len(windows):
        return np.zeros(len(times), dtype=np.bool_)
    place = np.searchsorted(windows.starts, times, side="right") - 1
    return (place >= 0) & (times < windows.ends[np.maximum(place, 0)])


def _updates(line: TraceTimeline, kernels: _Kept) -> Flags:
    """Kernels of the optimizer: launched inside of its annotation, else inside of the device's, else by their name."""
    host = line.phase_spans("optimizer")
    launched = launch_times(line, kernels.links)
    if len(host) and not np.isnan(launched).all():
        return _starts_inside(np.nan_to_num(launched, nan=-np.inf), host)
    marked = line.device_phases.get("optimizer")
    if marked is not None:
        return _starts_inside(kernels.spans.starts, spans_of(marked.spans))
    return _named_updates(line, kernels.names)


def _named_updates(line: TraceTimeline, names: NDArray[np.int64]) -> Flags:
    named = np.array([compute_kind(name) == "optimizer" for name in line.names.texts], dtype=np.bool_)
    return named[names] if len(named) else np.zeros(len(names), dtype=np.bool_)


def _sweep(line: TraceTimeline, steps: Steps, busy: _Busy) -> tuple[_Swept, dict[str, Flags]]:
    phases = {kind: line.phase_spans(kind) for kind in ("validation", "checkpoint", "data")}
    update = line.phase_spans("optimizer")
    sets = (busy.compute, busy.copies, busy.collectives, busy.blocked, update, steps.windows, *phases.values())
    grid = TimeGrid(*(one for one in sets if len(one)))
    validation, checkpoint, data = (grid.active(spans) for spans in phases.values())
    computing, talking = grid.active(busy.compute), grid.active(busy.collectives)
    if busy.on_device:
        compute = computing & ~validation
        exposed = talking & ~computing & ~validation
        rest = ~(compute | exposed | validation)
        saving = rest & checkpoint
        copying = rest & ~saving & grid.active(busy.copies)
        waiting = rest & ~saving & ~copying & data
    else:
        saving = checkpoint & ~validation
        waiting = data & ~validation & ~saving
        free = ~(validation | saving | waiting)
        compute = free & computing & ~grid.active(busy.blocked)
        exposed = free & talking & ~compute
        copying = np.zeros(len(grid.lengths), dtype=np.bool_)
    idle = ~(validation | compute | exposed | saving | copying | waiting)
    swept = _Swept(
        grid=grid, window=grid.windows(steps.windows), steps=steps, validation=validation, compute=compute,
        communication=talking,
    )  # fmt: skip
    return swept, {
        "compute_s": compute, "exposed_communication_s": exposed, "overlapped_communication_s": compute & talking,
        "data_s": waiting, "idle_s": idle, "memory_copy_s": copying, "checkpoint_s": saving, "validation_s": validation,
    }  # fmt: skip


def _rank_times(
    line: TraceTimeline, steps: Steps, busy: _Busy, *, rank: int, spot: Spot, host: str
) -> Iterator[RankTime]:
    swept, parts = _sweep(line, steps, busy)
    seconds = {name: swept.per_step(flags) for name, flags in parts.items()}
    total, exposed = _by_collective(line, swept, busy, parts["exposed_communication_s"])
    kinds = _by_kind(line, swept, busy)
    updating = swept.per_step(swept.compute & swept.grid.active(busy.compute.where(busy.optimizer)))
    launch_idle = _launch_idle(line, swept, busy, parts["idle_s"])
    calls, exposed_calls = _calls(line, swept, busy, parts["exposed_communication_s"])
    kernel_window = _window_of(busy.compute.starts, steps.windows)
    lengths = busy.compute.ends - busy.compute.starts
    copied = swept.per_step(swept.grid.active(busy.copies))
    updates = swept.per_step(parts["idle_s"] & swept.grid.active(line.phase_spans("optimizer")))
    copy_window = _window_of(busy.copies.starts, steps.windows)
    for place, number in enumerate(steps.numbers):
        mine = kernel_window == place
        num = int(np.count_nonzero(mine)) if busy.on_device else 0
        yield RankTime(
            rank=rank, spot=spot, step=number, host=host, is_traced=True, on_device=busy.on_device,
            step_s=float(steps.windows.ends[place] - steps.windows.starts[place]),
            **{name: float(values[place]) for name, values in seconds.items()},
            optimizer_s=float(updating[place]),
            by_collective_s={key: float(values[place]) for key, values in total.items() if values[place] > 0.0},
            exposed_by_collective_s={key: float(v[place]) for key, v in exposed.items() if v[place] > 0.0},
            by_kind_s={key: float(values[place]) for key, values in kinds.items() if values[place] > 0.0},
            num_kernels=num, mean_kernel_s=float(np.mean(lengths[mine])) if num else None,
            top_kernels_s=_top(line, busy.compute_names[mine], lengths[mine]) if busy.on_device else {},
            launch_idle_s=None if launch_idle is None else float(launch_idle[place]),
            copied_s=float(copied[place]), by_copy_s=_by_copy(line, busy, copy_window == place),
            host_optimizer_s=float(updates[place]) if busy.on_device else 0.0,
            calls_s=calls[place], exposed_calls_s=exposed_calls[place], group_ranks=_group_ranks(line),
        )  # fmt: skip


def _by_collective(
    line: TraceTimeline, swept: _Swept, busy: _Busy, exposed: Flags
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Time in which each collective ran, and its share of the exposed time; two at once share it evenly."""
    keys = _keys(line)
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    active = {
        key: swept.grid.active(busy.collectives.where(np.isin(busy.collective_labels, own)))
        for key, own in places.items()
    }
    num = np.zeros(len(swept.grid.lengths))
    for flags in active.values():
        num += flags
    share = swept.grid.lengths / np.maximum(num, 1.0)
    total = {key: swept.per_step(flags & ~swept.validation) for key, flags in active.items()}
    alone = {key: swept.per_step(flags & exposed, share) for key, flags in active.items()}
    return total, alone


def _keys(line: TraceTimeline) -> list[str]:
    return [f"{label.name}/{label.group}" if label.group else label.name for label in line.labels]


def _group_ranks(line: TraceTimeline) -> dict[str, tuple[int, ...]]:
    return {label.group: label.ranks for label in line.labels if label.group and label.ranks}


def _by_copy(line: TraceTimeline, busy: _Busy, mine: Flags) -> dict[str, float]:
    """Sums by direction."""
    sums: dict[str, float] = {}
    lengths = busy.copies.ends[mine] - busy.copies.starts[mine]
    for place, seconds in enumerate(np.bincount(busy.copy_names[mine], weights=lengths).tolist()):
        if seconds > 0.0:
            way = copy_way(line.names.texts[place])
            sums[way] = sums.get(way, 0.0) + seconds
    return sums


def _by_kind(line: TraceTimeline, swept: _Swept, busy: _Busy) -> dict[str, Floats]:
    """Computing by the planner's terms; kernels of several kinds at once share the time evenly."""
    kinds = np.array([compute_kind(name) for name in line.names.texts], dtype=np.str_)
    if not len(busy.compute):
        return {}
    own = np.where(busy.optimizer, "optimizer", kinds[busy.compute_names])
    own = np.where(~busy.optimizer & (own == "optimizer"), "elementwise", own)
    active = {str(kind): swept.grid.active(busy.compute.where(own == kind)) for kind in np.unique(own)}
    num = np.zeros(len(swept.grid.lengths))
    for flags in active.values():
        num += flags
    share = swept.grid.lengths / np.maximum(num, 1.0)
    return {kind: swept.per_step(flags & swept.compute, share) for kind, flags in active.items()}


def _launch_idle(line: TraceTimeline, swept: _Swept, busy: _Busy, idle: Flags) -> Floats | None:
    """Idle time of the device that its host caused: the next kernel was launched after the idle time had begun.

    None where the trace has no launches.
    """
    columns = (line.kernels, line.copies, line.collectives)
    links, starts = np.concatenate([one.links for one in columns]), joined(*(one.spans for one in columns)).starts
    launched = launch_times(line, links)
    known = ~np.isnan(launched)
    if not busy.on_device or not known.any():
        return None
    order = np.argsort(starts[known], kind="stable")
    starts, launched = starts[known][order], launched[known][order]
    times = swept.grid.times
    begins = np.flatnonzero(idle & ~np.concatenate(([False], idle[:-1])))
    ends = np.flatnonzero(idle & ~np.concatenate((idle[1:], [False]))) + 1
    following = np.searchsorted(starts, times[ends], side="left")
    late = following < len(starts)
    late[late] = launched[following[late]] >= times[begins[late]]
    late |= following == len(starts)  # nothing is launched any more: the host works, or the trace ends
    edges = np.zeros(len(times), dtype=np.int64)
    np.add.at(edges, begins[late], 1)
    np.add.at(edges, ends[late], -1)
    return swept.per_step(np.cumsum(edges)[:-1] > 0)


def _window_of(times: Floats, windows: Spans) -> NDArray[np.int64]:
    place = np.searchsorted(windows.starts, times, side="right") - 1
    inside = (place >= 0) & (times < windows.ends[np.maximum(place, 0)])
    return np.where(inside, place, -1).astype(np.int64)


CallTable = dict[str, tuple[float, ...]]


def _calls(line: TraceTimeline, swept: _Swept, busy: _Busy, exposed: Flags) -> tuple[list[CallTable], list[CallTable]]:
    """Of each step: how long each call of a collective took and what of it was exposed, in order.

    Ranks are compared call by call with it.
    """
    steps = swept.steps
    tables: tuple[list[CallTable], list[CallTable]] = ([{} for _ in steps.numbers], [{} for _ in steps.numbers])
    spans, keys = busy.collectives, np.array(_keys(line), dtype=np.str_)
    if not len(spans):
        return tables
    window = _window_of(spans.starts, steps.windows)
    order = np.argsort(spans.starts, kind="stable")
    until = np.concatenate(([0.0], np.cumsum(np.where(exposed, swept.grid.lengths, 0.0))))  # exposed up to each time
    times = swept.grid.times
    alone = until[np.searchsorted(times, spans.ends)] - until[np.searchsorted(times, spans.starts)]
    own = keys[busy.collective_labels]
    for key in np.unique(own):
        rows = order[own[order] == key]
        for place in range(len(steps.numbers)):
            mine = rows[window[rows] == place]
            if 0 < len(mine) <= MOST_CALLS:
                tables[0][place][str(key)] = tuple((spans.ends - spans.starts)[mine].tolist())
                tables[1][place][str(key)] = tuple(alone[mine].tolist())
    return tables


def _top(line: TraceTimeline, names: NDArray[np.int64], lengths: Floats) -> dict[str, float]:
    sums = np.bincount(names, weights=lengths) if len(names) else np.zeros(0)
    order = np.argsort(-sums, kind="stable")[:NUM_TOP_KERNELS]
    return {line.names.texts[place]: float(sums[place]) for place in order if sums[place] > 0.0}
