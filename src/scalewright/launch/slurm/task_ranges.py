"""Ranges of array tasks in Slurm's notation: `0-3,7,10-20:5%4`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scalewright.errors import ConfigError

_PIECE = re.compile(r"^(\d+)(?:-(\d+)(?::(\d+))?)?$")
MAX_TASKS = 4_000_001
"""The largest MaxArraySize of Slurm."""


def parse_ranges(text: str) -> frozenset[int]:
    """The task numbers in `text`. A limit such as %4 and the brackets of squeue are ignored."""
    plain = text.strip().strip("[]").partition("%")[0]
    tasks: set[int] = set()
    for piece in plain.split(",") if plain else []:
        match = _PIECE.match(piece.strip())
        if match is None or int(match.group(2) or 0) >= MAX_TASKS:
            raise ConfigError(f"{text!r} is not a list of array tasks: write it like 0-3,7")
        first = int(match.group(1))
        tasks.update(range(first, int(match.group(2) or first) + 1, max(int(match.group(3) or 1), 1)))
    return frozenset(tasks)


def format_ranges(tasks: Iterable[int]) -> str:
    """The shortest text for these tasks, in order."""
    pieces: list[str] = []
    first = last = -2
    for task in sorted(set(tasks)):
        if task == last + 1:
            last = task
            continue
        if first >= 0:
            pieces.append(_piece(first, last))
        first = last = task
    if first >= 0:
        pieces.append(_piece(first, last))
    return ",".join(pieces)


def _piece(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
