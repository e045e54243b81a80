"""The report of a study in files for other programs: Markdown, CSV, Parquet, JSON and a LaTeX table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scalewright.errors import MissingExtraError
from scalewright.records.documents import write_bytes, write_document, write_text
from scalewright.records.observations import ObservationTable
from scalewright.records.pipeline_report import PipelineShown
from scalewright.records.study_report import PointRow, StudyReport
from scalewright.records.types import WARNING
from scalewright.report.pipeline.figures import label, table_rows
from scalewright.report.study.columns import Column, columns, number_of
from scalewright.report.study.latex import latex
from scalewright.report.study.marks import TITLE as MARK
from scalewright.report.study.marks import doubt_words, is_marked, mark_notes, marks
from scalewright.report.study.numbers import elbow_words, published_words, shown

COLUMNS = ("metric", "origin", "value", "low", "high", "count", "unit", "source", "doubt")


def write_files(folder: Path, report: StudyReport) -> list[Path]:
    """Write all files that need no extra, for every part of the report. Returns their paths."""
    for number, part in enumerate(report.parts, start=2):
        write_files(folder / f"part-{number}", part)
    written = {
        "report.md": markdown(report),
        "points.csv": to_csv(report),
        "table.tex": latex(report),
    }
    paths = []
    for name, text in written.items():
        write_text(folder / name, text)
        paths.append(folder / name)
    write_document(folder / "report.json", report.document())
    return [*paths, folder / "report.json"]


def long_rows(report: StudyReport) -> Iterator[dict[str, Any]]:
    """One number a row, with the labels of its point."""
    units = report.units or {metric.name: metric.unit for metric in report.metrics}
    for row in report.points:
        labels = {"point": row.id, **row.labels}
        for origin, numbers, doubt in (("predicted", row.predicted, ""), ("measured", row.measured, doubt_words(row))):
            for name, number in numbers.items():
                spread = {"value": number.value, "low": number.low, "high": number.high, "count": number.count}
                yield {
                    **labels, "metric": name, "origin": origin, **spread, "unit": units.get(name, ""), "source": "",
                    "doubt": doubt,
                }  # fmt: skip
        for figure in row.published:
            number = figure.number
            spread = {"value": number.value, "low": number.low, "high": number.high, "count": number.count}
            unit = units.get(figure.metric, "")
            yield {
                **labels, "metric": figure.metric, "origin": "published", **spread, "unit": unit,
                "source": figure.source, "doubt": "",
            }  # fmt: skip


def to_csv(report: StudyReport) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["point", *report.axes, *COLUMNS], lineterminator="\n")
    writer.writeheader()
    for row in long_rows(report):
        writer.writerow({key: _inert(value) for key, value in row.items()})
    return text.getvalue()


def _inert(value: Any) -> Any:
    """Quote a text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def write_parquet(path: Path, report: StudyReport) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise MissingExtraError("parquet", "pyarrow") from error
    rows = list(long_rows(report))
    columns = ["point", *report.axes, *COLUMNS]
    table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    write_bytes(path, sink.getvalue())


def markdown(report: StudyReport) -> str:
    lines = [f"# {_md(report.title)}", "", _md(report.question), "", "## Findings", ""]
    lines += [f"- {_md(finding.text)}" for finding in report.findings]
    for warning in report.warnings:
        lines += ["", f"**Warning:** {_md(warning.removeprefix(WARNING))}"]
    if report.measure_note:
        lines += ["", f"Measured: {_md(report.measure_note)}"]
    lines += [] if report.pipeline is None else _md_stages(report.pipeline)
    lines += [] if report.observations is None else _md_observations(report.observations)
    lines += _md_statements(report)
    lines += _md_stops(report)
    shown_columns, marked = columns(report), is_marked(report)
    lines += ["", "## Points", "", *_md_head([*report.axes, *_titles(shown_columns), *([MARK] if marked else [])])]
    lines += [
        _md_row([*row.labels.values(), *_figures(row, shown_columns), *([marks(row)] if marked else [])])
        for row in report.points
    ]
    if marked:
        lines += ["", "Marks:", "", *[f"- {_md(note)}" for note in mark_notes(report)]]
    tails = [text for row in report.points for text in elbow_words(row)]
    if tails:
        lines += ["", "## Distributions", "", *[f"- {_md(text)}" for text in tails]]
    sources = sorted({figure.source for row in report.points for figure in row.published})
    lines += ["", "## Notes and sources", "", *[f"- {_md(note)}" for note in (*report.notes, *sources)]]
    lines += ["", f"Made by scalewright {report.version} on {report.created}.", ""]
    return "\n".join(lines)


def _md_statements(report: StudyReport) -> list[str]:
    """What the sources say in words, beside the predictions."""
    if not report.statements:
        return []
    rows = [
        [
            one.text,
            one.verdict,
            f"{one.predicted}: {one.difference}",
            f"{one.agrees} agrees, {one.contradicts} contradicts",
        ]
        for one in report.statements
    ]
    head = ["statement", "verdict", "predicted", "read as"]
    return ["", "## Statements of the sources", "", *_md_head(head), *map(_md_row, rows)]


def _md_stages(pipeline: PipelineShown) -> list[str]:
    """Stages of a pipeline side by side, and what their gates say."""
    head = ["", *(label(stage, pipeline) for stage in pipeline.stages)]
    lines = ["", "## Stages", "", *_md_head(head)]
    lines += [_md_row([row.title, *row.cells]) for row in table_rows(pipeline)]
    gates = [f"- {_md(stage.gate)}" for stage in pipeline.stages if stage.gate]
    return [*lines, "", *gates] if gates else lines


def _md_observations(table: ObservationTable) -> list[str]:
    """Published observations with their evidence, and the fewest devices of each partition."""
    head = ["stage", "observation", "published", f"predicted for {table.system}", "measured here", "verdict"]
    lines = ["", f"## {_md(table.title)}", "", *_md_head(head)]
    for row in table.rows:
        measured = row.not_measured if row.measured is None else row.measured.text
        cells = [row.stage, row.text, row.published or "-", row.predicted.text, measured, row.verdict]
        lines.append(_md_row(cells))
    assumed = [f"- {row.id}: {_md(row.assumption)}" for row in table.rows if row.assumption]
    lines += ["", "Assumed:", "", *assumed]
    differ = [f"- {row.id}: {_md(row.predicted.why)}" for row in table.rows if row.predicted.why]
    lines += ["", "Why the publication and the prediction differ:", "", *differ] if differ else []
    if table.minima:
        partitions = list(table.minima[0].num_gpus)
        lines += ["", "## Fewest GPUs", "", *_md_head(["stage", "model", "mode", *partitions, "published"])]
        for least in table.minima:
            counts = [str(least.num_gpus[name] or "-") for name in partitions]
            lines.append(_md_row([least.stage, least.model, least.mode, *counts, str(least.published or "-")]))
    return lines


def _md_stops(report: StudyReport) -> list[str]:
    advised = [curve for curve in report.curves if curve.recommended is not None]
    without = without_advice(report)
    lines = ["", "## Where to stop", ""] if advised or without else []
    if advised:
        lines += _md_head([*advised[0].group, "from", report.scale_name, "why"])
        lines += [
            _md_row([*curve.group.values(), curve.origin, f"{curve.recommended:,.0f}", curve.sentence])
            for curve in advised
        ]
    for sentence in without:
        lines += ["", _md(sentence)]
    return lines


def without_advice(report: StudyReport) -> list[str]:
    """One sentence for all curves that say nothing about where to stop, by reason."""
    curves_by_reason: dict[str, list[str]] = {}
    for curve in report.curves:
        if curve.recommended is None and curve.sentence:
            name = ", ".join(curve.group.values())
            curves_by_reason.setdefault(curve.sentence, []).append(f"{name} ({curve.origin})")
    return [f"No advice for {'; '.join(names)}: {reason}." for reason, names in curves_by_reason.items()]


def _titles(shown_columns: Sequence[Column]) -> list[str]:
    return [f"{metric.title}, {origin}" for metric, origin in shown_columns]


def _figures(row: PointRow, shown_columns: Sequence[Column]) -> list[str]:
    return [
        published_words(row, metric) if origin == "published" else shown(number_of(row, metric, origin), metric)
        for metric, origin in shown_columns
    ]


def _md(text: str) -> str:
    """Escaped text on one line: no markup, no HTML."""
    marked = re.sub(r"([\\`*_{}\[\]()#+!|~])", r"\\\1", " ".join(text.split()))
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _md_row(cells: list[str]) -> str:
    return "| " + " | ".join(_md(cell) for cell in cells) + " |"


def _md_head(cells: list[str]) -> list[str]:
    return [_md_row(cells), "|" + "|".join("---" for _ in cells) + "|"]
