"""The report of a pipeline in files: stages beside their predictions, plots, thinned curves, answers to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import Cli
from tests.pipeline_cases import STUDY, record, write_finished

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.records.documents import document, write_document
from scalewright.records.reasoning import RolloutLine
from scalewright.study.pipeline.opening import open_measured
from scalewright.study.pipeline.shown import MAX_ANSWERS, answers_to_read, thinned
from scalewright.study.store import Store

PREDICTION = {
    "training_time_s": 80.0,
    "training_time_interval_s": [60.0, 100.0],
    "seconds_by_part": {"generation": 50.0, "training": 30.0},
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, shared_cli: Cli) -> Path:
    """Two seeds of the first two stages."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "mine.toml").write_text(STUDY.replace("seeds = [0]", "seeds = [0, 1]"))
    study, results = open_measured(Catalog((packaged_data(),)), str(folder / "mine.toml"), folder / "results")
    store, pipeline = Store.create_or_resume(results, study), study.pipeline
    assert pipeline is not None
    for run in pipeline.runs[:4]:
        stage = record(run.name, 185 + run.seed if run.name == "sft" else 240 - run.seed, seed=run.seed, energy_j=9e3)
        directory = write_finished(store.run_of(run.point, 0).path, stage)
        write_document(directory.prediction, document("prediction", PREDICTION))
    done = shared_cli("study", "report", "mine.toml", "--results", "results", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    return results / "report"


def test_findings_compare_each_stage_with_the_one_it_follows_over_all_seeds(report: Path) -> None:
    texts = [finding["text"] for finding in json.loads((report / "report.json").read_text())["findings"]]
    sft, grpo = (next(text for text in texts if text.startswith(f"{name} reaches")) for name in ("sft", "grpo"))
    assert sft == "sft reaches 37.1 % greedy accuracy in the mean of 2 seeds"
    assert grpo.startswith("grpo reaches 47.9 % greedy accuracy in the mean of 2 seeds, 10.8 points above sft (95 %")


def test_stages_have_their_prediction_beside_them(report: Path) -> None:
    stages = json.loads((report / "report.json").read_text())["pipeline"]["stages"]
    assert [(stage["name"], stage["seed"]) for stage in stages[:4]] == [
        ("sft", 0),
        ("sft", 1),
        ("grpo", 0),
        ("grpo", 1),
    ]
    assert stages[2]["predicted_s"] == {"value": 80.0, "low": 60.0, "high": 100.0}
    table = (report / "report.md").read_text()
    assert "| sft, seed 0 | sft, seed 1 | grpo, seed 0 | grpo, seed 1 |" in table
    assert "60.0 s to 100 s" in table
    assert "| measured over predicted | 0.52 | 0.52 | 1.31 | 1.31 |" in table


def test_every_plot_is_written_as_svg_png_and_pdf(report: Path) -> None:
    names = {path.stem for path in (report / "plots").iterdir()}
    assert {"stages_accuracy", "stages_time", "stages_energy", "stages_roofline", "curves_sft"} <= names
    assert {path.suffix for path in (report / "plots").iterdir() if path.stem == "stages_time"} == {
        ".svg", ".png", ".pdf",
    }  # fmt: skip


@pytest.mark.parametrize("num", [0, 1, 9, 10, 11, 1000])
def test_a_long_curve_keeps_its_first_and_its_last_step(num: int) -> None:
    kept = thinned(range(num), 10)
    assert len(kept) <= 10
    assert kept[:1] + kept[-1:] == ([] if not num else [0, num - 1])
    assert kept == sorted(set(kept))


def test_answers_to_read_are_right_and_wrong_ones_of_early_and_late_steps() -> None:
    lines = [
        RolloutLine(
            step=step, problem="p", prompt="q", answer="a", reward=0.0, is_correct=number == 0, why="", num_tokens=1
        )
        for step in range(20) for number in range(8)
    ]  # fmt: skip
    shown = answers_to_read(lines)
    assert len(shown) == MAX_ANSWERS
    assert {answer.step for answer in shown} == {0, 10, 19}
    assert sum(answer.is_correct for answer in shown) == 3
    assert answers_to_read([]) == ()
