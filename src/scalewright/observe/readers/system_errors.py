"""Errors that programs print without a traceback: C++ exceptions, full disks, errors of devices, wrong options."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from scalewright.observe.evidence.facts import Happening, HappeningKind
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line
from scalewright.observe.readers.tracebacks import memory_values

_KINDS: tuple[tuple[str, HappeningKind], ...] = (
    ("No space left on device", "disk_full"),
    ("Disk quota exceeded", "disk_full"),
    ("what():  std::bad_alloc", "host_out_of_memory"),
    ("Cannot allocate memory", "host_out_of_memory"),
    ("insufficient shared memory (shm)", "host_out_of_memory"),
    ("Memory access fault by GPU", "device_error"),
    ("uncorrectable ECC error", "device_error"),
    ("device-side assert triggered", "device_error"),
    ("an illegal memory access was encountered", "device_error"),
    ("GPU is lost", "device_error"),
    ("HSA_STATUS_ERROR", "device_error"),
    ("unrecognized arguments:", "bad_configuration"),
    ("error: the following arguments are required", "bad_configuration"),
    ("Address already in use", "bad_configuration"),
    ("Unable to determine the device handle", "device_error"),
    ("cuInit returned error", "device_error"),
    ("CUDA unknown error", "device_error"),
    ("Driver/library version mismatch", "exited"),
    ("is not in struct", "bad_configuration"),
    ("Could not override", "bad_configuration"),
    ("Notify register times out", "collective_timeout"),
    ("Duplicate GPU detected", "exited"),
    ("client socket has timed out after", "exited"),
    ("exceeds the memory usage threshold", "host_out_of_memory"),
    ("exceeded K8s pod memory limits", "cgroup_kill"),
    ("OOMKilled", "cgroup_kill"),
    ("Worker exit type: SYSTEM_ERROR", "killed"),
    ("Error 802: system not yet initialized", "device_error"),
    ("Ran out of memory in memory space", "device_out_of_memory"),
    ("CUDA_ERROR_OUT_OF_MEMORY", "device_out_of_memory"),
    ("RESOURCE_EXHAUSTED: Out of memory", "device_out_of_memory"),
    ("double free or corruption", "exited"),
    ("free(): invalid", "exited"),
    ("malloc(): ", "exited"),
    ("Hardware Exception by GPU", "device_error"),
    ("what():  ", "exited"),
)
_OF_MEMORY = re.compile(r"what\(\):\s+.*(?:CUDA|HIP) out of memory")
_REMOTE = re.compile(r"from remote rank \[(\d{1,9})\]")
_QUOTED = re.compile(r"^\s*(?:[|│>]|File \"|#|\"|'|return |raise |assert |if )")
MOST_ALIKE = 8


class SystemErrorReader(LineReader):
    """Equal lines are kept a few times: a full disk is reported by every write."""

    kind: ClassVar[str] = "system errors"
    hints: ClassVar[tuple[str, ...]] = tuple(words for words, _ in _KINDS)

    def __init__(self) -> None:
        self._alike: Counter[tuple[str, int | None]] = Counter()

    def take(self, line: Line) -> Iterable[Item]:
        text = line.message
        if _QUOTED.match(text) or not text:
            return ()
        words, kind = next(((words, kind) for words, kind in _KINDS if words in text), ("", None))
        if kind is None:
            return ()
        if _OF_MEMORY.search(text):
            kind = "device_out_of_memory"
        self._alike[words, line.rank] += 1
        if self._alike[words, line.rank] > MOST_ALIKE:
            return ()
        values = memory_values(text) if kind == "device_out_of_memory" else {}
        if awaited := _REMOTE.search(text):
            values["missing_ranks"] = awaited[1]
        return (Happening(
            kind=kind, spot=line.spot, message=text[:600], at_s=line.at_s, rank=line.rank, host=line.host,
            values=values,
        ),)  # fmt: skip


_REFUSAL = re.compile(r"^(?:(?!srun|sbatch|salloc|slurm)[\w.-]+: )?error: (?:rank (?P<rank>\d+): )?(?P<why>\S.*)")
_STATED_PATH = re.compile(r"(?:^|')(/[^\s':]{2,300})")


class CommandErrorReader(LineReader):
    """`error: ...` or `PROGRAM: error: ...`: the sentence with which a command line program ends.

    It says nothing by itself; what it means is in its words.
    """

    kind: ClassVar[str] = "command errors"
    hints: ClassVar[tuple[str, ...]] = ("error: ",)

    def __init__(self) -> None:
        self._num = 0

    def take(self, line: Line) -> Iterable[Item]:
        match = _REFUSAL.match(line.message)
        if match is None or self._num >= MOST_ALIKE or any(words in line.message for words, _ in _KINDS):
            return ()  # or `SystemErrorReader` has it
        self._num += 1
        path = _STATED_PATH.search(match["why"])
        rank = line.rank if match["rank"] is None else int(match["rank"])
        return (Happening(
            kind="exited", spot=line.spot, message=match["why"][:600], at_s=line.at_s, rank=rank, host=line.host,
            values={"path": path.group(1)} if path else {},
        ),)  # fmt: skip
