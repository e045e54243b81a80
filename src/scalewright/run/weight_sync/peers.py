"""Weight sync by peer shards: each engine rank pulls its own parts from the trainer ranks that hold them.

What arrives goes to memory beside the weights in use. Only when every piece is here and its checksum is right is
anything handed to the engine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from scalewright.run.weight_sync.plan import (
    PIECE_BYTES,
    Box,
    EngineRank,
    ShardTransfer,
    Size,
    num_elements,
    slices_in,
    transfers_of,
)
from scalewright.run.weight_sync.result import SyncResult, digest_of
from scalewright.run.weight_sync.wire import (
    CHECKSUM,
    DTYPES,
    OK,
    PIECE,
    WeightSyncError,
    bytes_of,
    checksum,
    connect,
    cut_is_an_error,
    receive,
    receive_into,
    receive_message,
    send_message,
)

NUM_STREAMS = 2
"""Connections to each trainer rank: while one waits for a checksum, the other keeps the link busy."""
PIECES_AT_ONCE = 64
"""Pieces of one request."""
KEEP = "the old weights stay, pull again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWeight:
    """What the servers of a trainer hold of one weight."""

    size: Size
    dtype: torch.dtype
    parts: list[tuple[int, Box]]


class Staging:
    """Memory for the weights that arrive, beside those in use. Kept from sync to sync, so that it is allocated once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def fit(self, boxes: Mapping[str, Box], dtypes: Mapping[str, torch.dtype]) -> None:
        sizes = {name: tuple(map(len, box)) for name, box in boxes.items()}
        self.tensors = {
            name: old if old is not None and (tuple(old.shape), old.dtype) == (size, dtypes[name])
            else torch.empty(size, dtype=dtypes[name])
            for name, size in sizes.items()
            for old in (self.tensors.get(name),)
        }  # fmt: skip


def pull_peers(
    addresses: Sequence[str], engine: EngineRank, version: int, *, token: str = "", staging: Staging | None = None,
    num_streams: int = NUM_STREAMS, piece_bytes: int = PIECE_BYTES,
) -> tuple[dict[str, Tensor], SyncResult]:  # fmt: skip
    """This rank's parts of all weights of a version, from the servers of all ranks of one trainer."""
    begun_s = time.perf_counter()
    staging = staging or Staging()
    connections: list[list[socket.socket]] = [[] for _ in addresses]
    try:
        weights = _catalogue(addresses, connections, version=version, token=token)
        needs = engine.boxes({name: one.size for name, one in weights.items()})
        staging.fit(needs, {name: one.dtype for name, one in weights.items()})
        width = max((one.dtype.itemsize for one in weights.values()), default=2)
        plan = transfers_of(
            {name: one.parts for name, one in weights.items()}, needs, number=engine.number, width_bytes=width,
            piece_bytes=piece_bytes,
        )  # fmt: skip
        _pull(plan, addresses, connections, needs, staging, version=version, token=token, num_streams=num_streams)
    finally:
        for connection in (one for row in connections for one in row):
            connection.close()
    seconds = time.perf_counter() - begun_s
    num_bytes = sum(num_elements(one.box) * weights[one.name].dtype.itemsize for one in plan)
    result = SyncResult(
        way="peers", version=version, num_bytes=num_bytes, seconds=seconds, checksum=digest_of(staging.tensors)
    )
    return staging.tensors, result


def _catalogue(
    addresses: Sequence[str], connections: list[list[socket.socket]], *, version: int, token: str
) -> dict[str, ServedWeight]:
    """What all trainer ranks hold of the version. A rank that has another one is an error."""
    weights: dict[str, ServedWeight] = {}
    if not addresses:
        raise WeightSyncError("weight sync: no address of a trainer rank was given; name at least one")

    def opened(rank: int) -> dict[str, object]:
        connection = connect(addresses[rank])
        connections[rank].append(connection)
        return greet(connection, addresses[rank], token=token)

    with ThreadPoolExecutor(min(len(addresses), 32)) as pool:
        answers = list(pool.map(opened, range(len(addresses))))
    versions = {rank: answer["version"] for rank, answer in enumerate(answers)}
    odd = next((rank for rank, one in versions.items() if one != version), None)
    if odd is not None:
        others = "" if len(set(versions.values())) == 1 else " and the ranks disagree"
        raise WeightSyncError(
            f"weight sync: version {version} was requested, but trainer rank {odd} has {versions[odd]}{others}; {KEEP} "
            "when all ranks have published it"
        )
    for rank, answer in enumerate(answers):
        for name, dtype, size, ends in answer["tensors"]:  # type: ignore[attr-defined]
            known = weights.setdefault(name, ServedWeight(size=tuple(size), dtype=DTYPES[dtype], parts=[]))
            if (known.size, known.dtype) != (tuple(size), DTYPES[dtype]):
                raise WeightSyncError(f"weight sync: trainer ranks disagree about the size of {name}; {KEEP}")
            known.parts.append((rank, tuple(range(start, stop) for start, stop in ends)))
    return weights


def greet(connection: socket.socket, address: str, *, token: str) -> dict[str, object]:
    """Show the token; what the server holds."""
    with cut_is_an_error(address):
        send_message(connection, {"token": token})
        answer = receive_message(connection)
    if "error" in answer:
        raise WeightSyncError(f"weight sync: {address} refuses: {answer['error']}")
    return answer


def _pull(
    plan: Sequence[ShardTransfer], addresses: Sequence[str], connections: list[list[socket.socket]],
    needs: Mapping[str, Box], staging: Staging, *, version: int, token: str, num_streams: int,
) -> None:  # fmt: skip
    """Pull from all ranks at once, over several connections each. The first error ends all of them."""
    by_rank: dict[int, list[ShardTransfer]] = {}
    for one in plan:
        by_rank.setdefault(one.from_rank, []).append(one)
    errors: list[WeightSyncError] = []

    def stream(rank: int, queue: list[ShardTransfer], lock: threading.Lock, connection: socket.socket | None) -> None:
        try:
            if connection is None:
                connection = connect(addresses[rank])
                connections[rank].append(connection)
                greet(connection, addresses[rank], token=token)
            while not errors:
                with lock:
                    pieces, queue[:PIECES_AT_ONCE] = queue[:PIECES_AT_ONCE], []
                if not pieces:
                    return
                _receive_pieces(connection, addresses[rank], pieces, needs, staging, version=version)
        except WeightSyncError as error:
            errors.append(error)

    threads = []
    for rank, queue in by_rank.items():
        lock = threading.Lock()
        for number in range(min(num_streams, len(queue))):
            first = connections[rank][0] if number == 0 else None
            threads.append(threading.Thread(target=stream, args=(rank, queue, lock, first), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _receive_pieces(
    connection: socket.socket, address: str, pieces: Sequence[ShardTransfer], needs: Mapping[str, Box],
    staging: Staging, *, version: int,
) -> None:  # fmt: skip
    rows = [[one.name, *([part.start, part.stop] for part in one.box)] for one in pieces]
    with cut_is_an_error(address):
        send_message(connection, {"version": version, "pieces": rows})
        for one in pieces:
            target = staging.tensors[one.name][slices_in(one.box, needs[one.name])]
            arrived = (
                target if target.is_contiguous() else torch.empty_like(target, memory_format=torch.contiguous_format)
            )
            status, num_bytes = PIECE.unpack(receive(connection, PIECE.size))
            if status != OK:
                raise WeightSyncError(f"weight sync: {receive(connection, num_bytes).decode()}; {KEEP}")
            data = bytes_of(arrived)
            if num_bytes != len(data):
                raise WeightSyncError(f"weight sync: {address} sent {num_bytes} bytes of {one.name}; {KEEP}")
            receive_into(connection, data)
            (expected,) = CHECKSUM.unpack(receive(connection, CHECKSUM.size))
            if checksum(data) != expected:
                raise WeightSyncError(f"weight sync: {one.name} from {address} arrived with a wrong checksum; {KEEP}")
            if arrived is not target:
                target.copy_(arrived)
