"""A short run as a measure for a long one: its steps and the memory of its nodes."""

from __future__ import annotations

import numpy as np

from scalewright.errors import ConfigError
from scalewright.launch.advise.run_times import Pilot
from scalewright.observe.collect import collect
from scalewright.records import metric_names as names
from scalewright.records.run_directory import RunDirectory

MIN_STEPS = 5


def measured_pilot(directory: RunDirectory) -> Pilot:
    """Median and 95th percentile of the slowest rank's steps, and the most memory that a node used."""
    found = collect(directory)
    steps = found.series(names.STEP_TIME, slowest=True)
    if steps.size < MIN_STEPS:
        raise ConfigError(
            f"--pilot {directory.path} has {steps.size} steps that count: run {MIN_STEPS} or more after the first three"
        )
    told = (found.prediction or {}).get("step_time_s")
    memory = found.samples.get(names.HOST_MEMORY, [])
    return Pilot(
        path=str(directory.path),
        num_ranks=found.num_ranks,
        step_s=float(np.median(steps)),
        high_step_s=float(np.percentile(steps, 95)),
        predicted_step_s=None if told is None else float(told),
        host_memory_bytes=max(memory) if memory else None,
    )
