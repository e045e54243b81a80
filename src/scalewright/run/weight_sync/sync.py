"""`pull_weights`: one engine rank's sync, by the way that was chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.run.weight_sync.peers import Staging, pull_peers
from scalewright.run.weight_sync.plan import EngineRank
from scalewright.run.weight_sync.result import SyncResult, SyncWay


def pull_weights(
    addresses: Sequence[str], engine: EngineRank, version: int, way: SyncWay = "peers", *, token: str = "",
    staging: Staging | None = None,
) -> tuple[Iterable[tuple[str, Tensor]], SyncResult]:  # fmt: skip
    """This rank's parts of a version, whole and checked, for `Engine.replace_weights(..., are_parts=True)`.

    An error is a `WeightSyncError`: nothing of the engine was touched. `staging` is kept from sync to sync; its tensors
    are those that are returned, so take them over before the next pull.
    """
    if way != "peers":
        raise ConfigError(f"sync way {way!r} is not known: choose peers")
    tensors, result = pull_peers(addresses, engine, version, token=token, staging=staging)
    return tensors.items(), result
