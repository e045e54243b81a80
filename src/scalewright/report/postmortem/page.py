"""A post-mortem as one HTML page that loads nothing. The template escapes every text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalewright import __version__
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.postmortem import Postmortem
from scalewright.records.documents import write_text
from scalewright.report.page_template import page_styles, page_template
from scalewright.report.postmortem.lanes import end_lanes
from scalewright.report.postmortem.markdown import sentence
from scalewright.report.postmortem.rows import (
    MOST_MOMENTS,
    measure_rows,
    moment_rows,
    place,
    short,
    source_rows,
    story,
)

STYLES = ("study.css", "postmortem.css")


def postmortem_page(postmortem: Postmortem, evidence: Evidence) -> str:
    """The text of the page."""
    template = page_template("postmortem.html")
    lanes, ticks, num_left_out = end_lanes(postmortem, evidence)
    return template.render(
        title=f"Post-mortem of {postmortem.name}", version=__version__, css=page_styles(STYLES), it=postmortem,
        verdict=sentence(postmortem.verdict), lanes=lanes, ticks=ticks, num_left_out=num_left_out,
        moments=moment_rows(postmortem.timeline.moments), sources=source_rows(postmortem),
        num_more=max(len(postmortem.timeline.moments) - MOST_MOMENTS, 0), measures=measure_rows(postmortem),
        story=story(postmortem), findings=[_finding(one) for one in postmortem.findings],
    )  # fmt: skip


def _finding(one: Any) -> dict[str, Any]:
    spots = [{"place": place(spot), "text": short(spot.text)} for spot in one.seen.spots[:3]]
    return {
        "severity": one.severity, "rule": one.rule.id, "title": one.rule.title, "spots": spots,
        "message": short(sentence(one.seen.message)), "certainty": one.seen.certainty,
    }  # fmt: skip


def write_postmortem_page(path: Path, postmortem: Postmortem, evidence: Evidence) -> None:
    write_text(path, postmortem_page(postmortem, evidence))
