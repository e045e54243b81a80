"""Read the log of NCCL or RCCL (NCCL_DEBUG=INFO): the routes that its channels really take."""

from __future__ import annotations

import re

from scalewright.run.preflight.facts import RankTransport

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
"""Family of each of the library's networks. A plugin's version (IBext_v8) is ignored."""


def read_log(text: str, *, rank: int) -> RankTransport:
    """The routes in a log. Lines of other programs and unknown lines are skipped."""
    library, version, network, provider = "nccl", "", "", ""
    routes: dict[str, None] = {}
    warnings: dict[str, None] = {}
    interfaces: dict[str, None] = {}
    has_multicast = False
    for line in text.splitlines():
        if match := _VERSION.search(line):
            library, version = match.group(1).lower(), match.group(2)
        elif match := _CHANNEL.search(line):
            routes[match.group(1).strip()] = None
        elif match := _NETWORK.search(line):
            network = match.group(1).strip()
        elif match := _PROVIDER.search(line):
            provider = match.group(1)
        elif match := _WARNING.search(line):
            warnings[match.group(1).strip()] = None
        elif "NET/IB : Using" in line or "NET/Socket : Using" in line:
            interfaces.update(dict.fromkeys(_INTERFACE.findall(line)))
        has_multicast = has_multicast or _MULTICAST.search(line) is not None
    return RankTransport(
        rank=rank, library=library, version=version, network=network, provider=provider, routes=tuple(routes),
        has_multicast=has_multicast, warnings=tuple(warnings), interfaces=tuple(interfaces),
    )  # fmt: skip


def networks_used(transport: RankTransport) -> tuple[str, ...]:
    """Families of the networks that channels use: rdma, sockets, libfabric, or the library's own name."""
    families = (family(match.group(1)) for route in transport.routes if (match := _NET.match(route)))
    return tuple(dict.fromkeys(families))


def family(network: str) -> str:
    plain = re.sub(r"_v\d+$", "", network)
    return FAMILIES.get(plain, plain)


def is_direct(transport: RankTransport) -> bool:
    """Whether every channel between nodes reads and writes device memory, without host memory."""
    between = [route for route in transport.routes if route.startswith("NET/")]
    return bool(between) and all("/GDRDMA" in route for route in between)


def goes_through_host(transport: RankTransport) -> bool:
    """Whether ranks of one node exchange through the host's memory."""
    return any(route.startswith("SHM") for route in transport.routes)
