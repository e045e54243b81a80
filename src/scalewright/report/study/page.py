"""A study as one HTML page. It contains everything it needs, and escapes every text of a study file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright.records.documents import write_text
from scalewright.records.study_report import CurveShown, MetricShown, Number, PointRow, StudyReport
from scalewright.records.types import WARNING
from scalewright.report.page_template import page_environment, page_styles, page_text
from scalewright.report.pipeline.page import chart_data, section
from scalewright.report.study.columns import Column, columns, number_of
from scalewright.report.study.files import without_advice
from scalewright.report.study.gaps import page_groups
from scalewright.report.study.marks import TITLE as MARK
from scalewright.report.study.marks import is_marked, mark_notes, marks
from scalewright.report.study.numbers import published_words, shown

if TYPE_CHECKING:
    from jinja2 import Environment

SCRIPTS = ("numbers.js", "study.js", "pipeline.js")
STYLES = ("study.css", "gaps.css", "pipeline.css", "hybrid.css")
DIGITS = 6
"""Significant digits of the numbers that charts are drawn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """One cell of the table of points."""

    text: str
    is_number: bool = False
    raw: str = ""
    """Value that the column is sorted by."""
    title: str = ""


def write_page(path: Path, report: StudyReport) -> None:
    write_text(path, page(report))


def page(report: StudyReport) -> str:
    """The page as text. Jinja escapes every value; data for the charts is JSON without any `<`."""
    environment = page_environment()
    template = environment.get_template("study.html")
    from markupsafe import Markup

    safe = Markup
    script = "".join(map(page_text, SCRIPTS))
    parts = (report, *report.parts)
    return template.render(
        title=report.title,
        question=report.question,
        version=report.version,
        created=report.created,
        meta=report.machine,
        parts=[
            {
                **_part(part, number),
                **_pipeline(environment, part, number),
                **_observations(environment, part, number),
                "gaps": safe(
                    environment.get_template("gaps.html").render(n=number, groups=list(page_groups(part.gaps)))
                ),
            }
            for number, part in enumerate(parts, start=1)
        ],
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        sources=_sources(parts),
        css=page_styles(STYLES),
        js=safe(script),
        js_hash=safe(script_hash(script)),
    )


def script_hash(script: str) -> str:
    """How the page's policy names its one script: a browser runs no other, wherever in the page it stands."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _part(report: StudyReport, number: int) -> dict[str, Any]:
    """One set of points: its findings, charts and tables."""
    from markupsafe import Markup

    origins = [name for name in ("predicted", "measured", "published") if _has(report, name)]
    shown_columns, published = columns(report), list(_published(report))
    what = "Measured here" if "measured" in origins or report.pipeline is not None else "Predicted"
    what = what if origins or report.pipeline is not None else "Not predicted"
    things = "points" if report.pipeline is None else "stages"
    return {
        "number": number,
        "title": f"{what}: {len(report.points)} {things}",
        "findings": report.findings,
        "measure_note": report.measure_note,
        "warnings": [note.removeprefix(WARNING) for note in report.warnings],
        "groups": list(report.curves[0].group) if report.curves else [],
        "scale_name": report.scale_name,
        "curves": [_curve(curve) for curve in report.curves if curve.recommended is not None],
        "without_advice": without_advice(report),
        "axes": report.axes,
        "published": published,
        "statements": report.statements,
        "has_figures": bool(origins),
        "has_intervals": any(row["interval"] for row in published),
        "is_measured": "measured" in origins,
        "columns": _columns(report, shown_columns, several=len(origins) > 1),
        "rows": [
            {"cells": _cells(report, row, shown_columns), "limit": "cannot run" if row.problem else row.limit}
            for row in report.points
        ],
        "data": Markup(_data(report)),
        "marks": mark_notes(report),
        "elbows": any(row.elbows for row in report.points),
    }


def _pipeline(environment: Environment, report: StudyReport, number: int) -> dict[str, Any]:
    """The section of a pipeline and the data of its charts; empty without one."""
    from markupsafe import Markup

    if report.pipeline is None:
        return {"pipeline": "", "pipeline_data": ""}
    template = environment.get_template("pipeline.html")
    shown_section = template.render(n=number, pipeline=section(report.pipeline))
    return {"pipeline": Markup(shown_section), "pipeline_data": Markup(_json(chart_data(report.pipeline)))}


def _observations(environment: Environment, report: StudyReport, number: int) -> dict[str, Any]:
    """The table of published observations; empty where the study names none."""
    from markupsafe import Markup

    table = report.observations
    if table is None:
        return {"observations": ""}
    partitions = list(dict.fromkeys(name for row in table.minima for name in row.num_gpus))
    template = environment.get_template("observations.html")
    return {"observations": Markup(template.render(n=number, table=table, partitions=partitions))}


def _has(report: StudyReport, origin: str) -> bool:
    return any(getattr(row, origin) for row in report.points)


def _curve(curve: CurveShown) -> dict[str, Any]:
    low, high = curve.serial_interval_frac or (0.0, 0.0)
    serial = "" if curve.serial_frac is None else f"{curve.serial_frac:.1%} ({low:.1%} to {high:.1%})"
    return {
        "group": list(curve.group.values()),
        "origin": curve.origin,
        "recommended": "" if curve.recommended is None else f"{curve.recommended:,.0f}",
        "recommended_raw": "" if curve.recommended is None else curve.recommended,
        "serial": serial,
        "serial_raw": "" if curve.serial_frac is None else curve.serial_frac,
        "sentence": curve.sentence,
    }


def _published(report: StudyReport) -> Iterator[dict[str, Any]]:
    """Every published figure beside the prediction of the same point."""
    metrics = {metric.name: metric for metric in report.metrics}
    for row in report.points:
        for name in dict.fromkeys(figure.metric for figure in row.published if figure.metric in metrics):
            metric, predicted = metrics[name], None if row.problem else row.predicted.get(name)
            figures = [figure for figure in row.published if figure.metric == name]
            low, high = (None, None) if predicted is None else (predicted.low, predicted.high)
            ends = [shown(Number(value=end), metric) for end in (low, high) if end is not None]
            yield {
                "labels": list(row.labels.values()),
                "figure": metric.title,
                "published": published_words(row, metric),
                "predicted": shown(predicted, metric),
                "interval": " to ".join(ends) if len(ends) == 2 else "",
                "ratio": _ratio(predicted, figures[0].number),
                "source": "; ".join(figure.source for figure in figures),
            }  # fmt: skip


def _ratio(predicted: Number | None, published: Number) -> str:
    """Predicted over published; empty where there is nothing to divide."""
    base = 0.0 if predicted is None else published.nearest(predicted.value)
    return f"{predicted.value / base:.2f}" if predicted is not None and base else ""


def _columns(report: StudyReport, shown_columns: Sequence[Column], *, several: bool) -> list[dict[str, Any]]:
    labels = [{"title": axis, "is_number": False} for axis in report.axes]
    scale = [{"title": report.scale_name, "is_number": True}] if _has_scale(report) else []
    figures = [
        {"title": f"{metric.title}, {origin}" if several else metric.title, "is_number": True}
        for metric, origin in shown_columns
    ]
    marked = [{"title": MARK, "is_number": False}] if is_marked(report) else []
    words = [{"title": name, "is_number": False} for name in word_columns(report)]
    return [*labels, *scale, *figures, *marked, *words]


def _has_scale(report: StudyReport) -> bool:
    """Whether the scale is not already one of the labels."""
    return bool(report.curves) and report.scale_name not in report.axes


def word_columns(report: StudyReport) -> list[str]:
    return list(dict.fromkeys(name for row in report.points for name in row.words))


def _cells(report: StudyReport, row: PointRow, shown_columns: Sequence[Column]) -> list[TableCell]:
    cells = [TableCell(text=value) for value in row.labels.values()]
    if _has_scale(report):
        text = "" if row.scale is None else f"{row.scale:,.0f}"
        cells.append(TableCell(text=text, is_number=True, raw="" if row.scale is None else repr(row.scale)))
    cells += [_figure(row, metric, origin) for metric, origin in shown_columns]
    if is_marked(report):
        cells.append(TableCell(text=marks(row), title="; ".join(doubt.text for doubt in row.doubts)))
    return cells + [TableCell(text=row.words.get(name, "")) for name in word_columns(report)]


def _figure(row: PointRow, metric: MetricShown, origin: str) -> TableCell:
    if origin == "published":
        figures = [figure for figure in row.published if figure.metric == metric.name]
        text = published_words(row, metric)
        value = repr(figures[0].number.value) if figures else ""
        title = "; ".join(figure.source for figure in figures) or row.remark or "nothing published"
        return TableCell(text=text, is_number=True, raw=value, title=title)
    number = number_of(row, metric, origin)
    if number is None:
        reason = row.problem if origin == "predicted" else row.measured_problem
        return TableCell(text="-", is_number=True, title=reason)
    title = ""
    if number.low is not None and number.high is not None:
        ends = [shown(Number(value=end), metric) for end in (number.low, number.high)]
        title = f"{ends[0]} to {ends[1]}" + (f", {number.count} repeats" if number.count > 1 else "")
    return TableCell(text=shown(number, metric), is_number=True, raw=repr(number.value), title=title)


def _sources(parts: Sequence[StudyReport]) -> list[dict[str, str]]:
    sources = {(figure.source, figure.url) for part in parts for row in part.points for figure in row.published}
    return [{"text": text, "url": url} for text, url in sorted(sources)]


def _data(report: StudyReport) -> str:
    """Data of the charts, as JSON. A note that many points share is written once."""
    doc = report.document()
    texts: dict[str, int] = {}
    for row in doc["points"]:
        row["notes"] = [texts.setdefault(note, len(texts)) for note in row["notes"]]
    kept = {key: doc[key] for key in ("title", "axes", "metrics", "points", "curves", "scale_name", "compared_axis")}
    return _json({**kept, "note_texts": list(texts)})


def _json(body: dict[str, Any]) -> str:
    """JSON that can stand inside a page: no text in it ends a script."""
    text = json.dumps(_rounded(body), separators=(",", ":"), ensure_ascii=False)
    return (
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _rounded(node: Any) -> Any:
    if isinstance(node, float):
        return float(f"{node:.{DIGITS}g}")
    if isinstance(node, dict):
        return {key: _rounded(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_rounded(value) for value in node]
    return node
