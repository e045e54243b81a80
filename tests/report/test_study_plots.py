"""Plots of a study: every predicted point is visible, also where a series has only one."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.records.study_report import StudyReport
from scalewright.report.study.plots import figures
from scalewright.study.points import open_study
from scalewright.study.report_builder import predicted_report

CATALOG = Catalog((packaged_data(),))


@pytest.fixture(scope="module")
def frontier() -> StudyReport:
    return predicted_report(CATALOG, open_study(CATALOG, "frontier-tuning"))


def drawn_values(axis: object) -> list[float]:
    """Heights of all marks that are visible: a line without a mark needs two points."""
    lines = axis.get_lines()  # type: ignore[attr-defined]
    return [
        float(y) for line in lines for y in line.get_ydata()
        if line.get_marker() not in ("", "None", None) or len(line.get_ydata()) > 1
    ]  # fmt: skip


def test_every_series_of_the_legend_is_drawn(frontier: StudyReport) -> None:
    """Frontier's search and tuned layouts are one point each."""
    drawn = dict(figures(frontier))
    for name, size in (("flop_per_s_per_gpu", 1e12), ("mfu_frac", 0.01)):
        visible = size * np.array([y for axis in drawn[name].axes for y in drawn_values(axis)])
        for row in frontier.points:
            assert np.isclose(visible, row.predicted[name].value, rtol=1e-6).any(), (name, row.labels)


def test_marks_lie_within_their_axes(frontier: StudyReport) -> None:
    for _, figure in figures(frontier):
        for axis in figure.axes:
            low, high = axis.get_ylim()
            assert all(low <= y <= high for y in drawn_values(axis))
