"""RoleSettings: a GRPO stage whose trainer and engines are roles of their own, and how far their weights may differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scalewright.errors import ConfigError
from scalewright.workload.run_options import check_literals

SyncWay = Literal["auto", "broadcast", "peers", "file"]
RoleMode = Literal["co-located", "sync", "one-step-off", "async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings:
    """Engines beside the trainer. Each role is a world of its own: one that dies is started again."""

    engine_ranks: tuple[int, ...] = ()
    """Ranks of each engine, which share one copy of the model; empty: the trainer's ranks write the answers."""
    staleness: int = 0
    """Versions that the oldest token of a trained answer may be behind the trainer. 0: engines wait while it trains."""
    sync: SyncWay = "auto"
    """How new weights come to the engines."""
    progress_every: int = 16
    """Decode steps between two reports of an engine: what the answers of a dead engine lose at most."""

    def __post_init__(self) -> None:
        check_literals(self, {"sync": SyncWay})
        for place, num_ranks in enumerate(self.engine_ranks):
            if num_ranks < 1:
                raise ConfigError(f"engine {place} has {num_ranks} ranks: give 1 or more")
        if self.staleness < 0:
            raise ConfigError(f"--staleness {self.staleness}: give 0 (synchronous), 1 (one step off) or more")
        if self.progress_every < 1:
            raise ConfigError(f"progress_every is {self.progress_every}: give 1 decode step or more")
        if not self.engine_ranks and (self.staleness or self.sync != "auto"):
            option = f"--staleness {self.staleness}" if self.staleness else f"--sync {self.sync}"
            raise ConfigError(
                f"{option}: the trainer's own ranks write the answers, always with its weights: give --engines 1 or "
                f"more, or leave out {option.split(maxsplit=1)[0]}"
            )

    @property
    def num_engines(self) -> int:
        return len(self.engine_ranks)

    @property
    def are_separate(self) -> bool:
        """Engines are roles of their own."""
        return bool(self.engine_ranks)

    @property
    def num_engine_ranks(self) -> int:
        return sum(self.engine_ranks)

    @property
    def mode(self) -> RoleMode:
        """What the bound of staleness means: it decides how far engines run ahead."""
        if not self.are_separate:
            return "co-located"
        if self.staleness <= 1:
            return "one-step-off" if self.staleness else "sync"
        return "async"


def role_settings(*, engines: int, engine_tp: str | int, staleness: int, sync: str) -> tuple[RoleSettings, int]:
    """The settings of the options, and the ranks that share the trainer's own engine.

    `engine_tp` is one number for all engines, or one for each of them: `2,1`.
    """
    if engines < 0:
        raise ConfigError(f"--engines {engines}: give 0 (the trainer's ranks write the answers) or more")
    words = str(engine_tp).split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise ConfigError(f"--engine-tp {engine_tp}: give ranks of an engine, 1 or more, or one number for each: 2,1")
    sizes = [int(word) for word in words]
    if len(sizes) not in (1, engines):
        raise ConfigError(
            f"--engine-tp {engine_tp} names {len(sizes)} engines, and --engines is {engines}: give one number, or one "
            "for each engine"
        )
    ranks = tuple(sizes * engines if len(sizes) == 1 else sizes)
    settings = RoleSettings(engine_ranks=ranks, staleness=staleness, sync=sync)  # type: ignore[arg-type]
    return settings, max(sizes)


def from_body(body: Mapping[str, Any]) -> RoleSettings:
    """The settings that a document holds."""
    return RoleSettings(**{**body, "engine_ranks": tuple(body.get("engine_ranks", ()))})
