"""Processes that read or handle files on command, as a loader's workers do. They are started once and used often."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from scalewright.data.opening import open_samples
from scalewright.data.samples import Samples
from scalewright.errors import EnvironmentFailedError, ScalewrightError

Order = Literal["sequential", "random"]
MetadataOp = Literal["create", "stat", "open", "unlink"]
METADATA_OPS: tuple[MetadataOp, ...] = ("create", "stat", "open", "unlink")
"""As mdtest has them: file creation, stat, read (of an empty file) and removal."""
END_WAIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The samples that one process reads, in this order; sequential ones are consecutive."""

    order: Order
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Start and end of a process's work, by the clock that all processes of a machine share, and the bytes it read."""

    begun_s: float
    ended_s: float
    num_bytes: int = 0


class Readers:
    """A pool of processes. Each `together` call sends commands to the first of them at once and returns their spans."""

    def __init__(self, num: int) -> None:
        context = get_context("spawn")  # this process has threads, which a fork would break
        self._ends: list[Connection] = []
        self._processes = []
        for _ in range(num):
            own_end, child_end = context.Pipe()
            process = context.Process(target=_serve, args=(child_end,), daemon=True)
            process.start()
            child_end.close()
            self._ends.append(own_end)
            self._processes.append(process)

    def __enter__(self) -> Self:
        self.together([("wait",)] * len(self._ends))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(END_WAIT_S)
            if process.is_alive():
                process.kill()
                process.join()

    def open(self, path: Path, *, num: int, read_bytes: int) -> None:
        self.together([("open", path, read_bytes)] * num)

    def close(self) -> None:
        """Close files and maps in every process: mapped files cannot be dropped from the cache."""
        self.together([("close",)] * len(self._ends))

    def read(self, shares: list[Share]) -> list[Span]:
        return self.together([("read", share) for share in shares])

    def handle(self, folders: list[Path], op: MetadataOp, num_files: int) -> list[Span]:
        return self.together([("metadata", folder, op, num_files) for folder in folders])

    def together(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        used = self._ends[: len(commands)]
        try:
            for end, command in zip(used, commands, strict=True):
                end.send(command)
            replies = [end.recv() for end in used]
        except (EOFError, OSError) as error:
            raise EnvironmentFailedError(
                "a reading process was killed, perhaps for lack of memory: use fewer --workers"
            ) from error
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies


def elapsed_s(spans: list[Span]) -> float:
    """Time from the first start to the last end."""
    return max(span.ended_s for span in spans) - min(span.begun_s for span in spans)


def _serve(end: Connection) -> None:
    """Execute commands until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    samples: list[Samples] = []
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            name, *arguments = end.recv()
            try:
                end.send(_COMMANDS[name](samples, *arguments))
            except (ScalewrightError, OSError) as error:
                end.send(error)


def _open(samples: list[Samples], path: Path, read_bytes: int) -> None:
    _close(samples)
    samples[:] = [open_samples(path, io_bytes=read_bytes)]


def _close(samples: list[Samples]) -> None:
    for opened in samples:
        opened.close()
    samples.clear()


def _read(samples: list[Samples], share: Share) -> Span:
    (opened,) = samples
    num_bytes, begun_s = 0, time.perf_counter()
    if share.order == "sequential" and share.indices:
        for content, _ in opened.stream(share.indices[0], share.indices[-1] + 1):
            num_bytes += len(content)
    else:
        for index in share.indices:
            num_bytes += len(opened.read(index)[0])
    return Span(begun_s=begun_s, ended_s=time.perf_counter(), num_bytes=num_bytes)


def _metadata(samples: list[Samples], folder: Path, op: MetadataOp, num_files: int) -> Span:
    del samples
    names = [os.path.join(folder, f"file.mdtest.{number}") for number in range(num_files)]  # noqa: PTH118
    begun_s = time.perf_counter()
    if op == "create":
        for name in names:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
    elif op == "stat":
        for name in names:
            os.stat(name)  # noqa: PTH116
    elif op == "open":
        for name in names:
            os.close(os.open(name, os.O_RDONLY))
    else:
        for name in names:
            os.unlink(name)  # noqa: PTH108
    return Span(begun_s=begun_s, ended_s=time.perf_counter())


_COMMANDS: dict[str, Callable[..., Any]] = {
    "wait": lambda _: None,
    "open": _open,
    "close": _close,
    "read": _read,
    "metadata": _metadata,
}
