"""What a worker sets up once, and what each job's process gives up before it runs code that may be hostile.

`Setup` holds what worked on this host and why the rest did not. Order matters: mounts and users need rights that the
capabilities carry; the system call filter comes last, because it closes what the steps before it use.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalewright.data.sandbox.landlock_rules import landlock_version, restrict_writes
from scalewright.data.sandbox.namespaces import (
    FIRST_FOREIGN_USER,
    JOB_USER,
    NUM_FOREIGN_USERS,
    JobNamespaces,
    become_first_process,
    enter_namespaces,
)
from scalewright.data.sandbox.private_root import build_root, private_tmp
from scalewright.data.sandbox.seccomp_filter import filter_program
from scalewright.data.sandbox.syscalls import (
    CAP_DAC_READ_SEARCH,
    CLONE_NEWNS,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_KEEPCAPS,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    drop_capabilities,
    install_filter,
    prctl,
    unshare,
)
from scalewright.data.sandbox.types import SandboxLimits

NUM_DESCRIPTORS = 256
NICE = 5
"""Jobs give way to their worker, which ends them in time. They stay in its session: Linux shares CPUs among sessions,
and niceness counts inside one."""
NPROC_PER_NAMESPACE = (5, 14)
NUM_OWN_PROCESSES = 2
"""Processes of the worker in its user namespace, beside the job's."""


@dataclass(slots=True, kw_only=True)
class Setup:
    """What this worker uses."""

    limits: SandboxLimits
    namespaces: JobNamespaces | None = None
    """None: not permitted; `reasons` says why."""
    filter: bytes = b""
    has_landlock: bool = False
    scratch: str = ""
    """Without namespaces: the folder that jobs may write to."""
    was_root: bool = False
    base_bytes: int = 0
    """Address space of the worker before a job starts."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why something is off, by the name of the mechanism."""

    def report(self) -> dict[str, str]:
        """Empty texts are on."""
        names = ("namespaces", "seccomp", "landlock", "user")
        return {name: self.reasons.get(name, "") for name in names}


def set_up(limits: SandboxLimits, *, readable: Sequence[str], scratch: str, plain: bool) -> Setup:
    """Confine this worker as far as the host permits. It goes on as another process where namespaces are permitted."""
    setup = Setup(limits=limits, scratch=scratch, was_root=os.getuid() == 0)
    try:
        setup.filter = filter_program(network=limits.network)
    except OSError as error:
        setup.reasons["seccomp"] = str(error.strerror)
    if plain:
        setup.reasons["namespaces"] = "switched off"
    else:
        why = _namespaces_refused(limits, readable)
        if why:
            setup.reasons["namespaces"] = why
        else:
            _enter(setup, readable)
    if setup.namespaces is None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if setup.was_root and _modules_are_private():
            setup.reasons["user"] = f"only root can read {Path(os.__file__).parent}"
        setup.has_landlock = landlock_version() > 0 and not limits.writes
    if not setup.has_landlock:
        setup.reasons["landlock"] = "not needed" if setup.namespaces else "this kernel has none"
    return setup


def _namespaces_refused(limits: SandboxLimits, readable: Sequence[str]) -> str:
    """Try it in a child first: a step that fails half way cannot be taken back. Empty where all is permitted."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            enter_namespaces(network=limits.network)
            if inner := os.fork():
                os.waitpid(inner, 0)
            else:
                JobNamespaces()
                _build(limits, readable)
                if not limits.writes:
                    private_tmp(limits.file_bytes)
        except Exception as error:  # whatever it is, there will be no namespaces
            text = error.strerror if isinstance(error, OSError) else repr(error)
            os.write(sink, str(text).encode()[:500])
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as reader:
        why = reader.read().decode(errors="replace")
    os.waitpid(child, 0)
    return why


def _enter(setup: Setup, readable: Sequence[str]) -> None:
    enter_namespaces(network=setup.limits.network)
    become_first_process()
    setup.namespaces = JobNamespaces()
    _build(setup.limits, readable)


def _build(limits: SandboxLimits, readable: Sequence[str]) -> None:
    if not limits.writes:
        build_root(readable)


def address_space_bytes() -> int:
    """Of this process; 0 where /proc does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 0


def confine_job(setup: Setup) -> None:
    """Give up, in this process and for all that it starts, whatever a job does not need."""
    limits = setup.limits
    os.setpgid(0, 0)  # a signal to a process group crosses process namespaces
    os.nice(NICE)
    if setup.namespaces is not None and not limits.writes:
        unshare(CLONE_NEWNS)
        private_tmp(limits.file_bytes)
        os.chdir("/tmp")
    elif setup.scratch:
        os.chdir(setup.scratch)
    _set_limits(setup)
    prctl(PR_SET_KEEPCAPS, 1)
    _become_nobody(setup)
    # Root's own folders are often closed to others: what a job is shown it can read, and nothing else is there.
    reads_all = setup.was_root and setup.namespaces is not None and not limits.writes
    drop_capabilities(kept=CAP_DAC_READ_SEARCH if reads_all else None)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if setup.has_landlock:
        restrict_writes(setup.scratch, network=limits.network)
    if setup.filter:
        install_filter(setup.filter)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _set_limits(setup: Setup) -> None:
    limits = setup.limits
    cpu_s = int(limits.time_s) + 1
    memory = setup.base_bytes + limits.memory_bytes
    values = {
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_AS: (memory, memory),
        resource.RLIMIT_FSIZE: (limits.file_bytes, limits.file_bytes),
        resource.RLIMIT_NOFILE: (NUM_DESCRIPTORS, NUM_DESCRIPTORS),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_NPROC: (_num_processes(setup),) * 2,
    }
    for name, (soft, hard) in values.items():
        _, most = resource.getrlimit(name)
        kept = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(name, (min(soft, kept), kept))


def _num_processes(setup: Setup) -> int:
    """The kernel counts processes of a user, since Linux 5.14 of a user in a user namespace."""
    limit = setup.limits.num_processes
    if setup.was_root and not setup.reasons.get("user"):
        return limit  # the job's user has no other processes
    if setup.namespaces is not None and kernel_version() >= NPROC_PER_NAMESPACE:
        return limit + NUM_OWN_PROCESSES
    return limit + _num_processes_of_user()


def kernel_version() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


def _num_processes_of_user() -> int:
    total, own = 0, os.getuid()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                total += sum(1 for _ in (path / "task").iterdir()) if path.stat().st_uid == own else 0
            except OSError:
                continue  # it ended
    return total


def _modules_are_private() -> bool:
    """Whether another user cannot read Python's own modules, as where they are below /root."""
    for folder in (Path(os.__file__).parent, *Path(os.__file__).parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return True
    return False


def _become_nobody(setup: Setup) -> None:
    """Root's jobs get a user that owns nothing; other users' jobs keep theirs."""
    if not setup.was_root or setup.reasons.get("user"):
        return
    number = JOB_USER if setup.namespaces is not None else FIRST_FOREIGN_USER + os.getpid() % NUM_FOREIGN_USERS
    try:
        if setup.namespaces is None and setup.scratch:
            os.chown(setup.scratch, number, number)
        os.setgroups([])
        os.setresgid(number, number, number)
        os.setresuid(number, number, number)
    except OSError as error:
        raise PermissionError(1, f"the job's user cannot be changed: {error.strerror}") from error
