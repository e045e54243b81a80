"""Findings of a study: which points are compared, and by which metric."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.records.study_report import StudyReport
from scalewright.study.points import open_study
from scalewright.study.report_builder import predicted_report

CATALOG = Catalog((packaged_data(),))
STUDY = """
schema = "scalewright.study/1"
id = "mine"
title = "Mine"
question = "How far?"
kind = "language"
metrics = ["step_time_s", "tokens_per_s"]

[matrix]
nodes = [1, 2, 4]

[derive]
dp = "nodes * gpus_per_node"
gbs = "GBS"

[point]
model = "gpt2-medium"
system = "leonardo"
layout = "dp={dp},mbs=1,gbs={gbs}"

[scaling]
over = "nodes"
groups = []
metric = "METRIC"
"""


def predicted(folder: Path, *, gbs: str, metric: str = "tokens_per_s_per_gpu") -> StudyReport:
    path = folder / "mine.toml"
    path.write_text(STUDY.replace("GBS", gbs).replace("METRIC", metric))
    return predicted_report(CATALOG, open_study(CATALOG, str(path)))


def best(report: StudyReport) -> str:
    return next((finding.text for finding in report.findings if finding.text.startswith("best ")), "")


def test_strong_scaling_says_how_much_faster_the_most_nodes_are(tmp_path: Path) -> None:
    """The shortest step of the same work is on the most nodes: that alone says nothing."""
    report = predicted(tmp_path, gbs="64")
    assert best(report) == ""
    text = next(finding.text for finding in report.findings if finding.text.startswith("step time, predicted"))
    assert "from 1 to 4 nodes: " in text
    assert "times as fast on 4 times as many, efficiency " in text


def test_weak_scaling_names_the_best_rate_per_device(tmp_path: Path) -> None:
    """Twice the batch on twice the nodes: the shortest step is only the smallest one."""
    assert best(predicted(tmp_path, gbs="4 * dp")).startswith("best rate per device, predicted:")


@pytest.mark.parametrize("gbs", ["64", "4 * dp"], ids=["strong", "weak"])
def test_efficiency_is_the_same_by_step_time_and_by_rate(tmp_path: Path, gbs: str) -> None:
    by_time = predicted(tmp_path, gbs=gbs, metric="step_time_s")
    by_rate = predicted(tmp_path, gbs=gbs, metric="tokens_per_s_per_gpu")
    for one, other in zip(by_time.points, by_rate.points, strict=True):
        figures = (one.predicted["efficiency_frac"].value, other.predicted["efficiency_frac"].value)
        assert figures[0] == pytest.approx(figures[1])
        assert 0.5 < figures[0] <= 1.0


def test_fewest_devices_of_different_stages_are_not_compared() -> None:
    assert best(predicted_report(CATALOG, open_study(CATALOG, "hpc-r1"))) == ""


STATED = """
[[statements]]
text = "two nodes are slower than one for each device"
metric = "tokens_per_s_per_gpu"
lower = { nodes = 2 }
higher = { nodes = 1 }
source = "paper"

[[statements]]
text = "four nodes lose more than half"
metric = "tokens_per_s_per_gpu"
lower = { nodes = 4 }
higher = { nodes = 1 }
by = 0.5
source = "paper"

[[statements]]
text = "one node is slower than two for each device"
metric = "tokens_per_s_per_gpu"
lower = { nodes = 1 }
higher = { nodes = 2 }
source = "paper"

[sources.paper]
kind = "measured"
text = "who wrote it"
checked = 2026-01-01
"""


def test_statements_of_a_source_are_held_against_the_predictions(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(STUDY.replace("GBS", "4 * dp").replace("METRIC", "tokens_per_s_per_gpu") + STATED)
    report = predicted_report(CATALOG, open_study(CATALOG, str(path)))
    assert "predictions agree with 1 of 3 statements of the sources; the notes name the others" in [
        finding.text for finding in report.findings
    ]
    small, wrong = (note for note in report.notes if note.startswith("The source says: "))
    assert "four nodes lose more than half. Predicted throughput per device is " in small
    assert small.endswith("the difference is too small.")
    assert "one node is slower than two for each device. " in wrong
    assert wrong.endswith("the prediction contradicts it.")


def test_an_error_of_a_whole_is_a_plain_number() -> None:
    texts = [finding.text for finding in predicted_report(CATALOG, open_study(CATALOG, "hpc-r1")).findings]
    assert any("100 % at worst" in text for text in texts)
    assert not [text for text in texts if "e+" in text]
