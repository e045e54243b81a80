"""A search among points: the one predicted fastest runs first, and what became of that order is told."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.conftest import Cli

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.records.study_report import Number
from scalewright.report.study.table import print_study
from scalewright.study.kinds.base import Outcome
from scalewright.study.order import agreement, in_order, with_places
from scalewright.study.points import Study, open_study
from scalewright.study.report_builder import report_of
from scalewright.study.results import Results, predict_study

CATALOG = Catalog((packaged_data(),))
STUDY = """
schema = "scalewright.study/1"
id = "search"
title = "Search"
question = "Which?"
kind = "language"
metrics = ["step_time_s", "place"]

[measure]
repeats = 2
order = "predicted"

[measure.matrix]
tp = [8, 1, 2]
recompute = ["full", "none"]

[[measure.include]]
tp = 3
recompute = "none"

[[measure.choose]]
values = { model = "gpt2-medium" }

[[measure.choose]]
where = { tp = 3 }
values = { model = "gpt3-175b" }

[measure.derive]
dp = "8 // tp"

[measure.point]
model = "{model}"
system = "generic-h100"
layout = "tp={tp},dp={dp},mbs=1,gbs=16,recompute={recompute}"
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    (tmp_path / "search.toml").write_text(STUDY)
    return open_study(CATALOG, str(tmp_path / "search.toml"), is_measured=True)


def test_the_fastest_goes_first_and_what_cannot_run_last(study: Study) -> None:
    predicted = predict_study(CATALOG, study).predicted
    order = in_order(CATALOG, study)
    assert [tried.repeat for tried in order] == [0] * 7 + [1] * 7
    assert [tried.index for tried in order[:7]] == [tried.index for tried in order[7:]]
    *fitting, last = [tried.index for tried in order[:7]]
    assert predicted[last].problem
    times = [predicted[index].numbers["step_time_s"].value for index in fitting]
    assert times == sorted(times)
    assert fitting != sorted(fitting), "the listed order is another"
    assert [predicted[index].numbers["place"].value for index in fitting] == [1, 2, 3, 4, 5, 6]


def test_the_listed_order_stays_where_nothing_else_is_asked_for(study: Study, tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text(STUDY.replace('order = "predicted"\n', ""))
    plain = open_study(CATALOG, str(tmp_path / "plain.toml"), is_measured=True)
    assert [tried.index for tried in in_order(CATALOG, plain)] == [*range(7), *range(7)]
    assert all("place" not in outcome.numbers for outcome in predict_study(CATALOG, plain).predicted)
    assert plain.id == study.id, "the order is no part of what is measured: the same results folder"


def outcomes(*times: float | None) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(problem="does not fit in memory") if t is None else Outcome(numbers={"step_time_s": Number(value=t)})
        for t in times
    )


def test_orders_are_compared_over_what_ran(study: Study) -> None:
    predicted = outcomes(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, None)
    measured = outcomes(2.2, 2.0, 4.0, 5.0, None, None, None)
    order = agreement(study, predicted, measured)
    assert order is not None
    assert order.points == (0, 1, 2, 3)
    assert order.spearman == pytest.approx(0.8)  # 1 - 6 (1 + 1) / (4 (16 - 1))
    assert order.regret_frac == pytest.approx(0.1)
    assert agreement(study, predicted, outcomes(1.0, 2.0, None, None, None, None, None)) is None
    places = [outcome.numbers.get("place") for outcome in with_places(study, measured)]
    assert [None if place is None else place.value for place in places] == [2, 1, 3, 4, None, None, None]


def test_the_report_says_whether_the_order_held(study: Study) -> None:
    results = Results(
        study=study,
        predicted=with_places(study, outcomes(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, None)),
        measured=with_places(study, outcomes(2.2, 2.0, 4.0, 5.0, None, None, None)),
    )
    report = report_of(results)
    texts = " | ".join(finding.text for finding in report.findings)
    assert "4 points that ran, the one predicted to be fastest ran 10% slower than the fastest" in texts
    assert "rank correlation 0.80" in texts
    assert "3 of 7 points could not run, the first because: does not fit in memory" in texts
    assert "place" in [metric.name for metric in report.metrics]
    console = Console(width=80, record=True, file=io.StringIO())
    print_study(console, report)
    rows = [line.split() for line in console.export_text().splitlines()]
    assert ["8", "full", "1.00", "s", "2.20", "s", "2.20", "1.", "2."] in rows
    assert ["2", "none", "6.00", "s", "-", "-", "6.", "-"] in rows


SMALL = """
schema = "scalewright.study/1"
id = "small"
title = "Small"
question = "Which?"
kind = "language"

[measure]
order = "predicted"

[measure.matrix]
mbs = [1, 2]

[[measure.choose]]
values = { limit = "1 ms" }

[[measure.choose]]
where = { mbs = 2 }
values = { limit = "10 min" }

[measure.point]
model = "layers=1,hidden=16,heads=1,seq=16,vocab=32"
system = "discoverer"
layout = "dp=1,mbs={mbs},gbs=2"
device = "cpu"
steps = 8
budget = "{limit}"
"""


@pytest.mark.ranks
def test_a_layout_that_is_refused_is_an_answer_of_the_search(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    done = cli("study", "run", "small.toml", "--out", "a", "--no-plots", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    refused, ran = report["points"]
    assert "over the budget" in refused["measured_problem"]
    assert ran["measured"]["place"]["value"] == 1
    assert any(finding["text"].startswith("1 of 2 points could not run") for finding in report["findings"])
