"""HTTP/1.1 over asyncio, as much as a benchmark of servers needs: one request a connection, and the body as it comes.

Connections are opened before a request is due, so that neither the handshake nor TLS counts as time of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from scalewright import units
from scalewright.errors import EnvironmentFailedError

MOST_HEADERS = 200
LIMIT_BYTES = 2**20
"""Longest line, and most of a body that is read as a whole."""
DEFAULT_PORTS = {"http": 80, "https": 443}


class ServerFailedError(EnvironmentFailedError):
    """The server refused, broke off, hung, or sent what is no answer. The message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the server listens, and what every request carries."""

    base: str
    """Without /v1."""
    timeout_s: float
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Among them the key: never shown."""

    @property
    def host(self) -> str:
        return urlsplit(self.base).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.base)
        return parts.port or DEFAULT_PORTS[parts.scheme]

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.base).scheme == "https"

    def target(self, path: str) -> str:
        return f"{urlsplit(self.base).path.rstrip('/')}{path}"


@dataclass(slots=True)
class Connection:
    """One open connection. It serves one request."""

    address: Address
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        headers = {
            "Host": f"{self.address.host}:{self.address.port}", "Connection": "close", "User-Agent": "scalewright",
            "Accept": "text/event-stream, application/json", **self.address.headers,
        }  # fmt: skip
        if body is not None:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
        lines = [f"{method} {self.address.target(path)} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        self.writer.write("\r\n".join(lines).encode() + data)
        await self._in_time(self.writer.drain())

    async def receive(self) -> Response:
        """Status and headers, once the server has sent them."""
        words = (await self._line()).split(None, 2)
        if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
            raise ServerFailedError(f"sent {shown(' '.join(words))}, which is no HTTP answer")
        headers: dict[str, str] = {}
        for _ in range(MOST_HEADERS):
            line = await self._line()
            if not line:
                return Response(connection=self, status=int(words[1]), headers=headers)
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        raise ServerFailedError("sent headers without an end")

    async def _line(self) -> str:
        data: bytes = await self._in_time(self.reader.readline())
        if not data.endswith(b"\n"):
            raise ServerFailedError("closed the connection without an answer")
        return data.decode("latin-1").rstrip("\r\n")

    async def read(self, num_bytes: int) -> bytes:
        """What there is, up to so many bytes; empty at the end."""
        piece: bytes = await self._in_time(self.reader.read(num_bytes))
        return piece

    async def _in_time(self, work: Any) -> Any:
        limit_s = self.address.timeout_s
        try:
            return await asyncio.wait_for(work, limit_s)
        except TimeoutError as error:
            words = units.format(limit_s, units.SECONDS)
            raise ServerFailedError(f"sent nothing for {words}, the limit that --timeout sets") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ServerFailedError(f"broke off the connection ({_reason(error)})") from error
        except ValueError as error:
            raise ServerFailedError("sent a line without an end, which is no answer") from error

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
            await asyncio.wait_for(self.writer.wait_closed(), 1.0)


@dataclass(slots=True, kw_only=True)
class Response:
    """An answer whose body is still to come."""

    connection: Connection
    status: int
    headers: dict[str, str]

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, in the pieces in which it arrives."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            async for piece in self._chunks():
                yield piece
            return
        length = self.headers.get("content-length", "")
        left = int(length) if length.isdigit() else -1
        while left != 0:
            piece = await self.connection.read(LIMIT_BYTES if left < 0 else min(left, LIMIT_BYTES))
            if not piece:
                if left > 0:
                    raise ServerFailedError("broke off in the middle of an answer")
                return
            left -= len(piece) if left > 0 else 0
            yield piece

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            line = await self.connection._line()
            try:
                left = int(line.partition(";")[0], 16)
            except ValueError as error:
                raise ServerFailedError(f"sent {shown(line)} where the size of a chunk belongs") from error
            if left == 0:
                return
            while left:
                piece = await self.connection.read(left)
                if not piece:
                    raise ServerFailedError("broke off in the middle of an answer")
                left -= len(piece)
                yield piece
            await self.connection._line()

    async def lines(self) -> AsyncIterator[str]:
        """Lines of the body, each as soon as it is whole."""
        rest = b""
        async for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > LIMIT_BYTES:
                raise ServerFailedError("sent a line without an end, which is no answer")
            for line in whole:
                yield line.decode("utf-8", errors="replace").rstrip("\r")
        if rest:
            yield rest.decode("utf-8", errors="replace")

    async def text(self) -> str:
        body = b""
        async for piece in self.pieces():
            body += piece
            if len(body) > LIMIT_BYTES:
                break
        return body.decode("utf-8", errors="replace")


async def connect(address: Address) -> Connection:
    context = ssl.create_default_context() if address.is_tls else None
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(address.host, address.port, ssl=context, limit=LIMIT_BYTES), address.timeout_s
        )
    except TimeoutError as error:
        words = units.format(address.timeout_s, units.SECONDS)
        raise ServerFailedError(f"did not accept a connection within {words}") from error
    except OSError as error:
        raise ServerFailedError(f"does not accept connections ({_reason(error)})") from error
    return Connection(address, reader, writer)


async def get_text(address: Address, path: str) -> tuple[int, str]:
    """Status and body of a short document."""
    connection = await connect(address)
    try:
        await connection.send("GET", path)
        response = await connection.receive()
        return response.status, await response.text()
    finally:
        await connection.close()


def shown(text: str, *, most: int = 60) -> str:
    """A part of what a server sent, in quotes."""
    clean = " ".join(text.split())
    return repr(clean if len(clean) <= most else f"{clean[: most - 3]}...")


def _reason(error: BaseException) -> str:
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else str(error) or type(error).__name__
