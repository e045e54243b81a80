"""`bench memory`: copy, add, read and write as STREAM counts them, and copies between host and device.

Rows: op (copy add read write h2d d2h), place (device, host, link), is_pinned, size_bytes (of a buffer), bytes (moved),
time_s, time_low_s, time_high_s, repeats, bytes_per_s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.records.types import ExitCode
from scalewright.run.micro.free_memory import free_bytes
from scalewright.run.micro.session import LONGEST_POINT_S, BenchSession, catalogued, run_micro
from scalewright.run.micro.timing import CacheFlush, last_cache_bytes, measure
from scalewright.run.rank_context import RankContext
from scalewright.workload.micro_run import STREAM_BYTES, MemoryRun

HOST = torch.device("cpu")
NUM_BUFFERS = 3
MEMORY_FRAC = 0.25
"""Share of the free memory that the three buffers may take together."""
PINNED_BYTES = 2**28
"""Largest buffer for copies between host and device: the link reaches its rate with far smaller ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One operation on buffers of one size."""

    op: str
    place: str
    size_bytes: int
    moved_bytes: int
    """As STREAM counts: what the program reads and writes, without lines that a cache fetches before a write."""
    is_pinned: bool | None = None


def run(rank: RankContext) -> ExitCode:
    return run_micro("memory", MemoryRun, measure_memory, rank)


def measure_memory(config: MemoryRun, session: BenchSession) -> None:
    on_gpu = session.device.type == "cuda"
    places = [session.device, HOST] if on_gpu else [HOST]
    # The largest first: they give the figures that people quote, if time runs short.
    parts = [(size, place) for place in places for size in reversed(_sizes(config, place, session))]
    if not parts:
        raise ConfigError(
            f"buffers of {_shown(config.sizes_bytes[0])} or more: three of them do not fit in a quarter of the "
            f"{_shown(int(free_bytes(HOST)))} of free memory: give smaller --sizes"
        )
    link_sizes = sorted(_link_sizes(config), reverse=True) if on_gpu else []
    num_left = 4 * (len(parts) + len(link_sizes))
    flush = CacheFlush(session.device) if on_gpu else None
    for size, place in parts:
        session.part(f"{_shown(size)} in the memory of the {_name(place)}")
        # A host's small buffers stay in its caches, as in practice; a GPU's are flushed from its L2 each time.
        before = flush if place == session.device and size <= 4 * last_cache_bytes(place) else None
        for transfer, work in _stream(size, place):
            _time(transfer, work, session, place, num_left=num_left, flush=before)
            num_left -= 1
    for size in link_sizes:
        session.part(f"{_shown(size)} between host and device")
        for transfer, work in _link(size, session.device):
            _time(transfer, work, session, session.device, num_left=num_left, flush=None)
            num_left -= 1
    _summarise(session)


def _shown(size_bytes: int) -> str:
    return units.format(size_bytes, units.BYTES)


def _name(place: torch.device) -> str:
    return "host" if place.type == "cpu" else "device"


def _sizes(config: MemoryRun, place: torch.device, session: BenchSession) -> list[int]:
    """Sizes that fit. On a host, the usual sizes end with the first that no cache holds: larger ones give the same."""
    limit_bytes, cache_bytes = MEMORY_FRAC * free_bytes(place) / NUM_BUFFERS, last_cache_bytes(place)
    fitting = [size for size in config.sizes_bytes if size <= limit_bytes]
    for size in config.sizes_bytes[len(fitting) :]:
        session.leave_out(_shown(size), f"three buffers would fill the memory of the {_name(place)}")
    uncached = [size for size in fitting if size > 4 * cache_bytes]
    if fitting and not uncached:
        session.note(f"no buffer is above four times the cache of the {_name(place)}: its best rate is the cache's")
    if place.type == "cuda" or config.sizes_bytes != STREAM_BYTES:
        return fitting
    for size in uncached[1:]:
        session.leave_out(
            _shown(size), f"{_shown(uncached[0])} is beyond the caches already; name it with --sizes to measure it"
        )
    return [size for size in fitting if size not in uncached[1:]]


def _link_sizes(config: MemoryRun) -> list[int]:
    return [size for size in config.sizes_bytes if size <= PINNED_BYTES] or [config.sizes_bytes[0]]


def _stream(size: int, place: torch.device) -> Iterator[tuple[Transfer, Callable[[], object]]]:
    a, b, c = (torch.full((size // 4,), 1.5, dtype=torch.float32, device=place) for _ in range(NUM_BUFFERS))
    sink = torch.zeros((), dtype=torch.float32, device=place)
    work: dict[str, tuple[int, Callable[[], object]]] = {
        "copy": (2, lambda: b.copy_(a)),
        "add": (3, lambda: torch.add(a, b, out=c)),
        "read": (1, lambda: torch.amax(a, dim=0, out=sink)),
        "write": (1, lambda: c.fill_(1.0)),
    }
    for op, (passes, call) in work.items():
        yield Transfer(op=op, place=_name(place), size_bytes=size, moved_bytes=passes * size), call


def _link(size: int, device: torch.device) -> Iterator[tuple[Transfer, Callable[[], object]]]:
    on_device = torch.zeros(size, dtype=torch.uint8, device=device)
    for is_pinned in (True, False):
        on_host = torch.zeros(size, dtype=torch.uint8, pin_memory=is_pinned)
        for op, call in (("h2d", _copy(on_device, on_host)), ("d2h", _copy(on_host, on_device))):
            yield Transfer(op=op, place="link", size_bytes=size, moved_bytes=size, is_pinned=is_pinned), call


def _copy(target: Tensor, source: Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source, non_blocking=True)


def _time(
    transfer: Transfer, work: Callable[[], object], session: BenchSession, place: torch.device, *, num_left: int,
    flush: CacheFlush | None,
) -> None:  # fmt: skip
    share_s = session.budget.left_s / max(num_left, 1)
    if place == session.device:
        timing = session.time(work, share_s=share_s, before=flush)
    else:  # the host of a GPU: timed by its own clock; the GPU's state does not matter
        timing = measure(work, device=place, budget_s=min(LONGEST_POINT_S, max(0.0, share_s)), before=flush)
        session.beat(share_s)
    row: dict[str, Any] = {
        "op": transfer.op, "place": transfer.place, "is_pinned": transfer.is_pinned,
        "size_bytes": transfer.size_bytes, "bytes": transfer.moved_bytes, **timing.row(),
        "bytes_per_s": transfer.moved_bytes / timing.time_s,
    }  # fmt: skip
    session.rows.append(row)


def _summarise(session: BenchSession) -> None:
    """Summarise the rates of the largest size, which no cache holds, with the datasheet's rate if it is catalogued."""
    session.rows.sort(key=lambda row: (str(row["place"]), int(row["size_bytes"])))
    for row in session.rows:
        pinned = {True: "_pinned", False: "_pageable", None: ""}[row["is_pinned"]]
        session.summary[f"{row['place']}_{row['op']}{pinned}_bytes_per_s"] = row["bytes_per_s"]
    entry = catalogued(session.device)
    place = _name(session.device)
    best = max(
        (
            float(v)
            for k, v in session.summary.items()
            if k in (f"{place}_copy_bytes_per_s", f"{place}_add_bytes_per_s")
        ),
        default=None,
    )
    if entry is not None and best is not None:
        session.summary["datasheet_bytes_per_s"] = entry.memory_bandwidth.value
        session.summary["datasheet_frac"] = best / entry.memory_bandwidth.value
