"""Points of a study against the fastest one: which terms make the gap, and what they do not explain."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.conftest import Cli

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.observe.breakdown.gaps import explained_frac, gap_words, term_gaps, traced_terms_s
from scalewright.observe.evidence.facts import RankTime, Spot
from scalewright.records.study_report import Number
from scalewright.study.gaps import gaps_of
from scalewright.study.kinds.base import Outcome
from scalewright.study.points import open_study
from scalewright.study.results import Results

CATALOG = Catalog((packaged_data(),))
STUDY = """
schema = "scalewright.study/1"
id = "mine"
title = "Mine"
question = "Which?"
kind = "engine"
gaps = "AXIS"
metrics = ["step_time_s"]
[matrix]
engine = ["torchtitan", "deepspeed", "megatron"]
[point]
engine = "{engine}"
model = "gpt2-medium"
layout = "dp=4,mbs=4,gbs=64,zero=0"
system = "generic-h100"
"""


def study_file(folder: Path, axis: str = "engine") -> Path:
    path = folder / "mine.toml"
    path.write_text(STUDY.replace("AXIS", axis))
    return path


def outcome(step_s: float, **terms_s: float) -> Outcome:
    parts = {name: seconds / step_s for name, seconds in terms_s.items()}
    return Outcome(numbers={"step_time_s": Number(value=step_s)}, parts=parts)


def results(folder: Path, measured: list[Outcome], predicted: list[Outcome]) -> Results:
    study = open_study(CATALOG, str(study_file(folder)))
    return Results(study=study, measured=tuple(measured), predicted=tuple(predicted))


def test_measured_terms_say_which_of_them_makes_the_gap(tmp_path: Path) -> None:
    fast = outcome(0.1, matmul=0.06, elementwise=0.02, host=0.02)
    middle = outcome(0.101, matmul=0.061, elementwise=0.02, host=0.02)
    slow = outcome(0.2, matmul=0.06, elementwise=0.08, host=0.03, idle=0.03)
    equal, far = gaps_of(results(tmp_path, [fast, slow, middle], [Outcome()] * 3))
    assert "as fast as torchtitan (100 ms) within 3%" in equal.sentence
    assert (far.label, far.fastest_label, far.terms_origin) == ("deepspeed", "torchtitan", "measured")
    assert far.terms[0].name == "elementwise"
    assert far.terms[0].gap_frac == pytest.approx(0.6)
    assert far.explained_frac == pytest.approx(0.7)
    assert "2.0 times torchtitan (100 ms): elementwise +60.0 ms (60% of the gap), host +10" in far.sentence
    assert "explain 70% of the gap, 30% is not explained" in far.sentence


def test_without_measured_terms_those_of_the_stacks_are_compared(tmp_path: Path) -> None:
    measured = [outcome(0.1), outcome(0.3), Outcome(problem="not installed")]
    predicted = [outcome(0.1, matmul=0.08, host=0.02), outcome(0.15, matmul=0.08, host=0.07), outcome(0.1, matmul=0.1)]
    (gap,) = gaps_of(results(tmp_path, measured, predicted))
    assert gap.terms_origin == "predicted"
    assert gap.explained_frac == pytest.approx(0.25)
    assert "by the predicted terms, host +50.0 ms (25% of the gap)" in gap.sentence
    assert "75% is not explained" in gap.sentence


def test_terms_of_equal_stacks_explain_nothing(tmp_path: Path) -> None:
    same = outcome(0.1, matmul=0.1)
    (gap,) = gaps_of(results(tmp_path, [outcome(0.1), outcome(0.2), Outcome(problem="no")], [same, same, same]))
    assert gap.sentence.endswith("none of the gap is explained")


def test_steps_that_the_profiler_slowed_are_scaled_to_ordinary_ones() -> None:
    time = RankTime(
        rank=0, spot=Spot(file="trace", line=1, text=""), step=3, step_s=0.4, compute_s=0.2, idle_s=0.1, is_traced=True,
        exposed_communication_s=0.1, on_device=False, by_kind_s={"matmul": 0.15, "optimizer": 0.05},
    )  # fmt: skip
    assert traced_terms_s([time], step_s=0.2) == pytest.approx(
        {"matmul": 0.075, "optimizer": 0.025, "communication": 0.05, "host": 0.05}
    )
    assert sum(traced_terms_s([time], step_s=1.0).values()) == pytest.approx(0.4)
    assert traced_terms_s([], step_s=1.0) == {}


def test_shares_of_terms_that_add_up_make_the_whole_gap() -> None:
    terms = term_gaps({"a": 1.0, "b": 2.0}, {"a": 4.0, "b": 1.0, "c": 1.0}, (3.0, 6.0))
    assert sum(one.gap_frac for one in terms) == pytest.approx(1.0)
    assert explained_frac(terms) == pytest.approx(1.0)
    assert gap_words(terms).endswith("the terms explain all of the gap")


def test_the_command_and_the_page_show_the_terms_of_each_engine(cli: Cli, tmp_path: Path) -> None:
    path = study_file(tmp_path)
    done = cli("study", "predict", str(path), "--out", "out", "--no-plots", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "where a step goes, predicted" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    shown = json.loads(cli("study", "predict", str(path), "--json", cwd=tmp_path).stdout)
    for gap in shown["gaps"]:
        total_s = gap["step_time_s"] - gap["fastest_step_time_s"]
        by_term_s = sum(term["own_s"] - term["fastest_s"] for term in gap["terms"])
        assert by_term_s == pytest.approx(total_s, rel=1e-3)
    page = next(tmp_path.rglob("index.html")).read_text()
    assert "Where a step goes" in page
    bars = re.findall(r"<span>[^<]*</span><div>(.*?)</div>", page, re.DOTALL)
    assert len(bars) == 3
    for bar in bars:
        colours = re.findall(r'class="(gap-\d)"', bar)
        assert len(colours) == len(set(colours)) > 1
        widths = [float(width) for width in re.findall(r'style="width: ([\d.]+)%"', bar)]
        assert sum(widths) <= 100.1


def test_an_axis_that_no_point_has_is_refused(cli: Cli, tmp_path: Path) -> None:
    done = cli("study", "check", str(study_file(tmp_path, "enigne")), cwd=tmp_path)
    assert done.returncode == 2
    assert "gaps names 'enigne', which is no axis: did you mean engine?" in done.stderr
