"""Findings of a study: which points are compared, and by which metric."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import DocumentError
from scalewright.records.study_report import StudyReport
from scalewright.study.file import load, shipped
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


STATEMENT = """
[[statements]]
text = "TEXT"
quote = "words"
metric = "tokens_per_s_per_gpu"
lower = { nodes = LOWER }
higher = { nodes = HIGHER }
because = "a test"
source = "paper"
"""
SOURCE = """
[sources.paper]
kind = "measured"
text = "who wrote it"
checked = 2026-01-01
"""


def stated(text: str, lower: str, higher: str, **keys: str) -> str:
    body = STATEMENT.replace("TEXT", text).replace("LOWER", lower).replace("HIGHER", higher)
    return body + "".join(f"{name} = {value}\n" for name, value in keys.items())


def with_statements(folder: Path, *statements: str) -> StudyReport:
    path = folder / "mine.toml"
    text = STUDY.replace("GBS", "4 * dp").replace("METRIC", "tokens_per_s_per_gpu")
    path.write_text(text + "".join(statements) + SOURCE)
    return predicted_report(CATALOG, open_study(CATALOG, str(path)))


def test_statements_of_a_source_are_held_against_the_predictions(tmp_path: Path) -> None:
    report = with_statements(
        tmp_path,
        stated("two nodes are slower than one for each device", "2", "1", agrees="0.001", contradicts="0.0"),
        stated("four nodes lose more than half", "4", "1", agrees="0.9", contradicts="0.8"),
        stated("one node is slower than two for each device", "1", "2", agrees="0.9", contradicts="-0.9"),
        stated("two nodes are as fast as one", "2", "1", relation='"alike"', agrees="0.5", contradicts="0.9"),
    )
    assert [one.verdict for one in report.statements] == ["agrees", "contradicts", "cannot say", "agrees"]
    text = next(finding.text for finding in report.findings if "statements of the sources" in finding.text)
    assert text.startswith("of 4 statements of the sources, predictions agree with 2 and contradict 1; 1 cannot be")
    notes = [note for note in report.notes if note.startswith("The source says: ")]
    assert len(notes) == 2
    assert notes[0].endswith("the prediction contradicts it.")
    assert "too little to agree with it, too much to contradict it" in notes[1]


@pytest.mark.parametrize(("share", "verdict"), [(-1e-4, "agrees"), (0.0, "agrees"), (1e-4, "cannot say")])
def test_the_verdict_turns_at_the_threshold(tmp_path: Path, share: float, verdict: str) -> None:
    """A difference of exactly as much as the file asks for agrees, a little less does not."""
    keys = {"agrees": "0.5", "contradicts": "0.0"}
    rates = [
        p.predicted["tokens_per_s_per_gpu"].value
        for p in with_statements(tmp_path, stated("t", "4", "1", **keys)).points
    ]
    difference = (rates[0] - rates[2]) / rates[0]
    report = with_statements(tmp_path, stated("t", "4", "1", agrees=repr(difference + share), contradicts="-0.5"))
    assert report.statements[0].verdict == verdict


def test_every_pair_must_agree_and_one_contradicts(tmp_path: Path) -> None:
    """The mean over points hides the one that says the opposite: points 1 and 4 below 2, of which 1 is above it."""
    keys = {"agrees": "0.001", "contradicts": "0.0"}
    both = stated("each is slower than two nodes", "[1, 4]", "2", **keys)
    some = stated("up to so much slower than two nodes", "[1, 4]", "2", **keys, pairs='"some"')
    assert [one.verdict for one in with_statements(tmp_path, both, some).statements] == ["contradicts", "agrees"]


@pytest.mark.parametrize(
    "keys",
    [
        {"agrees": "0.1", "contradicts": "0.1"},
        {"agrees": "0.1", "contradicts": "0.2"},
        {"agrees": "1.5", "contradicts": "0.0"},
        {"agrees": "0.1", "contradicts": "0.05", "relation": '"alike"'},
        {"agrees": "-0.1", "contradicts": "0.05", "relation": '"alike"'},
    ],
)
def test_a_statement_that_cannot_fail_is_refused(tmp_path: Path, keys: dict[str, str]) -> None:
    with pytest.raises(DocumentError, match="agrees"):
        with_statements(tmp_path, stated("t", "2", "1", **keys))


def test_a_study_is_answered_before_anything_else(tmp_path: Path) -> None:
    report = with_statements(tmp_path, stated("t", "2", "1", agrees="0.1", contradicts="0.0"))
    kinds = [finding.is_answer for finding in report.findings]
    assert kinds[0]
    assert kinds == sorted(kinds, reverse=True)


@pytest.mark.parametrize("name", [name for name, path in shipped().items() if load(path).answers])
def test_answers_of_shipped_studies_meet_their_points(name: str) -> None:
    """A figure without a point would leave the whole sentence out of every report."""
    file = load(shipped()[name])
    studies = [open_study(CATALOG, name, is_measured=way) for way in (False, True) if way is False or file.measure]
    for answer in file.answers:
        assert any(all(study.matching(figure.where) for figure in answer.figures.values()) for study in studies), (
            answer.text
        )


def test_an_error_of_a_whole_is_a_plain_number() -> None:
    texts = [finding.text for finding in predicted_report(CATALOG, open_study(CATALOG, "hpc-r1")).findings]
    assert any("100 % at worst" in text for text in texts)
    assert not [text for text in texts if "e+" in text]
