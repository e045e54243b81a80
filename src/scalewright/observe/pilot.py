"""A pilot: a short run whose step times and memory stand for a long one."""

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
    run = collect(directory)
    steps = run.series(names.STEP_TIME, slowest=True)
    if steps.size < MIN_STEPS:
        raise ConfigError(
            f"--pilot {directory.path} has {steps.size} steps that count: run {MIN_STEPS} or more after the first three"
        )
    predicted_s = (run.prediction or {}).get("step_time_s")
    memory = run.samples.get(names.HOST_MEMORY, [])
    return Pilot(
        path=str(directory.path),
        num_ranks=run.num_ranks,
        step_s=float(np.median(steps)),
        high_step_s=float(np.percentile(steps, 95)),
        predicted_step_s=None if predicted_s is None else float(predicted_s),
        host_memory_bytes=max(memory) if memory else None,
    )
