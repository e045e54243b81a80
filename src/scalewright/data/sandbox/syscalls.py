"""System calls that the standard library does not have, by ctypes. Each raises OSError with the name of the call."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x1000, 0x2000, 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_SECCOMP = 1, 4, 24, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47
PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
PR_SET_KEEPCAPS = 8
CAP_DAC_READ_SEARCH = 2
SECCOMP_MODE_FILTER = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4
SYS_MOUNT_SETATTR, SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 442, 444, 445, 446
"""The same on every architecture: numbers of new calls are shared."""
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203, "riscv64": 41}
SYS_CAPSET = {"x86_64": 126, "aarch64": 91, "ppc64le": 184, "riscv64": 91}
CAPABILITY_VERSION = 0x20080522
NUM_CAPABILITIES = 64

_libc = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    return platform.machine()


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _text(value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)


def unshare(flags: int) -> None:
    _checked("unshare", _libc.unshare(flags))


def setns(descriptor: int, kind: int) -> None:
    _checked("setns", _libc.setns(descriptor, kind))


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    arguments = (_text(source), _text(target), _text(kind), ctypes.c_ulong(flags), _text(data))
    _checked(f"mount {target}", _libc.mount(*arguments))


def unmount(target: str) -> None:
    _checked(f"umount {target}", _libc.umount2(_text(target), MNT_DETACH))


def pivot_root(new: str, old: str) -> None:
    number = SYS_PIVOT_ROOT.get(machine())
    if number is None:
        raise OSError(38, f"pivot_root: its number on {machine()} is not known")
    _checked("pivot_root", _libc.syscall(ctypes.c_long(number), _text(new), _text(old)))


class _MountAttributes(ctypes.Structure):
    _fields_ = (("attr_set", ctypes.c_uint64), ("attr_clr", ctypes.c_uint64), ("propagation", ctypes.c_uint64),
                ("userns_fd", ctypes.c_uint64))  # fmt: skip


def set_read_only(target: str) -> None:
    """A mount and all mounts below it: no writes, no set-user-id programs, no devices (Linux 5.12)."""
    attributes = _MountAttributes(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0, 0, 0)
    arguments = (ctypes.c_int(AT_FDCWD), _text(target), ctypes.c_uint(AT_RECURSIVE))
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    result = _libc.syscall(ctypes.c_long(SYS_MOUNT_SETATTR), *arguments, ctypes.byref(attributes), size)
    _checked(f"mount_setattr {target}", result)


def prctl(option: int, *values: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _checked(f"prctl {option}", _libc.prctl(ctypes.c_int(option), *padded))


def drop_capabilities(*, kept: int | None = None) -> None:
    """All of them but one, for this process and what it starts."""
    for number in range(NUM_CAPABILITIES):
        try:
            if number != kept:
                prctl(PR_CAPBSET_DROP, number)
        except OSError:
            break  # no such capability, or the set may not be changed: no_new_privs keeps it from being gained
    with contextlib.suppress(OSError):  # Linux before 4.3 has no ambient capabilities
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    call = SYS_CAPSET.get(machine())
    if call is None:
        raise OSError(38, f"capset: its number on {machine()} is not known")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    one = 0 if kept is None else 1 << kept
    _checked("capset", _libc.syscall(ctypes.c_long(call), header, (ctypes.c_uint32 * 6)(one, one, one)))
    if kept is not None:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, kept)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install_filter(program: bytes) -> None:
    """A seccomp filter for this process and what it starts. no_new_privs must be set."""
    body = _FilterProgram(len(program) // 8, program)
    _checked("seccomp", _libc.prctl(ctypes.c_int(PR_SET_SECCOMP), ctypes.c_ulong(SECCOMP_MODE_FILTER),
                                    ctypes.byref(body), ctypes.c_ulong(0), ctypes.c_ulong(0)))  # fmt: skip


def landlock(number: int, *arguments: object) -> int:
    return _checked("landlock", int(_libc.syscall(ctypes.c_long(number), *arguments)))
