"""WeightServer: a trainer rank's weights over TCP, by version, to whoever shows the token.

The server keeps a copy of its rank's weights in the type that travels, so that the trainer may train on while engines
pull. The copy is made once and filled anew for every version, in pinned memory if the trainer is on a GPU. Pieces whose
rows are one stretch of memory are sent from there without another copy.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalewright.run.weight_sync.checksums import checksum
from scalewright.run.weight_sync.plan import Box, Size, num_elements, slices_in, whole_box
from scalewright.run.weight_sync.wire import (
    CHECKSUM,
    MOST_HELLO_BYTES,
    NAMES,
    OK,
    PIECE,
    REFUSED,
    SILENCE_S,
    WeightSyncError,
    address_text,
    bytes_of,
    receive_message,
    send_message,
    tune,
)

BACKLOG = 128
MOST_WAIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPart:
    """The part of a weight that a rank holds."""

    size: Size
    """Of the whole weight."""
    box: Box
    is_first: bool = True
    """Whether no rank before this one holds the same part: only this one writes it to a file."""

    @classmethod
    def whole(cls, tensor: Tensor) -> HeldPart:
        return cls(size=tuple(tensor.shape), box=whole_box(tuple(tensor.shape)))


def whole_parts(tensors: Mapping[str, Tensor]) -> dict[str, HeldPart]:
    """For a rank that holds every weight whole."""
    return {name: HeldPart.whole(tensor) for name, tensor in tensors.items()}


class WeightServer:
    """Serves one version at a time. `publish` replaces it; whoever is pulling the version before gets a sentence."""

    def __init__(
        self, tensors: Mapping[str, Tensor], parts: Mapping[str, HeldPart], version: int, *, token: str = "",
        host: str = "127.0.0.1", dtype: torch.dtype | None = None, is_copied: bool = True,
        wait_for: Callable[[str, Box], None] | None = None,
    ) -> None:  # fmt: skip
        """`tensors` are this rank's parts. `dtype`: what travels; None: what they are.

        Without `is_copied` the tensors themselves are served, and must not change until the next `publish`. `wait_for`
        is called before a piece is sent: it returns when the piece is there.
        """
        self._parts, self._token, self._host = dict(parts), token, host
        self._dtype, self._is_copied, self._wait_for = dtype, is_copied, wait_for
        self._served: dict[str, Tensor] = {}
        self._copied: dict[str, torch.cuda.Event] = {}
        """When the copy of each weight from the GPU is done: the first are sent while the last are copied."""
        self._version: int | None = None
        self._changed = threading.Condition()
        self._num_sending = 0
        self._sums: dict[tuple[str, Box], int] = {}
        self._connections: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.num_bytes_sent = 0
        self.publish(tensors, version)

    def start(self, port: int = 0) -> str:
        """Listen. The address to pull from."""
        try:
            self._listener = socket.create_server((self._host, port), backlog=BACKLOG)
        except OSError as error:
            raise WeightSyncError(
                f"a weight server cannot listen on {self._host} ({error}): give an address of this machine"
            ) from error
        threading.Thread(target=self._accept, args=(self._listener,), name="weight-server", daemon=True).start()
        return address_text(*self._listener.getsockname()[:2])

    @torch.no_grad()
    def publish(
        self, tensors: Mapping[str, Tensor], version: int, parts: Mapping[str, HeldPart] | None = None
    ) -> None:  # fmt: skip
        """Serve new values under another version, of the same parts unless others are given."""
        self.withdraw()
        with self._changed:
            self._parts = self._parts if parts is None else dict(parts)
            self._fill(tensors)
            self._version = version
            self._changed.notify_all()

    def withdraw(self) -> None:
        """Serve nothing, once no piece is being sent."""
        with self._changed:
            self._version = None
            self._changed.wait_for(lambda: not self._num_sending)
            self._sums.clear()

    def close(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _fill(self, tensors: Mapping[str, Tensor]) -> None:
        for name in self._served.keys() - tensors.keys():
            del self._served[name]
        for name, tensor in tensors.items():
            values = tensor.detach()
            dtype = self._dtype or values.dtype
            if not self._is_copied and values.device.type == "cpu" and values.dtype == dtype:
                self._served[name] = values.contiguous()
                continue
            if name not in self._served or self._served[name].shape != values.shape:
                is_pinned = values.device.type == "cuda"
                self._served[name] = torch.empty(values.shape, dtype=dtype, pin_memory=is_pinned)
            self._served[name].copy_(values.to(dtype), non_blocking=True)
            if values.device.type == "cuda":
                self._copied[name] = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._copied[name].record()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), name="weight-sender", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one connection until it ends. What goes wrong on it concerns the other end only."""
        self._connections.add(connection)
        try:
            with connection, contextlib.suppress(OSError, WeightSyncError, ValueError, KeyError, TypeError):
                tune(connection)
                hello = receive_message(connection, most_bytes=MOST_HELLO_BYTES)
                if not hmac.compare_digest(str(hello.get("token", "")).encode(), self._token.encode()):
                    send_message(connection, {"error": "the token is wrong: read it from the run directory again"})
                    return
                send_message(connection, self._catalogue(hello["version"], wait_s=float(hello.get("wait_s", 0.0))))
                while True:
                    connection.settimeout(None)
                    request = receive_message(connection)
                    connection.settimeout(SILENCE_S)
                    self._send_pieces(connection, request)
        finally:
            self._connections.discard(connection)

    def _catalogue(self, version: int, *, wait_s: float) -> dict[str, Any]:
        """What is served, once it is the version or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._version == version, timeout=min(max(wait_s, 0.0), MOST_WAIT_S))
            return {
                "version": self._version,
                "tensors": [
                    [name, NAMES[tensor.dtype], part.size, [[one.start, one.stop] for one in part.box]]
                    for name, part in self._parts.items()
                    for tensor in (self._served[name],)
                ],
            }

    def _send_pieces(self, connection: socket.socket, request: dict[str, Any]) -> None:
        for name, *ends in request["pieces"]:
            box = tuple(range(start, stop) for start, stop in ends)
            with self._sending(request["version"]) as reason:
                try:
                    data = self._piece(name, box, reason)
                except WeightSyncError as error:
                    text = str(error).encode()
                    connection.sendall(PIECE.pack(REFUSED, len(text)) + text)
                    return
                connection.sendall(PIECE.pack(OK, len(data)), socket.MSG_MORE)
                connection.sendall(data, socket.MSG_MORE)
                connection.sendall(CHECKSUM.pack(self._sum(name, box, data)))
                self.num_bytes_sent += len(data)

    @contextlib.contextmanager
    def _sending(self, version: int) -> Iterator[str]:
        """Keep this version while a piece of it is sent; why it cannot be, where it is another."""
        with self._changed:
            reason = "" if self._version == version else f"the trainer has version {self._version}, not {version}"
            self._num_sending += 1
        try:
            yield reason
        finally:
            with self._changed:
                self._num_sending -= 1
                self._changed.notify_all()

    def _piece(self, name: str, box: Box, reason: str) -> memoryview:
        if reason:
            raise WeightSyncError(reason)
        if self._wait_for is not None:
            self._wait_for(name, box)
        if name in self._copied:
            self._copied[name].synchronize()
        values = self._served[name][slices_in(box, self._parts[name].box)]
        if values.numel() != num_elements(box):
            raise WeightSyncError(f"{name}: a piece outside of this rank's part was requested")
        return bytes_of(values.contiguous())

    def _sum(self, name: str, box: Box, data: memoryview) -> int:
        """Computed once a version: several copies of an engine pull the same pieces."""
        key = (name, box)
        if key not in self._sums:
            self._sums[key] = checksum(data)
        return self._sums[key]
