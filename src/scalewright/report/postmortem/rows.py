"""The tables of a post-mortem as rows of words, for Markdown and for the page alike."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from scalewright.observe.evidence.facts import Spot
from scalewright.observe.postmortem import Postmortem, countermeasures
from scalewright.observe.timeline import Moment
from scalewright.records.redaction import redacted

MOST_MOMENTS = 40
"""Rows of the timeline; a job of a thousand ranks has more echoes than anybody reads."""
MOST_TEXT = 240
UNDATED = "–"


def moment_rows(moments: Sequence[Moment]) -> list[dict[str, str]]:
    """Events in order of cause; the time is that of the reference clock."""
    start_s = min((one.at_s for one in moments if one.at_s is not None), default=None)
    rows = []
    for one in moments[:MOST_MOMENTS]:
        happening = one.happening
        rows.append({
            "role": one.role,
            "when": clock_words(one.at_s, start_s),
            "rank": "" if happening.rank is None else str(happening.rank),
            "host": happening.host,
            "kind": happening.kind.replace("_", " "),
            "text": short(happening.message),
            "place": place(happening.spot),
        })  # fmt: skip
    return rows


def clock_words(at_s: float | None, start_s: float | None) -> str:
    if at_s is None or start_s is None:
        return UNDATED
    stamp = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{stamp} (+{at_s - start_s:.1f} s)"


def place(spot: Spot) -> str:
    return f"{spot.file}:{spot.line}" if spot.line else spot.file


def short(text: str) -> str:
    """One line without secrets and without control characters."""
    words = "".join(c if c.isprintable() else " " for c in redacted(" ".join(text.split())))
    return words if len(words) <= MOST_TEXT else f"{words[: MOST_TEXT - 3]}..."


def measure_rows(postmortem: Postmortem) -> list[dict[str, str]]:
    """What to do, and the gain that is expected; people fill in who and until when."""
    return [
        {
            "action": short(one.seen.next_step),
            "why": f"{one.rule.title} ({one.rule.id})",
            "gain": "" if one.seen.gain is None else f"{one.seen.gain.step_time_frac:.0%} of the time",
            "source": one.rule.source,
        }
        for one in countermeasures(postmortem)
    ]


def source_rows(postmortem: Postmortem) -> list[dict[str, str]]:
    return [
        {
            "file": source.file,
            "kind": source.kind,
            "lines": f"{source.num_lines:,}" if source.num_lines else "",
            "facts": f"{source.num_facts:,}" if source.num_facts else "",
            "problem": short(source.problem),
        }
        for source in postmortem.sources
    ]


def story(postmortem: Postmortem) -> list[tuple[str, str]]:
    """Initiating, cascading and teardown events, each as a sentence."""
    timeline = postmortem.timeline
    sentences = []
    for role, words in (
        ("initiating", "began the end"),
        ("cascading", "followed"),
        ("teardown", "ended what was left"),
    ):
        moments = [one for one in timeline.moments if one.role == role]
        if not moments:
            sentences.append((role, "none was read"))
            continue
        ranks = sorted({one.happening.rank for one in moments if one.happening.rank is not None})
        who = f" on {len(ranks)} rank{'' if len(ranks) == 1 else 's'} ({_list(ranks)})" if ranks else ""
        count = f"{len(moments)} event{'' if len(moments) == 1 else 's'}"
        sentences.append(
            (role, f"{count}{who} {words}: {short(moments[0].happening.message) or moments[0].happening.kind}")
        )
    return sentences


def _list(ranks: Sequence[int], *, most: int = 8) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:most])
    return f"{shown}, ..." if len(ranks) > most else shown
