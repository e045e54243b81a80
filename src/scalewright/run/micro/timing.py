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
"""Repeating ends early once the interval of the median is this share of it to either side."""
MIN_REPEATS, MAX_REPEATS = 9, 400
"""Nine is the fewest whose interval at 95 % leaves out the fastest and the slowest."""
WARM_FRAC = 0.25
"""Share of the budget spent on calls that do not count: kernels are chosen, clocks and the board's power settle."""
BATCH_S = 0.05
"""GPU repeats are queued for about so long before the host waits for them, so that launching is not what is timed."""
SHORTEST_SAMPLE_S = {"cpu": 2e-5, "cuda": 1e-4}
"""A shorter call is timed several times in one sample: clocks and events resolve 0.1 and 1 us."""
FLUSH_CACHES = 4
"""A flush reads so many times the size of the last cache."""
SMALLEST_FLUSH_BYTES = 2**26

Work = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a call takes: the median of its repeats, and between what the median lies with 95 % confidence."""

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
        """As the rows of a measurements document have it."""
        return {
            "time_s": self.time_s,
            "time_low_s": self.time_low_s,
            "time_high_s": self.time_high_s,
            "repeats": self.repeats,
        }


def timing_of(samples_s: Sequence[float], *, calls_per_repeat: int = 1) -> Timing:
    """Median and interval of times that were taken; with fewer than six repeats the interval is all of them.

    The interval runs between two order statistics: the number of repeats below the true median is binomial with
    probability 1/2, whatever the distribution of the times.
    """
    if not samples_s:
        raise AssertionError("no time was taken: nothing to take a median of")
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
    """Time `work` again and again for at most `budget_s`, warm-up included; at least one repeat is made.

    `before` runs ahead of every repeat and is not timed: `CacheFlush`, or what puts back what `work` changes.
    Repeats end early once there are `min_repeats` and the median is known well enough.
    """
    ends_s = time.perf_counter() + budget_s
    once_s = _warm_up(work, device, before=before, until_s=time.perf_counter() + WARM_FRAC * budget_s)
    calls = 1
    if before is None:
        calls = max(1, math.ceil(SHORTEST_SAMPLE_S[device.type] / max(once_s, 1e-8)))
    take = _take_cuda if device.type == "cuda" else _take_cpu
    batch = max(1, min(max_repeats, int(BATCH_S / max(calls * once_s, 1e-8)))) if device.type == "cuda" else 1
    samples_s: list[float] = []
    while len(samples_s) < max_repeats:
        samples_s += take(work, before, min(batch, max_repeats - len(samples_s)), calls)
        if time.perf_counter() >= ends_s:
            break
        if len(samples_s) >= min_repeats and timing_of(samples_s).spread_frac <= PRECISE_FRAC:
            break
    return timing_of(samples_s, calls_per_repeat=calls)


def _warm_up(work: Work, device: torch.device, *, before: Work | None, until_s: float) -> float:
    """Call until the time is up, at least once; returns the least that a call took."""
    num, least_s = 1, _wall_s(work, device, before=before, num=1)
    while time.perf_counter() + least_s < until_s:
        least_s = min(least_s, _wall_s(work, device, before=before, num=num))
        num = min(2 * num, 64)
    return least_s


def _wall_s(work: Work, device: torch.device, *, before: Work | None, num: int) -> float:
    settle(device)
    begun_s = time.perf_counter()
    for _ in range(num):
        if before is not None:
            before()
        work()
    settle(device)
    return (time.perf_counter() - begun_s) / num


def _take_cpu(work: Work, before: Work | None, num: int, calls: int) -> list[float]:
    taken_s = []
    for _ in range(num):
        if before is not None:
            before()
        begun_s = time.perf_counter()
        for _ in range(calls):
            work()
        taken_s.append((time.perf_counter() - begun_s) / calls)
    return taken_s


def _take_cuda(work: Work, before: Work | None, num: int, calls: int) -> list[float]:
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


def settle(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class CacheFlush:
    """Reads a buffer several times the last-level cache, so that no operand of the next call lies in it.

    Reading rather than writing: lines that were written would go back to memory during the call that is timed.
    """

    def __init__(self, device: torch.device, *, cache_bytes: int | None = None) -> None:
        size = FLUSH_CACHES * (cache_bytes if cache_bytes is not None else last_cache_bytes(device))
        self._buffer = torch.zeros(max(size, SMALLEST_FLUSH_BYTES) // 4, dtype=torch.float32, device=device)
        self._sink = torch.zeros((), dtype=torch.float32, device=device)

    def __call__(self) -> None:
        torch.amax(self._buffer, dim=0, out=self._sink)


def last_cache_bytes(device: torch.device) -> int:
    """Of a GPU its L2; of a CPU what the kernel tells of its last level, else 64 MiB."""
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or 2**26
    from scalewright.run.micro.boards import cpu_cache_bytes

    return cpu_cache_bytes() or 2**26
