"""What a fault of the laboratory consists of: a real run, what is done to it from outside, and the ground truth.

Fault(
    kind="killed-rank", title="a rank is killed", role="ended", rules=("rank-killed",), how="SIGKILL after some steps",
    variations=(Variation(words="rank 1 of 2", command=language(ranks=2), inject=send(SIGKILL, rank=1, after_step=5)),),
)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from scalewright.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from scalewright.lab.faults.trial import Trial

Effect = Literal["ended", "slowed", "doubtful", "wasted"]
"""What a fault does to the run: it ends, is slower, its numbers cannot be trusted, or it wastes what was reserved."""
Injection = Callable[["Trial"], None]
"""Changes a trial before its start, or adds what is done to it while it runs."""


def nothing(trial: Trial) -> None:
    """No fault."""
    del trial


def both(*injections: Injection) -> Injection:
    """Several injections, in order."""

    def inject(trial: Trial) -> None:
        for one in injections:
            one(trial)

    return inject


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One way in which a fault happens."""

    words: str
    """What is done, with its numbers."""
    command: tuple[str, ...]
    """Arguments of `scalewright`, without --run-dir. `{data}` is the folder that `prepare` fills."""
    inject: Injection = nothing
    prepare: Injection = nothing
    """Makes what the run needs, with and without the fault."""
    reference: tuple[str, ...] | None = None
    """The command without the fault, where the fault is in the command; None: the same command."""
    reference_inject: Injection = nothing
    """What is done in the run without the fault too, such as a network whose links are not shaped."""
    rules: tuple[str, ...] = ()
    """Ground truth of this variation; empty: the fault's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault with its variations."""

    kind: str
    title: str
    effect: Effect
    rules: tuple[str, ...]
    """Rules of `explain`, one of which must be ranked first."""
    how: str
    """How it is injected."""
    variations: tuple[Variation, ...]
    also: tuple[str, ...] = ()
    """Rules that are true of the run as well: no false alarms, wherever they are ranked."""
    num_warm_steps: int = 3
    """Steps that do not count in the measured gain: the first ones warm up, and the injection begins."""
    is_slow: bool = False
    """Takes minutes: it waits for a scheduler's timers."""
    is_replayed: bool = False
    """A part of the evidence was recorded elsewhere and is put beside the run."""

    def __post_init__(self) -> None:
        if not self.variations or not self.rules:
            raise ConfigError(f"fault {self.kind}: give it variations and the rules that must name it")

    @property
    def slows(self) -> bool:
        return self.effect == "slowed"

    def variation(self, number: int) -> Variation:
        """Variations are counted from 1."""
        if not 1 <= number <= len(self.variations):
            raise ConfigError(f"--variation {number}: {self.kind} has variations 1 to {len(self.variations)}")
        return self.variations[number - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A healthy run: nothing that `explain` says of it may be a warning or an error."""

    name: str
    command: tuple[str, ...]
    prepare: Injection = nothing
    inject: Injection = nothing


def by_name(faults: tuple[Fault, ...], kind: str) -> Fault:
    every = {fault.kind: fault for fault in faults}
    if kind not in every:
        raise UnknownNameError("fault", kind, every, hint="scalewright lab fault list names them")
    return every[kind]
