"""Weight sync by peer shards: each engine rank pulls its own parts from the trainer ranks that hold them.

What arrives goes to memory beside the weights in use. Only when every piece is here and its checksum is right is
anything handed to the engine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.run.weight_sync.checksums import checksum
from scalewright.run.weight_sync.plan import (
    PIECE_BYTES,
    Box,
    EngineRank,
    ShardTransfer,
    Size,
    num_elements,
    transfers_of,
)
from scalewright.run.weight_sync.result import SyncResult
from scalewright.run.weight_sync.staging import Staging
from scalewright.run.weight_sync.wire import (
    CHECKSUM,
    DTYPES,
    OK,
    PIECE,
    SILENCE_S,
    WeightSyncError,
    bytes_of,
    connect,
    cut_is_an_error,
    receive,
    receive_into,
    receive_message,
    send_message,
)

NUM_STREAMS = 2
"""Connections to each trainer rank: while one waits for a checksum, the other keeps the link busy."""
PIECES_AT_ONCE = 16
"""Pieces of one request. A stream asks for the next ones when these are here."""
KEEP = "the old weights stay, pull again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWeight:
    """What the servers of a trainer hold of one weight."""

    size: Size
    dtype: torch.dtype
    parts: list[tuple[int, Box]]


@dataclass(slots=True, kw_only=True)
class Sources:
    """Open connections to the servers of a trainer, or to the one before in a chain."""

    addresses: Sequence[str]
    version: int
    token: str = ""
    wait_s: float = 0.0
    """How long servers may take to have the version."""
    open_sockets: list[socket.socket] = field(default_factory=list)

    def connect(self, rank: int) -> tuple[socket.socket, dict[str, Any]]:
        """A connection, and what its server holds."""
        address = self.addresses[rank]
        connection = connect(address)
        self.open_sockets.append(connection)
        with cut_is_an_error(address):
            connection.settimeout(self.wait_s + SILENCE_S)
            send_message(connection, {"token": self.token, "version": self.version, "wait_s": self.wait_s})
            answer = receive_message(connection)
            connection.settimeout(SILENCE_S)
        if "error" in answer:
            raise WeightSyncError(f"weight sync: {address} refuses: {answer['error']}")
        return connection, answer

    def close(self) -> None:
        for connection in self.open_sockets:
            connection.close()


def pull_peers(
    addresses: Sequence[str], engine: EngineRank, version: int, *, token: str = "", staging: Staging | None = None,
    wait_s: float = 0.0, num_streams: int = NUM_STREAMS, piece_bytes: int = PIECE_BYTES,
) -> tuple[dict[str, Tensor], SyncResult]:  # fmt: skip
    """This rank's parts of all weights of a version, from the servers of all ranks of one trainer."""
    begun_s = time.perf_counter()
    staging = staging or Staging()
    sources = Sources(addresses=addresses, version=version, token=token, wait_s=wait_s)
    num_bytes = fetch(
        sources, engine.boxes, staging, number=engine.number, num_streams=num_streams, piece_bytes=piece_bytes
    )
    value = staging.checksum
    seconds = time.perf_counter() - begun_s
    return staging.tensors, SyncResult(
        way="peers", version=version, num_bytes=num_bytes, seconds=seconds, checksum=value
    )


def fetch(
    sources: Sources, boxes_of: Callable[[Mapping[str, Size]], dict[str, Box]], staging: Staging, *, number: int = 0,
    num_streams: int = NUM_STREAMS, piece_bytes: int = PIECE_BYTES, when_planned: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """Fill the staging with the boxes that `boxes_of` names; the bytes that came."""
    try:
        first, weights = _catalogue(sources)
        needs = boxes_of({name: one.size for name, one in weights.items()})
        width = max((one.dtype.itemsize for one in weights.values()), default=2)
        try:
            plan = transfers_of(
                {name: one.parts for name, one in weights.items()}, needs, number=number, width_bytes=width,
                piece_bytes=piece_bytes,
            )  # fmt: skip
        except ConfigError as error:
            raise WeightSyncError(f"weight sync: {error}; the old weights stay") from error
        staging.begin(needs, {name: one.dtype for name, one in weights.items()})
        when_planned()
        _pull(sources, plan, first, staging, num_streams=num_streams)
    except WeightSyncError as error:
        staging.fail(str(error))
        raise
    finally:
        sources.close()
    return sum(num_elements(one.box) * weights[one.name].dtype.itemsize for one in plan)


def _catalogue(sources: Sources) -> tuple[list[socket.socket], dict[str, ServedWeight]]:
    """A connection to each rank, and what all of them hold of the version. A rank that has another one is an error."""
    addresses, version = sources.addresses, sources.version
    if not addresses:
        raise WeightSyncError("weight sync: no address of a trainer rank was given; name at least one")
    with ThreadPoolExecutor(min(len(addresses), 32)) as pool:
        pairs = list(pool.map(sources.connect, range(len(addresses))))
    versions = [answer["version"] for _, answer in pairs]
    odd = next((rank for rank, one in enumerate(versions) if one != version), None)
    if odd is not None:
        others = "" if len(set(versions)) == 1 else " and the ranks disagree"
        raise WeightSyncError(
            f"weight sync: version {version} was requested, but trainer rank {odd} has {versions[odd]}{others}; {KEEP} "
            "when all ranks have published it"
        )
    weights: dict[str, ServedWeight] = {}
    for rank, (_, answer) in enumerate(pairs):
        for name, dtype, size, ends in answer["tensors"]:
            known = weights.setdefault(name, ServedWeight(size=tuple(size), dtype=DTYPES[dtype], parts=[]))
            if (known.size, known.dtype) != (tuple(size), DTYPES[dtype]):
                raise WeightSyncError(f"weight sync: trainer ranks disagree about the size of {name}; {KEEP}")
            known.parts.append((rank, tuple(range(start, stop) for start, stop in ends)))
    return [connection for connection, _ in pairs], weights


def _pull(
    sources: Sources, plan: Sequence[ShardTransfer], first: Sequence[socket.socket], staging: Staging, *,
    num_streams: int,
) -> None:  # fmt: skip
    """Pull from all ranks at once, over several connections each. The first error ends all of them."""
    by_rank: dict[int, list[ShardTransfer]] = {}
    for one in plan:
        by_rank.setdefault(one.from_rank, []).append(one)
    errors: list[WeightSyncError] = []

    def stream(rank: int, queue: list[ShardTransfer], lock: threading.Lock, connection: socket.socket | None) -> None:
        try:
            if connection is None:
                connection, _ = sources.connect(rank)
            while not errors:
                with lock:
                    pieces, queue[:PIECES_AT_ONCE] = queue[:PIECES_AT_ONCE], []
                if not pieces:
                    return
                _receive_pieces(connection, sources.addresses[rank], pieces, staging, version=sources.version)
        except WeightSyncError as error:
            errors.append(error)

    threads = []
    for rank, queue in by_rank.items():
        lock = threading.Lock()
        num = min(num_streams, -(-len(queue) // PIECES_AT_ONCE))
        threads += [
            threading.Thread(
                target=stream, args=(rank, queue, lock, None if number else first[rank]), name="weight-puller",
                daemon=True,
            )
            for number in range(num)
        ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _receive_pieces(
    connection: socket.socket, address: str, pieces: Sequence[ShardTransfer], staging: Staging, *, version: int
) -> None:
    rows = [[one.name, *([part.start, part.stop] for part in one.box)] for one in pieces]
    with cut_is_an_error(address):
        send_message(connection, {"version": version, "pieces": rows})
        for one in pieces:
            target = staging.target(one.name, one.box)
            is_direct = target.is_contiguous()
            arrived = target if is_direct else torch.empty(target.shape, dtype=target.dtype)
            status, num_bytes = PIECE.unpack(receive(connection, PIECE.size))
            if status != OK:
                raise WeightSyncError(f"weight sync: {receive(connection, num_bytes).decode()}; {KEEP}")
            data = bytes_of(arrived)
            if num_bytes != len(data):
                raise WeightSyncError(f"weight sync: {address} sent {num_bytes} bytes of {one.name}; {KEEP}")
            receive_into(connection, data)
            (expected,) = CHECKSUM.unpack(receive(connection, CHECKSUM.size))
            value = checksum(data)
            if value != expected:
                raise WeightSyncError(f"weight sync: {one.name} from {address} arrived with a wrong checksum; {KEEP}")
            if not is_direct:
                target.copy_(arrived)
            staging.add(one.name, one.box, value=value)
