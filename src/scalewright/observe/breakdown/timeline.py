"""The events of one rank's trace as columns: what ran on the device and on the host, and the phases around it.

A timeline is built event by event and holds some tens of bytes of each, whatever the event's arguments are.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright import units
from scalewright.observe.breakdown.intervals import Spans, spans_of
from scalewright.observe.breakdown.kernels import (
    CollectiveLabel,
    PhaseKind,
    collective_label,
    device_kind,
    is_dispatch,
    is_host_collective,
    is_launch,
    phase_of,
)  # fmt: skip

Event = Mapping[str, Any]
MOST_NAMES = 100_000
"""Distinct names that are kept apart; a file with more has random names."""
MOST_NAME_CHARS = 300
LARGEST_ID = 2**62
"""Larger correlation ids are Kineto's way to say none."""
NO_ID = -1
OTHER_NAMES = "other names"


class Names:
    """Numbers for texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        place = self._places.get(text)
        if place is None:
            if len(self.texts) >= MOST_NAMES:
                text = OTHER_NAMES
                if text in self._places:
                    return self._places[text]
            place = self._places[text] = len(self.texts)
            self.texts.append(text[:MOST_NAME_CHARS])
        return place


class Columns:
    """Spans with a name, a lane (stream or thread), a device and an id that links a kernel with its launch."""

    def __init__(self) -> None:
        self._starts, self._ends = array("d"), array("d")
        self._names, self._lanes, self._devices, self._links = array("i"), array("q"), array("i"), array("q")

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: float, end: float, name: int, *, lane: int = 0, device: int = 0, link: int = NO_ID) -> None:
        self._starts.append(start)
        self._ends.append(end)
        self._names.append(name)
        self._lanes.append(lane)
        self._devices.append(device)
        self._links.append(link)

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    @property
    def spans(self) -> Spans:
        return Spans(np.array(self._starts, dtype=np.float64), np.array(self._ends, dtype=np.float64))

    @property
    def names(self) -> NDArray[np.int64]:
        return np.array(self._names, dtype=np.int64)

    @property
    def lanes(self) -> NDArray[np.int64]:
        return np.array(self._lanes, dtype=np.int64)

    @property
    def devices(self) -> NDArray[np.int64]:
        return np.array(self._devices, dtype=np.int64)

    @property
    def links(self) -> NDArray[np.int64]:
        return np.array(self._links, dtype=np.int64)


@dataclass(slots=True)
class PhaseMarks:
    """Annotated times of one kind on the host or the device."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)

    def add(self, start: float, end: float, number: int, lane: int) -> None:
        self.spans.append((start, end))
        self.numbers.append(number)
        self.lanes.append(lane)


@dataclass(slots=True, kw_only=True)
class TraceTimeline:
    """What a trace says, in seconds of its own clock."""

    names: Names = field(default_factory=Names)
    kernels: Columns = field(default_factory=Columns)
    """Computing on the device."""
    copies: Columns = field(default_factory=Columns)
    collectives: Columns = field(default_factory=Columns)
    """Their name is a place in `labels`."""
    labels: list[CollectiveLabel] = field(default_factory=list)
    launches: Columns = field(default_factory=Columns)
    operators: Columns = field(default_factory=Columns)
    """Of the host, as long as no kernel is seen: with a device they say nothing of its time."""
    dispatches: Columns = field(default_factory=Columns)
    """Operators of the host that start collectives or wait for them; as long as no kernel is seen."""
    host_collectives: Columns = field(default_factory=Columns)
    phases: dict[PhaseKind, PhaseMarks] = field(default_factory=dict)
    device_phases: dict[PhaseKind, PhaseMarks] = field(default_factory=dict)
    num_without_time: int = 0
    """Events without a start, with a negative or endless duration, and ends without a beginning."""
    num_unclosed: int = 0
    """Beginnings without an end."""
    first_s: float = math.inf
    last_s: float = -math.inf

    @property
    def has_device(self) -> bool:
        return len(self.kernels) + len(self.copies) + len(self.collectives) > 0

    def phase_spans(self, kind: PhaseKind) -> Spans:
        phases = self.phases.get(kind)
        return spans_of([] if phases is None else phases.spans)


class TimelineBuilder:
    """Takes events in any order."""

    def __init__(self) -> None:
        self.timeline = TraceTimeline()
        self.num_spans = 0
        """Taken so far: what the timeline holds grows with it."""
        self._label_places: dict[CollectiveLabel, int] = {}
        self._label_cache: dict[tuple[object, ...], int] = {}
        self._open: dict[tuple[str, str], list[Event]] = {}
        self._lane_names = Names()
        self._take_by_category: dict[str, Callable[[Event, str, float, float], None]] = {
            **dict.fromkeys(("kernel", "Kernel", "gpu_op", "mtia_ccp_events"), self._device),
            **dict.fromkeys(("gpu_memcpy", "gpu_memset", "Memcpy", "Memset", "memcpy", "memset"), self._device),
            **dict.fromkeys(
                ("cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "xpu_runtime", "mtia_runtime",
                 "privateuse1_runtime", "glow_runtime"), self._runtime),
            **dict.fromkeys(("cpu_op", "Operator", "cpu_instant_event"), self._operator),
            "user_annotation": self._annotation,
            "gpu_user_annotation": self._device_annotation,
        }  # fmt: skip

    def take(self, event: Event) -> None:
        """One event. What is no span of a known category is passed over."""
        kind = event.get("ph")
        if kind == "X":
            self._whole(event)
        elif kind == "B":
            self.num_spans += 1
            self._open.setdefault(_thread(event), []).append(event)
        elif kind == "E":
            self._close(event)

    def end(self) -> TraceTimeline:
        self.timeline.num_unclosed = sum(len(events) for events in self._open.values())
        self._open.clear()
        return self.timeline

    def _close(self, event: Event) -> None:
        opened = self._open.get(_thread(event))
        begin, end = _number((opened[-1] if opened else event).get("ts")), _number(event.get("ts"))
        if not opened or begin is None or end is None:
            self.timeline.num_without_time += 1
            if opened:
                opened.pop()
            return
        first = opened.pop()
        args = {**_args(first), **_args(event)}
        self._whole({**first, "ph": "X", "dur": end - begin, "args": args})

    def _whole(self, event: Event) -> None:
        category = event.get("cat")
        take = self._take_by_category.get(category) if type(category) is str else None
        if take is None:
            return
        start = event.get("ts")
        length = event.get("dur", 0.0)
        if type(start) is not float and type(start) is not int:
            start = _number(start)
        if type(length) is not float and type(length) is not int:
            length = _number(length)
        if start is None or length is None or not 0.0 <= length < math.inf or not -math.inf < start < math.inf:
            self.timeline.num_without_time += 1
            return
        if "dur" not in event:
            self.timeline.num_without_time += 1
        self.num_spans += 1
        name = event.get("name")
        start_s = start * units.MICRO
        take(event, name if isinstance(name, str) else "", start_s, (start + length) * units.MICRO)

    def _seen(self, start_s: float, end_s: float) -> None:
        line = self.timeline
        line.first_s = min(line.first_s, start_s)
        line.last_s = max(line.last_s, end_s)

    def _device(self, event: Event, name: str, start_s: float, end_s: float) -> None:
        line, args = self.timeline, _args(event)
        if not line.has_device:
            line.operators.clear()
            line.dispatches.clear()
        self._seen(start_s, end_s)
        kind = device_kind(name) if event["cat"] not in _COPIES else "copy"
        stream = args.get("stream", event.get("tid"))
        lane, link = self._lane(stream), _id(args.get("correlation"))
        device = _id(args.get("device", event.get("pid")))
        columns = {"copy": line.copies, "communication": line.collectives}.get(kind, line.kernels)
        place = self._label(name, args, stream) if kind == "communication" else line.names.place(name)
        columns.add(start_s, end_s, place, lane=lane, device=device % 2**31, link=link)

    def _runtime(self, event: Event, name: str, start_s: float, end_s: float) -> None:
        if is_launch(name):
            self.timeline.launches.add(start_s, end_s, 0, link=_id(_args(event).get("correlation")))

    def _operator(self, event: Event, name: str, start_s: float, end_s: float) -> None:
        line = self.timeline
        if name.startswith(_OLD_ANNOTATIONS):
            self._annotation(event, name, start_s, end_s)
        elif is_host_collective(name):
            self._host_collective(event, name, start_s, end_s)
        elif not line.has_device:
            self._seen(start_s, end_s)
            if name.startswith("aten::") or name.startswith(("mkldnn::", "torchvision::", "fbgemm::")):
                line.operators.add(start_s, end_s, line.names.place(name), lane=self._lane(event.get("tid")))
            elif is_dispatch(name):
                line.dispatches.add(start_s, end_s, 0, lane=self._lane(event.get("tid")))

    def _annotation(self, event: Event, name: str, start_s: float, end_s: float) -> None:
        if is_host_collective(name):
            self._host_collective(event, name, start_s, end_s)
            return
        self._phase(self.timeline.phases, name, start_s, end_s, self._lane(event.get("tid")))

    def _device_annotation(self, event: Event, name: str, start_s: float, end_s: float) -> None:
        stream = _args(event).get("stream", event.get("tid"))
        self._phase(self.timeline.device_phases, name, start_s, end_s, self._lane(stream))

    def _phase(self, phases: dict[PhaseKind, PhaseMarks], name: str, start_s: float, end_s: float, lane: int) -> None:
        phase = phase_of(name)
        if phase is not None:
            self._seen(start_s, end_s)
            kind, number = phase
            phases.setdefault(kind, PhaseMarks()).add(start_s, end_s, number, lane)

    def _host_collective(self, event: Event, name: str, start_s: float, end_s: float) -> None:
        self._seen(start_s, end_s)
        lane = self._lane(event.get("tid"))
        self.timeline.host_collectives.add(start_s, end_s, self._label(name, _args(event), None), lane=lane)

    def _label(self, name: str, args: Mapping[str, Any], stream: object) -> int:
        key: tuple[object, ...] = (
            name, args.get("Collective name"), args.get("Process Group Description"), args.get("Process Group Name"),
            str(args.get("Process Group Ranks")), args.get("Group size"), stream,
        )  # fmt: skip
        try:
            place = self._label_cache.get(key)
        except TypeError:  # a list or an object where a text belongs
            key, place = (), None
        if place is None:
            label = collective_label(name, args, stream=stream)
            place = self._label_places.setdefault(label, len(self.timeline.labels))
            if place == len(self.timeline.labels):
                self.timeline.labels.append(label)
            if key and len(self._label_cache) < MOST_NAMES:
                self._label_cache[key] = place
        return place

    def _lane(self, lane: object) -> int:
        if type(lane) is int and 0 <= lane < LARGEST_ID:
            return lane
        return -2 - self._lane_names.place(str(lane))


_OLD_ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#")
"""Annotations that old traces list among the operators."""
_COPIES = {"gpu_memcpy", "gpu_memset", "Memcpy", "Memset", "memcpy", "memset"}


def _thread(event: Event) -> tuple[str, str]:
    return str(event.get("pid")), str(event.get("tid"))


def _args(event: Event) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _number(value: object) -> float | None:
    """Also of a text: some writers quote numbers."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _id(value: object) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:20])
    return value if type(value) is int and 0 <= value < LARGEST_ID else NO_ID
