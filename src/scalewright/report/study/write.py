"""Write the report of a study into one folder: page, plots, tables and data."""

from __future__ import annotations

from pathlib import Path

from scalewright.errors import MissingExtraError
from scalewright.records.study_report import StudyReport
from scalewright.report.study.files import write_files, write_parquet

PAGE = "index.html"


def write_report(folder: Path, report: StudyReport, *, with_plots: bool = True) -> tuple[Path | None, list[str]]:
    """Write the report. Returns the path of the page, and a sentence for every file that needs a missing extra."""
    write_files(folder, report)
    missing = []
    try:
        write_parquet(folder / "points.parquet", report)
    except MissingExtraError as error:
        missing.append(f"points.parquet is left out: {error}")
    page: Path | None = folder / PAGE
    try:
        from scalewright.report.study.page import write_page

        write_page(folder / PAGE, report)
    except MissingExtraError as error:
        page = None
        missing.append(f"{PAGE} is left out: {error}")
    if with_plots:
        try:
            from scalewright.report.study.plots import write_plots

            for number, part in enumerate((report, *report.parts), start=1):
                write_plots(folder / "plots" if number == 1 else folder / f"part-{number}" / "plots", part)
        except MissingExtraError as error:
            missing.append(f"plots are left out: {error}")
    return page, missing
