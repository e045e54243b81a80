"""RankContext: what the entry point gives to every benchmark."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.records.run_directory import RunDirectory
from scalewright.run.metrics import MetricWriter
from scalewright.run.signals import StopSignals
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """One rank of a run: its directory and place in the job, and what it reports to."""

    directory: RunDirectory
    world: World
    metrics: MetricWriter
    stop: StopSignals
    watchdog: Watchdog
