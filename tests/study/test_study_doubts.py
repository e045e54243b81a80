"""A measured point carries what makes its figure doubtful, from the run's own files to every form of the report."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scalewright.observe.collect import collect
from scalewright.records import metric_names as names
from scalewright.records.documents import document
from scalewright.records.measurements import Measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import Doubt, MetricShown, Number, PointRow, StudyReport
from scalewright.report.study.files import latex, long_rows, markdown
from scalewright.report.study.page import page
from scalewright.report.study.table import print_study
from scalewright.run.steady import steady_state
from scalewright.study.doubts import doubts_of_measurements, doubts_of_training, fewer_repeats, merged, outside_interval
from scalewright.study.metrics import METRICS

STEP_S = 0.1


def run_of(
    folder: Path, *, num_steps: int = 10, others: float | None = 0.0, verdict: str = "steady: all", device: str = "cpu",
    node: str = "", throttles: float = 0.0,
) -> RunDirectory:  # fmt: skip
    """A run directory with ten steps asked for, as the ranks and the executor leave it."""
    run = RunDirectory.create_or_resume(
        folder / "run", document("language-run", {"steps": 10, "device": device, "num_ranks": 1})
    )
    events = [_event(step, names.STEP_TIME, STEP_S) for step in range(num_steps)]
    events.append(_event(0, names.EVENT_STEADY, STEP_S, detail=verdict))
    run.rank_events(0).write_text("".join(events))
    if node:
        run.node_events("n1").write_text(node)
    if others is not None:
        attempt = {"others_cores": others, "num_cores": 2, "num_throttles": throttles, "took_s": 9.0}
        run.conditions.write_text(json.dumps(document("run-conditions", {"attempts": [attempt]})))
    return run


def _event(step: int, name: str, value: float, *, detail: str = "") -> str:
    body: dict[str, Any] = {"time": 1.0 + step, "job": "j", "rank": 0, "host": "n1", "step": step, "name": name}
    return json.dumps({**body, "unit": "s", "value": value, "detail": detail}) + "\n"


def sorts(run: RunDirectory) -> list[str]:
    return [doubt.sort for doubt in doubts_of_training(collect(run))]


def test_a_run_where_all_was_well_has_none(tmp_path: Path) -> None:
    assert sorts(run_of(tmp_path, others=0.05)) == []


@pytest.mark.parametrize(
    ("options", "sort", "words"),
    [
        ({"others": 1.2}, "busy", "1.2 of 2 cores"),
        ({"num_steps": 7}, "fewer", "7 of 10 steps"),
        ({"throttles": 4.0}, "throttled", "4 times"),
        ({"node": _event(-1, names.GPU_SLOWED, 1.0), "device": "cuda"}, "throttled", "lowered its clock"),
        ({"verdict": "not steady: halves differ by 30.0 %"}, "unsteady", "halves differ by 30.0 %"),
    ],
)
def test_each_reason_is_found_with_its_numbers(tmp_path: Path, options: dict[str, Any], sort: str, words: str) -> None:
    (doubt,) = doubts_of_training(collect(run_of(tmp_path, **options)))
    assert doubt.sort == sort
    assert words in doubt.text


def test_the_detectors_own_words_are_understood(tmp_path: Path) -> None:
    drifting = steady_state([STEP_S * (1 + step / 20) for step in range(40)], "steady")
    assert not drifting.is_steady
    assert sorts(run_of(tmp_path, verdict=drifting.verdict)) == ["unsteady"]


def test_a_gpus_host_may_be_used_by_others(tmp_path: Path) -> None:
    assert sorts(run_of(tmp_path, others=0.5, device="cuda")) == []


def test_load_before_a_run_counts_only_without_conditions(tmp_path: Path) -> None:
    """In a study the minute before is full of the study's own last point."""
    busy = _event(-1, names.EVENT_BUSY, 1.0, detail="this machine was at work in the minute before")
    assert sorts(run_of(tmp_path / "kept", others=0.0, node=busy)) == []
    assert sorts(run_of(tmp_path / "not", others=None, node=busy)) == ["busy"]


def test_a_micro_benchmark_tells_of_its_own_device(tmp_path: Path) -> None:
    measurements = Measurements(kind="storage", device={}, versions={}, rows=[], conditions={"throttled": ["too hot"]})
    (doubt,) = doubts_of_measurements(RunDirectory(tmp_path), measurements)
    assert doubt.sort == "throttled"
    assert "too hot" in doubt.text


def test_a_measurement_outside_its_interval_is_reported_with_both_numbers() -> None:
    predicted = Number(value=1.0, low=0.9, high=1.1)
    metric = METRICS["step_time_s"]
    assert outside_interval(metric, predicted, Number(value=1.05)) is None
    assert outside_interval(metric, Number(value=1.0), Number(value=9.0)) is None
    doubt = outside_interval(metric, predicted, Number(value=2.0))
    assert doubt is not None
    assert "2.00 s is above the predicted 900 ms to 1.10 s" in doubt.text


def test_repeats_say_how_many_are_touched() -> None:
    busy = (Doubt(sort="busy", text="others"),)
    assert merged([busy]) == busy
    (doubt,) = merged([busy, (), busy])
    assert doubt.text == "in 2 of 3 repeats: others"
    assert fewer_repeats(3, 3) == ()
    assert "2 of 3" in fewer_repeats(2, 3)[0].text


def report(*doubts: Doubt) -> StudyReport:
    metric = MetricShown(name="step_time_s", title="step time", unit="s", quantity="time", better="lower")
    points = tuple(
        PointRow(
            id=f"p{n}",
            labels={"ranks": str(n)},
            measured={"step_time_s": Number(value=float(n))},
            doubts=doubts_of_point,
        )
        for n, doubts_of_point in ((1, ()), (2, doubts))
    )
    return StudyReport(
        study="s",
        title="S",
        question="q",
        created="now",
        version="0",
        axes=("ranks",),
        metrics=(metric,),
        points=points,
    )


def printed(study_report: StudyReport) -> str:
    text = io.StringIO()
    print_study(Console(width=80, file=text), study_report)
    return text.getvalue()


def test_every_form_has_the_mark_and_its_reason() -> None:
    doubtful = report(Doubt(sort="busy", text="other work had 1.2 of 2 cores"), Doubt(sort="unsteady", text="drifting"))
    text = printed(doubtful)
    assert re.search(r"^2 +2\.00 s +bu", text, re.MULTILINE)
    assert "b: other work had 1.2 of 2 cores" in text
    assert max(map(len, text.splitlines())) <= 80
    lines = markdown(doubtful)
    assert "| 2 | 2.00 s | bu |" in lines
    assert "- b: other work had 1.2 of 2 cores" in lines
    assert r"2 & 2 & bu \\" in latex(doubtful)
    html = page(doubtful)
    assert "other work had 1.2 of 2 cores" in html
    assert ">bu</td>" in html
    assert doubtful.document()["points"][1]["doubts"][0] == {"sort": "busy", "text": "other work had 1.2 of 2 cores"}
    assert [row["doubt"] for row in long_rows(doubtful)] == ["", "busy, unsteady"]


def test_a_report_without_doubts_has_no_marks() -> None:
    undoubted = report()
    for text in (printed(undoubted), markdown(undoubted), latex(undoubted)):
        assert "mark" not in text.lower()
    assert "in doubt" not in re.sub(r"<script>.*", "", page(undoubted), flags=re.DOTALL)
