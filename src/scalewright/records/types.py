"""Types that several layers share on disk: findings and their rules, study points and results, exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

Severity = Literal["info", "warning", "error"]
Confidence = Literal["bound", "model", "calibrated"]
"""How a predicted number was made: physics only; a formula with catalogue values; measured on this machine."""
WARNING = "warning: "
"""Begins a note of a prediction that may be far off. Reports show such notes beside the number, not below it."""


def warnings_among(notes: Iterable[str]) -> list[str]:
    """The notes that warn of a prediction that may be far off, each once."""
    return [note for note in dict.fromkeys(notes) if note.startswith(WARNING)]


class ExitCode(IntEnum):
    """What the shell sees."""

    YES = 0
    NO = 1
    """The honest answer is no: does not fit, regression, findings."""
    BAD_INPUT = 2
    ENVIRONMENT = 3
    REQUEUE = 75
    """EX_TEMPFAIL: the job wants to be queued again and resumed."""
    INTERRUPTED = 130
    """Ctrl-C, as shells count it: 128 + SIGINT."""


class EnvName:
    """Environment variables the package reads."""

    HOME = "SCALEWRIGHT_HOME"
    """User folder of catalogue entries and calibrations; default: $XDG_CONFIG_HOME/scalewright."""
    SYSTEM = "SCALEWRIGHT_SYSTEM"
    """System that `here` means."""
    LAUNCHER = "SCALEWRIGHT_LAUNCHER"
    """Set by our launcher for the ranks it starts."""
    JOB = "SCALEWRIGHT_JOB"
    """Id of the job that a rank belongs to, where no scheduler gives one."""
    DEVICE = "SCALEWRIGHT_DEVICE"
    """Number of a rank's device, where the scheduler shows each rank one only; default: its local rank."""
    RUN_DIR = "SCALEWRIGHT_RUN_DIR"
    """Run directory of a job, for job scripts that users write; tasks of an array use its folders task-N."""
    WATCHDOG_FACTOR = "SCALEWRIGHT_WATCHDOG_FACTOR"
    """How long a run may make no step, in median steps."""
    WATCHDOG_S = "SCALEWRIGHT_WATCHDOG_S"
    """The shortest such time in seconds, for runs of short steps."""
    WATCHDOG_SAVE_S = "SCALEWRIGHT_WATCHDOG_SAVE_S"
    """How long a save or a load of a checkpoint may take in seconds, if no earlier one took long."""
    HELD = "SCALEWRIGHT_HELD"
    """Set by our launcher for ranks whose run directory it holds itself."""
    LISTENER = "SCALEWRIGHT_LISTENER"
    """Handle of the socket at which the first rank waits for the others; our launcher keeps the port with it."""
    ENGINE_PYTHON = "SCALEWRIGHT_ENGINE_PYTHON"
    """Interpreter of the environment that has the training engines, such as DeepSpeed."""
    ENGINE_DIR = "SCALEWRIGHT_ENGINE_DIR"
    """Checkout of an engine that is no package, such as Megatron-LM."""
    LEASE_S = "SCALEWRIGHT_LEASE_S"
    """Separate roles: an engine that is silent for so many seconds is given up; others write its answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of lint, of pre-flight or of a diagnosis."""

    id: str
    severity: Severity
    title: str
    why: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule, the evidence that fired it, what to do next, and the gain expected."""

    rule: str
    severity: Severity
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    next_step: str = ""
    expected_gain_frac: float | None = None
    source: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One cell of a study: everything needed to predict or run it, resolved."""

    id: str
    study: str
    labels: dict[str, str]
    resolved: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One number about a point, with its origin."""

    point: str
    metric: str
    value: float
    unit: str
    origin: Literal["predicted", "measured", "published"]
    interval: tuple[float, float] | None = None
    source: str = ""
