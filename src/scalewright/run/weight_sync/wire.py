"""Messages between weight servers and those who pull: a JSON message with its length before it, or raw bytes.

Errors of a sync are all `WeightSyncError`: the engine keeps the weights that it has, and may pull again.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalewright import units
from scalewright.errors import EnvironmentFailedError

LENGTH = struct.Struct("!I")
PIECE = struct.Struct("!BQ")
"""Before a piece: whether it follows (OK) or a sentence does (REFUSED), and how many bytes."""
CHECKSUM = struct.Struct("!I")
OK, REFUSED = 0, 1
MOST_MESSAGE_BYTES = 256 * units.MIB
MOST_HELLO_BYTES = 4 * units.KIB
"""Of a message from somebody who has not shown the token yet."""
SILENCE_S = 60.0
"""A connection without a byte for so long is given up."""
BUFFER_BYTES = 4 * units.MIB
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class WeightSyncError(EnvironmentFailedError):
    """New weights did not arrive whole. Those in use were not touched."""


def wire_dtype(engine: torch.dtype, trainer: torch.dtype) -> torch.dtype:
    """What travels: bf16 where the engine stores 16 or 8 bit, else the trainer's own type. Nothing is widened."""
    return torch.bfloat16 if engine.itemsize <= 2 and trainer.itemsize > 2 else trainer


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise WeightSyncError(f"address {address!r} of a weight server is not HOST:PORT: give what its start returned")
    return host.strip("[]"), int(port)


def address_towards(host: str) -> str:
    """This machine's address on the path to a host: where others on that network reach it."""
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise WeightSyncError(f"{host}: no address leads there ({error}); check the name of the first node") from error


def tune(connection: socket.socket) -> None:
    """No delay, and large buffers where the host allows them; otherwise the kernel sizes them by itself, which is more
    than what a process may ask for."""
    connection.settimeout(SILENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, limit in ((socket.SO_SNDBUF, "wmem_max"), (socket.SO_RCVBUF, "rmem_max")):
        if _limit(limit) >= BUFFER_BYTES:
            connection.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


def connect(address: str) -> socket.socket:
    with cut_is_an_error(address):
        connection = socket.create_connection(split_address(address), timeout=SILENCE_S)
    tune(connection)
    return connection


def send_message(connection: socket.socket, body: dict[str, Any]) -> None:
    text = json.dumps(body, separators=(",", ":")).encode()
    connection.sendall(LENGTH.pack(len(text)) + text)


def receive_message(connection: socket.socket, *, most_bytes: int = MOST_MESSAGE_BYTES) -> dict[str, Any]:
    (length,) = LENGTH.unpack(receive(connection, LENGTH.size))
    if length > most_bytes:
        raise WeightSyncError(f"a message of {length} bytes is not of a weight sync: check the address")
    body = json.loads(receive(connection, length))
    if not isinstance(body, dict):
        raise WeightSyncError("a message that is not of a weight sync arrived: check the address")
    return body


def receive(connection: socket.socket, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    receive_into(connection, memoryview(data))
    return data


def receive_into(connection: socket.socket, target: memoryview) -> None:
    """Fill the target. A connection that ends before is an error."""
    while target:
        num = connection.recv_into(target)
        if num == 0:
            raise ConnectionResetError("the other end closed it")
        target = target[num:]


@contextlib.contextmanager
def cut_is_an_error(address: str) -> Iterator[None]:
    """A connection that fails, ends or is silent becomes one sentence."""
    try:
        yield
    except TimeoutError as error:
        raise WeightSyncError(
            f"weight sync: {address} was silent for {SILENCE_S:.0f} s; the old weights stay, pull again"
        ) from error
    except (OSError, ValueError, struct.error) as error:
        raise WeightSyncError(
            f"weight sync: the connection to {address} was cut ({error}); the old weights stay, pull again"
        ) from error


def _limit(name: str) -> int:
    try:
        return int(Path(f"/proc/sys/net/core/{name}").read_text())
    except (OSError, ValueError):
        return 0
