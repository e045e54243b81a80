"""Landlock: a process without rights restricts its own writes and signals. Used where namespaces are not permitted."""

from __future__ import annotations

import ctypes
import os

from scalewright.data.sandbox.syscalls import (
    SYS_LANDLOCK_ADD,
    SYS_LANDLOCK_CREATE,
    SYS_LANDLOCK_RESTRICT,
    landlock,
)

WRITE_FILE, REMOVE_AND_MAKE = 1 << 1, 0b1_1111_1111_0000
REFER, TRUNCATE, DEVICE_IOCTL = 1 << 13, 1 << 14, 1 << 15
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_SOCKET, SCOPE_SIGNAL = 1, 2
VERSION_FLAG = 1
PATH_BENEATH = 1
SIGNALS_SINCE, NETWORK_SINCE = 6, 4


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_fs", ctypes.c_uint64), ("handled_net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def landlock_version() -> int:
    """Version of the interface; 0 where the kernel has none."""
    try:
        return landlock(SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION_FLAG))
    except OSError:
        return 0


def restrict_writes(writable: str, *, network: bool) -> None:
    """Writes only below `writable` and to /dev/null; signals only inside; no TCP. As far as the version goes."""
    version = landlock_version()
    if not version:
        raise OSError(38, "landlock: this kernel has none")
    writes = WRITE_FILE | REMOVE_AND_MAKE
    writes |= (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0) | (DEVICE_IOCTL if version >= 5 else 0)
    rules = _Ruleset(writes, 0, 0)
    size = 8
    if version >= NETWORK_SINCE and not network:
        rules.handled_net, size = BIND_TCP | CONNECT_TCP, 16
    if version >= SIGNALS_SINCE:
        rules.scoped, size = SCOPE_SIGNAL | (0 if network else SCOPE_SOCKET), 24
    ruleset = landlock(SYS_LANDLOCK_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path, allowed in ((writable, writes), ("/dev/null", writes & (WRITE_FILE | TRUNCATE))):
            _allow(ruleset, path, allowed)
        landlock(SYS_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathRule(allowed, parent)
        landlock(SYS_LANDLOCK_ADD, ctypes.c_int(ruleset), ctypes.c_int(PATH_BENEATH), ctypes.byref(rule),
                 ctypes.c_uint32(0))  # fmt: skip
    finally:
        os.close(parent)
