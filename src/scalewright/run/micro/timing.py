"""Repeated timing within a budget: the median of warm repeats, with an interval that assumes no distribution."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from scalewright import units

CONFIDENCE_FRAC = 0.95
PRECISE_FRAC = 0.005
"""Repeating ends early once the interval of the median is this narrow, as a share of it to either side."""
MIN_REPEATS, MAX_REPEATS = 9, 400
"""Nine is the smallest number whose 95 % interval leaves out the fastest and the slowest."""
WARM_FRAC = 0.25
"""Share of the budget for calls that do not count: kernels are chosen, clocks and power become stable."""
BATCH_S = 0.05
"""GPU repeats are queued for about this long before the host waits, so that launching is not part of the time."""
SHORTEST_SAMPLE_S = {"cpu": 2e-5, "cuda": 1e-4}
"""A shorter call is timed several times in one sample: clocks and events resolve 0.1 and 1 us."""
FLUSH_CACHES = 4
"""A flush reads this many times the size of the last-level cache."""
SMALLEST_FLUSH_BYTES = 2**26

Work = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time of a call: the median of its repeats, and the 95 % confidence interval of the median."""

    time_s: float
    time_low_s: float
    time_high_s: float
    repeats: int
    calls_per_repeat: int = 1

    @property
    def spread_frac(self) -> float:
        """Half the width of the interval over the median."""
        return (self.time_high_s - self.time_low_s) / (2.0 * self.time_s) if self.time_s > 0 else 0.0

    def row(self) -> dict[str, float | int]:
        """The columns in a row of a measurements document."""
        return {
            "time_s": self.time_s,
            "time_low_s": self.time_low_s,
            "time_high_s": self.time_high_s,
            "repeats": self.repeats,
        }


def timing_of(samples_s: Sequence[float], *, calls_per_repeat: int = 1) -> Timing:
    """Median and interval of measured times; with fewer than six repeats the interval spans all of them.

    The interval runs between two order statistics: the number of repeats below the true median is binomial with
    probability 1/2, for any distribution of the times.
    """
    if not samples_s:
        raise AssertionError("no times: a median needs at least one")
    ordered = sorted(samples_s)
    num = len(ordered)
    low = _rank_below_median(num)
    middle = num // 2
    median_s = ordered[middle] if num % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])
    return Timing(
        time_s=median_s,
        time_low_s=ordered[low],
        time_high_s=ordered[num - 1 - low],
        repeats=num,
        calls_per_repeat=calls_per_repeat,
    )


def _rank_below_median(num: int) -> int:
    """The largest rank, counted from 0, such that [x_(rank), x_(num-1-rank)] covers the median with the confidence."""
    if num >= 1000:  # 2^-n underflows: the binomial is normal by then
        return math.floor(0.5 * num - 0.98 * math.sqrt(num)) - 1
    tail, rank, term = 0.0, 0, 0.5**num
    while rank < num // 2:
        tail += term
        if 2.0 * tail > 1.0 - CONFIDENCE_FRAC:
            break
        rank += 1
        term *= (num - rank + 1) / rank
    return max(0, rank - 1)


def measure(
    work: Work,
    *,
    device: torch.device,
    budget_s: float,
    before: Work | None = None,
    min_repeats: int = MIN_REPEATS,
    max_repeats: int = MAX_REPEATS,
) -> Timing:
    """Time `work` repeatedly for at most `budget_s`, warm-up included; at least one repeat is made.

    `before` runs before every repeat and is not timed: `CacheFlush`, or a function that restores what `work` changes.
    Repeats end early once there are `min_repeats` and the median is known well enough.
    """
    ends_s = time.perf_counter() + budget_s
    once_s = _warm_up(work, device, before=before, until_s=time.perf_counter() + WARM_FRAC * budget_s)
    calls = 1
    if before is None:
        calls = max(1, math.ceil(SHORTEST_SAMPLE_S[device.type] / max(once_s, 1e-8)))
    samples_of = _samples_cuda if device.type == "cuda" else _samples_cpu
    batch = max(1, min(max_repeats, int(BATCH_S / max(calls * once_s, 1e-8)))) if device.type == "cuda" else 1
    samples_s: list[float] = []
    while len(samples_s) < max_repeats:
        samples_s += samples_of(work, before, min(batch, max_repeats - len(samples_s)), calls)
        if time.perf_counter() >= ends_s:
            break
        if len(samples_s) >= min_repeats and timing_of(samples_s).spread_frac <= PRECISE_FRAC:
            break
    return timing_of(samples_s, calls_per_repeat=calls)


def _warm_up(work: Work, device: torch.device, *, before: Work | None, until_s: float) -> float:
    """Call until the time is up, at least once; returns the shortest time of a call."""
    num, shortest_s = 1, _wall_s(work, device, before=before, num=1)
    while time.perf_counter() + shortest_s < until_s:
        shortest_s = min(shortest_s, _wall_s(work, device, before=before, num=num))
        num = min(2 * num, 64)
    return shortest_s


def _wall_s(work: Work, device: torch.device, *, before: Work | None, num: int) -> float:
    synchronise(device)
    begun_s = time.perf_counter()
    for _ in range(num):
        if before is not None:
            before()
        work()
    synchronise(device)
    return (time.perf_counter() - begun_s) / num


def _samples_cpu(work: Work, before: Work | None, num: int, calls: int) -> list[float]:
    samples_s = []
    for _ in range(num):
        if before is not None:
            before()
        begun_s = time.perf_counter()
        for _ in range(calls):
            work()
        samples_s.append((time.perf_counter() - begun_s) / calls)
    return samples_s


def _samples_cuda(work: Work, before: Work | None, num: int, calls: int) -> list[float]:
    marks = [(_event(), _event()) for _ in range(num)]
    for start, end in marks:
        if before is not None:
            before()
        start.record()
        for _ in range(calls):
            work()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * units.MILLI / calls for start, end in marks]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class CacheFlush:
    """Reads a buffer several times the last-level cache, so that no operand of the next call is cached.

    It reads rather than writes: written lines would go back to memory during the timed call.
    """

    def __init__(self, device: torch.device, *, cache_bytes: int | None = None) -> None:
        size = FLUSH_CACHES * (cache_bytes if cache_bytes is not None else last_cache_bytes(device))
        self._buffer = torch.zeros(max(size, SMALLEST_FLUSH_BYTES) // 4, dtype=torch.float32, device=device)
        self._sink = torch.zeros((), dtype=torch.float32, device=device)

    def __call__(self) -> None:
        torch.amax(self._buffer, dim=0, out=self._sink)


def last_cache_bytes(device: torch.device) -> int:
    """The L2 of a GPU; the last level of a CPU as the kernel reports it, else 64 MiB."""
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or 2**26
    from scalewright.run.micro.boards import cpu_cache_bytes

    return cpu_cache_bytes() or 2**26
