"""Charts of a study's page: short series in rows, bars that are cut, and what is not drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("selenium")
from tests.browser.conftest import NARROW_PX, WIDE_PX, resize

from scalewright import units
from scalewright.records.study_report import CurveShown, MetricShown, Number, PointRow, PublishedFigure, StudyReport
from scalewright.report.study.page import write_page

pytestmark = pytest.mark.browser
STEP = MetricShown(name="step_time_s", title="step time", unit="s", quantity="time", better="lower")
RATE = MetricShown(name="rate", title="rate", unit="FLOP/s", quantity=units.FLOP_PER_S.name, better="higher")
TWICE = MetricShown(
    name="twice", title="twice the rate", unit="FLOP/s", quantity=units.FLOP_PER_S.name, better="higher"
)
RATIO_SHOWN = MetricShown(name="ratio", title="ratio", unit="x", quantity=units.COUNT.name, better="lower")
OUTLIER_S = 90.0
# Names of rows that an upright line of the same chart passes through.
CROSSED = """
const found = [];
for (const svg of document.querySelectorAll('.plots svg')) {
  const every = [...svg.querySelectorAll('line.grid, line.axis')];
  const lines = every.filter(l => l.getAttribute('x1') === l.getAttribute('x2'));
  for (const text of svg.querySelectorAll('text')) {
    const a = text.getBBox();
    for (const line of lines) {
      const x = +line.getAttribute('x1'), y1 = +line.getAttribute('y1'), y2 = +line.getAttribute('y2');
      if (x > a.x + 1 && x < a.x + a.width - 1 && y2 > a.y + 3 && y1 < a.y + a.height - 3) found.push(text.textContent);
    }
  }
}
return found;
"""


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


def test_a_chart_of_ratios_leaves_out_what_is_1_by_definition(browser, tmp_path: Path) -> None:
    """The page opens on the compared axis where it has as many values as another; the reference has no line."""
    rows = [
        replace(row, predicted={"ratio": Number(value=1.0 if name == "rdma" else 2.0 + nodes)})
        for name in ("rdma", "tcp") for nodes in (1, 2, 4) for row in [point(nodes, name)]
    ]  # fmt: skip
    made = replace(report(*rows), metrics=(RATIO_SHOWN,), compared_axis="name")
    write_page(tmp_path / "index.html", made)
    resize(browser, WIDE_PX)
    browser.get((tmp_path / "index.html").as_uri())
    marks = browser.execute_script(
        "return [...document.querySelectorAll('svg[aria-label=\"Chart of ratio\"] circle')]"
        ".map(c => c.getAttribute('aria-label'))"
    )
    assert len(marks) == 3
    assert all("tcp" in mark for mark in marks)


def test_a_colour_belongs_to_a_system_on_the_whole_page(browser, tmp_path: Path) -> None:
    """Lines, rings and diamonds of a system have one colour in every chart, whatever is chosen; no two share one."""
    names = [f"system-{letter}" for letter in "abcdefghi"]
    rows = [
        replace(row, published=(PublishedFigure(metric="rate", number=Number(value=1e12), source="p"),))
        for name in names for nodes in (1, 2, 4) for row in [point(nodes, name)]
    ]  # fmt: skip
    opened(browser, tmp_path, *rows)
    coloured = (
        "const by = {};"
        "document.querySelectorAll('.plots svg [aria-label]').forEach(m => {"
        "  const name = /system-[a-i]/.exec(m.getAttribute('aria-label'))[0];"
        "  (by[name] ||= new Set()).add(m.getAttribute('stroke'));"
        "});"
        "return Object.fromEntries(Object.entries(by).map(([k, v]) => [k, [...v]]));"
    )
    every = browser.execute_script(coloured)
    assert set(every) == set(names)
    assert all(len(colours) == 1 for colours in every.values())
    assert len({colours[0] for colours in every.values()}) == len(names)
    browser.execute_script(
        "const s = document.querySelector('.controls select');"
        "s.value = 'system-h'; s.dispatchEvent(new Event('change'))"
    )
    assert browser.execute_script(coloured) == {"system-h": every["system-h"]}


@pytest.mark.parametrize("width", [NARROW_PX, 760, WIDE_PX])
def test_no_line_of_a_grid_crosses_a_name(browser, tmp_path: Path, width: int) -> None:
    told = PublishedFigure(metric="step_time_s", number=Number(value=0.7), source="p")
    names = ("a-very-long-name-of-a-layout-that-takes-most-of-a-row", "b" * 60)
    rows = [replace(point(nodes, name), published=(told,)) for nodes, name in enumerate(names, start=1)]
    write_page(tmp_path / "index.html", report(*rows))
    resize(browser, width)
    browser.get((tmp_path / "index.html").as_uri())
    assert browser.execute_script(CROSSED) == []


def test_what_only_repeats_another_chart_is_named_instead(browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, *(point(n, "long") for n in (1, 2, 4)))
    left = browser.execute_script("return document.querySelector('.left').textContent")
    assert "twice the rate (proportional to rate)" in left
