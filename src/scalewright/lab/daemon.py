"""Start one daemon apart from its starter, in namespaces of its own: `python -m scalewright.lab.daemon REQUEST`.

The daemon is the child of a small init, process 1 of a PID namespace. Killing that init ends the daemon and everything
it ever started, and nothing else: that is how a node loses power and how an instance goes away. The init also reaps
the orphans that every job step becomes, whatever the host's own process 1 does.

This module is what the new process runs, so it imports little.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_NOSUID_NODEV_NOEXEC = 0x2 | 0x4 | 0x8
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_SLAVE = 0x80000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to start and what it sees."""

    argv: list[str]
    record: str
    """File that gets the id and the start time of the init, before anything else runs."""
    log: str
    directory: str
    hostname: str = ""
    """Name that the daemon and its jobs find themselves on; empty: the host's."""
    hosts: str = ""
    """File that they see as /etc/hosts; empty: the host's."""
    network: str = ""
    """Name of the network namespace to enter; empty: the host's."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it has ended. With the id it names one process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def main() -> int:
    request = Request(**json.loads(sys.argv[1]))
    # The child says what went wrong through the pipe; silence is success.
    listen, tell = os.pipe()
    try:
        _enter(request)
    except OSError as error:
        print(f"namespaces: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1
    hold, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(listen)
        os.close(release)
        os.read(hold, 1)
        os.close(hold)
        _become_init(request, tell)
    os.close(tell)
    os.close(hold)
    _write_record(Path(request.record), pid)
    os.close(release)
    with os.fdopen(listen) as pipe:
        problem = pipe.read()
    if problem:
        os.waitpid(pid, 0)
        print(problem, file=sys.stderr)  # noqa: T201
    return int(bool(problem))


def _write_record(path: Path, pid: int) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"pid": pid, "start_ticks": start_ticks(pid)}))
    temporary.replace(path)


def _enter(request: Request) -> None:
    if request.network:
        with Path("/run/netns", request.network).open() as namespace:
            _call("setns", namespace.fileno(), CLONE_NEWNET)
    _call("unshare", CLONE_NEWPID | CLONE_NEWNS | (CLONE_NEWUTS if request.hostname else 0))


def _become_init(request: Request, tell: int) -> NoReturn:
    try:
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)  # jobs would inherit what this shell or Python ignores
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _furnish(request)
        os.chdir(request.directory)
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, stream in enumerate((nothing, log, log)):
            os.dup2(stream, target)
        daemon = os.posix_spawnp(request.argv[0], request.argv, os.environ, setsid=True)
    except OSError as error:
        os.write(tell, f"{request.argv[0]}: {error.strerror}".encode())
        os._exit(1)
    os.closerange(3, max(log, nothing, tell) + 1)
    _reap_until_end_of(daemon)


def _furnish(request: Request) -> None:
    # A slave sees what the host mounts later and shows the host nothing.
    _mount("none", "/", flags=MS_REC | MS_SLAVE)
    _mount("proc", "/proc", kind="proc", flags=MS_NOSUID_NODEV_NOEXEC)
    if request.hostname:
        socket.sethostname(request.hostname)
    if request.hosts:
        _mount(request.hosts, "/etc/hosts", flags=MS_BIND)
    if request.network:
        _mount_sys(Path(request.record).with_suffix(".sys"))


def _mount_sys(place: Path) -> None:
    """A /sys that shows the interfaces of this network namespace and keeps the control groups of the old one."""
    place.mkdir(exist_ok=True)
    _mount("sysfs", str(place), kind="sysfs", flags=MS_NOSUID_NODEV_NOEXEC)
    if Path("/sys/fs/cgroup").is_dir():
        _mount("/sys/fs/cgroup", str(place / "fs/cgroup"), flags=MS_BIND | MS_REC)
    _mount(str(place), "/sys", flags=MS_MOVE)


def _reap_until_end_of(daemon: int) -> NoReturn:
    signal.signal(signal.SIGTERM, lambda *_: os.kill(daemon, signal.SIGTERM))
    while True:
        pid, status = os.wait()
        if pid == daemon:
            os._exit(abs(os.waitstatus_to_exitcode(status)))  # the kernel ends what is left


def _mount(source: str, target: str, *, kind: str = "", flags: int = 0) -> None:
    _call("mount", source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None)


def _call(function: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc[function](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main())
