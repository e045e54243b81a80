"""MessageServer: takes messages of many connections at once, and is hurt by none of them.

A connection must show the run's token in its first, short message within a few seconds. A message that began must end
within `MESSAGE_S`, and a peer that does not read its answers is cut off. Whatever else comes over a connection ends
that connection only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from scalewright.errors import ConfigError, EnvironmentFailedError, ScalewrightError
from scalewright.run.hybrid.messages import (
    MOST_HELLO_BYTES,
    PROTOCOL,
    BrokenMessageError,
    LeaseLostError,
    body_length,
    decoded,
    encoded,
)

HELLO_S = 5.0
MESSAGE_S = 30.0
MOST_STRANGERS = 64
"""Connections that have not shown the token; more are closed at once."""
MOST_CONNECTIONS = 4096
HEAD_BYTES = 4
Answer = Callable[[dict[str, Any], bytes], Awaitable[dict[str, Any]]]


class MessageServer:
    """`answer` gets a message and its bytes, and returns the keys of the answer or raises a ScalewrightError."""

    def __init__(self, answer: Answer, *, token: str, hello_s: float = HELLO_S, message_s: float = MESSAGE_S) -> None:
        self._answer, self._token = answer, token
        self._hello_s, self._message_s = hello_s, message_s
        self._num_strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_refused = 0
        """Connections that showed no token, or no message at all."""

    async def start(self, host: str) -> tuple[asyncio.Server, int]:
        """Listen on a free port."""
        try:
            server = await asyncio.start_server(self._serve, host, 0, backlog=256)
        except OSError as error:
            raise EnvironmentFailedError(f"the controller cannot listen on {host}: {error.strerror}") from error
        return server, int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if await self._is_known(reader, writer):
                await self._converse(reader, writer)
        except (OSError, EOFError, TimeoutError, BrokenMessageError):
            pass  # the peer is gone, too slow or not one of ours
        except asyncio.CancelledError:
            pass  # the server closes; a task that ends cancelled would be logged as an error
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _is_known(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self._num_strangers >= MOST_STRANGERS or len(self._tasks) > MOST_CONNECTIONS:
            self.num_refused += 1
            return False
        self._num_strangers += 1
        try:
            async with asyncio.timeout(self._hello_s):
                hello = decoded(
                    await reader.readexactly(body_length(await reader.readexactly(HEAD_BYTES), most=MOST_HELLO_BYTES))
                )
                why = self._fault(hello)
                await self._send(writer, {"ok": not why, "kind": "refused", "why": why})
        except (OSError, EOFError, TimeoutError, BrokenMessageError):
            self.num_refused += 1
            return False
        finally:
            self._num_strangers -= 1
        self.num_refused += bool(why)
        return not why

    def _fault(self, hello: dict[str, Any]) -> str:
        token = hello.get("token")
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self._token.encode()):
            return "the token is not the one of this run directory: start the role with the same --run-dir"
        if hello.get("protocol") != PROTOCOL:
            return f"the role speaks {hello.get('protocol')!r} and the controller {PROTOCOL}: use one release for both"
        return ""

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(HEAD_BYTES)
            async with asyncio.timeout(self._message_s):
                body = await reader.readexactly(body_length(head))
            await self._send(writer, await self._answered(decoded(body), body))

    async def _answered(self, message: dict[str, Any], body: bytes) -> dict[str, Any]:
        number = message.get("number")
        try:
            return {"number": number, "ok": True, **await self._answer(message, body)}
        except LeaseLostError as error:
            kind, why = "lease", str(error)
        except ConfigError as error:
            kind, why = "refused", str(error)
        except (KeyError, TypeError, ValueError, ScalewrightError) as error:
            kind, why = (
                "input",
                f"message {str(message.get('call'))[:40]!r} is not valid: {type(error).__name__}: {error}",
            )
        return {"number": number, "ok": False, "kind": kind, "why": why[:1000]}

    async def _send(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        writer.write(encoded(message))
        async with asyncio.timeout(self._message_s):
            await writer.drain()


def run_token(path: Path) -> str:
    """The token of a run directory; made at the first start, for the owner's eyes only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise EnvironmentFailedError(f"{path}: others may read the token (mode {mode:o}): chmod 600 it, or delete it")
    token = path.read_text(encoding="ascii").strip()
    if len(token) != 64:
        path.unlink()  # a kill while it was made: no role has read it
        return run_token(path)
    return token
