"""A worker: a warm interpreter that forks one confined process for each job, watches it, and reports how it ended.

Started by `pool` with one socket. The code of a job never runs in this process, and nothing of the job can reach it.
Messages are a length of four bytes and a JSON document.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalewright.data.sandbox.confinement import Setup, address_space_bytes, set_up
from scalewright.data.sandbox.job_process import run_job
from scalewright.data.sandbox.types import SandboxLimits
from scalewright.data.sandbox.watch import JobWatch, WatchedProcess

LENGTH = struct.Struct("!I")


def send(channel: socket.socket, body: Any) -> None:
    """Half characters, which no file can hold, become question marks."""
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    channel.sendall(LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket) -> Any | None:
    """The next message; None where the other side is gone."""
    head = _exactly(channel, LENGTH.size)
    body = None if head is None else _exactly(channel, LENGTH.unpack(head)[0])
    return None if body is None else json.loads(body)


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            piece = channel.recv(min(size - len(data), 1 << 20))
        except ConnectionResetError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)


def main(descriptor: int) -> None:
    """Serve jobs until the socket closes."""
    channel = socket.socket(fileno=descriptor)
    config = receive(channel)
    if config is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.path[:] = config["path"]
    limits = SandboxLimits(**config["limits"])
    setup = set_up(limits, readable=config["readable"], scratch=config["scratch"], plain=config["plain"])
    preloaded, problem = _preloaded(config["preload"])
    gc.collect()
    gc.freeze()
    setup.base_bytes = address_space_bytes()
    send(channel, {"setup": setup.report(), "problem": problem})
    while (head := receive(channel)) is not None:
        outcome = _outcome(setup, str(head["kind"]), preloaded, channel)
        if outcome is None:
            return
        send(channel, outcome)


def _preloaded(spec: str) -> tuple[Callable[..., Any] | None, str]:
    """The user's function, imported once. It is the user's own code: only its calls are confined."""
    if not spec:
        return None, ""
    from scalewright.data.reasoning.reward_worker import user_function

    try:
        return user_function(spec), ""
    except BaseException as error:  # the module is the user's code
        return None, f"cannot be imported: {type(error).__name__}: {error}"


def _outcome(
    setup: Setup, kind: str, preloaded: Callable[..., Any] | None, channel: socket.socket
) -> dict[str, Any] | None:
    """Run one job; None where this worker cannot go on."""
    watch = JobWatch(setup=setup, channel=channel)
    scratch = _fresh_scratch(setup)
    start = functools.partial(_start, setup, channel, preloaded)
    try:
        if kind == "tests":
            mine, other = socket.socketpair()
            with mine, other:
                watch.add(start("tests", stdin=mine.fileno()), decides=True)
                watch.add(start("answer", result=other.fileno()), decides=False)
        else:
            watch.add(start(kind), decides=True)
        return watch.run(is_command=kind == "command")
    except (EOFError, OSError):
        return None  # a message was not read: the next one would be taken for it
    finally:
        watch.end_all()
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _fresh_scratch(setup: Setup) -> str:
    """Without a private /tmp a job gets a new folder."""
    if setup.namespaces is not None or not setup.scratch:
        return ""
    base = Path(setup.scratch)
    folder = (base if base.name != "job" else base.parent) / "job"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    setup.scratch = str(folder)
    return str(folder)


def _start(
    setup: Setup, channel: socket.socket, preloaded: Callable[..., Any] | None, part: str, *,
    stdin: int | None = None, result: int | None = None,
) -> WatchedProcess:  # fmt: skip
    """Fork a process of a job. It reads its code from the pool by itself: this worker never holds it.

    Jobs are forked from this worker, and could find in their memory whatever it has seen: the tests of an answer, or
    other answers to the same problem.
    """
    outs = {name: os.pipe() for name in ("stdout", "stderr", "result")}
    source, sink = os.pipe()
    child = setup.namespaces.fork() if setup.namespaces is not None else os.fork()
    if child == 0:
        try:
            payload = receive(channel) or {}
            os.write(sink, b"1")
            inputs = stdin if stdin is not None else _stdin(str(payload.get("stdin", "")))
            results = result if result is not None else outs["result"][1]
            run_job(setup, payload, part, (inputs, outs["stdout"][1], outs["stderr"][1], results), preloaded)
        finally:
            os._exit(1)  # whatever happens, this process does not go on as a worker
    for descriptor in (sink, *(one for _, one in outs.values())):
        os.close(descriptor)
    process = WatchedProcess(pid=child, readers={name: one for name, (one, _) in outs.items()})
    with os.fdopen(source, "rb") as ready:
        if not ready.read(1):
            process.end()
            process.close()
            raise EOFError
    return process


def _stdin(text: str) -> int:
    """A descriptor to read the text from."""
    if not text:
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = os.memfd_create("stdin")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(text.encode("utf-8", "replace"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


if __name__ == "__main__":
    main(int(sys.argv[1]))
