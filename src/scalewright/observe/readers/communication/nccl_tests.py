"""Tables of nccl-tests and rccl-tests: size, time and bandwidth of each row, also with other output between them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from scalewright import units
from scalewright.observe.evidence.facts import Collective, Happening
from scalewright.observe.readers.reader import Item, LineReader, Stated
from scalewright.observe.readers.source import Line

_PROGRAM = re.compile(
    r"(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv|gather|scatter|hypercube)_perf"
)
_NAMES = {"alltoall": "all_to_all", "sendrecv": "send"}
_ROW = re.compile(r"^\s*(?P<size>\d{1,15})\s+(?P<count>\d{1,15})\s+(?P<dtype>[a-z]\w+)\s+(?P<rest>.*)$")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d{1,15})?|N/A|inf|nan")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([\d.]+)")
_WRONG = re.compile(r"Out of bounds values\s*:\s*(\d{1,15})\s+(\w+)")
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,15})\s+(?:Group\s+\d+\s+)?Pid\s+\d+ on\s+(\S+) device\s+(\d{1,15}) \[(\S+)\] (.+)"
)
MOST_OTHER_LINES = 2000
"""Lines of other output between two rows of one table."""


class NcclTestsReader(LineReader):
    """Rows follow a header that names the columns; older versions print `error` and no root."""

    kind: ClassVar[str] = "nccl-tests"
    hints: ClassVar[tuple[str, ...]] = ("_perf", "busbw", "Avg bus bandwidth", "Out of bounds values", "#  Rank")

    def __init__(self) -> None:
        self._name = ""
        self._num_ranks = 0
        self._num_since = 0

    def take(self, line: Line) -> Iterable[Item]:
        text = line.text
        if program := _PROGRAM.search(text):
            self._name = _NAMES.get(program[1], program[1])
        if "busbw" in text and "algbw" in text:
            self.is_open, self._num_since = True, 0
            return
        if rank := _RANK.search(text):
            self._num_ranks = max(self._num_ranks, int(rank[1]) + 1)
            yield Stated("accelerator", rank[5].strip(), line.spot)
            return
        yield from self._tail(line, text)
        if self.is_open:
            self._num_since += 1
            self.is_open = self._num_since < MOST_OTHER_LINES
            row = _ROW.match(text)
            if row is not None:
                self._num_since = 0
                yield from self._row(line, row)

    def _tail(self, line: Line, text: str) -> Iterable[Item]:
        if average := _AVERAGE.search(text):
            self.is_open = False
            yield Stated("nccl_tests_bus_gb_per_s", average[1], line.spot)
        elif (wrong := _WRONG.search(text)) and int(wrong[1]) > 0:
            yield Happening(
                kind="device_error", spot=line.spot, message=text.strip("# "), at_s=line.at_s,
                values={"num_wrong": float(wrong[1])},
            )  # fmt: skip

    def _row(self, line: Line, row: re.Match[str]) -> Iterable[Item]:
        """Time, algbw and busbw are the first three numbers with a fraction, or behind the root."""
        words = row["rest"].split()
        numbers = [word for word in words if _NUMBER.fullmatch(word)]
        start = 1 if numbers and words and not _NUMBER.fullmatch(words[0]) and len(numbers) % 4 == 1 else 0
        if start == 0 and len(numbers) % 4 == 1 and "." not in numbers[0]:
            start = 1
        if len(numbers) < start + 3:
            return
        time_us, _, bus = numbers[start : start + 3]
        if time_us in ("N/A", "inf", "nan") or bus in ("N/A", "inf", "nan"):
            return
        yield Collective(
            name=self._name or "unknown", spot=line.spot, group="nccl-tests", num_bytes=float(row["size"]),
            time_s=float(time_us) * units.MICRO, bytes_per_s=float(bus) * units.GIGA,
        )  # fmt: skip
