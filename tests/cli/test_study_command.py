"""`scalewright study` as a user runs it: answers, files, and what is refused with nothing lost."""

from __future__ import annotations

import csv
import fcntl
import json
from pathlib import Path

import pytest
from tests.conftest import Cli, Refused

STUDY = """
schema = "scalewright.study/1"
id = "mine"
title = "Mine"
question = "How far?"
kind = "language"

[matrix]
system = ["lumi", "leonardo"]
nodes = [1, 2, 4, 8]

[derive]
dp = "nodes * gpus_per_node"

[point]
model = "gpt2-medium"
system = "{system}"
layout = "dp={dp},mbs=1,gbs={dp}"

[scaling]
over = "nodes"
groups = ["system"]
metric = "tokens_per_s_per_gpu"

[measure]
repeats = 1

[measure.matrix]
system = ["here"]
nodes = [1]

[measure.point]
model = "layers=1,hidden=16,heads=1,seq=16,vocab=32"
layout = "dp=1,mbs=2,gbs=2"
device = "cpu"
steps = 8
"""
TWO_POINTS = """
[measure.matrix]
system = ["discoverer"]
nodes = [1, 2]

[[measure.choose]]
values = { limit = "10 min" }

[[measure.choose]]
where = { nodes = 2 }
values = { limit = "1 ms" }

[measure.derive]
gbs = "nodes * 2"

[measure.point]
model = "layers=1,hidden=16,heads=1,seq=16,vocab=32"
system = "{system}"
layout = "dp={nodes},mbs=2,gbs={gbs}"
device = "cpu"
steps = 8
budget = "{limit}"
"""
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(STUDY)
    return tmp_path


def test_list_names_the_shipped_studies_and_ones_own(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "mine.toml").write_text(STUDY)
    (tmp_path / "studies" / "broken.toml").write_text("this is = not [ toml")
    rows = json.loads(cli("study", "list", "--json", cwd=tmp_path).stdout)["studies"]
    assert {row["id"] for row in rows} >= {
        "quick", "epicure-vision", "epicure-language", "interconnect", "frontier-tuning", "storage", "hpc-r1",
        "ring-1t", "mine", "broken",
    }  # fmt: skip


def test_predict_prints_points_and_writes_every_form(cli: Cli, folder: Path) -> None:
    done = cli("study", "predict", "mine.toml", "--out", "report", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "lumi" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    written = {path.name for path in (folder / "report").iterdir()}
    assert written == {"index.html", "report.json", "report.md", "points.csv", "points.parquet", "table.tex", "plots"}
    report = json.loads((folder / "report" / "report.json").read_text())
    with (folder / "report" / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    for point in report["points"]:
        mine = [row for row in rows if row["point"] == point["id"] and row["metric"] == "step_time_s"]
        assert [float(row["value"]) for row in mine] == [point["predicted"]["step_time_s"]["value"]]
    efficiency = [p["predicted"]["efficiency_frac"]["value"] for p in report["points"] if p["labels"]["nodes"] == "1"]
    assert efficiency == [1.0, 1.0]


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_predicted(
    cli: Cli, folder: Path, refused: Refused
) -> None:
    before = sorted(path.name for path in folder.iterdir())
    done = cli("study", "predict", "mine.toml", "--out", "mine.toml/report", cwd=folder)
    assert done.stdout == ""
    assert "mine.toml/report: cannot be written: Not a directory; choose another place" in refused(done)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_plots_are_for_print(cli: Cli, folder: Path) -> None:
    cli("study", "predict", "mine.toml", "--out", "report", cwd=folder)
    kinds = {path.suffix for path in (folder / "report" / "plots").iterdir()}
    assert kinds == {".svg", ".png", ".pdf"}


def test_texts_of_a_study_come_out_inert(cli: Cli, folder: Path) -> None:
    text = STUDY.replace('"Mine"', json.dumps(HOSTILE)).replace('"How far?"', json.dumps(f"=1+1 | {HOSTILE}"))
    (folder / "mine.toml").write_text(text)
    done = cli("study", "predict", "mine.toml", "--out", "report", "--no-plots", cwd=folder)
    assert done.returncode == 0, done.stderr
    page = (folder / "report" / "index.html").read_text()
    assert "<img" not in page
    assert page.count("<script") == 2  # data and code, both ours
    assert "<script" not in (folder / "report" / "report.md").read_text()


def test_check_says_how_many_points_there_are(cli: Cli, folder: Path) -> None:
    done = cli("study", "check", "mine.toml", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "mine.toml: 8 points, 1 to measure, 0 published figures\n")


def test_the_study_of_a_coarse_engine_can_be_run(cli: Cli, tmp_path: Path) -> None:
    done = cli("study", "check", "icepop", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 stages for cpu" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("title =", 'tilte = "x"\ntitle =', "tilte"),
        ('"lumi"', '"lumy"', "lumy"),
        ("nodes = [1, 2, 4, 8]", "nodes = []", "matrix.nodes"),
        ("study/1", "study/9", "newer"),
        ("repeats = 1", "repeats = 0", "measure.repeats"),
        ("repeats = 1", 'time_limit = "soon"', "soon"),
    ],
)
def test_a_wrong_study_is_refused(cli: Cli, folder: Path, refused: Refused, old: str, new: str, says: str) -> None:
    (folder / "mine.toml").write_text(STUDY.replace(old, new))
    message = refused(cli("study", "check", "mine.toml", cwd=folder))
    assert "mine.toml" in message
    assert says in message


def test_an_unknown_study_names_the_nearest(cli: Cli, tmp_path: Path, refused: Refused) -> None:
    assert "epicure-vision" in refused(cli("study", "predict", "epicure-vison", cwd=tmp_path))


def test_results_of_another_study_are_left_alone(cli: Cli, folder: Path, refused: Refused) -> None:
    other = folder / "results"
    other.mkdir()
    (other / "study.json").write_text(
        json.dumps({"schema": "scalewright.study-results/1", "study": "other", "id": "x"})
    )
    before = (other / "study.json").read_bytes()
    assert "'other'" in refused(cli("study", "run", "mine.toml", "--out", "results", cwd=folder))
    (other / "study.json").write_text('{"schema": "scalewright.study-results/1", "st')
    assert "not valid JSON" in refused(cli("study", "run", "mine.toml", "--out", "results", cwd=folder))
    (other / "study.json").write_bytes(before)
    assert sorted(path.name for path in other.iterdir()) == ["study.json"]


def test_a_folder_of_something_else_is_refused(cli: Cli, folder: Path, refused: Refused) -> None:
    (folder / "photos").mkdir()
    (folder / "photos" / "cat.jpg").write_text("meow")
    assert "cat.jpg" in refused(cli("study", "run", "mine.toml", "--out", "photos", cwd=folder))
    assert [path.name for path in (folder / "photos").iterdir()] == ["cat.jpg"]


def test_no_permission_is_the_machines_fault(cli: Cli, folder: Path) -> None:
    done = cli("study", "run", "mine.toml", "--out", "/proc/results", cwd=folder)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.ranks
def test_run_measures_resumes_and_compares(cli: Cli, folder: Path, refused: Refused) -> None:
    done = cli("study", "run", "mine.toml", "--out", "a", "--no-plots", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "1 of 1" in done.stderr
    report = json.loads((folder / "a" / "report" / "report.json").read_text())
    (point,) = report["points"]
    assert point["measured"]["step_time_s"]["value"] > 0
    assert point["predicted"]["step_time_s"]["low"] < point["predicted"]["step_time_s"]["high"]
    (config,) = (folder / "a").glob("runs/*/repeat-0/config.json")
    before = config.stat().st_mtime_ns
    again = cli("study", "run", "mine.toml", "--out", "a", "--no-plots", cwd=folder)
    assert again.returncode == 0
    assert config.stat().st_mtime_ns == before
    status = json.loads(cli("study", "status", "mine.toml", "--results", "a", "--json", cwd=folder).stdout)
    assert [(one["state"], one["done"], one["total"]) for one in status["tries"]] == [("finished", 8, 8)]
    assert cli("study", "diff", "a", "a", cwd=folder).returncode == 0
    with (folder / "a" / ".lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "already running here" in refused(cli("study", "run", "mine.toml", "--out", "a", cwd=folder))


@pytest.mark.ranks
def test_a_point_that_fails_says_why_and_the_rest_goes_on(cli: Cli, folder: Path) -> None:
    head, _, _ = STUDY.partition("[measure]")
    (folder / "mine.toml").write_text(head + TWO_POINTS)
    done = cli("study", "run", "mine.toml", "--out", "a", "--no-plots", cwd=folder)
    assert done.returncode == 1, done.stderr
    report = json.loads((folder / "a" / "report" / "report.json").read_text())
    first, second = report["points"]
    assert first["measured"]
    assert not second["measured"]
    assert "over the budget" in second["measured_problem"]


def test_show_has_the_question_and_the_command_to_type_next(cli: Cli) -> None:
    quick = cli("study", "show", "quick").stdout
    assert "How close is the prediction?" in " ".join(quick.split())
    assert quick.splitlines()[-2:] == [
        "measure it: scalewright study run quick",
        "predict it: scalewright study predict quick (after scalewright calibrate)",
    ]
    assert cli("study", "show", "hpc-r1").stdout.splitlines()[-2:] == [
        "predict it: scalewright study predict hpc-r1",
        "measure it: scalewright study run hpc-r1",
    ]
