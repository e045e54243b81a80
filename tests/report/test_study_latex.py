"""The LaTeX table of a study: units in the head, every metric, and a mark on points that cannot run."""

from __future__ import annotations

import re

import pytest

from scalewright.records.study_report import MetricShown, Number, PointRow, PublishedFigure, StudyReport
from scalewright.report.study.latex import latex, plain

TIME = MetricShown(name="step_time_s", title="step time", unit="s", quantity="time", better="lower")
MEMORY = MetricShown(name="memory_bytes", title="memory", unit="B", quantity="size", better="lower")
SHARE = MetricShown(name="mfu_frac", title="MFU", unit="", quantity="fraction", better="higher")
COUNT = MetricShown(name="tokens_per_s", title="throughput", unit="tokens/s", quantity="count", better="higher")


def point(nodes: int, problem: str = "") -> PointRow:
    numbers = {"step_time_s": 0.25 * nodes, "memory_bytes": 2.0**30 * 40, "mfu_frac": 0.4, "tokens_per_s": 12345.0}
    told = PublishedFigure(metric="mfu_frac", number=Number(value=0.5, low=0.45, high=0.55), source="a paper")
    return PointRow(
        id=str(nodes), labels={"system": "a_b", "nodes": str(nodes)}, problem=problem,
        predicted={name: Number(value=value) for name, value in numbers.items()},
        published=(told,) if nodes == 1 else (),
    )  # fmt: skip


def table(*points: PointRow) -> str:
    report = StudyReport(
        study="s", title="T", question="q", created="now", version="0", axes=("system", "nodes"),
        metrics=(TIME, MEMORY, SHARE, COUNT), points=points,
    )  # fmt: skip
    return latex(report)


def body(text: str) -> list[str]:
    return text.split(r"\midrule")[1].split(r"\bottomrule", maxsplit=1)[0].strip().splitlines()


def test_units_are_in_the_head_and_cells_are_numbers() -> None:
    text = table(point(1), point(2))
    for title in ("step time (ms)", "memory (GiB)", r"MFU (\%)", "throughput (thousand tokens/s)"):
        assert title in text
    assert body(text) == [
        r"a\_b & 1 & 250 & 40 & 40 & 45--55 & 12.3 \\",
        r"a\_b & 2 & 500 & 40 & 40 & -- & 12.3 \\",
    ]


def test_a_point_that_does_not_fit_is_marked_with_its_reason() -> None:
    text = table(point(1), point(2, problem="does not fit in memory"))
    first, second = body(text)
    assert "dagger" not in first
    assert second == r"a\_b$^{\dagger}$ & 2 & -- & 40 & -- & -- & -- \\"
    assert "cannot run (1 points): does not fit in memory" in text


def test_every_row_has_as_many_cells_as_the_table_has_columns() -> None:
    text = table(point(1), point(2))
    layout = re.search(r"begin\{tabular\}\{([lr]+)\}", text)
    assert layout is not None
    assert {row.count("&") + 1 for row in body(text)} == {len(layout.group(1))}


def test_a_long_table_breaks_across_pages() -> None:
    text = table(*(point(n) for n in range(1, 61)))
    assert r"\begin{longtable}" in text
    assert r"\endhead" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.12345, "0.123"),
        (1.5, "1.50"),
        (12.345, "12.3"),
        (90.01, "90.0"),
        (90.0, "90"),
        (1234.5, r"1\,230"),
        (1e-6, r"$1.00\times10^{-6}$"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert plain(value) == text
