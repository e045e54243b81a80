"""The file system of a worker: programs and libraries read-only, a few devices, and a /tmp of its own for each job.

The home of the user, run directories, other users' files and the sockets of daemons are not there at all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from scalewright.data.sandbox.syscalls import (
    MS_BIND,
    MS_MOVE,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    mount,
    pivot_root,
    set_read_only,
    unmount,
)

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/etc/ld.so.cache",
          "/etc/alternatives", "/etc/localtime", "/etc/ld.so.conf", "/etc/ld.so.conf.d")  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom")
NEVER = ("/", "/proc", "/sys", "/dev", "/tmp", "/home", "/root", "/run", "/var", "/etc")
"""Not shown as a whole, even where somebody put one of them on the path of modules."""
STAGING = ".tmp"
NUM_FILES = 4096
"""Most files and folders of a job's /tmp."""
KEPT_FLAGS = {"ro": MS_RDONLY, "nosuid": MS_NOSUID, "nodev": MS_NODEV, "noexec": MS_NOEXEC}
EMPTY_ROOT = "size=4m,mode=755"


def build_root(readable: Sequence[str]) -> None:
    """Make the root of this mount namespace anew. Only `readable` and the system's programs remain, read-only."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, EMPTY_ROOT)
    for name in ("old", "new"):
        Path("/tmp", name).mkdir()
    # The old root moves below the new one, with its own /tmp: sources there stay reachable.
    pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    mount("tmpfs", "/new", "tmpfs", MS_NOSUID | MS_NODEV, EMPTY_ROOT)
    for path in shown_paths(readable):
        _show(path)
    for name in ("proc", "tmp", "dev", STAGING):
        Path("/new", name).mkdir(exist_ok=True)
    for name in DEVICES:
        target = Path("/new/dev", name)
        target.touch()
        mount(f"/old/dev/{name}", str(target), None, MS_BIND)
    for name, place in (("fd", "/proc/self/fd"), ("shm", "/tmp")):
        Path("/new/dev", name).symlink_to(place)
    with contextlib.suppress(OSError):  # a container whose /proc is masked does not let it be mounted again
        mount("proc", "/new/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chdir("/new")
    pivot_root(".", ".")
    unmount(".")
    os.chdir("/")
    mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def shown_paths(readable: Iterable[str]) -> list[str]:
    """Full paths without those that lie below others, the shortest first."""
    places = [path for path in SYSTEM if os.path.lexists(f"/old{path}")]
    places += [path for path in map(os.path.abspath, readable) if path not in NEVER and os.path.lexists(f"/old{path}")]
    kept: list[str] = []
    for path in sorted(set(places), key=lambda one: (one.count("/"), one)):
        if not any(path.startswith(f"{shorter}/") for shorter in kept if not Path(f"/old{shorter}").is_symlink()):
            kept.append(path)
    return kept


def _show(path: str) -> None:
    source, target = Path(f"/old{path}"), Path(f"/new{path}")
    if target.is_symlink() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
        real = os.path.normpath(Path(path).parent / source.readlink())
        if real not in NEVER and os.path.lexists(f"/old{real}") and not os.path.lexists(f"/new{real}"):
            _show(real)
        return
    if source.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    mount(str(source), str(target), None, MS_BIND | MS_REC)
    try:
        set_read_only(str(target))
    except OSError:
        _remount_read_only(str(target))


def _remount_read_only(target: str) -> None:
    """As `set_read_only`, mount by mount, for Linux before 5.12. Flags that a mount has must be kept."""
    for line in Path("/old/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        place = fields[4].replace("\\040", " ")
        if place == target or place.startswith(f"{target}/"):
            kept = sum(KEPT_FLAGS.get(option, 0) for option in set(fields[5].split(",")))
            mount(None, place, None, MS_REMOUNT | MS_BIND | kept | MS_RDONLY | MS_NOSUID | MS_NODEV)


def private_tmp(size_bytes: int) -> None:
    """A /tmp and a /proc for this job alone, in its own mount namespace."""
    options = f"size={size_bytes},nr_inodes={NUM_FILES},mode=1777"
    shown = [entry for entry in Path("/tmp").iterdir() if entry.is_dir() and not entry.is_symlink()]
    target = f"/{STAGING}" if shown else "/tmp"
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for entry in shown:  # what is shown below /tmp stays there
        Path(target, entry.name).mkdir()
        mount(str(entry), f"{target}/{entry.name}", None, MS_BIND | MS_REC)
    if shown:
        mount(target, "/tmp", None, MS_MOVE)
    try:
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "subset=pid")
    except OSError:
        try:
            mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
        except OSError:
            mount("tmpfs", "/proc", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k")
