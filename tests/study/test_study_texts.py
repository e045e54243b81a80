"""Texts of a study's author come out inert in every form: no markup, no formula, no command, no moved cursor."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console

from scalewright.errors import DocumentError
from scalewright.records.study_report import Doubt, MetricShown, Number, PointRow, PublishedFigure, StudyReport
from scalewright.report.study.diff import print_diff
from scalewright.report.study.files import latex, markdown, to_csv
from scalewright.report.study.page import page
from scalewright.report.study.table import print_study
from scalewright.study.file import load, shipped

HOSTILE = "=1+1 </script><img src=x onerror=alert(1)> [a](javascript:b) [bold]x[/] & \\input{f} $x$ | `c` {{7*7}}"
METRIC = MetricShown(name="step_time_s", title="step time", unit="s", quantity="time", better="lower")
REPORT = StudyReport(
    study="s", title=HOSTILE, question=HOSTILE, created="now", version="0", axes=("who",), metrics=(METRIC,),
    notes=(HOSTILE,), measure_note=HOSTILE,
    points=(
        PointRow(
            id="p", labels={"who": HOSTILE}, measured={"step_time_s": Number(value=1.0)},
            published=(PublishedFigure(metric="step_time_s", number=Number(value=1.0), source=HOSTILE, note=HOSTILE),),
            doubts=(Doubt(sort="busy", text=HOSTILE),), measured_problem=HOSTILE, problem=HOSTILE, remark=HOSTILE,
        ),
    ),
)  # fmt: skip


def test_a_page_holds_it_as_text() -> None:
    html = page(REPORT)
    assert "<img" not in html
    assert html.count("</script>") == html.count("<script")
    assert "{{7*7}}" in html


def test_markdown_holds_it_as_text() -> None:
    text = markdown(REPORT)
    assert "<" not in text.replace("&lt;", "")
    assert "](" not in text
    assert "&amp;" in text
    row = next(line for line in text.splitlines() if line.startswith("| =1"))
    assert row.replace("\\|", "").count("|") == 5  # who, measured, published and the mark


def test_a_spreadsheet_sees_no_formula() -> None:
    for row in csv.reader(io.StringIO(to_csv(REPORT))):
        assert not any(cell.startswith(("=", "+", "@")) for cell in row)


def test_latex_runs_no_command() -> None:
    text = latex(REPORT)
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert not any("\\input" in line for line in body)
    assert r"\textbackslash{}input\{f\}" in text
    assert text.splitlines()[0].startswith("% ")


def test_a_terminal_shows_it_as_it_is() -> None:
    text = io.StringIO()
    print_study(Console(width=400, file=text), REPORT)
    assert text.getvalue().count("[bold]x[/]") >= 5


def test_a_comparison_shows_it_as_it_is() -> None:
    row = {
        "labels": {"who": HOSTILE}, "verdict": "slower", "ratio_frac": 1.2, "interval_frac": [1.1, 1.3], "first_s": 1.0,
        "second_s": 1.2, "doubts_first": [], "doubts_second": [{"sort": "busy", "text": HOSTILE}],
    }  # fmt: skip
    text = io.StringIO()
    print_diff(Console(width=400, file=text), {"study": "s", "differences": [row]})
    assert text.getvalue().count("[bold]x[/]") == 2
    assert "-/b" in text.getvalue()


@pytest.mark.parametrize("letter", ["\\u001b[31m", "\\u202e", "\\u0007", "\\u200b", "\\u009b"])
def test_letters_that_move_or_hide_others_are_refused(tmp_path: Path, letter: str) -> None:
    text = shipped()["quick"].read_text()
    for number, (old, key) in enumerate((('title = "', "title"), ('model = ["', "matrix.model.0"))):
        path = tmp_path / f"{number}.toml"
        path.write_text(text.replace(old, old + letter, 1))
        with pytest.raises(DocumentError, match=rf"{number}\.toml: key '{key}' has the control character U\+"):
            load(path)
