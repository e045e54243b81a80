"""Runs with rollouts for tests: timelines and iterations as roles write them, from a small model of such a run."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from scalewright.records.hybrid import (
    AllDoneGain,
    HybridSettings,
    HybridStep,
    HybridWriter,
    SpanKind,
    TimelineWriter,
    WeightSync,
)
from scalewright.records.run_directory import RunDirectory

WEIGHT_BYTES = 1.2e9


@dataclass(slots=True)
class Roles:
    """Timelines of all ranks of a run, on one clock that the test sets."""

    directory: RunDirectory
    base_s: float = field(default_factory=time.perf_counter)
    writers: dict[tuple[str, int], TimelineWriter] = field(default_factory=dict)

    def span(self, role: str, rank: int, kind: SpanKind, start_s: float, end_s: float, **others: object) -> None:
        if (role, rank) not in self.writers:
            self.writers[role, rank] = TimelineWriter(self.directory, role, rank)
        self.writers[role, rank].add(kind, self.base_s + start_s, self.base_s + end_s, **others)  # type: ignore[arg-type]

    def restart(self, role: str, rank: int) -> None:
        """The next span of this rank is of a new attempt."""
        self.writers.pop((role, rank)).close()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


def write_async_run(path: Path, *, steps: int = 40, stale: int = 1, hostile: str = "") -> RunDirectory:
    """A controller, a trainer of two ranks, two engines and a sandbox. Engine 1 is slower, and dies in step 20."""
    directory = RunDirectory(path)
    roles, chance = Roles(directory), random.Random(0)
    settings = HybridSettings(
        mode="async", token_budget=65_536, retention=2, staleness=1, engine_ranks=[1, 2], sync_way="peers",
        sandbox="strict",
    )  # fmt: skip
    writer = HybridWriter(directory, settings)
    now_s = 0.0
    for step in range(steps):
        rollout_s = 2.0 + 0.3 * chance.random()
        sync_s, train_s = 0.35 + 0.05 * chance.random(), 1.4 + 0.1 * chance.random()
        if step == 20:
            roles.restart("engine", 1)
            roles.span("supervisor", 0, "restart", now_s, now_s + 1.2, of="engine-1", detail=hostile or "signal 9")
        for rank in (0, 1):
            roles.span("trainer", rank, "idle", now_s, now_s + 0.2, step=step, waits_for="rollouts")
            roles.span("trainer", rank, "log_probs", now_s + 0.2, now_s + 0.5, step=step, version=step)
            roles.span("trainer", rank, "train", now_s + 0.5, now_s + 0.5 + train_s, step=step, version=step)
            end_s = now_s + 0.5 + train_s
            if step % 10 == 9:
                roles.span("trainer", rank, "checkpoint", end_s, end_s + 0.3, step=step)
        for engine in (0, 1):
            start_s = now_s + (1.2 if step == 20 and engine == 1 else 0.0)
            roles.span("engine", engine, "sync", start_s, start_s + sync_s, step=step, version=step)
            roles.span("engine", engine, "prefill", start_s + sync_s, start_s + sync_s + 0.1, version=step)
            end_s = now_s + rollout_s * (0.97 if start_s > now_s or not engine else 0.62)
            first_s = start_s + sync_s + 0.1
            for part in range(4):
                a, b = first_s + (end_s - first_s) * part / 4, first_s + (end_s - first_s) * (part + 1) / 4
                roles.span("engine", engine, "decode", a, b, version=step, step=step, num_tokens=4096)
            roles.span("engine", engine, "idle", end_s, now_s + rollout_s, step=step, waits_for="weights")
        roles.span("controller", 0, "reward", now_s + 0.3, now_s + 0.4, step=step)
        roles.span("sandbox", 0, "reward", now_s + 0.3, now_s + 0.9 + 0.4 * chance.random(), step=step)
        roles.span("sandbox", 0, "idle", now_s + rollout_s - 0.1, now_s + rollout_s, waits_for="rollouts")
        carried = {1: 10 + chance.randrange(8), 2: chance.randrange(5)} if step else {1: 14}
        num_old = 6 + chance.randrange(6)
        writer.step(
            HybridStep(
                step=step, version=step, num_finished=64, carried_by_cuts=carried,
                carried_by_version={step - cuts + 1: num for cuts, num in carried.items()}, num_purged=step % 3,
                num_trained_by_staleness={0: 64 - num_old, stale: num_old}, num_decoded_tokens=65_540,
                num_trained_tokens=62_000 + chance.randrange(800), num_wasted_tokens=900 * (step % 3),
                wall_s=rollout_s, rollout_s=rollout_s - sync_s, train_s=train_s, sync_s=sync_s, reward_s=0.7,
                sandbox_outcomes={"ok": 62, "time": 1, "memory": step % 2},
            )
        )  # fmt: skip
        for engine in (0, 1):
            sync = WeightSync(version=step, engine=engine, way="peers", bytes=WEIGHT_BYTES, seconds=sync_s)
            writer.sync(sync)
        now_s += rollout_s
    writer.sync(WeightSync(version=steps, engine=0, way="file", bytes=WEIGHT_BYTES, seconds=1.6))
    writer.gain(AllDoneGain(kind="simulated", rollout_gain=2.13, step_gain=1.42, detail=hostile or "same lengths"))
    writer.close()
    roles.close()
    return directory
