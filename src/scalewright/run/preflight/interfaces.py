"""Find the network interface of an address, with the kernel's help."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterable

SIOCGIFADDR = 0x8915


def address_of(interface: str) -> str:
    """First IPv4 address of an interface; empty where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(reply[20:24])


def interfaces_of(addresses: Iterable[str]) -> list[str]:
    """Interfaces with these addresses. 127.0.0.0/8 is loopback; an address of no interface is returned unchanged."""
    by_address = {address_of(name): name for _, name in socket.if_nameindex()}
    interfaces = {"lo" if a.startswith("127.") else by_address.get(a, a) for a in addresses}
    return sorted(interfaces)
