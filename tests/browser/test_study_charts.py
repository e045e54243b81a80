"""Charts of a study's page: short series in rows, bars that are cut, and what is not drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("selenium")
from tests.browser.conftest import WIDE_PX, resize

from scalewright import units
from scalewright.records.study_report import CurveShown, MetricShown, Number, PointRow, StudyReport
from scalewright.report.study.page import write_page

pytestmark = pytest.mark.browser
STEP = MetricShown(name="step_time_s", title="step time", unit="s", quantity="time", better="lower")
RATE = MetricShown(name="rate", title="rate", unit="FLOP/s", quantity=units.FLOP_PER_S.name, better="higher")
TWICE = MetricShown(
    name="twice", title="twice the rate", unit="FLOP/s", quantity=units.FLOP_PER_S.name, better="higher"
)
OUTLIER_S = 90.0


def point(nodes: int, name: str, *, high_s: float = 0.0) -> PointRow:
    step_s = 0.5 + nodes / 8
    rate = Number(value=1e12 * nodes**0.5)
    return PointRow(
        id=f"{name}{nodes}", labels={"name": name, "nodes": str(nodes)}, scale=float(nodes),
        predicted={"step_time_s": Number(value=step_s, low=0.8 * step_s, high=high_s or 1.2 * step_s), "rate": rate,
                   "twice": replace(rate, value=2.0 * rate.value)},
    )  # fmt: skip


def report(*points: PointRow) -> StudyReport:
    names = dict.fromkeys(row.labels["name"] for row in points)
    curves = [
        CurveShown(
            group={"name": name}, origin="predicted",
            points=tuple(i for i, row in enumerate(points) if row.labels["name"] == name),
        )
        for name in names
    ]  # fmt: skip
    return StudyReport(
        study="s", title="Charts", question="q", created="now", version="0", axes=("name", "nodes"),
        metrics=(STEP, RATE, TWICE), points=points, curves=tuple(curves), scale_name="nodes",
    )  # fmt: skip


def opened(browser, folder: Path, *points: PointRow) -> None:
    write_page(folder / "index.html", report(*points))
    resize(browser, WIDE_PX)
    browser.get((folder / "index.html").as_uri())
    assert browser.get_log("browser") == []


def charts(browser) -> list[list[str]]:
    """Titles of the charts, and how each is drawn."""
    return browser.execute_script(
        "return [...document.querySelectorAll('.plots figure')].map(f =>"
        " [f.querySelector('figcaption').textContent, f.querySelector('svg path[fill=none]') ? 'line' : 'rows'])"
    )


def test_series_of_one_scale_share_one_chart_of_rows(browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, *(point(n, "long") for n in (1, 2, 4)), point(8, "tuned"), point(8, "search"))
    assert charts(browser) == [["Step time (s)", "rows"], ["Step time (s)", "line"], ["Rate (TFLOP/s)", "line"]]
    rows = browser.execute_script("return document.querySelectorAll('.plots svg')[0].querySelectorAll('circle').length")
    assert rows == 2


def test_a_study_of_two_scales_has_no_lines(browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, point(1, "short"), point(2, "short"))
    assert {kind for _, kind in charts(browser)} == {"rows"}


def test_an_outlier_does_not_flatten_a_chart(browser, tmp_path: Path) -> None:
    """Its bar is cut and names its end; an axis up to 90 s would put all rings within 2 % of its length."""
    opened(browser, tmp_path, *(point(n, "long", high_s=OUTLIER_S if n == 2 else 0.0) for n in (1, 2, 4)))
    svg = "document.querySelector('svg[aria-label=\\'Chart of step time\\']')"
    assert browser.execute_script(f"return {svg}.querySelectorAll('.cut').length") == 1
    texts = browser.execute_script(f"return [...{svg}.querySelectorAll('text')].map(t => t.textContent)")
    assert "90 s" in texts
    heights = browser.execute_script(f"return [...{svg}.querySelectorAll('circle')].map(c => +c.getAttribute('cy'))")
    assert max(heights) < 0.7 * 300


def test_what_only_repeats_another_chart_is_named_instead(browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, *(point(n, "long") for n in (1, 2, 4)))
    left = browser.execute_script("return document.querySelector('.left').textContent")
    assert "twice the rate (proportional to rate)" in left
