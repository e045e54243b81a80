"""Weight sync by broadcast: the trainer's first rank has every weight whole, and engines pass them down a chain.

Every engine rank receives the whole model, keeps its part, and serves what has arrived to the next rank while the rest
is still coming: a long chain takes little longer than a short one.

Source  thakur2005 (pipelined broadcast)
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import Tensor

from scalewright.run.weight_sync.checksums import digest_of
from scalewright.run.weight_sync.peers import NUM_STREAMS, Sources, fetch
from scalewright.run.weight_sync.plan import PIECE_BYTES, Box, EngineRank, Size, slices_in, whole_box
from scalewright.run.weight_sync.result import SyncResult
from scalewright.run.weight_sync.server import WeightServer, whole_parts
from scalewright.run.weight_sync.staging import Staging


class WeightRelay:
    """Staging of whole weights with a server in front of it, for the next rank of a chain. Kept from sync to sync."""

    def __init__(self, *, token: str = "", host: str = "127.0.0.1") -> None:
        self.staging = Staging()
        self._server = WeightServer(
            {}, {}, -1, token=token, host=host, is_copied=False, wait_for=self.staging.wait
        )  # fmt: skip
        self._server.withdraw()

    def start(self) -> str:
        """The address that the next rank pulls from."""
        return self._server.start()

    def close(self) -> None:
        self._server.close()

    def fill(self, sources: Sources, *, num_streams: int = NUM_STREAMS, piece_bytes: int = PIECE_BYTES) -> int:
        """Take the whole weights from the sources and offer them while they arrive; the bytes that came."""
        self._server.withdraw()
        return fetch(
            sources, _whole_boxes, self.staging, num_streams=num_streams, piece_bytes=piece_bytes,
            when_planned=lambda: self._offer(sources.version),
        )  # fmt: skip

    def _offer(self, version: int) -> None:
        self._server.publish(self.staging.tensors, version, whole_parts(self.staging.tensors))


def pull_broadcast(
    address: str, engine: EngineRank, version: int, relay: WeightRelay, *, token: str = "", wait_s: float = 0.0
) -> tuple[dict[str, Tensor], SyncResult]:
    """The whole weights from the one before in the chain; this rank's parts of them."""
    begun_s = time.perf_counter()
    sources = Sources(addresses=[address], version=version, token=token, wait_s=wait_s)
    num_bytes = relay.fill(sources, num_streams=1)
    whole = relay.staging
    sizes = {name: tuple(tensor.shape) for name, tensor in whole.tensors.items()}
    parts = {
        name: whole.tensors[name][slices_in(box, whole_box(sizes[name]))] for name, box in engine.boxes(sizes).items()
    }
    value = whole.checksum if engine.tp == 1 else digest_of(parts)
    seconds = time.perf_counter() - begun_s
    return parts, SyncResult(way="broadcast", version=version, num_bytes=num_bytes, seconds=seconds, checksum=value)


def _whole_boxes(sizes: Mapping[str, Size]) -> dict[str, Box]:
    return {name: whole_box(size) for name, size in sizes.items()}
