"""Which cause a happening speaks of: its kind decides, or the words of the program that said it.

Three groups. A *cause* can begin the end of a run. An *echo* is what other ranks say after they lost one. *Teardown*
is what launchers and schedulers do to the ranks that are left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from scalewright.observe.cause_words import CAUSE_WORDS
from scalewright.observe.evidence.facts import Happening
from scalewright.records.types import ExitCode

Category = Literal["configuration", "sizing", "topology", "code", "external"]
"""Where the source of an incident is, in the words of the post-mortem template."""
Part = Literal["cause", "echo", "teardown", "background"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What can begin the end of a run."""

    id: str
    """The finding's id."""
    words: str
    category: Category
    depth: int
    """Where no clock says what came first, the smaller one is the cause: hardware and the system before a rank's own
    error, that before what a rank sees of others, that before people and limits, that before a bare exit code."""


_ALL = (
    Cause(id="node-failure", words="a node failed", category="external", depth=0),
    Cause(id="cgroup-memory-kill", words="the job's memory limit", category="sizing", depth=0),
    Cause(id="host-out-of-memory", words="no host memory left", category="sizing", depth=0),
    Cause(id="device-error", words="an error of a device", category="external", depth=0),
    Cause(id="disk-full", words="no space left on a file system", category="external", depth=0),
    Cause(id="preempted", words="preemption", category="external", depth=1),
    Cause(id="ranks-share-device", words="two ranks on one device", category="topology", depth=2),
    Cause(id="device-out-of-memory", words="no device memory left", category="sizing", depth=2),
    Cause(id="access-denied", words="no access to a file", category="configuration", depth=2),
    Cause(id="missing-file", words="a missing file", category="configuration", depth=2),
    Cause(id="unreadable-data", words="data that cannot be read", category="external", depth=2),
    Cause(id="wrong-configuration-key", words="a wrong option", category="configuration", depth=2),
    Cause(id="wrong-checkpoint", words="a checkpoint of another model or layout", category="configuration", depth=2),
    Cause(id="version-mismatch", words="versions that do not fit together", category="configuration", depth=2),
    Cause(id="device-not-visible", words="a rank without a device", category="configuration", depth=2),
    Cause(id="double-launch", words="an address already in use", category="configuration", depth=2),
    Cause(id="loss-nan", words="a loss that is not a number", category="code", depth=3),
    Cause(id="rank-failed", words="an error in a rank", category="code", depth=3),
    Cause(id="rank-killed", words="a rank killed by a signal", category="external", depth=4),
    Cause(id="network-error", words="an error of the network", category="external", depth=4),
    Cause(id="rendezvous-refused", words="ranks that did not find each other", category="topology", depth=5),
    Cause(id="hang", words="a hang", category="code", depth=5),
    Cause(id="stopped-by-signal", words="a request to stop", category="external", depth=5),
    Cause(id="time-limit", words="the time limit", category="sizing", depth=6),
    Cause(id="cancelled", words="a cancellation", category="external", depth=6),
)
CAUSES = {cause.id: cause for cause in _ALL}

_BY_KIND = {
    "node_failed": "node-failure", "cgroup_kill": "cgroup-memory-kill", "host_out_of_memory": "host-out-of-memory",
    "device_error": "device-error", "disk_full": "disk-full", "preempted": "preempted",
    "device_out_of_memory": "device-out-of-memory", "access_denied": "access-denied", "missing_file": "missing-file",
    "bad_configuration": "wrong-configuration-key", "killed": "rank-killed", "time_limit": "time-limit",
    "cancelled": "cancelled", "stalled": "hang", "collective_timeout": "hang", "network_error": "network-error",
}  # fmt: skip
"""Kinds that say the cause by themselves."""

_ECHO = re.compile(
    r"nccl communicator was aborted|NCCL error in:|unhandled (system|cuda) error|ncclInternalError"
    r"|connection (closed|reset) by (peer|remote)|broken pipe|remote process exited"
    r"|ncclRemoteError|ncclSystemError|socket timeout|peer.{0,30}(closed|disconnect|lost)"
    r"|watchdog caught|DistBackendError|DistNetworkError|ActorDiedError|CalledProcessError|WorkerCrashedError"
    r"|lost connection|not all ranks|another rank|other ranks?|gloo.{0,200}(closed|reset|timed out|timeout)"
    r"|taking the entire process down|exception \(either an error or timeout\) detected by watchdog",
    re.IGNORECASE,
)
"""What ranks say of a rank that went away before them."""

_TEARDOWN = re.compile(
    r"ChildFailedError|SignalException|ProcessExitedException|sending process .* closing signal|KeyboardInterrupt"
    r"|terminating (step|due)|force terminat|task launch .* failed|got signal: (15|2)\b"
    r"|job step aborted|process group has not been destroyed|leaked semaphore|received sigterm",
    re.IGNORECASE,
)
_STEP_CANCELLED = re.compile(r"\*\*\*\s*STEP\b", re.IGNORECASE)
"""slurmstepd ends a step because one of its tasks failed; a user's scancel names the JOB."""

_TERMINATED = re.compile(r"what\(\):|terminate called|Fatal Python error")
"""How a process ends by an exception of C++ or of the interpreter: no exit code is in the line."""

TEARDOWN_SIGNALS = {"SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "15", "2", "1", "10", "12", "18"}
_SIGNALS = {
    "1": "SIGHUP", "2": "SIGINT", "4": "SIGILL", "6": "SIGABRT", "7": "SIGBUS", "8": "SIGFPE", "9": "SIGKILL",
    "10": "SIGUSR1", "11": "SIGSEGV", "12": "SIGUSR2", "15": "SIGTERM", "19": "SIGSTOP", "24": "SIGXCPU",
}  # fmt: skip
_SIGNAL_IN_TEXT = re.compile(
    r"\bSIG(KILL|TERM|SEGV|BUS|ABRT|FPE|ILL|STOP|INT|HUP|USR1|USR2|XCPU)\b"
    r"|\b(Killed|Terminated|Segmentation fault|Bus error|Aborted|Floating point exception)\b"
)
_SIGNAL_WORDS = {
    "Killed": "SIGKILL", "Terminated": "SIGTERM", "Segmentation fault": "SIGSEGV", "Bus error": "SIGBUS",
    "Aborted": "SIGABRT", "Floating point exception": "SIGFPE",
}  # fmt: skip
_FAILING = {"traceback", "exited", "killed", "signal", "warning", "connection_lost", "bad_configuration",
            "missing_file", "access_denied", "device_error", "stalled", "collective_abort", "nan"}  # fmt: skip
"""Kinds whose words are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a happening is in the story of an end."""

    part: Part
    cause: str = ""
    """Id of the cause; empty for an echo, for teardown and for background."""


BACKGROUND = Meaning(part="background")
ECHO = Meaning(part="echo")
TEARDOWN = Meaning(part="teardown")


def signal_name(happening: Happening) -> str:
    """Name of the signal, such as SIGKILL; empty if none is named."""
    stated = str(happening.values.get("signal", "")).strip().removesuffix(".0").lstrip("-")
    if stated:
        return _SIGNALS.get(stated, stated.upper() if stated.upper().startswith("SIG") else f"signal {stated}")
    code = exit_code(happening)
    if code is not None and (code < 0 or code in range(129, 160)):
        number = str(-code if code < 0 else code - 128)
        return _SIGNALS.get(number, f"signal {number}")
    match = _SIGNAL_IN_TEXT.search(happening.message)
    if match is None:
        return ""
    return _SIGNAL_WORDS.get(match.group(0), match.group(0))


def exit_code(happening: Happening) -> int | None:
    value = next(
        (happening.values[name] for name in ("exit_code", "exitcode", "code") if name in happening.values), None
    )
    try:
        return None if value is None else int(float(value))
    except (TypeError, ValueError):
        return None


def meaning_of(happening: Happening) -> Meaning:
    """What this happening is: a cause with its id, an echo, teardown or background."""
    if happening.is_benign:
        return BACKGROUND
    kind, text = happening.kind, happening.message
    if kind in _BY_KIND and kind not in _FAILING:
        if kind == "cancelled" and _STEP_CANCELLED.search(text) and "time limit" not in text.lower():
            return TEARDOWN
        return Meaning(part="cause", cause=_BY_KIND[kind])
    if kind == "requeued":
        return TEARDOWN
    if kind not in _FAILING:
        return BACKGROUND
    return _of_words(happening)


def _of_words(happening: Happening) -> Meaning:
    kind, text = happening.kind, happening.message
    if _TEARDOWN.search(text):
        return TEARDOWN
    words = _cause_in(text)
    if words and words not in ("rendezvous-refused", "device-error"):
        return Meaning(part="cause", cause=words) if kind != "warning" or words in _LOUD else BACKGROUND
    if kind in ("connection_lost", "collective_abort") or _ECHO.search(text):
        is_start = words == "rendezvous-refused" and happening.step is None
        return Meaning(part="cause", cause=words) if is_start else ECHO
    if words:
        return Meaning(part="cause", cause=words) if kind != "warning" else BACKGROUND
    if kind == "nan":
        return BACKGROUND  # a value in the log: what the loss did is a finding of its own
    if kind in _BY_KIND and kind != "killed":
        return Meaning(part="cause", cause=_BY_KIND[kind])
    return _of_ending(happening)


@lru_cache(maxsize=8192)
def _cause_in(text: str) -> str:
    return next((cause for cause, pattern in CAUSE_WORDS if pattern.search(text)), "")


_LOUD = {"ranks-share-device", "disk-full", "device-out-of-memory", "cgroup-memory-kill", "version-mismatch"}
"""Causes that count even where they are only warned of."""


def _of_ending(happening: Happening) -> Meaning:
    """An exit, a signal or a traceback without more words."""
    name = signal_name(happening)
    if name in TEARDOWN_SIGNALS:
        return TEARDOWN
    if happening.kind in ("killed", "signal") or (happening.kind == "exited" and name):
        return Meaning(part="cause", cause="rank-killed")
    if happening.kind == "traceback":
        return Meaning(part="cause", cause="rank-failed")
    if happening.kind == "exited":
        code = exit_code(happening)
        is_failed = code not in (None, 0, int(ExitCode.REQUEUE)) or _TERMINATED.search(happening.message)
        return Meaning(part="cause", cause="rank-failed") if is_failed else BACKGROUND
    return BACKGROUND
