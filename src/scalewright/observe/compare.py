"""Two runs side by side: what differs, how much time each term of the step gained, and which difference explains it."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scalewright.observe.breakdown.gaps import (
    COARSE_TERMS,
    LEAST_GAP_FRAC,
    LEAST_TERM_FRAC,
    OTHER,
    TermGap,
    slow_down,
    term_gaps,
    traced_terms_s,
)
from scalewright.observe.differences import ALL_TERMS, RunDifference, differences
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.series import StepSeries, step_series
from scalewright.observe.findings.order import explain
from scalewright.observe.findings.rule import Certainty, Explained

SIGMAS = 3.0
"""And it must be so many standard errors of both medians."""
MEDIAN_TO_SIGMA = 1.2533 * 1.4826
"""Standard error of a median per median absolute deviation and root of the number of steps, for normal noise."""
SLOWED = 1.05
"""A profiler that makes steps longer by more than this is mentioned."""
EXPLAINED_FRAC = 0.5
"""A difference explains a gap if the terms that it can change hold this share of it."""
Gap = Literal["slower", "faster", "equal", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A difference, or a finding of one run only, with the share of the gap that it can explain."""

    words: str
    explained_frac: float | None
    """None: nothing says which term it changed."""
    why: str
    certainty: Certainty
    difference: RunDifference | None = None
    finding: Explained | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    first: str
    second: str
    first_step_s: float | None
    second_step_s: float | None
    gap: Gap
    gap_frac: float | None
    """Of the first run's time; positive: the second is slower."""
    per_token: bool
    """Times are compared at equal tokens, because the batches differ."""
    terms: tuple[TermGap, ...]
    suspects: tuple[Suspect, ...]
    """The best explanation first."""
    differences: tuple[RunDifference, ...]
    verdict: str
    certainty: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Side:
    name: str
    evidence: Evidence
    series: StepSeries
    findings: Sequence[Explained]

    @property
    def end(self) -> Explained | None:
        """What ended it badly."""
        return next((one for one in self.findings if one.rule.role == "ended" and one.severity != "info"), None)


def compare_runs(first: Evidence, second: Evidence, *, names: tuple[str, str]) -> RunComparison:
    """Compare a good run with a bad one. Terms and differences are those of the second against the first."""
    sides = [
        _Side(name, evidence, step_series(evidence), explain(evidence))
        for name, evidence in zip(names, (first, second), strict=True)
    ]
    a, b = sides
    scale = _token_scale(a, b)
    first_s, second_s = a.series.median_s, _scaled(b.series.median_s, scale)
    gap, gap_frac = _gap(a.series.times_s, [time_s / scale for time_s in b.series.times_s])
    terms = _terms(a, b, scale, gap)
    changed = differences(first, second)
    suspects = sorted(_suspects(a, b, terms, changed, gap, gap_frac), key=_place)
    verdict, certainty = _verdict(a, b, gap, gap_frac, terms, suspects, changed)
    return RunComparison(
        first=a.name, second=b.name, first_step_s=first_s, second_step_s=second_s, gap=gap, gap_frac=gap_frac,
        per_token=scale != 1.0, terms=tuple(terms), suspects=tuple(suspects), differences=tuple(changed),
        verdict=verdict, certainty=certainty, notes=tuple(_notes(a, b, scale)),
    )  # fmt: skip


def _scaled(time_s: float | None, scale: float) -> float | None:
    return None if time_s is None else time_s / scale


def _token_scale(a: _Side, b: _Side) -> float:
    """Tokens of a step of the second run over those of the first; 1 if they are unknown."""
    medians = []
    for side in (a, b):
        counts = [one.num_tokens for one in side.series.job_steps if one.num_tokens]
        if not counts:
            return 1.0
        medians.append(statistics.median(counts))
    ratio = medians[1] / medians[0]
    return ratio if abs(ratio - 1.0) > 0.001 else 1.0


def _gap(first: Sequence[float], second: Sequence[float]) -> tuple[Gap, float | None]:
    """Whether the medians differ by more than noise."""
    if not first or not second:
        return "unknown", None
    a, b = statistics.median(first), statistics.median(second)
    if a <= 0:
        return "unknown", None
    error_s = math.hypot(_error_s(first), _error_s(second))
    frac = b / a - 1.0
    if abs(b - a) <= SIGMAS * error_s or abs(frac) < LEAST_GAP_FRAC:
        return "equal", frac
    return ("slower" if b > a else "faster"), frac


def _error_s(times_s: Sequence[float]) -> float:
    middle = statistics.median(times_s)
    spread = statistics.median(abs(value - middle) for value in times_s)
    return MEDIAN_TO_SIGMA * spread / math.sqrt(len(times_s))


def _terms(a: _Side, b: _Side, scale: float, gap: Gap) -> list[TermGap]:
    """Terms that both runs have, and the rest of the step; the largest part of the gap first."""
    if gap == "unknown":
        return []
    whole = (a.series.median_s or 0.0, (b.series.median_s or 0.0) / scale)
    first, second = _traced(a), _traced(b)
    if not (first and second):
        first, second = _term_times_s(a), _term_times_s(b)
        shared = [name for name in first if name in second]
        first, second = ({name: side[name] for name in shared} for side in (first, second))
    second = {name: time_s / scale for name, time_s in second.items()}
    return term_gaps(first, second, whole) if first else []


def _traced(side: _Side) -> dict[str, float]:
    """Terms of its traces, which tell kinds of computing; empty without traces."""
    return traced_terms_s(side.evidence.rank_times, step_s=side.series.median_s)


def _term_times_s(side: _Side) -> dict[str, float]:
    """Median time of each term in a steady step: from split steps if there are any, else from reports."""
    split = side.evidence.rank_times
    if split:
        names = {
            "compute": "compute_s", "communication": "exposed_communication_s", "data": "data_s", "idle": "idle_s",
            "checkpoint": "checkpoint_s",
        }  # fmt: skip
        return {name: statistics.median(getattr(one, field) for one in split) for name, field in names.items()}
    steps = side.series.job_steps
    times: dict[str, float] = {}
    for name in {part for one in steps for part in one.parts_s} & set(ALL_TERMS):
        values = [one.parts_s.get(name, 0.0) for one in steps]
        times[name] = statistics.fmean(values) if name in ("checkpoint", "validation") else statistics.median(values)
    return times


def _suspects(
    a: _Side, b: _Side, terms: Sequence[TermGap], changed: Sequence[RunDifference], gap: Gap, gap_frac: float | None
) -> Iterator[Suspect]:
    """Findings that only the slower run has, then differences that can change the terms that grew."""
    if gap in ("slower", "faster") and gap_frac is not None:
        slow, fast = (b, a) if gap == "slower" else (a, b)
        known = {one.rule.id for one in fast.findings}
        for one in slow.findings:
            if one.rule.role == "slowed" and one.rule.id not in known and one.seen.gain is not None:
                saved = one.seen.gain.step_time_frac  # of the slower run's step
                share = saved * max(1.0 + gap_frac, 1.0) / abs(gap_frac) if gap == "slower" else saved / abs(gap_frac)
                yield Suspect(
                    words=f"{one.rule.id} in {slow.name}: {one.seen.message.rstrip('.')}", finding=one,
                    explained_frac=min(share, 1.0), why=one.seen.gain.how, certainty=one.seen.certainty,
                )  # fmt: skip
    grown: dict[str, float] = {}
    for term in terms:
        name = COARSE_TERMS.get(term.name, term.name)
        grown[name] = grown.get(name, 0.0) + max(term.gap_frac, 0.0)
    for difference in changed:
        yield _suspect_of(difference, grown, has_gap=gap in ("slower", "faster"))


def _suspect_of(difference: RunDifference, grown: Mapping[str, float], *, has_gap: bool) -> Suspect:
    words = difference.words
    if not has_gap or not grown:
        return Suspect(
            words=words, explained_frac=None, why="no split of the step in both runs", certainty="possible",
            difference=difference,
        )  # fmt: skip
    share = min(sum(grown.get(term, 0.0) for term in difference.terms), 1.0)
    if set(difference.terms) == set(ALL_TERMS):
        share = min(share + grown.get(OTHER, 0.0), 1.0)
    names = ", ".join(term for term in difference.terms if grown.get(term, 0.0) > LEAST_TERM_FRAC)
    is_special = len(difference.terms) <= 2
    return Suspect(
        words=words, explained_frac=share, difference=difference,
        why=f"can change {names}" if names else "the terms that it can change did not grow",
        certainty="likely" if share >= EXPLAINED_FRAC and is_special else "possible",
    )  # fmt: skip


def _place(one: Suspect) -> tuple[float, int, int, str]:
    """Most explained first. Of equals: a difference with few effects, then a finding, then a wide difference."""
    explained = -1.0 if one.explained_frac is None else one.explained_frac
    width = len(one.difference.terms) if one.difference else 0
    sort = 1 if one.finding else 0 if one.certainty == "likely" else 2
    return -round(explained, 1), sort, width, one.words


def _verdict(
    a: _Side, b: _Side, gap: Gap, gap_frac: float | None, terms: Sequence[TermGap], suspects: Sequence[Suspect],
    changed: Sequence[RunDifference],
) -> tuple[str, str]:  # fmt: skip
    end = _verdict_of_ends(a, b, changed)
    if end:
        return end, "likely"
    if gap == "unknown":
        return "The runs cannot be compared: at least one has no step times.", "unknown"
    assert gap_frac is not None
    if gap == "equal":
        return f"No gap beyond noise: the step times differ by {abs(gap_frac):.1%}.", "likely"
    lead = _lead(a, b, gap_frac)
    good = [one for one in suspects if one.explained_frac is not None and one.explained_frac >= EXPLAINED_FRAC]
    if not good:
        largest = next((one for one in terms if one.gap_frac > EXPLAINED_FRAC), None)
        where = f" Most of the gap is in {largest.name} ({largest.gap_frac:.0%})." if largest else ""
        if changed and not terms:
            return (
                f"{lead}. {len(changed)} differences were read, but no split of the step: any can be it.",
                "possible",
            )
        return f"{lead}, and no difference that was read explains it.{where}", "unknown"
    best = good[0]
    rivals = [one for one in good[1:] if one.certainty == best.certainty and one.finding is None]
    is_shared = bool(rivals) and best.finding is None
    tail = f" {len(rivals)} other differences can explain it as well: change one at a time." if is_shared else ""
    return (
        f"{lead}. {best.words}: it can explain {best.explained_frac:.0%} of the gap ({best.why}).{tail}",
        "possible" if is_shared else best.certainty,
    )


def _lead(a: _Side, b: _Side, gap_frac: float) -> str:
    if gap_frac >= 1.0:
        return f"{b.name} takes {1.0 + gap_frac:.1f} times as long as {a.name}"
    return f"{b.name} is {abs(gap_frac):.0%} {'slower' if gap_frac > 0 else 'faster'} than {a.name}"


_MEMORY = re.compile(
    r"mbs|gbs|seq|layers|hidden|vocab|recompute|zero|offload|precision|tp|pp|cp|ep|dp|num_ranks|num_workers|alloc", re.I
)
_CAUSED_BY = {
    "device-out-of-memory": _MEMORY, "host-out-of-memory": _MEMORY, "cgroup-memory-kill": _MEMORY,
    "version-mismatch": re.compile(r"version|torch|cuda|nccl|driver|python|container|platform", re.I),
    "loss-nan": re.compile(r"precision|learning|lr|seed|gbs|data", re.I),
}  # fmt: skip
"""Names of differences that can bring about an end."""


def _verdict_of_ends(a: _Side, b: _Side, changed: Sequence[RunDifference]) -> str:
    """If only one of the runs ended badly, that is what there is to say."""
    if (a.end is None) == (b.end is None):
        return ""
    bad, good = (a, b) if a.end else (b, a)
    assert bad.end is not None
    pattern = _CAUSED_BY.get(bad.end.rule.id)
    near = [one.words for one in changed if pattern and (pattern.search(one.name) or pattern.search(one.topic))]
    reasons = f" Differences that can cause it: {'; '.join(near[:3])}." if near else ""
    nothing = "" if near or not changed else " No difference that was read is known to cause it."
    return f"{bad.name} ended badly and {good.name} did not: {bad.end.seen.message.rstrip('.')}.{reasons}{nothing}"


def _notes(a: _Side, b: _Side, scale: float) -> Iterator[str]:
    if scale != 1.0:
        yield f"A step of {b.name} has {scale:.3g} times the tokens: times are compared at equal tokens."
    for side in (a, b):
        if side.series.times_s and not side.series.is_enough:
            yield f"{side.name} has only {len(side.series.times_s)} steady steps."
    longer = max(slow_down(side.evidence.rank_times, step_s=side.series.median_s) for side in (a, b))
    if _traced(a) and _traced(b) and longer > SLOWED:
        yield f"The profiler made steps up to {longer - 1.0:.0%} longer: terms are scaled to ordinary steps."
    if not (_term_times_s(a) and _term_times_s(b)):
        yield "Not both runs have a split of the step: add a profiler trace of each to see which term grew."
