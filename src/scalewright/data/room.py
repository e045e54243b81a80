"""Free space for files: bytes and inodes, with a reserve for others; on a RAM disk, memory as well."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from scalewright import units
from scalewright.errors import EnvironmentFailedError

RESERVE_FRAC = 0.05
MIN_RESERVE_BYTES = 64 * units.MIB
MAX_RESERVE_BYTES = 100 * units.GIB
RAM_TYPES = ("tmpfs", "ramfs")
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Free space of a file system."""

    free_bytes: int
    """Free for this user, without what is reserved for root or beyond a cgroup's limit."""
    whole_bytes: int
    free_inodes: int | None
    """None if the file system creates them as needed."""

    @property
    def reserve_bytes(self) -> int:
        """Left free for others: 5 % of the file system, from 64 MiB up to 100 GiB."""
        return min(max(int(self.whole_bytes * RESERVE_FRAC), MIN_RESERVE_BYTES), MAX_RESERVE_BYTES)

    @property
    def usable_bytes(self) -> int:
        return max(self.free_bytes - self.reserve_bytes, 0)


def room_at(path: Path) -> Room:
    """Free space of the file system that a path is on or will be on."""
    there = _existing(path)
    try:
        stats = os.statvfs(there)
    except OSError as error:
        raise EnvironmentFailedError(
            f"{there}: free space is unknown: {error.strerror}; choose another place"
        ) from error
    free_bytes = stats.f_bavail * stats.f_frsize
    if file_system_type(there) in RAM_TYPES:
        free_bytes = min([free_bytes, *memory_left_bytes()])
    return Room(
        free_bytes=free_bytes,
        whole_bytes=stats.f_blocks * stats.f_frsize,
        free_inodes=stats.f_favail if stats.f_files else None,
    )


def check_room(path: Path, *, num_bytes: int, num_files: int) -> None:
    """Refuse, before anything is written, what would not fit or would leave no reserve for others."""
    there = _existing(path)
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        raise EnvironmentFailedError(f"{there}: cannot be written by this user; choose another place")
    room = room_at(path)
    if num_bytes > room.usable_bytes:
        needed, free, reserve = (
            units.format(n, units.BYTES) for n in (num_bytes, room.free_bytes, room.reserve_bytes)
        )  # fmt: skip
        raise EnvironmentFailedError(
            f"{path}: {needed} do not fit in {free} of free space with a reserve of {reserve} for others; "
            "free space, choose another place or a smaller size"
        )
    if room.free_inodes is not None and num_files > room.free_inodes * (1 - RESERVE_FRAC):
        raise EnvironmentFailedError(
            f"{path}: {num_files} files do not fit in {room.free_inodes} free inodes; use shards or LMDB"
        )


def file_system_type(path: Path) -> str:
    """Type of the mount a path is on, such as ext4, tmpfs or lustre; empty if the kernel does not report it."""
    best, kind = -1, ""
    there = path.resolve()
    try:
        lines = (PROC / "self" / "mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        words = line.split(" ")
        if len(words) < 3:
            continue
        mount = Path(words[1].encode().decode("unicode_escape"))  # spaces are written as \\040
        if there.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), words[2]
    return kind


def _existing(path: Path) -> Path:
    there = path.absolute()
    # Path.exists raises where this user may not look.
    while not os.path.exists(there) and there != there.parent:  # noqa: PTH110
        there = there.parent
    return there


def memory_left_bytes(*, proc: Path = PROC, cgroups: Path = CGROUPS) -> list[int]:
    """Memory that a RAM disk may still take: of the machine, and of each cgroup of this process."""
    left_bytes = []
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            left_bytes.append(int(line.split()[1]) * units.KIB)
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, own = rest.partition(":")
        if not controllers:
            left_bytes += _left_in(cgroups, own, limit="memory.max", used="memory.current")
        elif "memory" in controllers.split(","):
            left_bytes += _left_in(cgroups / "memory", own, limit="memory.limit_in_bytes", used="memory.usage_in_bytes")
    return left_bytes


def _left_in(root: Path, own: str, *, limit: str, used: str) -> list[int]:
    """Memory left in a cgroup and in those above it; empty if nothing is limited."""
    left_bytes, group = [], root / own.lstrip("/")
    while group.is_relative_to(root):
        limit_text, used_text = _text(group / limit).strip(), _text(group / used).strip()
        if limit_text.isdigit() and used_text.isdigit():
            left_bytes.append(max(int(limit_text) - int(used_text), 0))
        group = group.parent
    return left_bytes


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
