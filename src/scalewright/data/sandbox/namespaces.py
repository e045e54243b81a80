"""Namespaces of a worker and of each of its jobs.

A worker enters a user namespace, where it may do what needs root elsewhere, and with it new namespaces of mounts,
processes, network, IPC, host name and control groups. Each job then gets a process namespace and a mount namespace of
its own: when the first process of a process namespace ends, the kernel ends all others of it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from scalewright.data.sandbox.syscalls import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    PR_SET_PDEATHSIG,
    prctl,
    setns,
    unshare,
)

JOB_USER = 1000
"""Number of the job's user inside the namespace."""
FIRST_FOREIGN_USER = 0x70000000
"""Outside, jobs of root's workers have a user from here on, which owns nothing."""
NUM_FOREIGN_USERS = 1 << 24


def enter_namespaces(*, network: bool) -> None:
    """Enter new namespaces. The next child is the first process of the new process namespace."""
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    flags |= 0 if network else CLONE_NEWNET
    user, group = os.getuid(), os.getgid()
    if user == 0:
        _enter_as_root(flags)
        return
    unshare(flags)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{JOB_USER} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{JOB_USER} {group} 1")


def _enter_as_root(flags: int) -> None:
    """Root stays root for files of the worker; its jobs get a user that owns nothing. A helper outside writes that."""
    own, foreign = os.getpid(), FIRST_FOREIGN_USER + os.getpid() % NUM_FOREIGN_USERS
    ready, go = os.pipe()
    helper = os.fork()
    if helper == 0:
        code = 1
        try:
            os.close(go)
            if os.read(ready, 1):
                for name in ("uid_map", "gid_map"):
                    Path(f"/proc/{own}/{name}").write_text(f"0 0 1\n{JOB_USER} {foreign} 1\n")
                code = 0
        finally:
            os._exit(code)
    os.close(ready)
    try:
        unshare(flags)
        os.write(go, b"1")
    finally:
        os.close(go)
        _, status = os.waitpid(helper, 0)
    if status:
        raise PermissionError(1, "uid_map: the users of the namespace could not be written")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def become_first_process() -> None:
    """Go on as the first process of the new process namespace. The one outside waits, and takes its exit code."""
    child = os.fork()
    if child:
        _wait_and_exit(child)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_and_exit(child: int) -> None:
    os.closerange(3, 4096)
    _, status = os.waitpid(child, 0)
    os._exit(min(abs(os.waitstatus_to_exitcode(status)), 255))


class JobNamespaces:
    """Forks jobs, each into a process namespace of its own."""

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self) -> int:
        """As `os.fork`. The child is the first process of its process namespace."""
        unshare(CLONE_NEWPID)
        try:
            child = os.fork()
        except OSError:
            setns(self._own, CLONE_NEWPID)
            raise
        if child:
            setns(self._own, CLONE_NEWPID)
        return child
