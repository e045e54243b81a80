"""The supervisor: starts controller, trainer and engines, starts again those that die, and ends when the trainer has.

A role that dies takes nobody along. It is started again after a pause that doubles with every death in a row, counted
until the trainer makes a step. An engine that dies too often, or whose node is lost, is left out while others go on; a
trainer or a controller that dies too often ends the run. Bad input is not tried again. A stop signal goes to the
trainer, which saves and exits with 75; then the others are ended. If the supervisor itself is killed, the same command
goes on: it first ends what is left of the roles before.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scalewright.errors import EnvironmentFailedError
from scalewright.launch.ranks.forwarding import signals_to
from scalewright.launch.roles.division import Role
from scalewright.launch.roles.leftovers import end_leftovers, write_processes
from scalewright.launch.roles.worlds import RoleWorld, describe, last_words
from scalewright.records.events import Event, EventTail
from scalewright.records.hybrid import TimelineWriter
from scalewright.records.metric_names import STEP_TIME
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.records.types import ExitCode

POLL_S = 0.1
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0
MOST_IN_A_ROW = 12
"""Deaths of one role without a step of the trainer between them. The pauses before these add up to two minutes."""
GRACE_S = 5.0
"""For engines and controller to end when the trainer has."""
FINAL = frozenset({ExitCode.NO, ExitCode.BAD_INPUT})
"""Exit codes that another start would only repeat."""


@dataclass(slots=True, kw_only=True)
class Supervised:
    """A role, its running world, and how often it was started again."""

    role: Role
    world: RoleWorld | None = None
    num_restarts: int = 0
    num_in_a_row: int = 0
    died_s: float = 0.0
    """When it died, by `time.perf_counter()`."""
    due_s: float = 0.0
    why: str = ""
    is_done: bool = False
    """It ended because the run is over."""
    is_dropped: bool = False
    """It died too often, or its node is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleObserver:
    """Functions that are called while roles run."""

    on_events: Callable[[list[Event]], None] = field(default=lambda _: None)
    on_signal: Callable[[int], None] = field(default=lambda _: None)
    on_note: Callable[[str], None] = field(default=lambda _: None)


class Supervisor:
    """Runs the roles of one run directory to the end of the trainer."""

    def __init__(
        self,
        run: RunDirectory,
        roles: Sequence[Role],
        *,
        start: Callable[[Role, int], RoleWorld],
        is_lost: Callable[[Role], bool] = lambda _: False,
        observer: RoleObserver | None = None,
        most_in_a_row: int = MOST_IN_A_ROW,
    ) -> None:
        """`start` gets a role and how often it was started before; `is_lost` says that a node of the role is gone."""
        self.run, self._start, self._is_lost = run, start, is_lost
        self._most_in_a_row = most_in_a_row
        self._observer = observer or RoleObserver()
        self.roles = [Supervised(role=role) for role in roles]
        self._trainer = next(one for one in self.roles if one.role.kind == "trainer")
        self._signals: list[int] = []
        self._num_reported = 0
        self._end: tuple[int, str] | None = None

    def supervise(self) -> int:
        """The exit code of the run."""
        num_left = end_leftovers([one.role.directory for one in self.roles])
        if num_left:
            self._observer.on_note(f"ended {num_left} processes that an earlier start left behind")
        self.run.exit_info.unlink(missing_ok=True)
        tail = EventTail(self.run.rank_events(0))
        tail.skip_to_end()
        with contextlib.closing(TimelineWriter(self.run, "supervisor", 0)) as timeline, signals_to(self._pass_on):
            try:
                for one in self.roles:
                    self._begin(one)
                code = self._watch(tail, timeline)
            finally:
                self._end_all()
                self._write_end()
        self._see(tail)
        return ExitCode.INTERRUPTED if signal.SIGINT in self._signals else code

    @property
    def num_restarts(self) -> dict[str, int]:
        return {one.role.name: one.num_restarts for one in self.roles}

    def _watch(self, tail: EventTail, timeline: TimelineWriter) -> int:
        while True:
            time.sleep(POLL_S)
            self._see(tail)
            for one in self.roles:
                if one.world is None and one is self._trainer and self._signals:
                    self._record(ExitCode.REQUEUE, f"the trainer {one.why}, then came a stop: run it again to resume")
                    return ExitCode.REQUEUE
                if one.world is None:
                    self._restart_if_due(one, timeline)
                    continue
                code = one.world.poll()
                if code is None:
                    continue
                final = self._ended(one, code)
                if final is not None:
                    return final

    def _ended(self, one: Supervised, code: int) -> int | None:
        """A role has ended: the exit code of the run if that ends it, else None."""
        is_trainer, is_stopping = one is self._trainer, bool(self._signals)
        one.world = None
        if is_trainer and (code == ExitCode.YES or (is_stopping and code == ExitCode.REQUEUE)):
            return code
        if one.role.kind == "engine" and code == ExitCode.YES:
            one.is_done = True
            return None
        if code in FINAL:
            self._give_reason(one, code)
            return code
        if is_trainer and is_stopping:  # it died while it was to save: the last checkpoint counts
            self._record(ExitCode.REQUEUE, f"the trainer {describe(code)} while it stopped: run it again to resume")
            return ExitCode.REQUEUE
        one.why, one.died_s = describe(code), time.perf_counter()
        one.num_in_a_row += 1
        if self._is_lost(one.role):
            return self._lost(one)
        if one.num_in_a_row > self._most_in_a_row:
            return self._given_up(one)
        pause_s = min(FIRST_PAUSE_S * 2 ** (one.num_in_a_row - 1), LONGEST_PAUSE_S)
        one.due_s = one.died_s + pause_s
        return None

    def _restart_if_due(self, one: Supervised, timeline: TimelineWriter) -> None:
        if one.is_done or one.is_dropped or time.perf_counter() < one.due_s:
            return
        if self._signals and one.role.kind == "engine":
            return  # the trainer stops: no engine is needed for that
        one.num_restarts += 1
        self._begin(one)
        timeline.add(
            "restart",
            one.died_s,
            time.perf_counter(),
            of=one.role.name,
            detail=f"{one.why}; start {one.num_restarts + 1}",
        )
        self._observer.on_note(f"{one.role.name} {one.why}: started again")

    def _begin(self, one: Supervised) -> None:
        if one.role.kind != "trainer":
            one.role.directory.exit_info.unlink(missing_ok=True)
        one.world = self._start(one.role, one.num_restarts)
        write_processes(one.role.directory, one.world.pids)

    def _lost(self, one: Supervised) -> int | None:
        """The role's node is gone. The trainer needs other nodes, which the scheduler gives to the next attempt."""
        nodes = ", ".join(one.role.nodes)
        if one.role.kind != "engine":
            self._record(ExitCode.REQUEUE, f"node {nodes} of the {one.role.name} is lost: run it again to resume")
            return ExitCode.REQUEUE
        return self._drop(one, f"its node {nodes} is lost", code=ExitCode.REQUEUE)

    def _given_up(self, one: Supervised) -> int | None:
        why = f"{one.why} {one.num_in_a_row} times in a row, without a step of the trainer between"
        if one.role.kind == "engine":
            return self._drop(one, why, code=ExitCode.ENVIRONMENT)
        self._record(ExitCode.ENVIRONMENT, f"the {one.role.name} {why}: {self._hint(one)}")
        return ExitCode.ENVIRONMENT

    def _drop(self, one: Supervised, why: str, *, code: int) -> int | None:
        """Leave an engine out. Without any engine the run cannot go on."""
        one.is_dropped = True
        self._observer.on_note(f"{one.role.name} is left out: {why}")
        if any(other.role.kind == "engine" and not other.is_dropped for other in self.roles):
            return None
        self._record(code, f"no engine is left; {one.role.name}: {why}: {self._hint(one)}")
        return code

    def _hint(self, one: Supervised) -> str:
        where = one.role.path.relative_to(self.run.path)
        return f"see {where / 'logs'}, then run it again to resume"

    def _give_reason(self, one: Supervised, code: int) -> None:
        """Bad input of another role than the trainer becomes the reason of the run."""
        if one is self._trainer:
            return
        words = last_words(one.role)
        self._record(
            code, f"{one.role.name}: {words}" if words else f"{one.role.name} {describe(code)}: {self._hint(one)}"
        )

    def _record(self, code: int, reason: str) -> None:
        """Why the run ends; written once all roles have ended, for the trainer writes its own reason before."""
        self._end = (int(code), reason)

    def _write_end(self) -> None:
        if self._end is None:
            return
        checkpoint = self.run.last_checkpoint()
        last = None if checkpoint is None else str(checkpoint.relative_to(self.run.path))
        info = ExitInfo(
            code=self._end[0], reason=self._end[1], job="supervisor", attempt=0, rank=0, last_checkpoint=last,
            time=time.time(),
        )  # fmt: skip
        with contextlib.suppress(OSError, EnvironmentFailedError):  # a full disk may be the reason why it ended
            self.run.write_exit_info(info, is_cause=True)

    def _see(self, tail: EventTail) -> None:
        events = tail.read()
        if any(event.name == STEP_TIME for event in events):
            for one in self.roles:
                one.num_in_a_row = 0
        self._observer.on_events(events)
        for number in self._signals[self._num_reported :]:  # not in the handler, which may interrupt a write
            self._observer.on_signal(number)
            self._num_reported += 1

    def _pass_on(self, number: int) -> None:
        """A stop goes to the trainer. A second Ctrl-C ends all at once."""
        is_second = number == signal.SIGINT and number in self._signals
        self._signals.append(number)
        for one in self.roles:
            if one.world is not None and (is_second or one is self._trainer):
                one.world.send(signal.SIGKILL if is_second else number)

    def _end_all(self) -> None:
        """Ask what still runs to end, then make sure of it: the trainer first, the controller last."""
        order = sorted(self.roles, key=lambda one: one.role.kind == "controller")
        for one in order:
            if one.world is not None:
                one.world.send(signal.SIGTERM)
                deadline_s = time.monotonic() + GRACE_S
                while one.world.poll() is None and time.monotonic() < deadline_s:
                    time.sleep(POLL_S / 4)
        for one in order:
            if one.world is not None:
                one.world.kill()
            one.role.directory.processes.unlink(missing_ok=True)
