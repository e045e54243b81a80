"""EngineWeights: how one rank of an engine pulls a version, beside the weights in use.

By broadcast, the ranks of an engine form a chain: the first one pulls from the trainer, each other from the one before
it. Engines do not depend on each other, so that one that dies stops no other.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor

from scalewright.run.generate.copies import Copy
from scalewright.run.hybrid.messages import SyncOrder
from scalewright.run.weight_sync.broadcast import WeightRelay
from scalewright.run.weight_sync.plan import EngineRank
from scalewright.run.weight_sync.result import SyncResult, SyncWay
from scalewright.run.weight_sync.staging import Staging
from scalewright.run.weight_sync.sync import pull_weights
from scalewright.run.weight_sync.wire import WeightSyncError
from scalewright.run.world import World

LOOPBACK = "127.0.0.1"
WAIT_S = 30.0
"""For the rank before in a chain, which begins at the same time."""


def reachable_host(world: World) -> str:
    """An address of this machine that the other roles can reach."""
    return LOOPBACK if world.launcher in ("local", "single") else socket.gethostbyname(world.host)


class EngineWeights:
    """One rank's pulls. All ranks of an engine call the same methods in the same order."""

    def __init__(self, place: EngineRank, copy: Copy, world: World, token_file: Path) -> None:
        self._place, self._copy, self._token_file = place, copy, token_file
        self._host = reachable_host(world)
        self._staging = Staging()
        self._relay: WeightRelay | None = None
        self._before = ""

    def pull(self, order: SyncOrder) -> tuple[Iterable[tuple[str, Tensor]], SyncResult] | str:
        """What was pulled if every rank of the engine has it, else one sentence: the old weights stay in use."""
        problem = ""
        try:
            token = self._token_file.read_text(encoding="ascii").strip()
            addresses, wait_s = list(order.addresses), 0.0
            if order.way == "broadcast" and self._place.tp > 1:
                before = self._chained(token)
                addresses, wait_s = ([before], WAIT_S) if before else (addresses, 0.0)
            pulled = pull_weights(
                addresses, self._place, order.version, cast(SyncWay, order.way), token=token, staging=self._staging,
                relay=self._relay, wait_s=wait_s,
            )  # fmt: skip
        except (WeightSyncError, OSError) as error:
            problem = " ".join(str(error).split())
        problems = [one for one in self._gathered(problem) if one]
        return problems[0] if problems else pulled

    def _chained(self, token: str) -> str:
        """The address of the rank before; empty for the first one. Relays are started at the first broadcast."""
        if self._relay is None:
            self._relay = WeightRelay(token=token, host=self._host)
            addresses = self._gathered(self._relay.start())
            self._before = addresses[self._place.tp_rank - 1] if self._place.tp_rank else ""
        return self._before

    def _gathered(self, own: str) -> list[str]:
        if self._copy.control is None:
            return [own]
        texts: list[Any] = [None] * self._place.tp
        dist.all_gather_object(texts, own, group=self._copy.control)
        return texts
