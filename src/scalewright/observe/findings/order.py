"""Explain evidence: run every rule, put consequences behind their causes, and order what is left by its weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.series import step_series
from scalewright.observe.findings.catalogue import every_rule
from scalewright.observe.findings.rule import Explained, FindingContext, FindingRule, Seen, run_option
from scalewright.records.redaction import redacted

ROLES = ("ended", "slowed", "wasted", "suspect")
_SEVERITIES = {"error": 0, "warning": 1, "info": 2}
_CERTAINTIES = {"certain": 0, "likely": 1, "possible": 2}


def explain(evidence: Evidence, context: FindingContext | None = None) -> list[Explained]:
    """Findings, most valuable first: what ended the run, what slowed it, what it wasted, what makes it doubtful.

    A finding that another one brings about comes last. What ended the run and errors come before warnings, notes after
    them.
    """
    known = context or FindingContext()
    fired = [(rule, seen) for rule in every_rule() for seen in _checked(rule, evidence, known)]
    loud = {rule.id for rule, seen in fired if (seen.severity or rule.severity) != "info"}
    findings = [Explained(rule=rule, seen=_shown(seen), because_of=_cause(rule, loud)) for rule, seen in fired]
    return sorted(findings, key=_place)


def _shown(seen: Seen) -> Seen:
    """Without credentials: lines of logs go to terminals, documents and pages."""
    spots = tuple(replace(spot, text=redacted(spot.text)) for spot in seen.spots)
    numbers = {name: redacted(value) if isinstance(value, str) else value for name, value in seen.numbers.items()}
    return replace(
        seen, message=redacted(seen.message), next_step=redacted(seen.next_step), spots=spots, numbers=numbers
    )  # fmt: skip


def _checked(rule: FindingRule, evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    """What a rule sees. Evidence may be of any content, so a rule that cannot handle it says nothing of the run."""
    try:
        yield from rule.check(evidence, context)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        evidence.notes.append(f"the rule {rule.id} could not be checked: {type(error).__name__}: {error}")


def _cause(rule: FindingRule, fired: set[str]) -> str:
    return next((other for other in rule.because_of if other in fired and other != rule.id), "")


def _rank(one: Explained) -> int:
    """0: why there is no result, or none to trust; 1: warnings; 2: notes."""
    if one.severity == "error" or (one.rule.role == "ended" and one.seen.score >= 1.0):
        return 0
    return 2 if one.severity == "info" else 1


def _place(one: Explained) -> tuple[bool, int, int, float, int, int, str]:
    return (
        bool(one.because_of), _rank(one), ROLES.index(one.rule.role), -one.seen.score,
        _SEVERITIES[one.severity], _CERTAINTIES[one.seen.certainty], one.rule.id,
    )  # fmt: skip


def missing(evidence: Evidence) -> list[str]:
    """What to add so that more could be said, most useful first. Empty: nothing is missing."""
    series = step_series(evidence)
    lacks = []
    if not evidence.steps and not evidence.rank_times:
        lacks.append(
            "no step times: add the log of rank 0, or a run directory; without them nothing is known of the speed"
        )
    elif not series.is_enough and not evidence.rank_times:
        lacks.append(f"only {len(series.times_s)} steps after the start: let the run make 20 or more steps")
    if evidence.steps and not evidence.rank_times:
        has_parts = any(set(one.parts_s) - {"data", "checkpoint", "own"} for one in evidence.steps)
        if not has_parts:
            profile = run_option(evidence, "--profile")
            lacks.append(
                f"no split of the step: add a profiler trace of one step{f' ({profile})' if profile else ''}, so that "
                "compute, communication and idle time can be told apart"
            )
    if _is_multi_node(evidence) and not evidence.transports:
        lacks.append("no NCCL log: run once with NCCL_DEBUG=INFO, so that the network path of each channel is known")
    if not evidence.jobs and not evidence.run_dir:
        lacks.append("no account of the job: add the output of `sacct -P -j JOBID -o ALL`, or give the job id")
    return lacks


def _is_multi_node(evidence: Evidence) -> bool:
    entry = evidence.settings.get("num_nodes")
    return entry is not None and entry[0].isdigit() and int(entry[0]) > 1
