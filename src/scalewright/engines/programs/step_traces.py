"""A profiler's trace of the last steps of a run, one file for each rank and step, for `explain`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from engine_setup import rank


class StepTraces:
    """Traces the last `trace.steps` steps of the run's file. Without any, it does nothing."""

    def __init__(self, config: dict[str, Any]) -> None:
        trace = config.get("trace") or {}
        self._first = int(config["steps"]) - int(trace.get("steps", 0))
        self._folder, self._last = Path(trace.get("folder") or "."), int(config["steps"])
        self._on_device = config["device"] != "cpu"

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around the body of a step; numbers count from 0."""
        # The first step of a process is no ordinary one.
        if not max(self._first, 1) <= number < self._last:
            yield
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._on_device:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profiled:
            with torch.profiler.record_function(f"ProfilerStep#{number + 1}"):
                yield
            if self._on_device:
                torch.cuda.synchronize()
        self._folder.mkdir(parents=True, exist_ok=True)
        profiled.export_chrome_trace(str(self._folder / f"rank-{rank()}-step-{number + 1}.json.gz"))
