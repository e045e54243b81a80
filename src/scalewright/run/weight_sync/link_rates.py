"""What the path between trainer and engine ranks can do: a plain TCP stream, and plain writes and reads of a file.

A sync is compared with these, measured in the same run, so that a share of the link's rate means the same everywhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

from scalewright import units
from scalewright.run.micro.disk import page_cache
from scalewright.run.weight_sync.wire import address_text, connect, cut_is_an_error, tune

BLOCK_BYTES = units.MIB
STREAM_S = 2.0
SKIPPED_FRAC = 0.2
"""Share of a stream's time at its start that does not count: TCP speeds up, and buckets of shaped links are full."""


class PlainStream:
    """Sends bytes without meaning to whoever connects, as fast as the path takes them."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0))
        self.address = address_text(*self._listener.getsockname()[:2])
        threading.Thread(target=self._accept, name="plain-stream", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=_send, args=(connection,), name="plain-sender", daemon=True).start()


def _send(connection: socket.socket) -> None:
    block = memoryview(os.urandom(BLOCK_BYTES))
    with connection, contextlib.suppress(OSError):
        tune(connection)
        while True:
            connection.sendall(block)


def stream_bytes_per_s(address: str, *, seconds: float = STREAM_S) -> float:
    """The rate at which a plain stream arrives."""
    block = memoryview(bytearray(BLOCK_BYTES))
    with connect(address) as connection, cut_is_an_error(address):
        begun_s = time.perf_counter()
        counted_from_s = begun_s + SKIPPED_FRAC * seconds
        while time.perf_counter() < counted_from_s:
            connection.recv_into(block)
        started_s, num_bytes = time.perf_counter(), 0
        while time.perf_counter() < begun_s + seconds:
            num_bytes += connection.recv_into(block)
        return num_bytes / (time.perf_counter() - started_s)


def write_plain(path: Path, num_bytes: int) -> float:
    """Seconds to write and flush a file of so many bytes; afterwards it is not in the page cache."""
    block = os.urandom(BLOCK_BYTES)
    begun_s = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        left = num_bytes
        while left > 0:
            left -= file.write(block[:left])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begun_s
    page_cache.drop([path])
    return seconds


def read_plain(path: Path) -> float:
    """Seconds to read a file."""
    block = memoryview(bytearray(BLOCK_BYTES))
    begun_s = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass
    return time.perf_counter() - begun_s
