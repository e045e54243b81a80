"""`sw.study(name)`: a study file, its points, and its report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.api.frames import Framed
from scalewright.api.keywords import checked
from scalewright.catalog.library import Catalog, open_catalog
from scalewright.records.study_report import Number, StudyReport
from scalewright.report.notebook import html
from scalewright.report.study.numbers import published_words, shown
from scalewright.report.study.write import write_report
from scalewright.study.points import Study, open_study
from scalewright.study.report_builder import measured_report, predicted_report
from scalewright.study.store import Store


@dataclass(frozen=True, slots=True)
class StudyAnswer(Framed):
    """The report of a study: predicted, measured and published figures of its points."""

    report: StudyReport

    def document(self) -> dict[str, Any]:
        """What `scalewright study predict --json` prints."""
        return self.report.document()

    def write(self, folder: str | Path, *, plots: bool = True) -> Path:
        """Write page, plots, tables and data; the path of the page, or of the folder where there is none."""
        page, _ = write_report(Path(folder), self.report, with_plots=plots)
        return page or Path(folder)

    def columns(self) -> dict[str, list[Any]]:
        """One row a point: its labels, then each metric as predicted and as measured."""
        points = self.report.points
        columns: dict[str, list[Any]] = {axis: [row.labels.get(axis) for row in points] for axis in self.report.axes}
        for metric in self.report.metrics:
            for origin in ("predicted", "measured"):
                values = [_value(getattr(row, origin).get(metric.name)) for row in points]
                if any(value is not None for value in values):
                    columns[f"{origin}_{metric.name}"] = values
        return columns | {"limit": [row.limit for row in points], "problem": [row.problem for row in points]}

    def _repr_html_(self) -> str:
        report = self.report
        headers, right = [*report.axes], []
        for metric in report.metrics[:3]:
            headers += [f"{metric.title}, predicted", "measured", "published"]
            right += headers[-3:]
        rows = []
        for row in report.points:
            cells = [row.labels.get(axis, "") for axis in report.axes]
            for metric in report.metrics[:3]:
                cells += [
                    shown(row.predicted.get(metric.name), metric),
                    shown(row.measured.get(metric.name), metric),
                    published_words(row, metric),
                ]
            rows.append(cells)
        findings = "".join(html.paragraph(f"• {finding.text}") for finding in report.findings)
        title = html.paragraph(f"{report.title} ({report.study}, {len(report.points)} points)", bold=True)
        return html.block(
            title, html.paragraph(report.question, muted=True), findings, html.table(headers, rows, right=right)
        )


def _value(number: Number | None) -> float | None:
    return None if number is None else number.value


@dataclass(frozen=True, slots=True)
class StudyHandle(Framed):
    """A study that can be predicted, and read back where it was measured (`scalewright study run`)."""

    name: str
    study: Study
    library: Catalog
    folder: Path | None = None
    """Folder of entries that come before all others."""

    def predict(self) -> StudyAnswer:
        """Every point predicted, beside what is published. Nothing is run."""
        now = self._now()
        return StudyAnswer(predicted_report(now.library, now.study))

    def measured(self, results: str | Path | None = None) -> StudyAnswer:
        """What a results folder holds, beside its prediction; default: results/STUDY."""
        store = Store.open(Path(results) if results is not None else Path("results") / self.study.file.id)
        return StudyAnswer(measured_report(self._now().library, self.name, store))

    def _now(self) -> StudyHandle:
        """The study as its files are at this time: people edit an entry between two calls."""
        return _handle(self.name, self.folder)

    def columns(self) -> dict[str, list[Any]]:
        points = self.study.points
        return {"id": [point.id for point in points]} | {
            axis: [point.labels.get(axis) for point in points] for axis in points[0].labels
        }

    def __len__(self) -> int:
        return len(self.study.points)

    def _repr_html_(self) -> str:
        columns = self.columns()
        caption = f"{self.study.file.title}: {len(self)} points of kind {self.study.file.kind}"
        rows = zip(*([str(value) for value in values] for values in columns.values()), strict=True)
        return html.table(list(columns), rows, caption=caption)


@checked()
def study(name: str | Path, *, catalog: str | Path | None = None) -> StudyHandle:
    """A shipped study by its name, or a study file by its path; every key of it is checked."""
    return _handle(str(name), None if catalog is None else Path(catalog))


def _handle(name: str, folder: Path | None) -> StudyHandle:
    library = open_catalog(folder)
    return StudyHandle(name, open_study(library, name), library, folder)
