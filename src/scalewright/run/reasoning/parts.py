"""StageClock and StageTotals: where the time of a stage goes, part by part, and what it computed in that time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from scalewright.data.sandbox.types import FAILURES
from scalewright.records.hybrid import SpanKind, TimelineWriter
from scalewright.records.reasoning import PARTS, WorkName

WORKS: tuple[WorkName, ...] = ("prefill", "decode", "training", "log_probs")
"""Kinds of work that have a place on a roofline."""
NAMES = (
    *(f"{part}_s" for part in PARTS),
    *(f"{work}_{what}" for work in WORKS for what in ("flop", "bytes", "work_s")),
    "wall_s", "num_attempts", "num_samples", "num_tokens", "num_groups", "num_equal_groups", "energy_j", "busy_s",
    "occupancy", "num_decode_steps", "kv_peak",
    "kl_engines", "masked_frac", "effective_sample_frac", "clip_frac", "num_mismatches",
    *(f"failed_{kind}" for kind in FAILURES),
)  # fmt: skip
"""What is counted over all attempts of a stage."""
SPAN_KINDS: dict[str, SpanKind] = {
    "data": "data", "generation": "decode", "reward": "reward", "log_probs": "log_probs", "training": "train",
    "weight_sync": "sync", "evaluation": "evaluate", "checkpoint": "checkpoint", "idle": "idle",
    "release": "release", "restore": "restore",
}  # fmt: skip
"""Kinds of span of the parts."""
PEAKS = frozenset({"kv_peak"})
"""Counted by their largest value; all others are sums."""


class StageTotals:
    """Numbers of one rank that grow through a stage. A checkpoint holds them, so that a resumed stage counts on."""

    def __init__(self) -> None:
        self.values = torch.zeros(len(NAMES), dtype=torch.float64)
        self._numbers = self.values.numpy()  # the same memory; an element of it is changed 20 times as fast
        self._places = {name: place for place, name in enumerate(NAMES)}

    def __getitem__(self, name: str) -> float:
        return float(self._numbers[self._places[name]])

    def add(self, name: str, value: float) -> None:
        place = self._places[name]
        if name in PEAKS:
            self._numbers[place] = max(self._numbers[place], value)
        else:
            self._numbers[place] += value

    def add_work(self, work: str, *, flop: float, num_bytes: float, seconds: float) -> None:
        self.add(f"{work}_flop", flop)
        self.add(f"{work}_bytes", num_bytes)
        self.add(f"{work}_work_s", seconds)

    def merge(self, other: StageTotals) -> None:
        for name in NAMES:
            self.add(name, other[name])

    def since(self, before: StageTotals) -> StageTotals:
        """What came on top; peaks are those of the whole."""
        grown = StageTotals()
        for name in NAMES:
            grown.add(name, self[name] if name in PEAKS else self[name] - before[name])
        return grown

    @classmethod
    def of(cls, values: dict[str, float]) -> StageTotals:
        totals = cls()
        for name, value in values.items():
            if name in totals._places:
                totals.add(name, value)
        return totals

    def as_dict(self) -> dict[str, float]:
        return {name: self[name] for name in NAMES if self[name]}

    @classmethod
    def from_tensor(cls, values: Tensor) -> StageTotals:
        totals = cls()
        totals.values.copy_(values)
        return totals


class StageClock:
    """Times the parts of a step on one rank. A part inside another is not counted in the outer one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, float] = {}
        self._inner_s: list[float] = []
        self._num_tokens = 0
        self.timeline: TimelineWriter | None = None
        """Gets a span for each part; None: nobody wants to see when."""
        self.step = -1
        self.step_started_s = 0.0

    def begin_step(self, step: int) -> None:
        self.step, self.step_started_s = step, time.perf_counter()

    def count_tokens(self, num_tokens: int) -> None:
        """Tokens of the part that is being timed."""
        self._num_tokens += num_tokens

    @contextlib.contextmanager
    def part(self, name: str, *, waits_for: str = "ranks") -> Iterator[None]:
        """Time the body as this part, with what the device does for it. `waits_for`: what ends an idle part."""
        assert name in PARTS
        self._inner_s.append(0.0)
        started_s = time.perf_counter()
        try:
            yield
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        finally:
            ended_s = time.perf_counter()
            took_s = ended_s - started_s
            own_s = took_s - self._inner_s.pop()
            self._seconds[name] = self._seconds.get(name, 0.0) + own_s
            if self._inner_s:
                self._inner_s[-1] += took_s
            if self.timeline is not None:
                self.timeline.add(
                    SPAN_KINDS[name], started_s, ended_s, step=self.step, version=self.step,
                    num_tokens=self._num_tokens, waits_for=waits_for if name == "idle" else "",
                )  # fmt: skip
            self._num_tokens = 0

    def seconds(self, name: str) -> float:
        """Of this part so far in this step."""
        return self._seconds.get(name, 0.0)

    def take(self, wall_s: float | None = None) -> dict[str, float]:
        """Seconds by part since the last call; what no part covers of `wall_s` is idle."""
        seconds, self._seconds = self._seconds, {}
        if wall_s is not None:
            seconds["idle"] = seconds.get("idle", 0.0) + max(wall_s - sum(seconds.values()), 0.0)
        return {name: seconds[name] for name in PARTS if name in seconds}
