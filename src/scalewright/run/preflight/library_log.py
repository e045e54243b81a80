"""Read NCCL's or RCCL's own log (NCCL_DEBUG=INFO): which way its channels really took."""

from __future__ import annotations

import re

from scalewright.run.preflight.facts import Transport

_VERSION = re.compile(r"\b(NCCL|RCCL) version\s*:?\s*([0-9][\w.+:-]*)")
_NETWORK = re.compile(r"NCCL INFO (?:Initialized NET plugin|Assigned NET plugin|Using network) (.+?)(?: to comm.*)?$")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (\w+)")
_CHANNEL = re.compile(
    r"NCCL INFO (?:Channel|Ring|Tree) [0-9]+(?:/[0-9]+)? : \S+ -> \S+(?: \[(?:send|receive)\])? via (.+?)"
    r"(?: comm 0x[0-9a-f]+.*)?$"
)
_INTERFACE = re.compile(r"\[\d+\]([\w.:/-]+?)(?::\d+(?:\.\d+){3}|:\d+/(?:IB|RoCE))")
_MULTICAST = re.compile(r"NCCL INFO .*?\b([1-9]\d*) nvls channels")
_WARNING = re.compile(r"NCCL WARN (.+)$")
_NET = re.compile(r"^NET/(.+?)(?:/\d+)?(?:\(\d+\))?((?:/(?:GDRDMA|Shared|PCI|DMABUF|Flush)\S*)*)$")
FAMILIES = {
    "IB": "rdma",
    "IBext": "rdma",
    "Socket": "sockets",
    "AWS Libfabric": "libfabric",
    "OFI": "libfabric",
    "Libfabric": "libfabric",
}
"""What a network of the library is; versions of a plugin (IBext_v8) count as the plugin."""


def read_log(text: str, *, rank: int) -> Transport:
    """What the log says; lines of other programs and of other forms are passed over."""
    library, version, network, provider = "nccl", "", "", ""
    ways: dict[str, None] = {}
    warnings: dict[str, None] = {}
    interfaces: dict[str, None] = {}
    has_multicast = False
    for line in text.splitlines():
        if found := _VERSION.search(line):
            library, version = found.group(1).lower(), found.group(2)
        elif found := _CHANNEL.search(line):
            ways[found.group(1).strip()] = None
        elif found := _NETWORK.search(line):
            network = found.group(1).strip()
        elif found := _PROVIDER.search(line):
            provider = found.group(1)
        elif found := _WARNING.search(line):
            warnings[found.group(1).strip()] = None
        elif "NET/IB : Using" in line or "NET/Socket : Using" in line:
            interfaces.update(dict.fromkeys(_INTERFACE.findall(line)))
        has_multicast = has_multicast or _MULTICAST.search(line) is not None
    return Transport(
        rank=rank, library=library, version=version, network=network, provider=provider, ways=tuple(ways),
        has_multicast=has_multicast, warnings=tuple(warnings), interfaces=tuple(interfaces),
    )  # fmt: skip


def networks_used(transport: Transport) -> tuple[str, ...]:
    """Families of the networks that channels went over: rdma, sockets, libfabric, or the library's own word."""
    found = (family(match.group(1)) for way in transport.ways if (match := _NET.match(way)))
    return tuple(dict.fromkeys(found))


def family(network: str) -> str:
    plain = re.sub(r"_v\d+$", "", network)
    return FAMILIES.get(plain, plain)


def is_direct(transport: Transport) -> bool:
    """Whether every channel between nodes reads and writes device memory without the host's."""
    between = [way for way in transport.ways if way.startswith("NET/")]
    return bool(between) and all("/GDRDMA" in way for way in between)


def goes_through_host(transport: Transport) -> bool:
    """Whether ranks of one node exchange through the host's memory."""
    return any(way.startswith("SHM") for way in transport.ways)
