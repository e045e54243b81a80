"""Prefixes that launchers and loggers put before a line: rank, host, Ray's actor, time."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from functools import lru_cache

from scalewright import units

_LAUNCHER = re.compile(
    r"""\s*(?:
      \[(?:rank|default|trainer|worker)-?(?P<rank>\d+)\]:?      # torchrun --tee, torchelastic
    | \[(?P<bare>\d{1,5})\]:                                    # torchrun with an empty role, mpirun of Intel
    | \[(?:[\w@.-]*,)?(?P<mpi>\d+)\]<std(?:out|err|diag)>:      # mpirun --tag-output
    | (?P<srun>\d{1,6}):(?=\s|\[)                               # srun --label
    | \((?P<actor>[\w.-]+(?:\.[\w.]+)*)\ pid=(?P<pid>\d+)(?:,\ ip=(?P<ip>[\w.:-]+))?\)  # Ray
    | \((?:raylet|autoscaler|pid=\d+)(?:,\ ip=[\w.:-]+)?\)
    | \d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)\ std(?:out|err)\ [FP]\   # container runtimes
    | (?P<service>[A-Za-z][\w.-]*)\ +\|\ (?=\s|\[|\d)           # docker compose
    | (?P<host>[a-z][a-z-]*\d[\w.-]*):\ (?=\[|\(|\d|[A-Z])      # pdsh, clush
    )""",
    re.VERBOSE,
)
_REPEATED = re.compile(r"\s*\[repeated (\d+)x across cluster\]\s*$")
_LOGGER = re.compile(
    r"""\s*(?:
      \[?\d{4}[-/]\d\d[-/]\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|\ ?[+-]\d\d:?\d\d)?\]?[,:]?
    | \[\d{8}\ \d\d:\d\d:\d\d\]
    | \[[IWEFD]\d{3,4}\ [\d:.]+\ [^\]]*\]
    | [IWEFD]\d{4}\ \d\d:\d\d:\d\d(?:\.\d+)?(?:\ +\d+)?\ [\w./-]+:\d+\]
    | \d\d-\d\d\ \d\d:\d\d:\d\d
    | \[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?=\s)
    | \[NeMo\ [IWED]\ [^\]]*\]
    | \[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|SUCCESS)\ *\]?(?=[\s:\[|-])
    | (?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]+:
    | \[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\|[^\]]*\](?:\ [\d\-: ,]+)?(?:\ ?>>)?
    | \[[\w./-]+(?:\.py|\.cpp|\.cc|\.cu)?:\d+(?::[\w<>]+)?\]
    | \[rank-?\d+(?:/\d+)?\]
    | \[(?:titan|rank\d+)\]
    | \[(?:Rank|RANK)\ \d+\]
    | root(?=\ -)
    | [|:-](?=\s)
    )\s*""",
    re.VERBOSE,
)
_RANK = re.compile(r"\[(?:[Rr]ank|RANK)[- ]?(\d+)(?:/\d+)?\]|\brank-(\d+)\b")
_TIME = re.compile(
    r"(\d{4}[-/]?\d\d[-/]?\d\d[ T_-]\d\d:\d\d):(\d\d)(?:[.,:](\d{1,9}))?(?:(Z)|\s?([+-]\d\d):?(\d\d)\b)?"
)
_RANK_GROUPS = ("rank", "bare", "mpi", "srun")
MOST_PREFIXES = 5
TIME_WITHIN = 160
"""Characters of a line that may hold its time."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stands before a line's own text."""

    length: int = 0
    rank: int | None = None
    host: str = ""
    actor: str = ""
    num_repeats: int = 1
    """Ray prints equal lines of many processes once, with their number."""

    def message(self, raw: str) -> str:
        """The line without the prefixes of launchers and loggers."""
        position = self.length
        for _ in range(3 * MOST_PREFIXES):
            match = _LOGGER.match(raw, position)
            if match is None:
                break
            position = match.end()
        return raw[position:].strip()


NO_PREFIX = Prefix()


def _may_have_prefix(raw: str) -> bool:
    """A cheap look before the expression: most lines have none."""
    head = raw[:48].lstrip()
    if head[:1] in "[(0123456789" or ": " in head or " | " in head:
        return True
    return "ank" in raw[:TIME_WITHIN] or "[repeated " in raw


def parsed_prefix(raw: str) -> Prefix:
    """The prefixes of a line, as launchers nest them."""
    position = 0
    if not _may_have_prefix(raw):
        return NO_PREFIX
    rank: int | None = None
    host = actor = ""
    for _ in range(MOST_PREFIXES):
        match = _LAUNCHER.match(raw, position)
        if match is None:
            break
        position = match.end()
        group = match.lastgroup
        if group in _RANK_GROUPS:
            rank = int(match[group])
        elif group in ("pid", "ip"):
            actor, host = match["actor"], match["ip"] or host
        elif group is not None:
            host = match[group]
    if rank is None and "ank" in raw[:TIME_WITHIN]:
        named = _RANK.search(raw, 0, TIME_WITHIN)
        rank = int(named[1] or named[2]) if named else None
    repeats = _REPEATED.search(raw) if "[repeated " in raw else None
    if not position and rank is None and repeats is None:
        return NO_PREFIX
    if position and raw[position : position + 1] == " ":
        position += 1
    return Prefix(position, rank, host, actor, int(repeats[1]) if repeats else 1)


@lru_cache(maxsize=256)
def _minute_s(text: str) -> float | None:
    """Seconds since 1970 of `2025-06-26 18:23`, `2025/06/26_18:23` or `20250626 18:23`."""
    digits = "".join(character for character in text if character.isdigit())
    year, month, day, hour, minute = (int(digits[start:end]) for start, end in _DIGITS)
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60):
        return None
    return float(calendar.timegm((year, month, day, hour, minute, 0)))


_DIGITS = ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12))


def time_in(text: str, within: int = TIME_WITHIN) -> float | None:
    """The first date and time in a line's beginning, as seconds since 1970. A clock without a zone is read as UTC."""
    match = _TIME.search(text, 0, within)
    if match is None:
        return None
    minute_of, second, part, _, zone_hour, zone_minute = match.groups()
    minute_s = _minute_s(minute_of)
    if minute_s is None:
        return None
    at_s = minute_s + int(second)
    if part:
        at_s += int(part) / 10 ** len(part)
    if zone_hour:
        sign = -1.0 if zone_hour[0] == "-" else 1.0
        at_s -= int(zone_hour) * units.HOUR_S + sign * int(zone_minute) * units.MINUTE_S
    return at_s
