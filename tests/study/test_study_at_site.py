"""A study's points laid out as jobs of a site, without a scheduler: shapes, caps, order, limits, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import Cli, Refused

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import ConfigError
from scalewright.launch.graph.budget import OverBudgetError
from scalewright.launch.graph.graph import Graph
from scalewright.launch.graph.job_scripts import graph_job_scripts
from scalewright.launch.graph.manifest import LaunchFolder
from scalewright.launch.slurm.job_state import JobState
from scalewright.records.documents import document
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.sites.loader import find_site
from scalewright.sites.types import Site
from scalewright.study.measure import tries
from scalewright.study.points import Study, open_study
from scalewright.study.site_run import InQueue, check_gpu_hours, graph_of, key_of
from scalewright.study.status import status_of
from scalewright.study.store import Store

CATALOG = Catalog((packaged_data(),))
LEONARDO = find_site("leonardo", None)
STUDY = """
schema = "scalewright.study/1"
id = "mine"
title = "Mine"
question = "How far?"
kind = "language"

[matrix]
copies = [1, 4, 8, 16]
layers = [1, 2]

[point]
model = "layers={layers},hidden=16,heads=1,seq=16,vocab=32"
layout = "dp={copies},mbs=1,gbs=16"

[measure]
where = "site"
site = "leonardo"
repeats = 2

[measure.job]
time = "00:30:00"
account = "proj"
"""


def laid(tmp_path: Path, text: str = STUDY, site: Site = LEONARDO, after: tuple[str, ...] = ()) -> Graph:
    study, store = opened(tmp_path, text)
    return graph_of(study, store, list(tries(study)), site, catalog=None, after=after)


def opened(tmp_path: Path, text: str = STUDY) -> tuple[Study, Store]:
    (tmp_path / "mine.toml").write_text(text)
    study = open_study(CATALOG, str(tmp_path / "mine.toml"), is_measured=True)
    return study, Store.create_or_resume(tmp_path / "results", study)


def test_alike_points_share_an_array_and_shapes_follow_each_other(tmp_path: Path) -> None:
    graph = laid(tmp_path)
    assert {name: (s.num_nodes, s.gpus_per_node, s.num_items, s.width) for name, s in graph.jobs.items()} == {
        "1x1": (1, 1, 4, 1), "1x4": (1, 4, 4, 1), "2x4": (2, 4, 4, 1), "4x4": (4, 4, 4, 1),
    }  # fmt: skip
    assert [dict(s.after) for s in graph.jobs.values()] == [{}, {"1x1": "any"}, {"1x4": "any"}, {"2x4": "any"}]
    repeats = [item.partition("/")[2] for item in graph.jobs["2x4"].items]
    assert repeats == ["0", "0", "1", "1"], "a machine that drifts does so for every point alike"


def test_concurrent_raises_the_cap_and_nothing_else(tmp_path: Path) -> None:
    graph = laid(tmp_path, STUDY.replace("repeats = 2", "repeats = 2\nconcurrent = 3"))
    assert {s.width for s in graph.jobs.values()} == {3}
    assert [len(s.after) for s in graph.jobs.values()] == [0, 1, 1, 1]


def test_every_script_checks_its_nodes_first_and_waits_for_earlier_jobs(tmp_path: Path) -> None:
    graph = laid(tmp_path, after=("7", "8"))
    scripts = {
        name: graph_job_scripts(graph, job, LaunchFolder(tmp_path / "jobs"), LEONARDO, 1000)[0].text
        for name, job in graph.jobs.items()
    }
    for name, text in scripts.items():
        assert text.index("scalewright.run preflight") < text.index('"${command[@]}"'), name
        assert "%1" in text.split("--array=")[1].splitlines()[0]
        assert '-m scalewright study point "${item}" --results' in text
        assert "#SBATCH --account=proj" in text
    assert "#SBATCH --dependency=afterany:7:8" in scripts["1x1"]
    assert "--dependency" not in scripts["2x4"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[1, 4, 8, 16]", "[6, 5]", "5 ranks, which do not spread evenly over 2 nodes of 4"),
        ('kind = "language"', 'kind = "emulated"', "does not run as a job"),
    ],
)
def test_what_no_job_can_run_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        laid(tmp_path, STUDY.replace(old, new))


def test_a_site_that_says_nothing_of_its_nodes_needs_the_number(tmp_path: Path) -> None:
    generic = find_site("generic", None)
    with pytest.raises(ConfigError, match=r"gpus_per_node under \[measure.job\]"):
        laid(tmp_path, site=generic)
    graph = laid(tmp_path / "", STUDY.replace('account = "proj"', "gpus_per_node = 8"), site=generic)
    assert list(graph.jobs) == ["1x1", "1x4", "1x8", "2x8"]


def test_gpu_hours_are_held_to_by_the_time_limits(tmp_path: Path) -> None:
    graph = laid(tmp_path)
    most = 4 * 0.5 * (1 + 4 + 8 + 16)  # items x hours x GPUs
    check_gpu_hours(graph, [], limit=most)
    check_gpu_hours(graph, [], limit=None)
    with pytest.raises(OverBudgetError, match="58 GPU-hours by their time limits, over the study's 57"):
        check_gpu_hours(graph, [], limit=most - 1)


def test_the_command_refuses_more_gpu_hours_and_submits_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(STUDY.replace("repeats = 2", "gpu_hours_limit = 1.0"))
    done = cli("study", "run", "mine.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "over the study's 1" in done.stderr
    assert not (tmp_path / "results" / "mine" / "jobs").exists()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [("nodes", "2", "job.nodes"), ("time", '"soon"', "soon"), ("walltime", '"1:00:00"', "walltime")],
)
def test_a_wrong_job_table_is_refused(
    cli: Cli, tmp_path: Path, refused: Refused, key: str, value: str, says: str
) -> None:
    text = STUDY.replace('time = "00:30:00"\n', "").replace('account = "proj"', f"{key} = {value}")
    (tmp_path / "mine.toml").write_text(text)
    assert says in refused(cli("study", "check", "mine.toml", cwd=tmp_path))


def test_an_unknown_site_is_named_with_its_key(cli: Cli, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "mine.toml").write_text(STUDY.replace('"leonardo"', '"leonado"'))
    message = refused(cli("study", "check", "mine.toml", cwd=tmp_path))
    assert "mine.toml: key 'measure.site'" in message
    assert "leonardo" in message


def test_wait_is_for_jobs(cli: Cli, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "mine.toml").write_text(STUDY.replace('where = "site"\n', ""))
    assert "--site" in refused(cli("study", "run", "mine.toml", "--wait", cwd=tmp_path))
    assert not (tmp_path / "results").exists()


def test_without_a_scheduler_nothing_is_submitted(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(STUDY)
    (tmp_path / "empty").mkdir()
    done = cli("study", "run", "mine.toml", cwd=tmp_path, env={"PATH": str(tmp_path / "empty")})
    assert done.returncode == 3
    assert "sbatch is not on PATH" in done.stderr
    assert not (tmp_path / "results" / "mine" / "jobs").exists()


def test_a_try_that_is_none_is_refused(cli: Cli, tmp_path: Path, refused: Refused) -> None:
    _, store = opened(tmp_path)
    assert key_of("abc/12") == ("abc", 12)
    with pytest.raises(ConfigError, match="POINT/REPEAT"):
        key_of("abc")
    words = ("study", "point", "0123456789abcdef/0", "--results", str(store.path))
    assert "has no point 0123456789abcdef" in refused(cli(*words, cwd=tmp_path))


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_try_that_an_earlier_attempt_finished_is_left_alone_by_every_rank(
    cli: Cli, tmp_path: Path, rank: str
) -> None:
    study, store = opened(tmp_path)
    config = document("language-run", {"steps": 1})
    run = RunDirectory.create_or_resume(store.run(study.points[0], 0).path, config)
    run.write_exit_info(ExitInfo(code=0, reason="finished", job="1", attempt=0, rank=0, last_checkpoint=None, time=1.0))
    words = ("study", "point", f"{study.points[0].id}/0", "--results", str(store.path))
    done = cli(*words, cwd=tmp_path, env={"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"})
    assert (done.returncode, done.stderr) == (0, "")


def test_the_queue_knows_what_the_folder_does_not(tmp_path: Path) -> None:
    study, store = opened(tmp_path)
    keys = [(tried.point.id, tried.repeat) for tried in tries(study)]
    queue = {
        keys[0]: InQueue(job="5_0", state=JobState.RUNNING, reason=""),
        keys[1]: InQueue(job="5_1", state=JobState.PENDING, reason="JobArrayTaskLimit"),
        keys[2]: InQueue(job="5_2", state=JobState.TIMEOUT, reason=""),
    }
    status = status_of(study, store, queue=queue)
    shown = [(one.state, one.job, one.reason) for one in status.tries[:4]]
    assert shown == [
        ("running", "5_0", ""), ("queued", "5_1", "JobArrayTaskLimit"), ("failed", "5_2", "job 5_2: timeout"),
        ("waiting", "", ""),
    ]  # fmt: skip
    assert status.is_running
    assert not status_of(study, store).is_running
