"""A worker: a warm interpreter that forks one confined process for each job, watches it, and reports how it ended.

Started by `pool` with one socket. The code of a job never runs in this process, and nothing of the job can reach it.
Messages are a length of four bytes and a JSON document.
"""

from __future__ import annotations

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
    data = json.dumps(body).encode("utf-8", "replace")
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
    while (job := receive(channel)) is not None:
        outcome = _outcome(setup, job, preloaded, channel)
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
    setup: Setup, job: dict[str, Any], preloaded: Callable[..., Any] | None, channel: socket.socket
) -> dict[str, Any] | None:
    """Run one job; None where the pool is gone."""
    watch = JobWatch(setup=setup, channel=channel)
    scratch = _fresh_scratch(setup)
    try:
        kind = job["kind"]
        if kind == "tests":
            mine, other = socket.socketpair()
            with mine, other:
                watch.add(_start(setup, job, "answer", preloaded, channel_end=other.fileno()), decides=False)
                watch.add(_start(setup, job, "tests", preloaded, stdin=mine.fileno()), decides=True)
        else:
            watch.add(_start(setup, job, kind, preloaded, text=job["stdin"]), decides=True)
        return watch.run(is_command=kind == "command")
    except OSError as error:
        return {"status": "refused", "why": str(error.strerror or error), "seconds": 0.0}
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
    setup: Setup, job: dict[str, Any], part: str, preloaded: Callable[..., Any] | None, *,
    text: str = "", stdin: int | None = None, channel_end: int | None = None,
) -> WatchedProcess:  # fmt: skip
    """Fork the process of a job, with pipes for its output and its result."""
    outs = {name: os.pipe() for name in ("stdout", "stderr", "result")}
    ins = os.pipe() if text else None
    null = os.open(os.devnull, os.O_RDWR)
    try:
        child = setup.namespaces.fork() if setup.namespaces is not None else os.fork()
        if child == 0:
            source = stdin if stdin is not None else ins[0] if ins else null
            sink = channel_end if channel_end is not None else outs["result"][1]
            run_job(setup, job, part, (source, outs["stdout"][1], outs["stderr"][1], sink), preloaded)
    finally:
        os.close(null)
        for _, sink in outs.values():
            os.close(sink)
        if ins:
            os.close(ins[0])
    readers = {name: source for name, (source, _) in outs.items()}
    return WatchedProcess(pid=child, readers=readers, writer=ins[1] if ins else None, unsent=text.encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
