"""The gate of `validate`: no score of the shipped rows gets worse unseen."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import scalewright
from scalewright.errors import DocumentError
from scalewright.planner.validation.recorded import (
    BETTER,
    compare_scores,
    read_scores,
    record_scores,
    recorded_scores_path,
)

Cli = Callable[..., subprocess.CompletedProcess[str]]

ROWS_PER_KEPT = 4

RECORDED = {
    "balanced_mape_frac": 0.10,
    "median_ape_frac": 0.06,
    "spearman": 0.90,
    "pairwise_accuracy_frac": 0.90,
    "memory_allocated_mape_frac": 0.03,
    "memory_reserved_mape_frac": 0.09,
    "memory_device_mape_frac": 0.06,
    "num_oom_missed": 1.0,
    "coverage_frac": 0.91,
    "winkler_frac": 0.6,
    "num_expressed": 820.0,
    "num_false_alarms": 100.0,
}


def moved(**scores: float | None) -> list[tuple[str, bool]]:
    return [(c.name, c.is_worse) for c in compare_scores(RECORDED, {**RECORDED, **scores})]


def test_same_scores_say_nothing() -> None:
    assert moved() == []


@pytest.mark.parametrize(
    "scores",
    [
        {"balanced_mape_frac": 0.1019},  # 2 % of 0.10 is 0.002
        {"balanced_mape_frac": 0.0981},
        {"memory_allocated_mape_frac": 0.0319},  # 2 % would be 0.0006: the absolute margin rules
        {"spearman": 0.883},
        {"num_false_alarms": 102},
        {"coverage_frac": 0.885},  # 0.015 below the promise
        {"coverage_frac": 0.99},  # wider is neither better nor worse
    ],
    ids=str,
)
def test_margin_is_two_percent_or_two_thousandths(scores: dict[str, float]) -> None:
    assert moved(**scores) == []


@pytest.mark.parametrize(
    "scores",
    [
        {"balanced_mape_frac": 0.1021},
        {"median_ape_frac": 0.0621},
        {"memory_allocated_mape_frac": 0.0321},
        {"spearman": 0.881},
        {"pairwise_accuracy_frac": 0.5},
        {"coverage_frac": 0.86},
        {"num_expressed": 819},  # no margin: rows left out make the others look better
        {"num_false_alarms": 103},
        {"spearman": None},
    ],
    ids=str,
)
def test_worse_than_the_margin_is_named_in_one_sentence(scores: dict[str, float | None]) -> None:
    (name,) = scores
    assert moved(**scores) == [(name, True)]
    (change,) = compare_scores(RECORDED, {**RECORDED, **scores})
    assert change.sentence.startswith(f"{name} got worse")
    assert change.sentence.endswith(".")
    assert "\n" not in change.sentence


def test_better_scores_are_said_after_the_worse_ones() -> None:
    assert moved(balanced_mape_frac=0.08, spearman=0.5) == [("spearman", True), ("balanced_mape_frac", False)]
    assert moved(num_expressed=821) == [("num_expressed", False)]


def test_every_score_is_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    record_scores(path, {**RECORDED, "num_rows": 833})
    assert read_scores(path) == RECORDED
    assert next(iter(json.loads(path.read_text()).items())) == ("schema", "scalewright.recorded-scores/1")


@pytest.mark.parametrize("value", [None, "0.1", True])
def test_record_without_a_number_is_refused_by_name(tmp_path: Path, value: object) -> None:
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps({"schema": "scalewright.recorded-scores/1", **RECORDED, "spearman": value}))
    with pytest.raises(DocumentError, match="spearman"):
        read_scores(path)


def test_shipped_record_is_whole() -> None:
    assert set(read_scores(recorded_scores_path())) == set(BETTER)


def test_own_rows_are_not_held_to_the_record(cli: Cli, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text((recorded_scores_path().parent / "training_runs.jsonl").read_text().splitlines()[0] + "\n")
    done = cli("validate", str(rows))
    assert (done.returncode, done.stderr) == (0, "")
    refused = cli("validate", str(rows), "--record")
    assert refused.returncode == 2
    assert "leave the file out" in refused.stderr


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with some of the published rows, so that its record can be changed."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(Path(scalewright.__file__).parent, folder / "scalewright")
    for path in (folder / "scalewright" / "catalog" / "data" / "published").glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[::ROWS_PER_KEPT]))
    return folder


def test_gate_and_record_from_outside(copied: Path) -> None:
    """A record too good to hold fails and names the score; --record writes what was found, and then it holds."""

    def validate(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "scalewright", "validate", *args]
        return subprocess.run(command, cwd=copied, capture_output=True, text=True, check=False)

    record = copied / "scalewright" / "catalog" / "data" / "published" / "recorded_scores.json"
    body = json.loads(record.read_text())
    record.write_text(json.dumps({**body, "balanced_mape_frac": 0.01, "num_expressed": 1}))
    failed = validate("--json")
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["schema"] == "scalewright.validation/1"
    lines = failed.stderr.splitlines()
    assert any(line.startswith("balanced_mape_frac got worse") for line in lines)
    assert any(line.startswith("num_expressed got better, from 1 to") for line in lines)
    written = validate("--record")
    assert (written.returncode, written.stderr) == (0, "")
    assert json.loads(record.read_text())["num_expressed"] > 1
    assert [p.name for p in record.parent.iterdir() if p.suffix == ".tmp"] == []
    held = validate()
    assert (held.returncode, held.stderr) == (0, "")
