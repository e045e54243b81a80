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


def test_a_ratio_is_drawn_for_what_is_compared_in_panels_with_one_axis() -> None:
    """Transports share the panels of `interconnect`; RDMA, which is 1 by definition, has no line."""
    report = predicted_report(CATALOG, open_study(CATALOG, "interconnect"))
    figure = dict(figures(report))["ratio"]
    axes = [axis for axis in figure.axes if axis.get_lines() or axis.containers]
    assert len({axis.get_ylim() for axis in axes}) == 1
    labels = {label for axis in axes for label in axis.get_legend_handles_labels()[1]}
    assert labels == {"ipoib", "tcp"}
    assert any(len(axis.get_legend_handles_labels()[1]) == 2 for axis in axes)


def test_a_colour_of_a_plot_belongs_to_one_system() -> None:
    report = predicted_report(CATALOG, open_study(CATALOG, "epicure-language"))
    systems = {row.labels["system"] for row in report.points}
    for _, figure in figures(report):
        by_label: dict[str, set[str]] = {}
        for axis in figure.axes:
            for line in axis.get_lines():
                if line.get_label() in systems:
                    by_label.setdefault(str(line.get_label()), set()).add(str(line.get_color()))
        assert all(len(colours) == 1 for colours in by_label.values())
        assert len(set().union(*by_label.values())) == len(by_label)
