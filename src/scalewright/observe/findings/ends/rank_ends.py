"""Ends by a rank: an error of its own, a signal, or a wait that never ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from scalewright import units
from scalewright.observe.causes import signal_name
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.findings.ends.ending import Ending, ending_by, number, quoted, ranks_words, seen_end
from scalewright.observe.findings.ends.known_errors import known_advice
from scalewright.observe.findings.rule import FindingContext, Seen, finding_rule
from scalewright.observe.hang import Stall, stalls
from scalewright.observe.timeline import build_timeline

_SIGNALS = {
    "SIGKILL": ("killed from outside: by a person, a launcher, or the kernel for lack of memory",
                "look for the OOM killer in `dmesg` and for `oom_kill` in the step's log; else ask who sent it"),
    "SIGSEGV": ("a native library read memory that is not its own",
                "run with PYTHONFAULTHANDLER=1 for the stack; check that extensions were built for this torch"),
    "SIGBUS": ("a mapped file or shared memory was shorter than expected",
               "check space in /dev/shm and on the data's file system"),
    "SIGABRT": ("a library ended its own process: a watchdog or a failed assertion",
                "read the lines before it: the library says why"),
    "SIGFPE": ("a native library divided by zero", "run once with PYTHONFAULTHANDLER=1 for the stack"),
    "SIGILL": ("an instruction that this CPU does not have", "rebuild or reinstall for the CPU of the node"),
    "SIGXCPU": ("the limit of CPU time", "check `ulimit -t`"),
}  # fmt: skip


_NO_STEP = re.compile(r"no step for ([\d.]+) s\b|[Tt]imed? ?out.{0,80}?(?:after|waiting) (\d+) ?ms")
_AWAITED = re.compile(r"retrei?i?e?ving ncclUniqueId from \[(\d+)\]|ncclUniqueId from \[(\d+)\]")
"""A rank that waits for another one's first message names it."""
"""How our own watchdog says it."""


@finding_rule(
    id="rank-failed",
    severity="error",
    role="ended",
    title="A rank failed with an error of its own",
    why="One rank raises an error and leaves. All others then report lost connections, aborted communicators or "
    "timeouts, and launchers end them. Only the first error matters.",
    advice="Read the traceback of the rank that is named. The others' errors follow from it.",
    source="PyTorch, torchelastic: root cause is the first observed failure; Infrastructure Foundations for Scalable "
    "LLM Training, section 2.4.6",
)
def rank_failed(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "rank-failed"):
        first = ending.first
        yield seen_end(
            ending,
            f"{ending.who} failed first{ending.when}: {quoted(first)}",
            known_advice(first.message)
            or f"open {first.spot.file}{f' at line {first.spot.line}' if first.spot.line else ''} and fix this error",
        )


@finding_rule(
    id="rank-killed",
    severity="error",
    role="ended",
    title="A rank was killed by a signal",
    why="A killed process writes no reason. The signal says what sort of end it was; KILL comes from outside.",
    advice="For KILL, look at the kernel's log and the memory of the job. For SEGV and BUS, get the native stack.",
    source="signal(7); Infrastructure Foundations for Scalable LLM Training, section 2.4.6",
)
def rank_killed(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "rank-killed"):
        name = signal_name(ending.first)
        if not name:
            yield seen_end(
                ending, f"{ending.who} died without a word{ending.when}: {quoted(ending.first, most=120)}",
                "look for the OOM killer in `dmesg` of its node and in the launcher's log, and watch host memory",
            )  # fmt: skip
            continue
        meaning, advice = _SIGNALS.get(name, ("no cause is known", "ask who sent it"))
        yield seen_end(
            ending, f"{ending.who} was ended by {name}{ending.when} ({meaning})", advice, numbers={"signal": name}
        )


MOST_STALLS = 8


@finding_rule(
    id="hang",
    severity="error",
    role="ended",
    title="Ranks waited for a collective that never ended",
    why="A collective ends when every rank of its group has called it. If one rank is stopped, stuck in I/O, in "
    "another collective or gone without a word, all others wait until a watchdog ends them.",
    advice="Look at the rank that is named: its stack (py-spy dump), its log, its node. Flight-recorder dumps of all "
    "ranks (TORCH_NCCL_TRACE_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1) name the collective that it missed.",
    source="PyTorch, flight recorder; pytorch/pytorch#118369, #196968",
)
def hang(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    causes = stalls(evidence)
    cause = build_timeline(evidence).cause
    if causes and cause in ("", "hang"):
        # Two ranks may stall at once, each in its own group: all that are named are said.
        for stall in [one for one in causes if one.ranks][:MOST_STALLS] or causes[:1]:
            is_sure = bool(stall.ranks) or cause == "hang"  # a dump of a healthy run may show an operation under way
            yield replace(_of_recorders(stall), severity=None if is_sure else "info")
        return
    for ending in ending_by(evidence, "hang"):
        first = ending.first
        reporting = {
            one.happening.rank for one in ending.timeline.moments
            if one.meaning.cause == "hang" and one.happening.rank is not None
        }  # fmt: skip
        named = _named_ranks(ending)
        reporting -= named
        silent = tuple(sorted(named)) or _silent_ranks(ending, reporting)
        operation = _operation(ending)
        since = _since(ending)
        culprit = f" {ranks_words(silent).capitalize()} did not report it: look there first." if silent else ""
        seen = seen_end(
            ending,
            f"{ranks_words(tuple(sorted(reporting))).capitalize() or 'Ranks'} waited{operation}{since}{ending.when}."
            f"{culprit}",
            _hang_advice(silent),
            numbers={"message": quoted(first, most=120)},
        )
        is_named = not silent or bool(named)  # else it follows from silence only
        yield replace(seen, ranks=silent or seen.ranks, certainty=seen.certainty if is_named else "likely")


def _of_recorders(stall: Stall) -> Seen:
    """Flight recorders say it best: who stalled, in which collective."""
    since = (
        "" if stall.since_s is None else f", since {datetime.fromtimestamp(stall.since_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    )
    where = f", called from {stall.called_from}" if stall.called_from else ""
    return Seen(
        message=f"{stall.sentence.rstrip('.')}{since}{where}", spots=stall.spots, certainty=stall.certainty, score=1.0,
        next_step=(
            f"look at the log, the stack and the node of {ranks_words(stall.ranks)}" if stall.ranks
            else stall.missing or _hang_advice(())
        ),
        numbers={"collective": stall.collective, "group": stall.group}, ranks=stall.ranks,
    )  # fmt: skip


def _named_ranks(ending: Ending) -> set[int]:
    """Ranks that a barrier or a watchdog names as those that did not come."""
    named: set[int] = set()
    for one in ending.timeline.moments:
        missing = str(one.happening.values.get("missing_ranks", ""))
        named |= {int(part) for part in missing.split(",") if part.isdigit()}
        if awaited := _AWAITED.search(one.happening.message):
            named.add(int(awaited[1] or awaited[2]))
        if "didn't join" in one.happening.message and one.happening.rank is not None:
            named.add(one.happening.rank)
    return named


def _silent_ranks(ending: Ending, reporting: set[int]) -> tuple[int, ...]:
    entry = ending.evidence.settings.get("num_ranks")
    total = int(entry[0]) if entry and entry[0].isdigit() else 0
    known = {one.rank for one in ending.evidence.steps if one.rank is not None}
    everyone = set(range(total)) if total else known
    silent = everyone - reporting
    return tuple(sorted(silent)) if silent and len(silent) < len(everyone) else ()


def _operation(ending: Ending) -> str:
    values = ending.first.values
    name = str(values.get("collective", values.get("operation", ""))).lower()
    sequence = number(ending.first, "sequence", "seq")
    words = f" in {name}" if name else ""
    return words + (f" number {sequence:.0f}" if sequence is not None else "")


def _since(ending: Ending) -> str:
    waited_s = number(ending.first, "waited_s", "ran_s", "timeout_s")
    if waited_s is None and (match := _NO_STEP.search(ending.first.message)):
        waited_s = float(match[1]) if match[1] else float(match[2]) * units.MILLI
    return "" if waited_s is None else f" for {units.format(waited_s, units.SECONDS)}"


def _hang_advice(silent: tuple[int, ...]) -> str:
    if silent:
        return f"look at the log, the stack and the node of {ranks_words(silent)}"
    return (
        "run again with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give the dumps of all "
        "ranks to `scalewright explain`"
    )
