"""What the sandbox can promise on this host. Each protection is tried in a job that attacks it; nothing is assumed."""

from __future__ import annotations

import functools
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scalewright import units
from scalewright.data.sandbox.pool import SandboxPool
from scalewright.data.sandbox.types import Protection, SandboxJob, SandboxLimits, SandboxMode, SandboxOutcome
from scalewright.errors import EnvironmentFailedError

PROBE_LIMITS = SandboxLimits(
    time_s=2.0, memory_bytes=64 * units.MIB, num_processes=8, output_bytes=64 * units.KIB, file_bytes=units.MIB
)
CHECK_NETWORK = """
import socket
def attack(port, **_):
    try:
        socket.socket().connect(('127.0.0.1', port))
    except OSError:
        return ''
    return 'a job connects to a port of this machine'
"""
CHECK_WRITES = """
def attack(folder, **_):
    try:
        open(f'{folder}/made', 'w').close()
    except OSError:
        return ''
    return 'a job writes to a folder of the user'
"""
CHECK_READS = """
def attack(folder, **_):
    try:
        open(f'{folder}/secret').close()
    except OSError:
        return ''
    return 'a job reads files of the user'
"""
CHECK_SIGNALS = """
import os
def attack(process, **_):
    try:
        os.kill(process, 0)
    except OSError:
        return ''
    return 'a job may send signals to processes of the user'
"""
CHECK_PROCESSES = """
import os, time
def attack(most, **_):
    for number in range(2 * most):
        try:
            if os.fork() == 0:
                time.sleep(0.5)
                os._exit(0)
        except OSError:
            return ''
    return f'a job starts {2 * most} processes'
"""
CHECK_FILES = """
def attack(size, **_):
    try:
        for number in range(4):
            with open(f'{number}', 'wb') as file:
                file.write(bytes(size - 4096))
    except OSError:
        return ''
    return 'a job may fill the disk with many files'
"""
CHECK_PRIVILEGES = """
import ctypes, os
def attack(**_):
    if ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) != 1:
        return 'a job may gain rights by a set-user-id program'
    try:
        os.setuid(0)
    except OSError:
        return ''
    return 'a job may become root'
"""
CHECK_CALLS = """
import ctypes
def attack(**_):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) == 0:
        return 'a job may enter a user namespace'
    if libc.ptrace(16, 1, 0, 0) == 0:
        return 'a job may trace other processes'
    return ''
"""
CHECK_ENVIRONMENT = """
import os
def attack(name, **_):
    if name in os.environ:
        return 'a job sees the environment of the user'
    numbers = []
    for number in range(4, 256):
        try:
            os.fstat(number)
            numbers.append(number)
        except OSError:
            pass
    return f'a job has descriptors {numbers} of its worker' if numbers else ''
"""
CHECK_CORES = """
import resource
def attack(**_):
    return '' if resource.getrlimit(resource.RLIMIT_CORE) == (0, 0) else 'a job may write core files'
"""
CHECK_DESCENDANTS = """
import ctypes, os, time
def attack(mark, **_):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, mark.encode(), 0, 0, 0)
            time.sleep(30)
        os._exit(0)
    os.wait()
    time.sleep(0.05)
    return ''
"""
CHECK_TIME = "while True: pass"
CHECK_MEMORY = "bytearray(1 << 34)"
CHECK_OUTPUT = "while True: print('x' * 1000)"

NAMESPACES, FILTER, LANDLOCK, RLIMITS, WATCH = "namespaces", "seccomp", "landlock", "rlimits", "its worker"
USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """One protection with the attack that must fail."""

    name: str
    source: str
    by: tuple[str, ...]
    """Mechanisms that can give it, the best first."""
    ends: str = ""
    """Status that the attack must end with; empty: it must return an empty text."""


PROBES = (
    _Probe(name="time", source=CHECK_TIME, by=(WATCH, RLIMITS), ends="time"),
    _Probe(name="memory", source=CHECK_MEMORY, by=(RLIMITS, WATCH), ends="memory"),
    _Probe(name="processes", source=CHECK_PROCESSES, by=(RLIMITS, USER)),
    _Probe(name="output", source=CHECK_OUTPUT, by=(WATCH,), ends="output"),
    _Probe(name="file size", source=CHECK_FILES, by=(NAMESPACES,)),
    _Probe(name="core dumps", source=CHECK_CORES, by=(RLIMITS,)),
    _Probe(name="writes", source=CHECK_WRITES, by=(NAMESPACES, LANDLOCK)),
    _Probe(name="reads", source=CHECK_READS, by=(NAMESPACES,)),
    _Probe(name="network", source=CHECK_NETWORK, by=(NAMESPACES, FILTER)),
    _Probe(name="signals", source=CHECK_SIGNALS, by=(NAMESPACES, LANDLOCK)),
    _Probe(name="privileges", source=CHECK_PRIVILEGES, by=("no_new_privs",)),
    _Probe(name="system calls", source=CHECK_CALLS, by=(FILTER,)),
    _Probe(name="environment", source=CHECK_ENVIRONMENT, by=(WATCH,)),
    _Probe(name="descendants", source=CHECK_DESCENDANTS, by=(NAMESPACES, WATCH)),
)


def what_is_possible(*, is_plain: bool = False) -> list[Protection]:
    """Every protection, tried now in jobs that attack it. `is_plain`: as on a host without namespaces."""
    mark = f"probe-{secrets.token_hex(4)}"
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"], stdin=subprocess.DEVNULL
        ) as bystander,
        SandboxPool(limits=PROBE_LIMITS, num_workers=2, is_plain=is_plain) as pool,
    ):
        Path(folder).chmod(0o777)
        Path(folder, "secret").write_text(mark)
        arguments = {
            "folder": folder, "port": listener.getsockname()[1], "process": bystander.pid, "mark": mark,
            "most": PROBE_LIMITS.num_processes, "size": PROBE_LIMITS.file_bytes, "name": mark,
        }  # fmt: skip
        os.environ[mark] = mark
        try:
            jobs = [_job(probe, arguments) for probe in PROBES]
            outcomes = pool.run_many(jobs)
        except (OSError, EnvironmentFailedError) as error:
            return [Protection(name=probe.name, is_on=False, why_not=f"no worker starts: {error}") for probe in PROBES]
        finally:
            del os.environ[mark]
            bystander.kill()
        setup = pool.setup
        left = is_running(mark)
    return [_protection(probe, outcome, setup, left=left) for probe, outcome in zip(PROBES, outcomes, strict=True)]


def _job(probe: _Probe, arguments: dict[str, object]) -> SandboxJob:
    function = "" if probe.ends else "attack"
    return SandboxJob(id=probe.name, source=probe.source, function=function, arguments=arguments)


def is_running(name: str) -> bool:
    """Whether a process of this name runs anywhere on this machine."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == name[:15]:
                return True
        except OSError:
            continue  # it ended
    return False


def _protection(probe: _Probe, outcome: SandboxOutcome, setup: dict[str, str], *, left: bool) -> Protection:
    on = [name for name in probe.by if not setup.get(name) and name != USER]
    off = [f"{name}: {setup[name]}" for name in probe.by if setup.get(name)]
    if probe.ends:
        problem = "" if outcome.status == probe.ends else f"the attack ended with {outcome.status}"
    elif not outcome.is_ok:
        problem = f"the attack could not be tried: {outcome.status} {outcome.why}".rstrip()
    else:
        problem = str(outcome.value)
    if probe.name == "descendants" and left:
        problem = "a process that left the job's session goes on"
    if problem:
        return Protection(name=probe.name, is_on=False, why_not="; ".join([problem, *off]))
    return Protection(name=probe.name, is_on=True, how=" and ".join(on[:2]))


@functools.cache
def protections_here() -> tuple[Protection, ...]:
    """As `what_is_possible`, tried once a process."""
    return tuple(what_is_possible())


def check_mode(mode: SandboxMode, protections: Iterable[Protection]) -> None:
    """Refuse `strict` where something is off."""
    missing = [one for one in protections if not one.is_on]
    if mode == "strict" and missing:
        names = ", ".join(one.name for one in missing)
        why = next((one.why_not for one in missing if NAMESPACES in one.why_not), missing[0].why_not)
        raise EnvironmentFailedError(
            f"--sandbox strict: this host does not permit limits on {names} ({why}): give --sandbox "
            "auto to run with the others, or run where user namespaces are permitted"
        )


def as_texts(protections: Iterable[Protection]) -> dict[str, str]:
    """For records: what enforces each protection, or why it is off."""
    return {one.name: f"on ({one.how})" if one.is_on else f"off ({one.why_not})" for one in protections}
