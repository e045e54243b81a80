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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalewright.run.weight_sync.plan import Box, Size, num_elements, slices_in, whole_box
from scalewright.run.weight_sync.wire import (
    CHECKSUM,
    MOST_HELLO_BYTES,
    NAMES,
    OK,
    PIECE,
    REFUSED,
    WeightSyncError,
    address_text,
    bytes_of,
    checksum,
    receive_message,
    send_message,
    tune,
)

BACKLOG = 128
END_WAIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPart:
    """The part of a weight that a rank holds."""

    size: Size
    """Of the whole weight."""
    box: Box

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
    ) -> None:  # fmt: skip
        """`tensors` are this rank's parts. `dtype`: what travels; None: what they are.

        Without `is_copied` the tensors themselves are served, and must not change until the next `publish`.
        """
        self._parts, self._token, self._host = dict(parts), token, host
        self._dtype, self._is_copied = dtype, is_copied
        self._served: dict[str, Tensor] = {}
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
    def publish(self, tensors: Mapping[str, Tensor], version: int) -> None:
        """Serve new values of the same parts under another version, once no piece of the old one is being sent."""
        with self._changed:
            self._version = None
            self._changed.wait_for(lambda: not self._num_sending)
            self._fill(tensors)
            self._sums.clear()
            self._version = version

    def close(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _fill(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            values = tensor.detach()
            dtype = self._dtype or values.dtype
            if not self._is_copied and values.device.type == "cpu" and values.dtype == dtype:
                self._served[name] = values.contiguous()
                continue
            if name not in self._served:
                is_pinned = values.device.type == "cuda"
                self._served[name] = torch.empty(values.shape, dtype=dtype, pin_memory=is_pinned)
            self._served[name].copy_(values.to(dtype), non_blocking=True)
        if any(tensor.device.type == "cuda" for tensor in tensors.values()):
            torch.cuda.synchronize()

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
                send_message(connection, self._catalogue())
                connection.settimeout(None)
                while True:
                    request = receive_message(connection)
                    self._send_pieces(connection, request)
        finally:
            self._connections.discard(connection)

    def _catalogue(self) -> dict[str, Any]:
        with self._changed:
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
                if reason:
                    text = reason.encode()
                    connection.sendall(PIECE.pack(REFUSED, len(text)) + text)
                    return
                data = self._piece(name, box)
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

    def _piece(self, name: str, box: Box) -> memoryview:
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
