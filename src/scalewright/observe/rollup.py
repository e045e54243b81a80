"""Per-minute roll-up of a run's events: p50, p95 and mean of every metric, over all ranks or nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain

import numpy as np

from scalewright.records import metric_names as names
from scalewright.records.documents import schema, write_text
from scalewright.records.events import Event, read_events
from scalewright.records.run_directory import RunDirectory
from scalewright.units import MINUTE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupRow:
    """One metric in one minute."""

    minute: int
    """Minutes since 1970, UTC."""
    name: str
    unit: str
    num: int
    p50: float
    p95: float
    mean: float


def rollup(events: Iterator[Event]) -> list[RollupRow]:
    """Rows in the order of time, then name. A counter is rolled up as its growth per second."""
    values: dict[tuple[int, str, str], list[float]] = {}
    last: dict[tuple[str, str, str], Event] = {}
    for event in events:
        if event.value is None or event.name.startswith(names.EVENT_PREFIX):
            continue
        value, unit = event.value, event.unit
        if event.name in names.COUNTERS:
            key = (event.name, event.host, event.detail)
            before, last[key] = last.get(key), event
            if before is None or before.value is None or before.job != event.job or event.time <= before.time:
                continue
            value, unit = (event.value - before.value) / (event.time - before.time), f"{event.unit}/s"
            if value < 0:
                continue
        values.setdefault((int(event.time // MINUTE_S), event.name, unit), []).append(value)
    return [
        RollupRow(
            minute=minute,
            name=name,
            unit=unit,
            num=len(numbers),
            p50=float(np.percentile(numbers, 50)),
            p95=float(np.percentile(numbers, 95)),
            mean=float(np.mean(numbers)),
        )
        for (minute, name, unit), numbers in sorted(values.items())
    ]


def write_rollup(directory: RunDirectory) -> list[RollupRow]:
    """Write the roll-up from all events of the run."""
    paths = [*directory.all_rank_events().values(), *directory.all_node_events()]
    rows = rollup(chain.from_iterable(read_events(path) for path in paths))
    lines = [json.dumps({"schema": schema("rollup")}), *(json.dumps(asdict(row)) for row in rows)]
    write_text(directory.rollup, "\n".join(lines) + "\n")
    return rows


def refresh_rollup(directory: RunDirectory) -> None:
    """Write the roll-up if it is missing or older than the events, as in a run without one of our launchers."""
    paths = [*directory.all_rank_events().values(), *directory.all_node_events()]
    written = [path.stat().st_mtime_ns for path in paths]
    if not directory.rollup.exists() or directory.rollup.stat().st_mtime_ns < max(written, default=0):
        write_rollup(directory)
