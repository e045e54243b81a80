"""Node lists as Slurm writes them: `n[1-3,07],login1`, `r[1-2]n[3-4]`."""

from __future__ import annotations

import re

_BRACKET = re.compile(r"\[([0-9,\-]+)\]")


def expand_nodes(text: str) -> tuple[str, ...]:
    """The names in a list, in its order. A piece without brackets is a name."""
    return tuple(name for piece in _pieces(text) for name in _expanded(piece))


def _expanded(piece: str) -> list[str]:
    """The last bracket changes fastest, as in `scontrol show hostnames`."""
    match = _BRACKET.search(piece)
    if match is None:
        return [piece]
    head, tail = piece[: match.start()], piece[match.end() :]
    return [f"{head}{number}{end}" for number in _numbers(match.group(1)) for end in _expanded(tail)]


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        numbers += [f"{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1)]
    return numbers


def _pieces(text: str) -> list[str]:
    """Split at the commas outside of brackets; Slurm's texts for "none" give none."""
    pieces = re.split(r",(?![^\[]*\])", text.strip())
    return [piece for piece in pieces if piece and piece not in ("(null)", "None assigned")]
