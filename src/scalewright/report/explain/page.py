"""An explanation as one page that loads nothing: findings first, each linked to its plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright import __version__, units
from scalewright.observe.evidence.series import ranks_in_words, step_series
from scalewright.observe.findings.rule import Explained
from scalewright.records.documents import write_text
from scalewright.report.explain.charts import PLOT_OF, Chart, charts
from scalewright.report.explain.document import Explanation
from scalewright.report.explain.terminal import gain_words
from scalewright.report.page_template import page_styles, page_template

if TYPE_CHECKING:
    from markupsafe import Markup

STYLES = ("study.css", "explain.css")
MOST_SPOTS = 3


def write_explanation_page(path: Path, explanation: Explanation) -> None:
    from markupsafe import Markup

    drawn = charts(explanation.evidence)
    template = page_template("explain.html")
    rows = [
        {"name": source.file, "kind": source.kind, "facts": f"{source.num_facts:,}", "problem": source.problem}
        for source in explanation.evidence.sources
    ]
    write_text(
        path,
        template.render(
            title=explanation.title, version=__version__, css=page_styles(STYLES), summary=_summary(explanation),
            findings=findings_section(explanation.findings, drawn), charts=drawn, missing=explanation.missing,
            sources=rows, notes=explanation.evidence.notes,
            svgs={chart.id: Markup(chart.svg) for chart in drawn},
        ),
    )  # fmt: skip


def _summary(explanation: Explanation) -> str:
    series = step_series(explanation.evidence)
    if not series.numbers:
        return "No steps were read."
    middle = "" if series.median_s is None else f", median {units.format(series.median_s, units.SECONDS)}"
    return f"{len(series.numbers):,} steps of {ranks_in_words(explanation.evidence, series)}{middle}."


def findings_section(findings: Any, drawn: list[Chart]) -> Markup:
    """Findings as a list; used by every page of a run."""
    from markupsafe import Markup

    template = page_template("findings.html")
    known = {chart.id for chart in drawn}
    return Markup(template.render(findings=[_finding(one, known) for one in findings]))


def _finding(one: Explained, plots: set[str]) -> dict[str, Any]:
    plot = PLOT_OF.get(one.rule.theme, "")
    gain = one.seen.gain
    return {
        "id": one.rule.id, "severity": one.severity, "title": one.rule.title,
        "message": f"{one.seen.message[:1].upper()}{one.seen.message[1:]}.", "because_of": one.because_of,
        "certainty": one.seen.certainty, "next_step": one.seen.next_step,
        "gain": "" if gain is None else gain_words(one),
        "command": "" if gain is None else gain.command, "plot": plot if plot in plots else "",
        "spots": [
            {"place": f"{spot.file}:{spot.line}" if spot.line else spot.file, "text": spot.text[:160]}
            for spot in one.seen.spots[:MOST_SPOTS]
        ],
        "source": one.rule.source,
    }  # fmt: skip
