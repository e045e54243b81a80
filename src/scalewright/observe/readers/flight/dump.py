"""A flight recorder's dump as facts: which rank wrote it, its groups, its entries and its status.

The format is PyTorch's, versions 1 to 2.10 (`FlightRecorder.hpp`). Libraries of other vendors write the same with
another prefix (`hccl:`, `xccl:`). Values are plain: what is missing or of another type is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from scalewright import units
from scalewright.observe.evidence.facts import Spot
from scalewright.observe.evidence.flight import EntryState, FlightDump, FlightEntry, FlightGroup

_PAIR = re.compile(r"(?P<name>send|recv)\s+(?P<one>\d+)\s*(?P<arrow>->|<-)\s*(?P<other>\d+)")
_NAMED_RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)(?=\D*$)")
_STATES = ("scheduled", "started", "completed")
_LIBRARY_FRAMES = ("torch/", "site-packages/", "dist-packages/", "multiprocessing/", "<string>", "<frozen", "runpy.py")
MOST_RANKS = 1_000_000


def dump_from(document: Any, *, name: str, problem: str = "") -> FlightDump:
    """The dump in a document, whatever was wrong with it."""
    if isinstance(document, list):
        document = {"entries": document}
    content: Mapping[Any, Any] = document if isinstance(document, dict) else {}
    groups = _groups(content.get("pg_config"))
    raw = [entry for entry in _list(content.get("entries")) if isinstance(entry, dict)]
    for group_name, description in dict(map(_group_of, raw)).items():
        groups.setdefault(group_name, FlightGroup(name=group_name, description=description))
    status = _status(content.get("pg_status"), _names_by_id(raw, groups))
    entries = _entries(raw, {group: completed for group, (_, completed) in status.items() if completed is not None})
    rank = _rank_in(groups, entries)
    version = _text(content.get("version"))
    return FlightDump(
        spot=Spot(file=name, text=f"flight recorder {version}, {len(entries)} entries".replace(" ,", ",")),
        rank=rank if rank is not None else rank_in_name(name, groups),
        version=version,
        library_version=_text(content.get("comm_lib_version") or content.get("nccl_version")),
        groups=groups,
        entries=entries,
        last_enqueued={group: enqueued for group, (enqueued, _) in status.items() if enqueued is not None},
        last_completed={group: completed for group, (_, completed) in status.items() if completed is not None},
        problem=problem,
    )


def rank_in_name(name: str, groups: Mapping[str, FlightGroup] | None = None) -> int | None:
    """The number behind `rank`, else the last one of the name; one that no group has is not believed."""
    base = name.rsplit("/", 1)[-1]
    match = _NAMED_RANK.search(base) or _NUMBER.search(re.sub(r"\.(?:pkl|pickle|pt|json|gz|txt|log)\b", "", base))
    if match is None or len(match[1]) > 7:
        return None
    rank = int(match[1])
    members = {rank for group in (groups or {}).values() for rank in group.ranks}
    return rank if not members or rank in members else None


def _rank_in(groups: Mapping[str, FlightGroup], entries: Sequence[FlightEntry]) -> int | None:
    """From the content: a send says which member it is, and the rank is a member of every group that it lists."""
    for entry in entries:
        own = entry.source if entry.name == "send" else entry.target if entry.name == "recv" else None
        group = groups.get(entry.group)
        if own is not None and group is not None and own < len(group.ranks):
            return group.ranks[own]
    sets = [set(group.ranks) for group in groups.values() if group.ranks]
    members = set.intersection(*sets) if sets else set()
    return members.pop() if len(members) == 1 else None


def _groups(config: Any) -> dict[str, FlightGroup]:
    groups = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict):
            group = FlightGroup(
                name=_text(value.get("name")) or _text(key),
                description=_text(value.get("desc")),
                ranks=_ranks(value.get("ranks")),
            )
            # Gloo lists a group without a name, whose members belong to none or to the last one made.
            if group.name:
                groups[group.name] = group
    return groups


def _ranks(value: Any) -> tuple[int, ...]:
    """`[0, 1]` as a text, or a list; an empty text means all ranks, which nobody lists."""
    if isinstance(value, str):
        return tuple(int(word) for word in re.findall(r"\d{1,7}", value)[:MOST_RANKS])
    return tuple(one for one in _list(value) if isinstance(one, int))


def _names_by_id(entries: Sequence[Mapping[Any, Any]], groups: Mapping[str, FlightGroup]) -> dict[int, str]:
    """Status is listed by a number that each rank gives to its groups; entries say which name that is.

    Where names are numbers, the rank's number of a group is its place in their order. That holds for every entry of a
    dump, or it is not used.
    """
    known = {
        entry["pg_id"]: _group_of(entry)[0]
        for entry in entries
        if isinstance(entry.get("pg_id"), int) and _group_of(entry)[0]
    }
    listed = [name for name, group in groups.items() if group.ranks]
    if listed and all(name.isdecimal() for name in listed):
        in_order = dict(enumerate(sorted(listed, key=int)))
        if all(in_order.get(number) == name for number, name in known.items()):
            return in_order
    return known


def _status(status: Any, names: Mapping[int, str]) -> dict[str, tuple[int | None, int | None]]:
    """Last enqueued and last completed number by group."""
    states = {}
    for key, value in status.items() if isinstance(status, dict) else ():
        number = _whole(key)
        if isinstance(value, dict) and number is not None and number in names:
            enqueued = _whole(value.get("last_enqueued_collective"))
            completed = _whole(value.get("last_completed_collective"))
            states[names[number]] = (enqueued, completed)
    return states


def _entries(raw: Sequence[Mapping[Any, Any]], completed: Mapping[str, int]) -> tuple[FlightEntry, ...]:
    """In the order of issue. Parts of a coalesced operation have the state of the whole, which alone is watched.

    Gloo has no device to look at: its entries stay `scheduled` and are retired when they end. NCCL retires those that
    ran out of time as well, so a retired one is complete only if the group's status says so.
    """
    whole: dict[tuple[str, bool, Any], str] = {}
    for entry in raw:
        if _text(entry.get("profiling_name")).endswith("coalesced"):
            whole[_coalesced_key(entry)] = _text(entry.get("state"))
    entries = [
        one
        for index, entry in enumerate(raw)
        if (one := _entry(entry, index, _known_state(entry, whole, completed))) is not None
    ]
    return tuple(sorted(entries, key=lambda entry: entry.record))


def _known_state(
    entry: Mapping[Any, Any], whole: Mapping[tuple[str, bool, Any], str], completed: Mapping[str, int]
) -> str:
    """The state of the coalesced whole, or what retirement and status say, or its own."""
    state = whole.get(_coalesced_key(entry)) or _text(entry.get("state"))
    if state == "completed" or entry.get("retired") is not True:
        return state
    number = _whole(entry.get("collective_seq_id"))
    is_past = (
        entry.get("is_p2p") is not True and number is not None and number <= completed.get(_group_of(entry)[0], -1)
    )
    is_gloo = _text(entry.get("profiling_name")).startswith("gloo:")
    return "completed" if is_past or (is_gloo and entry.get("is_p2p") is True) else state


def _coalesced_key(entry: Mapping[Any, Any]) -> tuple[str, bool, Any]:
    is_pair = entry.get("is_p2p") is True
    number = _whole(entry.get("p2p_seq_id" if is_pair else "collective_seq_id"))
    return _group_of(entry)[0], is_pair, number


def _entry(entry: Mapping[Any, Any], index: int, state: str) -> FlightEntry | None:
    library, _, title = _text(entry.get("profiling_name")).partition(":")
    title = title or library
    pair = _PAIR.search(title)
    is_pair = entry.get("is_p2p") is True or pair is not None
    if not title or state not in _STATES:
        return None
    sequence = None if is_pair else _whole(entry.get("collective_seq_id", entry.get("seq_id")))
    if sequence is None and not is_pair:
        return None
    record = _whole(entry.get("record_id", entry.get("id")))
    ends = _ends(pair)
    return FlightEntry(
        record=index if record is None else record,
        group=_group_of(entry)[0],
        name=pair["name"] if pair else title.split()[0],
        state=cast(EntryState, state),
        sequence=sequence,
        source=ends[0],
        target=ends[1],
        input_sizes=_sizes(entry.get("input_sizes")),
        output_sizes=_sizes(entry.get("output_sizes")),
        dtypes=tuple(_text(one) for one in _list(entry.get("input_dtypes"))),
        created_at_s=_seconds(entry.get("time_created_ns")),
        completed_at_s=_seconds(entry.get("time_discovered_completed_ns")),
        limit_s=_scaled(entry.get("timeout_ms"), units.MILLI),
        called_from=_called_from(entry.get("frames")),
    )


def _ends(pair: re.Match[str] | None) -> tuple[int | None, int | None]:
    if pair is None:
        return None, None
    one, other = int(pair["one"]), int(pair["other"])
    return (one, other) if pair["arrow"] == "->" else (other, one)


def _group_of(entry: Mapping[Any, Any]) -> tuple[str, str]:
    value = entry.get("process_group")
    if isinstance(value, list | tuple) and value:
        return _text(value[0]), _text(value[1]) if len(value) > 1 else ""
    return _text(value) or _text(entry.get("pg_name")) or _text(entry.get("pg_id")), ""


def _called_from(frames: Any) -> str:
    """The innermost frame outside of libraries; the innermost of all if there is none."""
    known = [frame for frame in _list(frames) if isinstance(frame, dict) and frame.get("filename")]
    own = [frame for frame in known if not any(part in str(frame["filename"]) for part in _LIBRARY_FRAMES)]
    for frame in (own or known)[:1]:
        file = str(frame["filename"]).rsplit("/", 1)[-1][:100]
        return f"{file}:{_whole(frame.get('line')) or 0} {_text(frame.get('name'))[:100]}".rstrip()
    return ""


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(n for n in _list(one) if isinstance(n, int)) for one in _list(value))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:500].decode("utf-8", "replace")
    return str(value)[:500] if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) else None


def _scaled(value: Any, factor: float) -> float | None:
    number = _whole(value) if not isinstance(value, float) else value
    return float(number) * factor if number is not None and 0 <= number < 2**63 else None


def _seconds(value: Any) -> float | None:
    at_s = _scaled(value, units.NANO)
    return at_s if at_s else None
