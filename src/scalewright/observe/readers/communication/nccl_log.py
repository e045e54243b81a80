"""Debug logs of NCCL and RCCL: how ranks reach each other, what fell back, and which warnings matter."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from scalewright.observe.evidence.facts import Happening, Spot, TransportFact
from scalewright.observe.readers.communication.nccl_warnings import warning_kind
from scalewright.observe.readers.reader import Item, LineReader, Stated
from scalewright.observe.readers.source import Line

_PROCESS = re.compile(
    r"(?P<host>[\w.-]+):(?P<pid>\d{1,15}):(?P<tid>\d{1,15}) (?:\[(?P<device>\d{1,15})\] )?(?P<rest>.*)"
)
_CHANNEL = re.compile(
    r"Channel (?P<channel>\d{1,15})(?:/\d+)? ?: (?P<one>\d{1,15})\[\w+\] -> (?P<other>\d{1,15})\[\w+\]"
    r"(?: \[(?:send|receive)\])? via (?P<way>\S.*)"
)
_INIT = re.compile(
    r"comm 0x\w+ rank (?P<rank>\d{1,15}) n[Rr]anks (?P<num>\d{1,15})(?: nNodes (?P<nodes>\d{1,15}) localRanks \d+)?"
    r"(?:.*? cudaDev (?P<device>\d{1,15}))?(?:.*? busId (?P<bus>\w+))?"
)
_COUNTS = re.compile(r"(?P<coll>\d{1,15}) coll channels,.*? (?P<p2p>\d{1,15}) p2p channels")
_USING = re.compile(r"NET/(?P<net>IB|Socket|OFI\S*|\w+) ?: Using (?P<list>\[0\].*)")
_DEVICE = re.compile(r"\[(\d{1,15})\]([\w.@-]+)(?::\d+)?(?:/(?:uverbs\d+:)?\w+)?")
_NETWORK = re.compile(r"Using network (?P<name>.+?)\s*$")
_VARIABLE = re.compile(r"\b((?:NCCL|RCCL|FI|OFI|MSCCL)_[A-Z0-9_]+) set (?:by environment )?to (\S+?)\.?(?=\s|$)")
_VERSION = re.compile(r"\b(?P<name>NCCL|RCCL) version ?:? (?P<version>\d[\w.+:-]*)")
_FALLBACKS = (
    (re.compile(r"NET/IB ?: No device found"), "no InfiniBand device"),
    (re.compile(r"Failed to open libibverbs|dlopen failed on libibverbs"), "no InfiniBand library"),
    (re.compile(r"GPU Direct RDMA Disabled"), "GPUDirect RDMA off"),
    (re.compile(r"NET/OFI.*(?:[Ff]ailed|Unable|not found|no provider)", re.DOTALL), "the OFI plugin failed"),
    (re.compile(r"Could not enable P2P between"), "no peer access between GPUs"),
)
_INTERNAL = ("Socket", "IB", "OFI")
MOST_PAIRS = 200_000


@dataclass(slots=True)
class _Way:
    """Connections of one transport."""

    spot: Spot
    channels: set[int] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Member:
    """The largest communicator that a process is in."""

    spot: Spot
    host: str
    rank: int
    num_ranks: int
    num_nodes: int | None
    bus: str


class NcclLogReader(LineReader):
    """Connections are counted, and given as one fact for each way of transport."""

    kind: ClassVar[str] = "nccl log"
    hints: ClassVar[tuple[str, ...]] = (
        "NCCL INFO", "NCCL WARN", "NCCL version", "RCCL version", "NCCL ERROR", " WARN Call to", " WARN Connect",
    )  # fmt: skip

    def __init__(self) -> None:
        self._ways: dict[tuple[bool, str, bool], _Way] = {}
        self._names: dict[str, dict[str, str]] = defaultdict(dict)
        self._members: dict[tuple[str, str], _Member] = {}
        self._fallbacks: dict[str, Happening] = {}
        self._network: tuple[str, Spot] | None = None
        self._num_channels: tuple[int, Spot] | None = None
        self._seen: set[str] = set()
        self._num_nodes = 0
        self._hosts: set[str] = set()

    def take(self, line: Line) -> Iterable[Item]:
        raw = line.raw
        if " via " in raw and (channel := _CHANNEL.search(raw)):
            self._connected(line, channel)
            return ()
        return self._statement(line)

    def _connected(self, line: Line, channel: re.Match[str]) -> None:
        parts = channel["way"].split()[0].split("/") if "AWS" not in channel["way"] else channel["way"].split("/")
        is_network = parts[0] in ("NET", "COLLNET")
        way = "/".join(parts[:2]) if is_network and len(parts) > 1 else parts[0]
        way = "NET/OFI" if is_network and "Libfabric" in way else way
        is_direct = "GDRDMA" in channel["way"]
        key = (is_network, way, is_direct)
        one = self._ways.setdefault(key, _Way(line.spot))
        one.channels.add(int(channel["channel"]))
        if is_network and len(parts) > 2 and parts[2].isdecimal():
            one.devices.add(parts[2])

    def _statement(self, line: Line) -> Iterator[Item]:
        process = _PROCESS.search(line.raw)
        host = process["host"] if process else line.host
        rest = process["rest"] if process else line.message
        if host:
            self._hosts.add(host)
        if version := _VERSION.search(line.raw):
            yield Stated(version["name"], version["version"], line.spot, room="versions")
        if variable := _VARIABLE.search(rest):
            yield Stated(variable[1], variable[2], line.spot, room="environment")
        if "WARN" in line.raw:
            yield from self._warning(line, process, host, rest)
        elif init := _INIT.search(rest):
            self._joined(line, process, init)
        elif counts := _COUNTS.search(rest):
            num = int(counts["coll"])
            if self._num_channels is None or num > self._num_channels[0]:
                self._num_channels = (num, line.spot)
        elif using := _USING.search(rest):
            self._names[using["net"]].update(dict(_DEVICE.findall(using["list"].split(" ; OOB")[0].split("; OOB")[0])))
        elif network := _NETWORK.search(rest):
            self._network = self._network or (network["name"], line.spot)
        self._note_fallback(line, host, rest)
        if "Abort COMPLETE" in rest and "abort" not in self._seen:
            self._seen.add("abort")
            yield Happening(
                kind="collective_abort",
                spot=line.spot,
                message=rest.removeprefix("NCCL INFO "),
                at_s=line.at_s,
                host=host,
            )

    def _warning(self, line: Line, process: re.Match[str] | None, host: str, rest: str) -> Iterator[Item]:
        _, _, message = rest.partition("WARN ")
        message = (message or rest).strip()
        kind, is_benign, values = warning_kind(message)
        key = f"{host}:{process['pid'] if process else line.rank}:{re.sub(r'[0-9a-fx]+', '#', message)[:80]}"
        if key in self._seen:
            return
        self._seen.add(key)
        member = self._members.get((host, process["pid"])) if process else None
        yield Happening(
            kind=kind, spot=line.spot, message=message[:800], at_s=line.at_s, host=host, values=values,
            rank=member.rank if member else line.rank, is_benign=is_benign,
        )  # fmt: skip

    def _joined(self, line: Line, process: re.Match[str] | None, init: re.Match[str]) -> None:
        num, nodes = int(init["num"]), int(init["nodes"]) if init["nodes"] else None
        self._num_nodes = max(self._num_nodes, nodes or 0)
        if process is None or len(self._members) > MOST_PAIRS:
            return
        key = (process["host"], process["pid"])
        known = self._members.get(key)
        if known is None or num > known.num_ranks or (num == known.num_ranks and init["bus"] and not known.bus):
            self._members[key] = _Member(
                spot=line.spot, host=process["host"], rank=int(init["rank"]), num_ranks=num, num_nodes=nodes,
                bus=init["bus"] or (known.bus if known else ""),
            )  # fmt: skip
        elif nodes and known.num_nodes is None and num == known.num_ranks:
            known.num_nodes = nodes

    def _note_fallback(self, line: Line, host: str, rest: str) -> None:
        for pattern, what in _FALLBACKS:
            if what not in self._fallbacks and pattern.search(rest):
                message = rest.partition("NCCL INFO ")[2] or rest.partition("NCCL WARN ")[2] or rest
                self._fallbacks[what] = Happening(
                    kind="network_fallback", spot=line.spot, message=message.strip()[:400], at_s=line.at_s, host=host,
                    values={"what": what},
                )  # fmt: skip

    def _has_all_ranks_on_one_host(self) -> bool:
        """A log of some ranks says nothing about the nodes of the others."""
        num_ranks = max((one.num_ranks for one in self._members.values()), default=0)
        return len(self._hosts) < 2 and len({one.rank for one in self._members.values()}) >= num_ranks

    def end(self) -> Iterable[Item]:
        is_one_node = self._num_nodes == 1 or (not self._num_nodes and self._has_all_ranks_on_one_host())
        for (is_network, way, is_direct), one in sorted(self._ways.items()):
            names = self._names.get(way.split("/")[-1].split("ext")[0], {})
            yield TransportFact(
                between="nodes" if is_network and not is_one_node else "node", way=way, spot=one.spot,
                num_channels=len(one.channels), is_direct=is_direct if is_network else None,
                interfaces=tuple(names.get(device, device) for device in sorted(one.devices, key=int)),
            )  # fmt: skip
        for what, happening in self._fallbacks.items():
            yield self._judged(what, happening, is_one_node=is_one_node)
        if self._network and self._network[0] == "Socket" and not is_one_node:
            yield Happening(
                kind="network_fallback", spot=self._network[1], message="Using network Socket",
                values={"what": "TCP between nodes"},
            )  # fmt: skip
        yield from self._stated()

    def _judged(self, what: str, happening: Happening, *, is_one_node: bool) -> Happening:
        """A missing InfiniBand device is nothing on one node, or where another network was chosen."""
        network = self._network[0] if self._network else ""
        is_other = bool(network) and network not in ("Socket",)
        is_benign = what.startswith("no InfiniBand") and (is_one_node or is_other)
        is_benign = is_benign or (what == "GPUDirect RDMA off" and is_one_node)
        is_benign = is_benign or ("OFI" in what and is_one_node)
        if not is_benign:
            return happening
        return Happening(
            kind=happening.kind, spot=happening.spot, message=happening.message, at_s=happening.at_s,
            host=happening.host, values=happening.values, is_benign=True,
        )  # fmt: skip

    def _stated(self) -> Iterator[Item]:
        if self._network:
            yield Stated("network", self._network[0], self._network[1])
        if self._num_channels:
            yield Stated("nccl_channels", str(self._num_channels[0]), self._num_channels[1])
        members = list(self._members.values())
        if members:
            largest = max(members, key=lambda member: member.num_ranks)
            yield Stated("num_ranks", str(largest.num_ranks), largest.spot)
            if largest.num_nodes or self._num_nodes:
                yield Stated("num_nodes", str(largest.num_nodes or self._num_nodes), largest.spot)
            for member in members:
                if member.num_ranks == largest.num_ranks:
                    yield Happening(
                        kind="started", spot=member.spot, rank=member.rank,
                        message=f"rank {member.rank} of {member.num_ranks} on {member.host}",
                        host=member.host,
                        values={"bus_id": f"{member.host}/{member.bus}"} if member.bus else {},
                    )  # fmt: skip
