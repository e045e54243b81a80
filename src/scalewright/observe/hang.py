"""Why a run hangs: the rank that stalled and the collective that it missed, from flight recorders or watchdogs.

Every rank that waits points at the members who have not come to the operation that it waits in. Those either wait
somewhere else, and point on, or wait for nobody: they are where the hang began. A rank without a dump waits for nobody
that we know of. Ranks that all stand in the same operation say nothing about who is at fault, and that is what is said.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from scalewright import units
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Spot
from scalewright.observe.evidence.flight import FlightEntry
from scalewright.observe.findings.rule import Certainty
from scalewright.observe.hang_board import AWAITED, GroupKey, WaitBoard, board_of, sinks
from scalewright.observe.hang_watchdog import GroupTimeout, group_timeouts
from scalewright.observe.readers.flight.dump import rank_in_name

StallKind = Literal["mismatch", "not_joined", "device_stopped", "no_dump", "circle", "all_joined", "undecided"]
MOST_LAG = 2
"""Operations by which a recorder may be late, because its watchdog looks at intervals; more: the device stopped."""
MOST_WITHOUT_DUMP = 4
"""One in so many ranks may lack a dump and be blamed for it; of more, some are likely to wait as well."""
SAME_SIZE = {
    "all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "all_gather_into_tensor",
    "_reduce_scatter_base", "reduce_scatter_tensor", "all_reduce_barrier",
}  # fmt: skip
"""Operations whose input has the same number of elements on every member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Where a hang began, as far as it can be known."""

    kind: StallKind
    ranks: tuple[int, ...]
    """Who stalled; empty if that cannot be decided."""
    certainty: Certainty
    sentence: str
    spots: tuple[Spot, ...]
    collective: str = ""
    group: str = ""
    sequence: int | None = None
    members: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    """Ranks that wait in it."""
    since_s: float | None = None
    """When the first of them issued it, seconds since 1970."""
    called_from: str = ""
    missing: str = ""
    """What would make it certain."""


def stalls(evidence: Evidence) -> list[Stall]:
    """Where the hang of a run began, most certain first; empty if no dump shows a rank that waits."""
    board = board_of(evidence.flight_dumps)
    if not board.dumps:
        return [_by_watchdog(timeout, evidence) for timeout in group_timeouts(evidence.happenings)]
    mismatches = _mismatches(board)
    # Ranks that stand in a mismatch wait for each other without end: that is its consequence, no cause of its own.
    causes = [*mismatches, *(root for root in _roots(board) if not mismatches or root.kind != "all_joined")]
    empty = {
        rank: f"{source.file} {source.problem or 'is empty'}"
        for source in evidence.sources
        if (source.kind == "empty" or source.problem) and (rank := rank_in_name(source.file)) in board.absent
    }
    return [_with_empty(stall, empty) for stall in causes]


def is_waiting(evidence: Evidence) -> bool:
    """Whether any dump shows an operation that is not complete."""
    board = board_of(evidence.flight_dumps)
    return any(board.waits_in(rank) for rank in board.dumps)


def _with_empty(stall: Stall, empty: Mapping[int, str]) -> Stall:
    files = [empty[rank].split(" ", 1) for rank in stall.ranks if rank in empty]
    if stall.kind != "no_dump" or not files:
        return stall
    return replace(stall, spots=(*stall.spots, *(Spot(file=file, text=problem) for file, problem in files)))


# ---------------------------------------------------------------- who is where


def _roots(board: WaitBoard) -> list[Stall]:
    """Follow who waits for whom to those who wait for nobody."""
    edges: dict[int, set[int]] = {}
    for rank in board.dumps:
        entry = board.waits_in(rank)
        if entry is not None:
            states = board.standings(rank, entry)
            edges[rank] = {other for other, state in states.items() if state in AWAITED}
    if not edges:
        return []
    alone, circles = sinks(edges)
    stopped = [rank for rank in sorted(alone) if rank in edges and _lag(board, rank) > 0]
    joined = [rank for rank in sorted(alone) if rank in edges and rank not in stopped]
    blamed = sorted(alone - set(edges))
    if blamed or any(_lag(board, rank) > MOST_LAG for rank in stopped):
        stopped = [rank for rank in stopped if _lag(board, rank) > MOST_LAG]
    causes = [
        *_not_joined(board, [rank for rank in blamed if rank in board.dumps], edges),
        *(_device_stopped(board, rank, edges) for rank in stopped),
        *_no_dump(board, {rank for rank in blamed if rank not in board.dumps}, edges),
        *(_circle(board, circle) for circle in circles),
    ]
    if not causes:
        causes = _all_joined(board, joined)
    return causes


def _lag(board: WaitBoard, rank: int) -> int:
    """By how many operations the other members are past the one that this rank waits in."""
    entry = board.waits_in(rank)
    if entry is None or entry.sequence is None:
        return 0
    key = board.key(rank, entry.group)
    others = [
        board.completed(other, key) for other in board.members(rank, entry) if other in board.dumps and other != rank
    ]
    return max([0, *(done - entry.sequence + 1 for done in others if done is not None)])


def _missed(board: WaitBoard, rank: int, edges: dict[int, set[int]]) -> tuple[int, FlightEntry]:
    """Of the operations in which others wait for this rank, the one with most of them; the oldest of equals."""
    waiting = [
        (other, entry) for other, targets in edges.items() if rank in targets and (entry := board.waits_in(other))
    ]
    counts = Counter((entry.group, entry.sequence, entry.is_pair) for _, entry in waiting)
    return min(
        waiting,
        key=lambda one: (
            -counts[one[1].group, one[1].sequence, one[1].is_pair], one[1].is_pair, one[1].created_at_s or 0.0, one[0],
        ),
    )  # fmt: skip


def _described(board: WaitBoard, rank: int, entry: FlightEntry) -> tuple[str, str]:
    """The operation in words, and its group."""
    group = board.group(rank, entry.group)
    title = group.title if group else entry.group
    number = "" if entry.sequence is None else f" number {entry.sequence}"
    size = f" of {'x'.join(map(str, entry.input_sizes[0]))}" if entry.input_sizes and entry.input_sizes[0] else ""
    return f"{entry.name}{number}{size} in group {title}", title


def _stall(board: WaitBoard, rank: int, entry: FlightEntry, **values: object) -> Stall:
    """A stall at an operation that this rank waits in."""
    waiting = values.pop("waiting", (rank,))
    _, title = _described(board, rank, entry)
    ranks = [one for one in (rank, *values["ranks"]) if one in board.dumps]  # type: ignore[misc]
    return Stall(
        collective=entry.name, group=title, sequence=entry.sequence, members=board.members(rank, entry),
        since_s=entry.created_at_s, called_from=entry.called_from, waiting=waiting,  # type: ignore[arg-type]
        spots=tuple(board.dumps[one].spot for one in dict.fromkeys(ranks)), **values,  # type: ignore[arg-type]
    )  # fmt: skip


# ---------------------------------------------------------------- kinds of stalls


def _not_joined(board: WaitBoard, ranks: list[int], edges: dict[int, set[int]]) -> list[Stall]:
    """Ranks with a dump that wait for nobody while others wait for them: they stopped outside of communication."""
    by_operation: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    first: dict[tuple[str, int | None], tuple[int, FlightEntry]] = {}
    for rank in ranks:
        waiter, entry = _missed(board, rank, edges)
        by_operation[entry.group, entry.sequence].append(rank)
        first.setdefault((entry.group, entry.sequence), (waiter, entry))
    causes = []
    for key, missing in by_operation.items():
        waiter, entry = first[key]
        words, _ = _described(board, waiter, entry)
        waiting = tuple(sorted(other for other, targets in edges.items() if targets & set(missing)))
        is_known = all(_is_known_to_miss(board, rank, waiter, entry) for rank in missing)
        causes.append(_stall(
            board, waiter, entry, kind="not_joined", ranks=tuple(missing), waiting=waiting,
            certainty="certain" if is_known else "likely",
            sentence=(
                f"{_ranks(missing, start=True)} did not join {words}: {_ranks(waiting)}"
                f" {_verb(waiting, 'waits', 'wait')} for {_verb(missing, 'it', 'them')}, and {_ranks(missing)}"
                f" {_verb(missing, 'waits', 'wait')} in no operation."
            ),
        ))  # fmt: skip
    return causes


def _is_known_to_miss(board: WaitBoard, rank: int, waiter: int, entry: FlightEntry) -> bool:
    """Whether the rank's own recorder says how far it came in the group."""
    if entry.sequence is None:
        return bool(board.dumps[rank].entries)
    return board.enqueued(rank, board.key(waiter, entry.group)) is not None


def _device_stopped(board: WaitBoard, rank: int, edges: dict[int, set[int]]) -> Stall:
    entry = board.waits_in(rank)
    assert entry is not None
    words, _ = _described(board, rank, entry)
    lag = _lag(board, rank)
    waiting = tuple(sorted(other for other, targets in edges.items() if rank in targets))
    awaited = f"; {_ranks(waiting)} {_verb(waiting, 'waits', 'wait')} for it" if waiting else ""
    return _stall(
        board, rank, entry, kind="device_stopped", ranks=(rank,), waiting=waiting,
        certainty="likely" if lag > MOST_LAG else "possible",
        sentence=(
            f"Rank {rank} still has {words} open, which its peers completed {lag} operation{'s' * (lag > 1)} ago:"
            f" its device or its watchdog stopped{awaited}."
        ),
        missing=f"the kernel log of the node of rank {rank} (dmesg, Xid) says whether its device failed",
    )  # fmt: skip


def _no_dump(board: WaitBoard, ranks: set[int], edges: dict[int, set[int]]) -> list[Stall]:
    """Ranks that left no dump and that others wait for."""
    if not ranks:
        return []
    awaited = {other: targets & ranks for other, targets in edges.items() if targets & ranks}
    common = set.intersection(*awaited.values())
    named = common or ranks
    waiter = min(awaited, key=lambda rank: (board.waits_in(rank).created_at_s or 0.0, rank))  # type: ignore[union-attr]
    entry = board.waits_in(waiter)
    assert entry is not None
    words, _ = _described(board, waiter, entry)
    waiting = tuple(sorted(awaited))
    if len(named) > max(1, len(board.world) // MOST_WITHOUT_DUMP):
        return [_stall(
            board, waiter, entry, kind="undecided", ranks=(), waiting=waiting, certainty="possible",
            sentence=(
                f"{_ranks(waiting, start=True)} {_verb(waiting, 'waits', 'wait')}, the longest in {words};"
                f" {len(named)} of {len(board.world)} ranks left no dump, so that nothing says which did not join."
            ),
            missing=f"the dumps of {_ranks(sorted(named))}",
        )]  # fmt: skip
    return [_stall(
        board, waiter, entry, kind="no_dump", ranks=tuple(sorted(named)), waiting=waiting,
        certainty="likely" if len(named) == 1 else "possible",
        sentence=(
            f"{_ranks(sorted(named), start=True)} left no dump, and every other rank that is stuck waits for"
            f" {_verb(sorted(named), 'it', 'them')}: the oldest wait is in {words}."
        ),
        missing=f"the dump, the log or the kernel log of {_ranks(sorted(named))}",
    )]  # fmt: skip


def _circle(board: WaitBoard, circle: set[int]) -> Stall:
    """Ranks that wait for each other: another order of operations, or a rank that stopped with an operation open."""
    ordered = sorted(circle, key=lambda rank: (board.last_issued_at_s(rank) or 0.0, rank))
    first = ordered[0]
    entry = board.waits_in(first)
    assert entry is not None
    places: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(circle):
        waits_in = board.waits_in(rank)
        if waits_in is not None:
            places[_described(board, rank, waits_in)[0]].append(rank)
    words = "; ".join(f"{_ranks(ranks)} in {place}" for place, ranks in list(places.items())[:4])
    rarest = min(places.values(), key=len)
    return _stall(
        board, first, entry, kind="circle", ranks=tuple(rarest), waiting=tuple(sorted(circle)),
        certainty="possible",
        sentence=(
            f"{_ranks(sorted(circle), start=True)} wait for each other: {words}. Either they issue these operations in"
            f" a different order, or {_ranks(rarest)} stopped with one open."
        ),
        missing="the Python stacks of these ranks (py-spy dump, or frames in the dump)",
    )  # fmt: skip


def _all_joined(board: WaitBoard, ranks: list[int]) -> list[Stall]:
    """Everybody is in the operation, and it does not end. Which device or link is at fault, dumps cannot say."""
    causes = []
    handled: set[tuple[GroupKey, int | None, int | None]] = set()
    for rank in ranks:
        entry = board.waits_in(rank)
        if entry is None:
            continue
        key = (board.key(rank, entry.group), entry.sequence, None if entry.sequence is not None else rank)
        if key in handled:
            continue
        handled.add(key)
        members = board.members(rank, entry) or (rank,)
        words, _ = _described(board, rank, entry)
        states = {one: entry_of.state for one in members if (entry_of := board.waits_in(one)) is not None}
        late = tuple(one for one, state in states.items() if state == "scheduled")
        has_both = 0 < len(late) < len(states)
        hint = f" On {_ranks(late)} its kernel never started." if has_both else ""
        causes.append(_stall(
            board, rank, entry, kind="all_joined", ranks=late if has_both else (), waiting=tuple(members),
            certainty="possible",
            sentence=f"All members joined {words} and none completed it: a link or a device is stuck.{hint}",
            missing="NCCL's log (NCCL_DEBUG=INFO), counters of the network, and the kernel logs of these nodes",
        ))  # fmt: skip
    return causes


# ---------------------------------------------------------------- mismatches


def _mismatches(board: WaitBoard) -> list[Stall]:
    """The first operation of each group that is not the same on all ranks that hold it."""
    causes = []
    for key in dict.fromkeys(key for _, key in board.entries):
        held = {rank: entries for (rank, other), entries in board.entries.items() if other == key}
        for number in sorted({number for entries in held.values() for number in entries}):
            at = {rank: entries[number] for rank, entries in held.items() if number in entries}
            cause = _mismatch(board, at)
            if cause is not None:
                causes.append(cause)
                break
    return causes


def _mismatch(board: WaitBoard, at: dict[int, FlightEntry]) -> Stall | None:
    kinds: dict[tuple[str, int | None, tuple[str, ...]], list[int]] = defaultdict(list)
    for rank, entry in at.items():
        is_sized = entry.name in SAME_SIZE
        kinds[entry.name, _num_elements(entry) if is_sized else None, entry.dtypes if is_sized else ()].append(rank)
    if len(kinds) < 2:
        return None
    counts = Counter({kind: len(ranks) for kind, ranks in kinds.items()})
    (most, num_most), (_, num_next) = counts.most_common(2)
    is_tie = num_most == num_next
    odd = sorted(rank for kind, ranks in kinds.items() if is_tie or kind != most for rank in ranks)
    words = "; ".join(
        f"{_ranks(ranks)}: {_described(board, ranks[0], at[ranks[0]])[0]}"
        + (f" at {at[ranks[0]].called_from}" if at[ranks[0]].called_from else "")
        for ranks in list(kinds.values())[:4]
    )
    what = "operations" if len({kind[0] for kind in kinds}) > 1 else "sizes or types"
    doubt = " As many have one as the other, so the dumps do not say who is wrong." if is_tie else ""
    first = odd[0]
    return _stall(
        board, first, at[first], kind="mismatch", ranks=tuple(odd), waiting=tuple(sorted(at)),
        certainty="likely" if is_tie else "certain",
        sentence=f"Ranks of one group issued different {what} under the same number: {words}.{doubt}",
    )  # fmt: skip


def _num_elements(entry: FlightEntry) -> int:
    total = 0
    for sizes in entry.input_sizes:
        count = 1
        for size in sizes:
            count *= size
        total += count
    return total


# ---------------------------------------------------------------- watchdogs


def _by_watchdog(timeout: GroupTimeout, evidence: Evidence) -> Stall:
    """From logs alone: who is behind by its own watchdog, whose operation differs, or who said nothing."""
    waiting = tuple(sorted(one.rank for one in timeout.waiting))
    words = f"{timeout.collective or 'operation'} number {timeout.sequence}"
    words += f" of group {timeout.group}" if timeout.group else ""
    waits_s = [one.waited_s for one in timeout.waiting if one.waited_s is not None]
    words += f" for {units.format(max(waits_s), units.SECONDS)}" if waits_s else ""
    behind = tuple(sorted(one.rank for one in timeout.behind))
    others = tuple(sorted(one.rank for one in timeout.ahead))
    silent = _silent(evidence, {*waiting, *behind, *others}) if timeout.group in ("", "0") else ()
    ranks, kind, certainty = behind, "not_joined", "certain"
    if behind:
        own = _verb(behind, "its", "their")
        reason = f"{_ranks(behind, start=True)} had not issued it when the time ran out, by {own} own watchdog"
    elif others and len(others) < len(waiting):
        ranks, kind, certainty = others, "mismatch", "likely"
        reason = f"{_ranks(others, start=True)} timed out in another operation"
    elif silent:
        ranks, kind, certainty = silent, "not_joined", "likely" if len(silent) == 1 else "possible"
        reason = f"{_ranks(silent, start=True)} did not report it: look there first"
    else:
        ranks, kind, certainty = (), "undecided", "possible"
        reason = "Nothing says which rank did not join"
    spots = [one.happening.spot for one in (*timeout.behind, *timeout.ahead, *timeout.waiting)]
    return Stall(
        kind=kind, ranks=ranks, certainty=certainty, waiting=waiting, collective=timeout.collective,  # type: ignore[arg-type]
        group=timeout.group, sequence=timeout.sequence, spots=tuple(spots[:4]),
        sentence=f"{_ranks(waiting, start=True)} waited in {words}. {reason}.",
        missing="the flight recorders of all ranks (TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1)",
    )  # fmt: skip


MOST_RANKS = 1_000_000


def _silent(evidence: Evidence, heard: set[int]) -> tuple[int, ...]:
    """Ranks of the job whose watchdog said nothing; none if most are silent.

    Where nothing says how many ranks there are, those below the highest that is named exist, since ranks count from 0.
    """
    stated = evidence.settings.get("num_ranks", ("", None))[0]
    named = {one.rank for one in evidence.happenings} | {one.rank for one in evidence.steps}
    known = {rank for rank in named if rank is not None} | heard
    num = int(stated) if stated.isdecimal() else max(known, default=-1) + 1
    every = set(range(num)) if num < MOST_RANKS else known
    silent = sorted(every - heard)
    return tuple(silent) if len(silent) <= len(every) // 2 else ()


# ---------------------------------------------------------------- words


def _ranks(ranks: list[int] | tuple[int, ...], *, start: bool = False) -> str:
    """`rank 3`, `ranks 1 and 2`, `ranks 0 to 7`, `ranks 0, 1, 4 and 12 more`; with a capital at a sentence's start."""
    every = sorted(ranks)
    noun = "Rank" if start else "rank"
    if not every:
        return f"No {noun.lower()}" if start else "no rank"
    if len(every) == 1:
        return f"{noun} {every[0]}"
    if len(every) > 2 and every[-1] - every[0] == len(every) - 1:
        return f"{noun}s {every[0]} to {every[-1]}"
    if len(every) <= 8:
        return f"{noun}s {', '.join(map(str, every[:-1]))} and {every[-1]}"
    return f"{noun}s {', '.join(map(str, every[:6]))} and {len(every) - 6} more"


def _verb(ranks: list[int] | tuple[int, ...], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many
