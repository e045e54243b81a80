"""Where every rank stands in its collectives: which operation it waits in, and who has not come there.

A rank issues operations in one order, and its device works through them. The first operation that is not complete is
the one that the rank waits in. Every other member of that operation waits there too, is past it, has issued it but
waits in an earlier one, has not issued it, or has no dump.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from scalewright.observe.evidence.flight import FlightDump, FlightEntry, FlightGroup

Standing = Literal["here", "past", "behind", "missing", "absent"]
AWAITED: tuple[Standing, ...] = ("behind", "missing", "absent")


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A process group over all dumps: its name and its members, because old versions use a name twice."""

    name: str
    ranks: tuple[int, ...]


@dataclass(slots=True)
class WaitBoard:
    """All dumps of a run side by side."""

    dumps: dict[int, FlightDump]
    num_unnumbered: int = 0
    """Dumps whose rank nothing says."""
    entries: dict[tuple[int, GroupKey], dict[int, FlightEntry]] = field(default_factory=lambda: defaultdict(dict))
    """Collectives by rank and group, by their number in the group."""
    pairs: dict[int, list[FlightEntry]] = field(default_factory=lambda: defaultdict(list))
    """Sends and receives by rank."""
    groups_with_pairs: set[str] = field(default_factory=set)

    @property
    def world(self) -> tuple[int, ...]:
        """Every rank that a dump names."""
        ranks = {rank for dump in self.dumps.values() for group in dump.groups.values() for rank in group.ranks}
        if not ranks and self.dumps:
            # Nothing lists members: a gap in the numbers is a rank without a dump.
            ranks = set(range(max(self.dumps) + 1))
        return tuple(sorted(ranks | set(self.dumps)))

    @property
    def absent(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.world if rank not in self.dumps)

    def key(self, rank: int, name: str) -> GroupKey:
        group = self.group(rank, name)
        return GroupKey(name, group.ranks if group else ())

    def group(self, rank: int, name: str) -> FlightGroup | None:
        dump = self.dumps.get(rank)
        return dump.groups.get(name) if dump else None

    def members(self, rank: int, entry: FlightEntry) -> tuple[int, ...]:
        """Who takes part in an operation of this rank, by their numbers in the job."""
        group = self.group(rank, entry.group)
        ranks = group.ranks if group and group.ranks else self._ranks_with(entry.group, group)
        if not entry.is_pair:
            return ranks
        ends = [end for end in (entry.source, entry.target) if end is not None and end < len(ranks)]
        return tuple(ranks[end] for end in ends) if ranks else ()

    def _ranks_with(self, name: str, group: FlightGroup | None) -> tuple[int, ...]:
        """Where no dump lists members: everybody for the default group, else the ranks that have entries of it."""
        if group is not None and group.description == "default_pg":
            return self.world
        return tuple(sorted(rank for rank, key in self.entries if key.name == name))

    def waits_in(self, rank: int) -> FlightEntry | None:
        """The first operation that the rank issued and that is not complete."""
        dump = self.dumps.get(rank)
        return next((entry for entry in dump.entries if entry.state != "completed"), None) if dump else None

    def enqueued(self, rank: int, key: GroupKey) -> int | None:
        """The last number that the rank issued in a group; None if nothing says it."""
        numbers = list(self.entries.get((rank, key), ()))
        dump = self.dumps[rank]
        if key.name in dump.last_enqueued and key.name not in self.groups_with_pairs:
            numbers.append(dump.last_enqueued[key.name])
        return max(numbers) if numbers else None

    def completed(self, rank: int, key: GroupKey) -> int | None:
        """The last number that is complete on a rank in a group."""
        entries = self.entries.get((rank, key), {})
        still_open = [number for number, entry in entries.items() if entry.state != "completed"]
        if still_open:
            return min(still_open) - 1
        numbers = list(entries)
        dump = self.dumps[rank]
        if key.name in dump.last_completed and key.name not in self.groups_with_pairs:
            numbers.append(dump.last_completed[key.name])
        return max(numbers) if numbers else None

    def standing(self, rank: int, entry: FlightEntry, other: int) -> Standing:
        """How another member stands to the operation that this rank waits in."""
        if other not in self.dumps:
            return "absent"
        if entry.is_pair:
            return self._standing_of_pair(entry, other)
        key = self.key(rank, entry.group)
        number = entry.sequence or 0
        if (self.completed(other, key) or -1) >= number:
            return "past"
        first = self.waits_in(other)
        if first is not None and first.sequence == entry.sequence and self.key(other, first.group) == key:
            return "here"
        if (self.enqueued(other, key) or -1) >= number:
            return "behind"
        return "missing"

    def _standing_of_pair(self, entry: FlightEntry, other: int) -> Standing:
        matching = [
            one
            for one in self.pairs[other]
            if one.state != "completed" and one.group == entry.group and one.name != entry.name
            and (one.source, one.target) == (entry.source, entry.target)
        ]  # fmt: skip
        if not matching:
            return "missing"
        return "here" if self.waits_in(other) in matching else "behind"

    def standings(self, rank: int, entry: FlightEntry) -> dict[int, Standing]:
        return {other: self.standing(rank, entry, other) for other in self.members(rank, entry) if other != rank}

    def last_issued_at_s(self, rank: int) -> float | None:
        """When the rank last issued anything."""
        times_s = [entry.created_at_s for entry in self.dumps[rank].entries if entry.created_at_s is not None]
        return max(times_s) if times_s else None


def board_of(dumps: Iterable[FlightDump]) -> WaitBoard:
    """The dumps side by side; of two dumps of one rank the later one counts, and one without content counts as none."""
    latest: dict[int, FlightDump] = {}
    num_unnumbered = 0
    for dump in dumps:
        if dump.problem and not dump.entries:
            continue
        if dump.rank is None:
            num_unnumbered += 1
        elif dump.rank not in latest or _last_record(dump) > _last_record(latest[dump.rank]):
            latest[dump.rank] = dump
    board = WaitBoard(dict(sorted(latest.items())), num_unnumbered)
    for rank, dump in board.dumps.items():
        for entry in dump.entries:
            if entry.sequence is None:
                board.pairs[rank].append(entry)
                board.groups_with_pairs.add(entry.group)
            else:
                # A coalesced operation has one number and several entries: the first that is open stands for it.
                held = board.entries[rank, board.key(rank, entry.group)]
                if entry.sequence not in held or held[entry.sequence].state == "completed":
                    held[entry.sequence] = entry
    return board


def _last_record(dump: FlightDump) -> int:
    return dump.entries[-1].record if dump.entries else -1


def sinks(edges: Mapping[int, set[int]]) -> tuple[set[int], list[set[int]]]:
    """Of a graph of who waits for whom: those who wait for nobody, and circles that wait for nobody outside."""
    nodes = set(edges) | {target for targets in edges.values() for target in targets}
    alone = {node for node in nodes if not edges.get(node)}
    circles = []
    for part in _components(nodes, edges):
        outside = {target for node in part for target in edges.get(node, ())} - part
        if len(part) > 1 and not outside:
            circles.append(part)
    return alone, circles


def _components(nodes: set[int], edges: Mapping[int, set[int]]) -> list[set[int]]:
    """Strongly connected parts, by two passes without recursion."""
    order: list[int] = []
    seen: set[int] = set()
    for start in sorted(nodes):
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, iter(sorted(edges.get(start, ()))))]
        while stack:
            node, targets = stack[-1]
            target = next((one for one in targets if one not in seen), None)
            if target is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(sorted(edges.get(target, ())))))
    sources: dict[int, set[int]] = defaultdict(set)
    for node, ends in edges.items():
        for end in ends:
            sources[end].add(node)
    parts: list[set[int]] = []
    placed: set[int] = set()
    for start in reversed(order):
        if start in placed:
            continue
        part, left = set(), [start]
        while left:
            node = left.pop()
            if node not in placed:
                placed.add(node)
                part.add(node)
                left += sources[node] - placed
        parts.append(part)
    return parts
