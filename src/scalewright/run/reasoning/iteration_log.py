"""What each iteration of a co-located stage came to: rollouts, tokens, seconds and weight syncs, in hybrid.jsonl."""

from __future__ import annotations

import time
from dataclasses import replace

from scalewright.records.hybrid import HybridSettings, HybridStep, HybridWriter, WeightSync
from scalewright.run.reasoning.session import StageSession


class IterationLog:
    """Writes the iterations of one stage. Only rank 0 has one."""

    def __init__(self, session: StageSession, settings: HybridSettings) -> None:
        self._session = session
        self._writer = HybridWriter(session.directory, settings)

    def write(self, step: HybridStep) -> None:
        """Add the seconds of the step so far, by this rank's clock, and write it."""
        clock = self._session.clock
        self._writer.step(
            replace(
                step, wall_s=time.perf_counter() - clock.step_started_s, rollout_s=clock.seconds("generation"),
                train_s=clock.seconds("training") + clock.seconds("log_probs"), sync_s=clock.seconds("weight_sync"),
                reward_s=clock.seconds("reward"),
            )
        )  # fmt: skip

    def synced(self, *, version: int, seconds: float) -> None:
        """The engine of this process has the trainer's weights."""
        assert self._session.engine is not None
        num_bytes = float(self._session.engine.engine.stats.weight_bytes)
        self._writer.sync(WeightSync(version=version, engine=0, way="copy", bytes=num_bytes, seconds=seconds))

    def close(self) -> None:
        self._writer.close()
