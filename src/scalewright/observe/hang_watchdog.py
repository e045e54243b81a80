"""Where a hang began, from what watchdogs wrote into logs: how far each rank came in the group that ran out of time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from scalewright.observe.evidence.facts import Happening


@dataclass(slots=True)
class RankProgress:
    """What a rank's watchdog said of one group."""

    rank: int
    happening: Happening
    """The first line that said it."""
    timed_out_at: int | None = None
    collective: str = ""
    last_enqueued: int | None = None
    last_completed: int | None = None
    waited_s: float | None = None

    @property
    def came_to(self) -> int | None:
        """The last operation that it surely issued."""
        numbers = [number for number in (self.timed_out_at, self.last_enqueued) if number is not None]
        return max(numbers) if numbers else None


@dataclass(slots=True)
class GroupTimeout:
    """A group whose operation ran out of time on some ranks."""

    group: str
    sequence: int
    collective: str
    waiting: list[RankProgress] = field(default_factory=list)
    behind: list[RankProgress] = field(default_factory=list)
    """Ranks whose own watchdog says that they had not issued the operation."""
    ahead: list[RankProgress] = field(default_factory=list)
    """Ranks that ran out of time in a later operation, or in another one with this number."""


def group_timeouts(happenings: Iterable[Happening]) -> list[GroupTimeout]:
    """Timeouts by group, with who waits and who is behind. Groups that no line names are one."""
    by_group: dict[str, dict[int, RankProgress]] = {}
    for one in happenings:
        if one.kind not in ("collective_timeout", "collective_abort") or one.rank is None or one.is_benign:
            continue
        if not {"sequence", "last_enqueued"} & set(one.values):
            continue
        progress = by_group.setdefault(_group(one), {}).setdefault(one.rank, RankProgress(one.rank, one))
        _add(progress, one)
    unnamed = by_group.pop("", None)
    if unnamed:
        # The line with the operation names no group; the line with the progress of the same rank does.
        _merge(unnamed, by_group)
    return [timeout for name, ranks in by_group.items() if (timeout := _timeout(name, ranks)) is not None]


def _group(one: Happening) -> str:
    """`0(default_pg)`, `0 (default_pg)` and `0` are the same group."""
    return re.sub(r"\s+", "", str(one.values.get("group", ""))).split("(")[0]


def _add(progress: RankProgress, one: Happening) -> None:
    def number(name: str) -> int | None:
        value = one.values.get(name)
        return int(value) if isinstance(value, float) and value >= 0 else None

    progress.timed_out_at = progress.timed_out_at if progress.timed_out_at is not None else number("sequence")
    progress.collective = progress.collective or str(one.values.get("collective", ""))
    for name in ("waited_s", "timeout_s"):
        value = one.values.get(name)
        if progress.waited_s is None and isinstance(value, float):
            progress.waited_s = value
    enqueued, completed = number("last_enqueued"), number("last_completed")
    progress.last_enqueued = enqueued if enqueued is not None else progress.last_enqueued
    progress.last_completed = completed if completed is not None else progress.last_completed


def _merge(unnamed: dict[int, RankProgress], by_group: dict[str, dict[int, RankProgress]]) -> None:
    for rank, progress in unnamed.items():
        homes = [
            ranks for ranks in by_group.values()
            if rank in ranks and ranks[rank].timed_out_at in (None, progress.timed_out_at)
        ]  # fmt: skip
        if not homes:
            homes = [by_group.setdefault("" if len(by_group) != 1 else next(iter(by_group)), {})]
        home = homes[0]
        known = home.setdefault(rank, progress)
        known.collective = known.collective or progress.collective
        known.waited_s = known.waited_s if known.waited_s is not None else progress.waited_s
        if known.timed_out_at is None:
            known.timed_out_at = progress.timed_out_at


def _timeout(name: str, ranks: dict[int, RankProgress]) -> GroupTimeout | None:
    numbers = Counter(one.timed_out_at for one in ranks.values() if one.timed_out_at is not None)
    if not numbers:
        return None
    sequence = max(numbers, key=lambda number: (numbers[number], number))
    waiting = [one for one in ranks.values() if one.timed_out_at == sequence]
    names = Counter(one.collective for one in waiting if one.collective)
    collective = names.most_common(1)[0][0] if names else ""
    timeout = GroupTimeout(group=name, sequence=sequence, collective=collective)
    for one in ranks.values():
        if one.timed_out_at == sequence and (not one.collective or one.collective == collective):
            timeout.waiting.append(one)
        elif one.came_to is not None and one.came_to < sequence:
            timeout.behind.append(one)
        else:
            timeout.ahead.append(one)
    return timeout
