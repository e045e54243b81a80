"""The story of an end across ranks: which event began it, which followed from it, and what only tore the job down.

Clocks of hosts may disagree, logs are written late and some lines have no time. So the order of events is first what
causes what, then corrected time, then the line in a file.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scalewright.observe.causes import CAUSES, Meaning, meaning_of, signal_name
from scalewright.observe.clocks import Clocks, compare_clocks
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Happening, HappeningKind, JobFact, Spot

Role = Literal["initiating", "cascading", "teardown"]

KERNEL_LATE_S = 120.0
"""Slurm, the kernel and drivers may write why they ended a process so long after its launcher noticed the end."""
TOGETHER_S = 30.0
"""The same cause on several ranks within this time is one event: ranks of one layout run out of memory in one step."""
LINES_AFTER_SIGNAL = 100
"""The same where lines have no time: a traceback has so many lines."""
SAME_CHARACTERS = 40
"""Errors of two ranks are the same if they begin alike."""
STEPS_AFTER = 5
"""Reports of steps after an event that show that it did not end the run: ranks that wait for a lost one make fewer."""
MOST_OF_A_CAUSE = 16
"""Moments of one cause that are compared with those of others."""
MOST_ALIKE = 4
"""Moments of one cause, rank and file that are kept: a rank repeats its last error many times."""

_EXPLAINS = {
    "cgroup-memory-kill": {"rank-killed", "rank-failed", "host-out-of-memory"},
    "host-out-of-memory": {"rank-killed", "rank-failed"},
    "node-failure": {"rank-killed", "rank-failed", "device-error"},
    "device-error": {"rank-failed", "rank-killed"},
    "disk-full": {"rank-failed", "missing-file"},
    "preempted": {"rank-killed", "cancelled", "rank-failed", "stopped-by-signal"},
    "time-limit": {"rank-killed", "cancelled", "stopped-by-signal"},
    "cancelled": {"rank-killed", "stopped-by-signal"},
    "ranks-share-device": {"rank-failed"},
    "loss-nan": {"rank-failed"},
    "network-error": {"hang", "rank-killed", "rank-failed"},
    "hang": {"rank-killed", "rank-failed"},
}
"""Causes that also produce the other's signs, even if those were written first."""
RECEIVED = "eceived "
"""In the words of a program that got a signal itself; launchers say what they send."""
_OWN_LOG = re.compile(r"/logs/rank-(\d+)\.log$")
_WAITS = {"hang", "rendezvous-refused", "network-error"}
"""What ranks see that wait for one that failed."""
_ENDS_ANYTHING = {"time-limit", "cancelled"}
"""What happens to a job that does nothing any more."""
_STATES: dict[str, HappeningKind] = {
    "TIMEOUT": "time_limit", "DEADLINE": "time_limit", "OUT_OF_MEMORY": "cgroup_kill", "NODE_FAIL": "node_failed",
    "BOOT_FAIL": "node_failed", "PREEMPTED": "preempted", "CANCELLED": "cancelled",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One event of the story."""

    happening: Happening
    meaning: Meaning
    role: Role
    at_s: float | None = None
    """By the reference clock; None: nothing says when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    moments: tuple[Moment, ...] = ()
    """Initiating, cascading, teardown; each in order of time."""
    is_certain: bool = False
    """Whether nothing else can have begun the end."""
    is_survived: bool = False
    """Whether the run went on and finished after it."""
    notes: tuple[str, ...] = ()

    @property
    def initiating(self) -> tuple[Moment, ...]:
        """The event that began the end, and the same on other ranks at that time."""
        return tuple(one for one in self.moments if one.role == "initiating")

    @property
    def cause(self) -> str:
        return self.initiating[0].meaning.cause if self.initiating else ""

    def with_role(self, role: Role) -> tuple[Moment, ...]:
        return tuple(one for one in self.moments if one.role == role)


def build_timeline(evidence: Evidence) -> Timeline:
    """Tell initiating, cascading and teardown events apart."""
    clocks = compare_clocks(evidence)
    spoken = [
        Moment(happening=one, meaning=meaning, role="cascading", at_s=clocks.at_s(one))
        for one in map(_with_rank, [*evidence.happenings, *_job_ends(evidence)])
        if (meaning := meaning_of(one)).part != "background"
    ]
    events = _with_signals(_without_repeats(spoken), clocks)
    causes = [one for one in events if one.meaning.part == "cause"]
    overcome = _overcome(evidence, causes)
    first, is_certain = _first_cause(
        _representatives([one for one in causes if id(one) not in overcome] or causes), clocks
    )
    notes = list(clocks.notes)
    if first is None:
        return Timeline(moments=_ordered(events, None, clocks), notes=tuple(notes))
    if not is_certain:
        notes.append(
            "More than one event can have begun the end, and no clock orders them: the deeper cause is shown first."
        )
    return Timeline(
        moments=_ordered(events, first, clocks),
        is_certain=is_certain,
        is_survived=_is_survived(evidence, first, clocks) or (id(first) in overcome and not _ends_after(first, spoken)),
        notes=tuple(notes),
    )


def _with_signals(events: list[Moment], clocks: Clocks) -> list[Moment]:
    """A signal that a program says it received is teardown beside any cause, and the cause where there is no other.

    An error that the same log shows right after the signal follows from it: the handler raised it, or work was cut off.
    """
    received = [one for one in events if one.happening.kind == "signal" and RECEIVED in one.happening.message]
    provoked = {
        id(one) for one in events
        if one.meaning.cause == "rank-failed" and any(_is_right_after(signal, one, clocks) for signal in received)
    }  # fmt: skip
    has_cause = any(
        id(one) not in provoked and (one.meaning.part == "cause" or one.happening.kind == "traceback") for one in events
    )
    meanings = {key: Meaning(part="echo") for key in provoked}
    if not has_cause:
        meanings |= {id(one): Meaning(part="cause", cause="stopped-by-signal") for one in received}
    return [replace(one, meaning=meanings.get(id(one), one.meaning)) for one in events]


def _is_right_after(signal: Moment, one: Moment, clocks: Clocks) -> bool:
    """Whether the log of a rank shows an event within the time or the lines in which a signal takes effect."""
    sent, seen = signal.happening, one.happening
    if sent.spot.file != seen.spot.file or sent.spot.line >= seen.spot.line:
        return False
    if None not in (sent.rank, seen.rank) and sent.rank != seen.rank:
        return False
    late_s = None if signal.at_s is None or one.at_s is None else one.at_s - signal.at_s
    if late_s is not None:
        return late_s <= TOGETHER_S + clocks.slack_s(sent, seen)
    return seen.spot.line - sent.spot.line <= LINES_AFTER_SIGNAL


def _overcome(evidence: Evidence, causes: Sequence[Moment]) -> set[int]:
    """Identities of events after which the same log goes on with steps: they were handled, or it was started again."""
    lines: dict[str, list[int]] = {}
    for one in evidence.steps if causes else ():
        lines.setdefault(one.spot.file, []).append(one.spot.line)
    for numbers in lines.values():
        numbers.sort()

    def num_after(spot: Spot) -> int:
        numbers = lines.get(spot.file, [])
        return len(numbers) - bisect_right(numbers, spot.line) if spot.line else 0

    return {id(one) for one in causes if num_after(one.happening.spot) >= STEPS_AFTER}


def _ends_after(first: Moment, moments: Sequence[Moment]) -> bool:
    """Whether the same log shows an end, of whatever kind, after the event and others of its cause."""
    spot = first.happening.spot
    return any(
        one.happening.spot.file == spot.file and one.happening.spot.line > spot.line and one.meaning != first.meaning
        for one in moments
    )  # fmt: skip


def _with_rank(happening: Happening) -> Happening:
    """With the rank whose log it is, in run directories of ours: their layout says it."""
    match = None if happening.rank is not None else _OWN_LOG.search(happening.spot.file)
    return happening if match is None else replace(happening, rank=int(match.group(1)))


def _job_ends(evidence: Evidence) -> Iterable[Happening]:
    """How the scheduler accounts for the end, as events; what readers already said is not repeated."""
    known = {one.kind for one in evidence.happenings}
    for job in evidence.jobs:
        kind = _STATES.get(job.state)
        if kind is None or kind in known:
            continue
        known.add(kind)
        yield Happening(
            kind=kind, spot=job.spot, message=f"job {job.job_id} ended as {job.state}{_reason(job)}",
            at_s=job.ended_at_s if kind in ("time_limit", "cancelled") else None,
            values={"job": job.job_id, "state": job.state},
        )  # fmt: skip


def _reason(job: JobFact) -> str:
    return f" ({job.reason})" if job.reason and job.reason.lower() not in ("none", "unknown") else ""


def _without_repeats(moments: Sequence[Moment]) -> list[Moment]:
    seen: Counter[tuple[object, ...]] = Counter()
    kept = []
    for one in moments:
        key = (one.meaning, one.happening.kind, one.happening.rank, one.happening.host, one.happening.spot.file)
        seen[key] += 1
        if seen[key] <= MOST_ALIKE:
            kept.append(one)
    return kept


def _representatives(causes: Sequence[Moment]) -> list[Moment]:
    """The earliest of each cause: hundreds of ranks may say the same."""
    kept: list[Moment] = []
    by_cause: dict[str, list[Moment]] = {}
    for one in causes:
        by_cause.setdefault(one.meaning.cause, []).append(one)
    for moments in by_cause.values():
        moments.sort(key=lambda one: (
            float("inf") if one.at_s is None else one.at_s, one.happening.spot.line, one.happening.spot.file,
        ))  # fmt: skip
        kept += moments[:MOST_OF_A_CAUSE]
    return kept


def _first_cause(causes: list[Moment], clocks: Clocks) -> tuple[Moment | None, bool]:
    """The event that no other explains, and whether it is the only one."""
    left = [one for one in causes if not any(_explains(other, one, clocks) for other in causes if other is not one)]
    left = left or causes
    if not left:
        return None, False
    named = {one.happening.rank for one in causes if one.happening.values.get("is_first")} - {None}
    first = min(left, key=lambda one: _sort_key(one, left, clocks, named))
    rivals = [
        one for one in left
        if one.meaning.cause != first.meaning.cause and not _is_before(first, one, clocks)
    ]  # fmt: skip
    return first, not rivals


def _explains(one: Moment, other: Moment, clocks: Clocks) -> bool:
    """Whether `one` is why `other` was seen."""
    mine, theirs = one.meaning.cause, other.meaning.cause
    if mine == theirs:
        return False
    late_s = _seconds_after(one, other)  # how long `one` was written after `other`
    if _makes_signs_of(one, other):
        return late_s is None or late_s <= KERNEL_LATE_S
    if _makes_signs_of(other, one):
        return late_s is not None and late_s < -KERNEL_LATE_S
    waits = theirs in _WAITS and mine not in _WAITS | _ENDS_ANYTHING
    ends = theirs in _ENDS_ANYTHING and mine not in _ENDS_ANYTHING
    return (waits or ends) and (late_s is None or late_s <= clocks.slack_s(one.happening, other.happening))


def _makes_signs_of(one: Moment, other: Moment) -> bool:
    """Whether the cause of `one` alone produces what `other` shows, in whatever order they were written."""
    if other.meaning.cause not in _EXPLAINS.get(one.meaning.cause, ()):
        return False
    if one.meaning.cause not in ("hang", "network-error") or other.meaning.cause == "hang":
        return True
    return other.happening.kind == "exited" or signal_name(other.happening) == "SIGABRT"  # a watchdog aborts its rank


def _seconds_after(one: Moment, other: Moment) -> float | None:
    """How long `one` was written after `other`; by lines of a file (then 1 or -1) where a time is missing."""
    if one.at_s is not None and other.at_s is not None:
        return one.at_s - other.at_s
    mine, theirs = one.happening.spot, other.happening.spot
    if mine.file == theirs.file and mine.line and theirs.line:
        return 1.0 if mine.line > theirs.line else -1.0
    return None


def _is_before(one: Moment, other: Moment, clocks: Clocks) -> bool:
    """Whether it certainly came first."""
    late_s = _seconds_after(other, one)
    is_timed = one.at_s is not None and other.at_s is not None
    slack_s = clocks.slack_s(one.happening, other.happening) if is_timed else 0.0
    return late_s is not None and late_s > slack_s


def _sort_key(one: Moment, rivals: Sequence[Moment], clocks: Clocks, named: set[int | None]) -> tuple[object, ...]:
    """Fewer that came certainly before it, then the rank that a launcher saw first, the deeper cause, time, place."""
    num_before = sum(_is_before(other, one, clocks) for other in rivals if other is not one)
    depth = CAUSES[one.meaning.cause].depth
    at_s = float("inf") if one.at_s is None else one.at_s
    is_other_rank = bool(named) and one.happening.rank is not None and one.happening.rank not in named
    return num_before, is_other_rank, depth, at_s, one.happening.spot.file, one.happening.spot.line


def _ordered(events: Sequence[Moment], first: Moment | None, clocks: Clocks) -> tuple[Moment, ...]:
    roles: dict[Role, list[Moment]] = {"initiating": [], "cascading": [], "teardown": []}
    for one in events:
        role = _role(one, first, clocks)
        roles[role].append(replace(one, role=role))
    for moments in roles.values():
        moments.sort(key=lambda one: (
            float("inf") if one.at_s is None else one.at_s, one.happening.spot.file, one.happening.spot.line,
        ))  # fmt: skip
    if first is not None:
        roles["initiating"].sort(key=lambda one: one.happening is not first.happening)
    return (*roles["initiating"], *roles["cascading"], *roles["teardown"])


def _role(one: Moment, first: Moment | None, clocks: Clocks) -> Role:
    if one.meaning.part == "teardown":
        return "teardown"
    if first is None:
        return "cascading"
    if one.happening is first.happening:
        return "initiating"
    if one.meaning == first.meaning and _is_together(first, one, clocks):
        return "initiating"
    return "teardown" if one.meaning.cause in _ENDS_ANYTHING else "cascading"


def _is_together(first: Moment, one: Moment, clocks: Clocks) -> bool:
    """Whether the same happened on another rank independently: at about the same time, or while all waited."""
    if first.meaning.cause in _WAITS:
        return True
    if first.meaning.cause == "rank-killed" or (
        first.meaning.cause == "rank-failed"
        and first.happening.message[:SAME_CHARACTERS] != one.happening.message[:SAME_CHARACTERS]
    ):
        return not _is_before(first, one, clocks)
    late_s = None if first.at_s is None or one.at_s is None else one.at_s - first.at_s
    return late_s is None or late_s <= TOGETHER_S + clocks.slack_s(first.happening, one.happening)


def _is_survived(evidence: Evidence, first: Moment, clocks: Clocks) -> bool:
    """Whether the run finished later: an earlier attempt died, not the run."""
    for one in evidence.happenings:
        if one.kind == "finished" and _is_before(
            first, Moment(happening=one, meaning=first.meaning, role="teardown", at_s=clocks.at_s(one)), clocks
        ):
            return True
    ended = [job.state for job in evidence.jobs if job.state and job.state not in ("PENDING", "REQUEUED")]
    return bool(ended) and all(state == "COMPLETED" for state in ended)
