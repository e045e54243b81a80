"""`pull_weights`: one engine rank's sync by any of the three ways, and which of them is the fastest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from torch import Tensor

from scalewright.costs.stage import broadcast_time_s, file_time_s, shard_pull_time_s
from scalewright.errors import ConfigError
from scalewright.run.weight_sync.broadcast import WeightRelay, pull_broadcast
from scalewright.run.weight_sync.files import pull_files
from scalewright.run.weight_sync.peers import pull_peers
from scalewright.run.weight_sync.plan import EngineRank
from scalewright.run.weight_sync.result import SyncResult, SyncWay
from scalewright.run.weight_sync.staging import Staging

SYNC_WAYS: tuple[SyncWay, ...] = get_args(SyncWay)
SyncChoice = Literal["auto", "peers", "broadcast", "file"]


def pull_weights(
    addresses: Sequence[str], engine: EngineRank, version: int, way: SyncWay = "peers", *, token: str = "",
    staging: Staging | None = None, relay: WeightRelay | None = None, wait_s: float = 0.0,
) -> tuple[Iterable[tuple[str, Tensor]], SyncResult]:  # fmt: skip
    """This rank's parts of a version, whole and checked, for `Engine.replace_weights(..., are_parts=True)`.

    `addresses`: peers: the servers of all trainer ranks; broadcast: the one before in the chain; file: the folder. An
    error is a `WeightSyncError`: nothing of the engine was touched. `staging` (and `relay` of a broadcast) are kept
    from sync to sync; their tensors are those that are returned, so take them over before the next pull.
    """
    if way == "broadcast":
        relay = relay or WeightRelay(token=token)
        tensors, result = pull_broadcast(addresses[0], engine, version, relay, token=token, wait_s=wait_s)
    elif way == "file":
        tensors, result = pull_files(Path(addresses[0]), engine, version, staging=staging, wait_s=wait_s)
    elif way == "peers":
        tensors, result = pull_peers(addresses, engine, version, token=token, staging=staging, wait_s=wait_s)
    else:
        raise ConfigError(f"sync way {way!r} is not known: choose {', '.join(SYNC_WAYS)}")
    return tensors.items(), result


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRates:
    """What a choice is made from: rates that were measured here, or that a machine is known to have."""

    wire_bytes_per_s: float
    """One rank's link."""
    write_bytes_per_s: float
    """Of the shared folder, by all trainer ranks together."""
    read_bytes_per_s: float
    """By all engine ranks together."""


def predicted_times_s(
    *, weights_bytes: float, num_trainers: int, num_engine_ranks: int, tp: int, rates: SyncRates,
    copy_bytes: float = 0.0,
) -> dict[SyncWay, float]:  # fmt: skip
    """Each way by its formula. `copy_bytes`: the parts of all ranks of a copy, which may overlap; 0: the weights."""
    wire = rates.wire_bytes_per_s
    return {
        "peers": shard_pull_time_s(
            weights_bytes=copy_bytes or weights_bytes, num_trainers=num_trainers, num_generators=num_engine_ranks,
            tp=tp, wire_bytes_per_s=wire,
        ),
        "broadcast": broadcast_time_s(weights_bytes=weights_bytes, wire_bytes_per_s=wire),
        "file": file_time_s(
            weights_bytes=weights_bytes, num_copies=num_engine_ranks / tp, write_bytes_per_s=rates.write_bytes_per_s,
            read_bytes_per_s=rates.read_bytes_per_s,
        ),
    }  # fmt: skip


class WayTrials:
    """`auto` by measurement: each way in turn until it was tried often enough, then the fastest of them.

    A way's time is that of the trainer to offer the weights and of the slowest engine to pull them, the least that was
    seen: the first sync of a way also starts servers and allocates memory. A way that no engine was heard to pull is
    tried a few times more: engines pull later than the trainer offers, and may skip a version.
    """

    NUM_TRIALS, MOST_TRIALS = 2, 4

    def __init__(self, choice: str) -> None:
        self._choice = choice
        self._first = choose(choice)
        self._offer_s: dict[SyncWay, list[float]] = {way: [] for way in SYNC_WAYS}
        self._pull_s: dict[SyncWay, float] = {}

    def next_way(self) -> SyncWay:
        if self._choice != "auto":
            return self._first
        least_tried = min(SYNC_WAYS, key=lambda way: len(self._offer_s[way]))
        if len(self._offer_s[least_tried]) < self.NUM_TRIALS:
            return least_tried
        unheard = [way for way in SYNC_WAYS if way not in self._pull_s and len(self._offer_s[way]) < self.MOST_TRIALS]
        if unheard:
            return min(unheard, key=lambda way: len(self._offer_s[way]))
        return choose("auto", self.times_s)

    @property
    def times_s(self) -> dict[SyncWay, float]:
        """Of the ways that were offered and pulled."""
        return {way: min(self._offer_s[way]) + pull_s for way, pull_s in self._pull_s.items() if self._offer_s[way]}

    def offered(self, way: SyncWay, seconds: float) -> None:
        self._offer_s[way].append(seconds)

    def pulled(self, times_s: Mapping[str, float]) -> None:
        """What the controller heard of engines; a way it does not know of keeps its time."""
        self._pull_s |= {way: times_s[way] for way in SYNC_WAYS if way in times_s}


def choose(choice: str, times_s: Mapping[SyncWay, float] | None = None) -> SyncWay:
    """The way that was named; auto: the one of the shortest time, measured or predicted; peers where none is known."""
    if choice not in get_args(SyncChoice):
        raise ConfigError(f"sync way {choice!r} is not known: choose {', '.join(get_args(SyncChoice))}")
    if choice != "auto":
        return cast(SyncWay, choice)
    known = {way: times_s[way] for way in SYNC_WAYS if way in times_s} if times_s else {}
    return min(known, key=lambda way: known[way]) if known else "peers"
