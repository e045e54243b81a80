"""Which sequences share a micro-batch: padded to one width, or packed into rows. Trainer and prediction agree on it."""

from __future__ import annotations

from collections.abc import Sequence

LENGTH_MULTIPLE = 8
"""Padded rows end at a multiple of this, so that few lengths exist and products have even sizes."""


def padded_width(length: int, *, row_tokens: int) -> int:
    """Width of the row of one sequence."""
    return min(-(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, row_tokens)


def longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


def padded_groups(order: Sequence[int], widths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Micro-batches of one sequence a row, as many as fit into `batch_tokens` when all are as wide as the first."""
    groups: list[list[int]] = []
    for index in order:
        if groups and (len(groups[-1]) + 1) * widths[groups[-1][0]] <= batch_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def packed_rows(order: Sequence[int], lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Rows of several sequences: each into the fullest row that has room.

    Source  krell2021 (arXiv:2107.02027), section 3: longest first, into the fullest row that has room.
    """
    rows: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    for index in order:
        room = min((room for room, owners in by_room.items() if owners and room >= lengths[index]), default=None)
        if room is None:
            rows.append([index])
            row, room = len(rows) - 1, row_tokens
        else:
            row = by_room[room].pop()
            rows[row].append(index)
        by_room.setdefault(room - lengths[index], []).append(row)
    return rows
