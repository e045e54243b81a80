"""The end of a run as rules see it: the initiating event, on which ranks, after which step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Happening, Spot
from scalewright.observe.findings.rule import Seen
from scalewright.observe.timeline import Timeline, build_timeline

MOST_SPOTS = 5
_POINTER = re.compile(r"[;:,] see logs/rank-\d+\.log\S*")
"""Where our own messages send the reader: the finding's place says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The event that began the end, with what can be said of it."""

    evidence: Evidence
    timeline: Timeline

    @property
    def first(self) -> Happening:
        return self.timeline.initiating[0].happening

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({
            one.happening.rank for one in self.timeline.initiating if one.happening.rank is not None
        }))  # fmt: skip

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted({one.happening.host for one in self.timeline.initiating if one.happening.host}))

    @property
    def who(self) -> str:
        """The ranks and hosts, as the subject of a sentence."""
        subject = ranks_words(self.ranks) or "a process"
        subject = subject[0].upper() + subject[1:]
        return f"{subject} on {names_words(self.hosts)}" if self.hosts else subject

    @property
    def when(self) -> str:
        """After which step, as the end of a sentence; empty if no step was read."""
        step = self.last_step
        return "" if step is None else f" after step {step}"

    @property
    def last_step(self) -> int | None:
        steps = self.evidence.steps
        if self.first.step is not None:
            return self.first.step
        own = [one.step for one in steps if one.rank in self.ranks] or [one.step for one in steps]
        return max(own, default=None)

    @property
    def spots(self) -> tuple[Spot, ...]:
        """The initiating event first, then others that show what followed."""
        moments = [*self.timeline.initiating[:3], *self.timeline.with_role("cascading")[:2]]
        return tuple(one.happening.spot for one in moments)[:MOST_SPOTS]

    @property
    def consequences(self) -> str:
        """What followed, as a part of a sentence; empty if nothing did."""
        others = {
            one.happening.rank for one in self.timeline.with_role("cascading")
            if one.happening.rank is not None and one.happening.rank not in self.ranks
        }  # fmt: skip
        if not others:
            return ""
        return f"{ranks_words(tuple(sorted(others)))} ended because of it"


def ending_by(evidence: Evidence, *causes: str) -> Iterator[Ending]:
    """The end of the run, if one of these causes began it."""
    timeline = build_timeline(evidence)
    if timeline.cause and timeline.cause in causes:
        yield Ending(evidence=evidence, timeline=timeline)


def seen_end(
    ending: Ending, message: str, next_step: str, *, numbers: dict[str, float | str] | None = None
) -> Seen:  # fmt: skip
    """What a rule about an end yields. An end that the run survived is a note."""
    survived = ending.timeline.is_survived
    parts = [message.rstrip("."), ending.consequences, "the run went on and finished later" if survived else ""]
    return Seen(
        message="; ".join(part for part in parts if part),
        spots=ending.spots,
        next_step=next_step,
        certainty="certain" if ending.timeline.is_certain else "likely",
        score=1.0,
        numbers=numbers or {},
        severity="info" if survived else None,
        ranks=ending.ranks,
    )


def ranks_words(ranks: Sequence[int]) -> str:
    """Such as `rank 3`, `ranks 0 to 7`, `ranks 1, 4 and 9`; empty for none."""
    if not ranks:
        return ""
    ordered = sorted(set(ranks))
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"ranks {ordered[0]} to {ordered[-1]}"
    if len(ordered) > 6:
        return f"{len(ordered)} ranks ({', '.join(str(rank) for rank in ordered[:4])}, ...)"
    return f"ranks {', '.join(str(rank) for rank in ordered[:-1])} and {ordered[-1]}"


def names_words(names: Sequence[str], *, most: int = 3) -> str:
    shown = list(names[:most])
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return " and ".join(shown) if len(shown) < 3 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def quoted(happening: Happening, *, most: int = 200) -> str:
    """The program's own words, short."""
    text = _POINTER.sub("", " ".join(happening.message.split()))
    return text if len(text) <= most else text[: most - 3] + "..."


def number(happening: Happening, *names: str) -> float | None:
    """The first of these values that is a number."""
    for name in names:
        value = happening.values.get(name)
        if isinstance(value, int | float):
            return float(value)
    return None
