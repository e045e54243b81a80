"""Starts one daemon in its own namespaces: `python -m scalewright.lab.daemon REQUEST`.

The daemon is the child of a small init, process 1 of a PID namespace. Killing this init ends the daemon and everything
that it started, and nothing else. This is how a node loses power and how an instance is removed. The init also reaps
orphans: every job step becomes one, and the host's process 1 may not reap them.

The new process runs this module, so it imports little.
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
class DaemonRequest:
    """The daemon to start, and the host name, files and network that it sees."""

    argv: list[str]
    record: str
    """File for the process id and start time of the init, written before anything else runs."""
    log: str
    directory: str
    hostname: str = ""
    """Host name that the daemon and its jobs see; empty: that of the host."""
    hosts: str = ""
    """File that they see as /etc/hosts; empty: that of the host."""
    network: str = ""
    """Name of the network namespace to enter; empty: that of the host."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def start_ticks(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None if it has ended. Together with its id it is unique."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def main() -> int:
    request = DaemonRequest(**json.loads(sys.argv[1]))
    # The child writes its error into the pipe. An empty pipe means success.
    error_in, error_out = os.pipe()
    try:
        _enter(request)
    except OSError as error:
        print(f"namespaces: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1
    hold, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(error_in)
        os.close(release)
        os.read(hold, 1)  # waits until the parent has written the record
        os.close(hold)
        _become_init(request, error_out)
    os.close(error_out)
    os.close(hold)
    _write_record(Path(request.record), pid)
    os.close(release)
    with os.fdopen(error_in) as pipe:
        problem = pipe.read()
    if problem:
        os.waitpid(pid, 0)
        print(problem, file=sys.stderr)  # noqa: T201
    return int(bool(problem))


def _write_record(path: Path, pid: int) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"pid": pid, "start_ticks": start_ticks(pid)}))
    temporary.replace(path)


def _enter(request: DaemonRequest) -> None:
    if request.network:
        with Path("/run/netns", request.network).open() as namespace:
            _call("setns", namespace.fileno(), CLONE_NEWNET)
    _call("unshare", CLONE_NEWPID | CLONE_NEWNS | (CLONE_NEWUTS if request.hostname else 0))


def _become_init(request: DaemonRequest, error_out: int) -> NoReturn:
    try:
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)  # jobs would inherit the signals that this shell or Python ignores
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _furnish(request)
        os.chdir(request.directory)
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, stream in enumerate((nothing, log, log)):
            os.dup2(stream, target)
        daemon = os.posix_spawnp(request.argv[0], request.argv, os.environ, setsid=True)
    except OSError as error:
        os.write(error_out, f"{request.argv[0]}: {error.strerror}".encode())
        os._exit(1)
    os.closerange(3, max(log, nothing, error_out) + 1)
    _reap_until_end_of(daemon)


def _furnish(request: DaemonRequest) -> None:
    # A slave mount receives later mounts of the host, and the host does not see mounts made here.
    _mount("none", "/", flags=MS_REC | MS_SLAVE)
    _mount("proc", "/proc", kind="proc", flags=MS_NOSUID_NODEV_NOEXEC)
    if request.hostname:
        socket.sethostname(request.hostname)
    if request.hosts:
        _mount(request.hosts, "/etc/hosts", flags=MS_BIND)
    if request.network:
        _mount_sys(Path(request.record).with_suffix(".sys"))


def _mount_sys(folder: Path) -> None:
    """Mount a /sys with the interfaces of this network namespace and the control groups of the host."""
    folder.mkdir(exist_ok=True)
    _mount("sysfs", str(folder), kind="sysfs", flags=MS_NOSUID_NODEV_NOEXEC)
    if Path("/sys/fs/cgroup").is_dir():
        _mount("/sys/fs/cgroup", str(folder / "fs/cgroup"), flags=MS_BIND | MS_REC)
    _mount(str(folder), "/sys", flags=MS_MOVE)


def _reap_until_end_of(daemon: int) -> NoReturn:
    signal.signal(signal.SIGTERM, lambda *_: os.kill(daemon, signal.SIGTERM))
    while True:
        pid, status = os.wait()
        if pid == daemon:
            os._exit(abs(os.waitstatus_to_exitcode(status)))  # the kernel ends all other processes of the namespace


def _mount(source: str, target: str, *, kind: str = "", flags: int = 0) -> None:
    _call("mount", source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None)


def _call(function: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc[function](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main())
