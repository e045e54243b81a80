"""Words that findings share: shares, times and lists of ranks as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from scalewright import units

MOST_NAMED = 4


def percent(share_frac: float) -> str:
    """`31 %`; small shares with a digit more."""
    value = 100.0 * share_frac
    return f"{value:.0f} %" if abs(value) >= 10 or value == 0 else f"{value:.1f} %"


def seconds(value_s: float) -> str:
    return units.format(value_s, units.SECONDS)


def size(value_bytes: float) -> str:
    return units.format(value_bytes, units.BYTES)


def ranks_named(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 1 and 5`, `64 ranks`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > MOST_NAMED:
        return f"{len(ranks)} ranks"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def counted(number: float, noun: str) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"
