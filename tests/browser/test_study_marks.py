"""Doubts and elbows in a real browser: a mark in the table, pale in charts, told on demand, quiet where all is well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("selenium")
from selenium.webdriver.common.by import By
from tests.browser.conftest import NARROW_PX, OVERFLOWING, WIDE_PX, resize

from scalewright.records.study_report import CurveShown, Doubt, Elbow, MetricShown, Number, PointRow, StudyReport
from scalewright.report.study.page import write_page

pytestmark = pytest.mark.browser
BUSY = Doubt(sort="busy", text="other work had <1.2> of 2 cores while it ran")
METRIC = MetricShown(name="batch_time_s", title="median batch time", unit="s", quantity="time", better="lower")


def point(ranks: int, *doubts: Doubt) -> PointRow:
    times = tuple(0.1 * ranks * (3.0 if n > 17 else 1.0 + n / 1000) for n in range(20))
    return PointRow(
        id=f"p{ranks}", labels={"ranks": str(ranks)}, scale=float(ranks), doubts=doubts,
        measured={"batch_time_s": Number(value=0.1 * ranks, low=0.1 * ranks, high=0.3 * ranks)},
        series={"batch_time_s": times}, elbows={"batch_time_s": Elbow(time_s=times[17], share_frac=0.9)},
    )  # fmt: skip


REPORT = StudyReport(
    study="s", title="Marks", question="q", created="now", version="0", axes=("ranks",), metrics=(METRIC,),
    points=(point(1), point(2, BUSY)), scale_name="ranks",
    curves=(CurveShown(group={"all": "x"}, points=(0, 1), origin="measured", sentence="two scales say nothing"),),
)  # fmt: skip


def opened(browser, path: Path, report: StudyReport, width: int = WIDE_PX) -> None:
    write_page(path, report)
    resize(browser, width)
    browser.get(path.as_uri())


def test_a_doubt_is_seen_in_table_chart_and_details(browser, tmp_path: Path) -> None:
    opened(browser, tmp_path / "index.html", REPORT)
    marks = [row.find_elements(By.TAG_NAME, "td")[-1].text for row in rows(browser)]
    assert marks == ["", "b"]
    dots = browser.find_elements(By.CSS_SELECTOR, "circle[aria-label*='measured']")
    assert [dot.get_attribute("fill-opacity") for dot in dots] == ["1", "0.45"]
    assert BUSY.text in dots[1].get_attribute("aria-label")
    rows(browser)[1].find_element(By.CSS_SELECTOR, ".more").click()
    assert f"In doubt: {BUSY.text}" in browser.find_element(By.CSS_SELECTOR, "tr.detail").text
    assert BUSY.text in browser.find_element(By.CSS_SELECTOR, ".marks").text


def test_the_elbow_is_drawn_on_its_distribution(browser, tmp_path: Path) -> None:
    opened(browser, tmp_path / "index.html", REPORT)
    elbow_marks = browser.find_elements(By.CSS_SELECTOR, "path[aria-label*='elbow: 90 %']")
    assert len(elbow_marks) == 2
    assert "then the tail begins" in elbow_marks[0].get_attribute("aria-label")


def test_nothing_is_said_of_doubts_where_all_was_well(browser, tmp_path: Path) -> None:
    well = replace(REPORT, points=(point(1), point(2)))
    opened(browser, tmp_path / "index.html", well)
    assert "doubt" not in browser.find_element(By.TAG_NAME, "body").text
    assert "mark" not in [head.text for head in browser.find_elements(By.CSS_SELECTOR, ".points th")]


def test_it_fits_a_phone(browser, tmp_path: Path) -> None:
    opened(browser, tmp_path / "index.html", REPORT, NARROW_PX)
    assert browser.execute_script(OVERFLOWING) == []


def rows(browser) -> list:  # type: ignore[type-arg]
    return browser.find_elements(By.CSS_SELECTOR, ".points tbody tr[data-point]")
