"""A post-mortem as Markdown. Texts of logs are escaped, so that none of them becomes markup or HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewright.observe.postmortem import Postmortem
from scalewright.report.postmortem.rows import MOST_MOMENTS, measure_rows, moment_rows, place, short, source_rows, story

_ESCAPES = str.maketrans({
    "&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "`": "\\`", "*": "\\*", "_": "\\_", "[": "\\[", "]": "\\]",
    "#": "\\#", "~": "\\~", "\\": "\\\\", "\n": " ", "\r": " ",
})  # fmt: skip
MOST_FINDINGS = 20


def postmortem_markdown(postmortem: Postmortem) -> str:
    """The whole document; it ends with a newline."""
    return "\n".join(_lines(postmortem)).rstrip() + "\n"


def escaped(text: str) -> str:
    return text.translate(_ESCAPES)


def _lines(postmortem: Postmortem) -> Iterator[str]:
    yield f"# Post-mortem of {escaped(postmortem.name)}"
    yield ""
    yield f"**{escaped(sentence(postmortem.verdict))}** Certainty: {postmortem.certainty}."
    yield ""
    yield "## 1. Symptom and timeline"
    yield ""
    yield from _table(("", ""), [(one.name, one.value) for one in postmortem.symptoms])
    yield from _timeline(postmortem)
    yield "## 2. Environment"
    yield ""
    rows = [(one.how, one.name, one.value) for one in postmortem.environment]
    yield from _table(("kind", "name", "value"), rows, empty="Nothing that was read names versions or variables.")
    yield "## 3. Resources: requested and used"
    yield ""
    yield from _table(
        ("resource", "requested", "used", "note"),
        [(one.name, one.requested, one.used, one.note) for one in postmortem.resources],
        empty="No account of the job was read.",
    )
    yield "## 4. Bottleneck evidence"
    yield ""
    yield from _table(
        ("figure", "value", "how"), [(one.name, one.value, one.how) for one in postmortem.bottleneck],
        empty="No step times and no samples of devices were read.",
    )  # fmt: skip
    yield from _findings(postmortem)
    yield "## 5. Incident artifacts"
    yield ""
    yield f"Last checkpoint: {escaped(postmortem.last_checkpoint or 'none was read')}"
    yield ""
    keys = ("file", "kind", "lines", "facts", "problem")
    yield from _table(keys, [tuple(row[key] for key in keys) for row in source_rows(postmortem)], empty="None.")
    yield from _cause(postmortem)
    yield from _measures(postmortem)


def _timeline(postmortem: Postmortem) -> Iterator[str]:
    keys = ("role", "when", "rank", "host", "kind", "text", "place")
    rows = [tuple(row[key] for key in keys) for row in moment_rows(postmortem.timeline.moments)]
    yield from _table(
        ("role", "when (UTC)", "rank", "host", "event", "text", "place"), rows, empty="No event of an end was read."
    )
    num_left = len(postmortem.timeline.moments) - MOST_MOMENTS
    if num_left > 0:
        yield f"{num_left} more events are not shown."
        yield ""
    for note in postmortem.notes:
        yield f"- {escaped(note)}"
    if postmortem.notes:
        yield ""


def _findings(postmortem: Postmortem) -> Iterator[str]:
    for one in postmortem.findings[:MOST_FINDINGS]:
        spot = f" ({escaped(place(one.seen.spots[0]))})" if one.seen.spots else ""
        yield f"- {one.severity}, {escaped(one.rule.id)}: {escaped(short(sentence(one.seen.message)))}{spot}"
    if postmortem.findings:
        yield ""


def _cause(postmortem: Postmortem) -> Iterator[str]:
    yield "## 6. Root cause"
    yield ""
    yield escaped(sentence(postmortem.verdict))
    yield ""
    yield f"Where it lies: {escaped(postmortem.category or 'unknown')}"
    yield ""
    for role, words in story(postmortem):
        yield f"- {role}: {escaped(words)}"
    yield ""
    if postmortem.missing:
        yield "More could be said with:"
        yield ""
        for text in postmortem.missing:
            yield f"- {escaped(text)}"
        yield ""


def _measures(postmortem: Postmortem) -> Iterator[str]:
    yield "## 7. Countermeasures"
    yield ""
    rows = [(row["action"], row["why"], row["gain"], "", "") for row in measure_rows(postmortem)]
    yield from _table(
        ("action", "why", "expected gain", "owner", "due"), rows, empty="None follows from what was read."
    )


def sentence(text: str) -> str:
    """With a capital and one full stop."""
    words = text.strip().rstrip(".")
    return f"{words[:1].upper()}{words[1:]}."


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = "") -> Iterator[str]:
    if not rows:
        if empty:
            yield empty
            yield ""
        return
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(escaped(cell) for cell in row)} |"
    yield ""
