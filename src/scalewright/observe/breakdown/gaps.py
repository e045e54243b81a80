"""Why one step takes longer than another: the terms of both, and which of them hold the gap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from scalewright import units
from scalewright.observe.evidence.facts import RankTime

OTHER = "other"
"""Time of a step that no term names."""
UNEXPLAINED = (OTHER, "idle")
"""Terms that name no cause: nothing ran, and nothing says why."""
LEAST_GAP_FRAC = 0.03
"""A gap below is no gap: repeated runs of one configuration differ by a few percent."""
LEAST_TERM_FRAC = 0.05
"""Terms that hold less of the gap are not named in a sentence."""
MOST_TERMS = 4
COARSE_TERMS = {
    "matmul": "compute", "attention": "compute", "convolution": "compute", "elementwise": "compute",
    "optimizer": "optimizer", "host": "idle", "copies": "idle",
}  # fmt: skip
"""Terms of a trace, and the term of a log that each is a part of; others have the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermGap:
    """One term of the step in both runs."""

    name: str
    first_s: float
    second_s: float
    gap_frac: float
    """Its share of the whole gap; negative if it went the other way."""

    @property
    def gap_s(self) -> float:
        return self.second_s - self.first_s


def term_gaps(first: Mapping[str, float], second: Mapping[str, float], whole_s: tuple[float, float]) -> list[TermGap]:
    """Terms of two steps, and the rest of the steps; the largest part of the gap first."""
    names = dict.fromkeys((*first, *second))
    pairs = {name: (first.get(name, 0.0), second.get(name, 0.0)) for name in names}
    rest = tuple(max(total - sum(pair[at] for pair in pairs.values()), 0.0) for at, total in enumerate(whole_s))
    if max(rest) > LEAST_TERM_FRAC * max(whole_s):
        pairs[OTHER] = (rest[0], rest[1])
    total_s = whole_s[1] - whole_s[0]
    terms = [
        TermGap(
            name=name, first_s=pair[0], second_s=pair[1], gap_frac=(pair[1] - pair[0]) / total_s if total_s else 0.0
        )
        for name, pair in pairs.items()
        if any(pair)
    ]
    return sorted(terms, key=lambda one: -one.gap_frac)


def traced_terms_s(times: Iterable[RankTime], *, step_s: float | None) -> dict[str, float]:
    """Terms of a step from traces: means over ranks and steps. Empty without traces that tell kinds of computing.

    A profiler makes steps longer: with the time of an ordinary step, longer traced ones are scaled down to it.
    Communication has the waiting for other ranks in it. On a CPU, time outside of operators is the host's.
    """
    traced = [one for one in times if one.is_traced and one.by_kind_s and one.step_s > 0.0]
    if not traced:
        return {}
    terms = {kind: fmean(one.by_kind_s.get(kind, 0.0) for one in traced)
             for kind in dict.fromkeys(kind for one in traced for kind in one.by_kind_s)}  # fmt: skip
    for name, field in (
        ("communication", "exposed_communication_s"), ("data", "data_s"), ("copies", "memory_copy_s"),
        ("checkpoint", "checkpoint_s"), ("validation", "validation_s"),
    ):  # fmt: skip
        terms[name] = fmean(getattr(one, field) for one in traced)
    terms["host"] = fmean(_host_s(one) for one in traced)
    terms["idle"] = fmean(one.idle_s - _host_s(one) for one in traced)
    longer = slow_down(traced, step_s=step_s)
    return {name: seconds / max(longer, 1.0) for name, seconds in terms.items() if seconds > 0.0}


def _host_s(time: RankTime) -> float:
    """Time that the host took alone. Without launches in the trace of a device nobody knows it."""
    if not time.on_device:
        return time.idle_s
    return min(time.launch_idle_s or 0.0, time.idle_s)


def slow_down(times: Iterable[RankTime], *, step_s: float | None) -> float:
    """How many times as long a traced step is as an ordinary one; 1 if that is not known."""
    traced = [one.step_s for one in times if one.is_traced and one.step_s > 0.0]
    return fmean(traced) / step_s if traced and step_s else 1.0


def explained_frac(terms: Sequence[TermGap]) -> float:
    """Share of the gap that named terms hold. Terms against the gap count as well, so that it can be above 1."""
    return sum(one.gap_frac for one in terms if one.name not in UNEXPLAINED)


def gap_words(terms: Sequence[TermGap]) -> str:
    """The terms that make the gap, largest first, and how much of it they explain."""
    named = [one for one in terms if one.name not in UNEXPLAINED and abs(one.gap_frac) >= LEAST_TERM_FRAC]
    shown = sorted(named, key=lambda one: -abs(one.gap_frac))[:MOST_TERMS]
    words = ", ".join(
        f"{one.name} {'+' if one.gap_s >= 0 else '-'}{units.format(abs(one.gap_s), units.SECONDS)} "
        f"({one.gap_frac:.0%} of the gap)"
        for one in sorted(shown, key=lambda one: -one.gap_frac)
    )
    part = explained_frac(terms)
    if not words:
        return "no term that is known differs: none of the gap is explained"
    if abs(part - 1.0) < 0.005:
        return f"{words}; the terms explain all of the gap"
    if part > 1.0:
        return f"{words}; the terms explain {part:.0%}, more than the gap"
    return f"{words}; the terms explain {max(part, 0.0):.0%} of the gap, {min(1.0 - part, 1.0):.0%} is not explained"
