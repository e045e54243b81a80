"""The seccomp filter of a job: system calls that reach beyond its own processes and files fail with EPERM.

A list of what is refused, not of what is allowed: rewards are any program. What such a list misses is held by the
namespaces; the filter closes the kernel's larger doors as well (mounts, namespaces, tracing, BPF, io_uring, keys).
"""

from __future__ import annotations

import errno
import struct
import sys

from scalewright.data.sandbox.syscalls import machine

LOAD_WORD, JUMP_EQUAL, JUMP_SET, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT = 0, 4, 16
ALLOW, KILL_PROCESS, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
X32_BIT = 0x40000000
NEW_NAMESPACES = 0x7E020080
"""Every CLONE_NEW flag, time namespaces included."""
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: number on x86_64, number on aarch64; None where the architecture has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "mount_setattr": (442, 442), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "open_tree_attr": (467, 467), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "syslog": (103, 116),
    "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "sched_setattr": (314, 274), "sched_setscheduler": (144, 119), "ioprio_set": (251, 30),
    "vhangup": (153, 58), "lookup_dcookie": (212, 18), "modify_ldt": (154, None), "fanotify_init": (300, 262),
}  # fmt: skip
SOCKET: tuple[int, int] = (41, 198)
CLONE: tuple[int, int] = (56, 220)
CLONE3 = 435
"""Its flags are behind a pointer, which a filter cannot follow: it fails as if unknown, and libraries use clone."""


def filter_program(*, network: bool) -> bytes:
    """The filter for this architecture. OSError where its numbers are not known."""
    name = machine()
    if name not in AUDIT or sys.byteorder != "little":
        raise OSError(errno.ENOSYS, f"seccomp: the system calls of {name} are not listed")
    column = 0 if name == "x86_64" else 1
    numbers = sorted(number for row in REFUSED.values() if (number := row[column]) is not None)
    if not network:
        numbers.append(SOCKET[column])
    program = [
        _line(LOAD_WORD, 0, 0, ARCHITECTURE_AT), _line(JUMP_EQUAL, 1, 0, AUDIT[name]),
        _line(RETURN, 0, 0, KILL_PROCESS), _line(LOAD_WORD, 0, 0, NUMBER_AT),
    ]  # fmt: skip
    if name == "x86_64":
        program += [_line(JUMP_AT_LEAST, 0, 1, X32_BIT), _line(RETURN, 0, 0, KILL_PROCESS)]
    program += [_line(JUMP_EQUAL, 0, 1, CLONE3), _line(RETURN, 0, 0, FAIL | errno.ENOSYS)]
    for number in numbers:
        program += [_line(JUMP_EQUAL, 0, 1, number), _line(RETURN, 0, 0, FAIL | errno.EPERM)]
    program += [
        _line(JUMP_EQUAL, 0, 3, CLONE[column]), _line(LOAD_WORD, 0, 0, FIRST_ARGUMENT_AT),
        _line(JUMP_SET, 0, 1, NEW_NAMESPACES), _line(RETURN, 0, 0, FAIL | errno.EPERM), _line(RETURN, 0, 0, ALLOW),
    ]  # fmt: skip
    return b"".join(program)


def _line(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
