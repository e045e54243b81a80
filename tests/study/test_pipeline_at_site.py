"""A pipeline as a graph of jobs, without a scheduler: what waits for what, gates, and what is left after a gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import Cli, Refused
from tests.pipeline_cases import STUDY, record, write_finished

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.launch.graph.graph import Graph
from scalewright.launch.graph.outcome import below_gate
from scalewright.sites.loader import find_site
from scalewright.study.measure import tries
from scalewright.study.pipeline.opening import open_measured
from scalewright.study.points import Study
from scalewright.study.site_run import graph_of
from scalewright.study.status import status_of
from scalewright.study.store import Store

CATALOG = Catalog((packaged_data(),))
LEONARDO = find_site("leonardo", None)


def opened(tmp_path: Path, text: str = STUDY, site: str = "leonardo") -> tuple[Study, Store]:
    (tmp_path / "mine.toml").write_text(text)
    study, folder = open_measured(CATALOG, str(tmp_path / "mine.toml"), tmp_path / "results", site=site)
    return study, Store.create_or_resume(folder, study)


def laid(tmp_path: Path, text: str = STUDY) -> Graph:
    study, store = opened(tmp_path, text)
    return graph_of(study, store, list(tries(study)), LEONARDO, catalog=None, after=())


def finish(store: Store, study: Study, name: str, right: int) -> None:
    assert study.pipeline is not None
    for run in study.pipeline.runs_of(name):
        stage = str(study.combinations[study.pipeline.runs.index(run)].options["stage"])
        write_finished(store.run_of(run.point, 0).path, record(stage, right))


def test_stages_are_jobs_that_wait_for_what_they_need_and_for_gates(tmp_path: Path) -> None:
    graph = laid(tmp_path)
    assert {name: dict(job.after) for name, job in graph.jobs.items()} == {
        "sft": {},
        "grpo": {"sft": "ok"},
        "grpo-unmasked": {"sft": "ok", "grpo": "ok"},
        "samples": {"grpo": "ok", "grpo-unmasked": "any"},
        "student": {"grpo": "ok", "samples": "ok"},
    }
    assert {(job.num_nodes, job.gpus_per_node) for job in graph.jobs.values()} == {(1, 2)}, "the profile of many ranks"
    gate = graph.jobs["grpo"].gate
    assert gate is not None
    assert (gate.file, gate.key, gate.min_score) == ("gate.json", "value_frac", 0.05)
    assert graph.waits_for_the_driver() == {"grpo-unmasked", "samples", "student"}


def test_seeds_are_items_that_follow_each_other_one_by_one(tmp_path: Path) -> None:
    text = STUDY.replace("seeds = [0]", "seeds = [0, 1]\nretries = { limit = 2, backoff = '10 s' }").replace(
        'name = "samples"', 'name = "samples"\nseeds = [0]\ntime = "00:10:00"'
    )
    graph = laid(tmp_path, text)
    assert {name: job.num_items for name, job in graph.jobs.items()} == {
        "sft": 2, "grpo": 2, "grpo-unmasked": 2, "samples": 1, "student": 2,
    }  # fmt: skip
    assert dict(graph.jobs["grpo"].after) == {"sft": "corr"}
    assert dict(graph.jobs["samples"].after) == {"grpo": "ok", "grpo-unmasked": "any"}
    assert graph.jobs["samples"].walltime_s == 600
    assert {job.retries.limit for job in graph.jobs.values()} == {2}


def test_a_job_writes_the_figure_that_the_graph_compares(tmp_path: Path, cli: Cli) -> None:
    study, store = opened(tmp_path)
    assert study.pipeline is not None
    finish(store, study, "sft", 185)
    finish(store, study, "grpo", 240)
    folder = tmp_path / "jobs" / "grpo"
    words = ("study", "point", f"{study.pipeline.runs[1].point}/0", "--results", str(store.path))
    done = cli(*words, cwd=tmp_path, env={"SCALEWRIGHT_RUN_DIR": str(folder), "SLURM_ARRAY_TASK_ID": "0"})
    assert (done.returncode, done.stderr) == (0, "")
    body = json.loads((folder / "task-0" / "gate.json").read_text())
    assert body["value_frac"] == pytest.approx(0.11)
    gate = laid(tmp_path).jobs["grpo"].gate
    assert gate is not None

    class Job:
        def folder(self, task: int) -> Path:
            return folder / f"task-{task}"

    assert below_gate(Job(), 0, gate) == ""  # type: ignore[arg-type]


def test_stages_after_a_gate_that_was_not_passed_are_skipped_in_status_and_report(tmp_path: Path, cli: Cli) -> None:
    study, store = opened(tmp_path, site="")
    finish(store, study, "sft", 185)
    finish(store, study, "grpo", 190)
    assert [one.state for one in status_of(study, store).tries] == ["finished"] * 2 + ["skipped"] * 3
    status = cli("study", "status", "mine.toml", "--results", "results", cwd=tmp_path)
    assert (status.returncode, status.stdout.count("the gate after grpo was not")) == (0, 3)
    done = cli("study", "run", "mine.toml", "--out", "results", "--no-plots", cwd=tmp_path)
    assert done.returncode == 1
    assert (
        "grpo: greedy accuracy rose by 1.0 points (-5.0 to 7.0) over sft; the gate asks for at least 5" in done.stderr
    )
    assert "grpo-unmasked, samples, student skipped: the gate after grpo was not passed" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    report = json.loads((tmp_path / "results" / "report" / "report.json").read_text())
    states = [stage["state"] for stage in report["pipeline"]["stages"]]
    assert states == ["finished", "finished", "skipped", "skipped", "skipped"]
    assert "## Stages" in (tmp_path / "results" / "report" / "report.md").read_text()


def test_results_keep_their_sizes_and_a_budget_has_its_own_folder(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    study, store = opened(tmp_path)
    again, _ = open_measured(CATALOG, str(tmp_path / "mine.toml"), store.path)
    assert again.id == study.id, "the profile of the site, not of this machine"
    small, folder = open_measured(CATALOG, str(tmp_path / "mine.toml"), budget="4 min")
    assert (folder, len(small.points)) == (Path("results/mine-4min"), 2)
    words = ("study", "run", "mine.toml", "--out", "results", "--budget")
    assert "with no budget, not 4 min: choose another folder" in refused(cli(*words, "4 min", cwd=tmp_path))
    assert "--budget" in refused(cli(*words, "soon", cwd=tmp_path))
    assert "above zero" in refused(cli(*words, "0 s", cwd=tmp_path))
    quick = cli("study", "run", "quick", "--budget", "4 min", cwd=tmp_path)
    assert "--budget makes a pipeline smaller, and quick has none" in refused(quick)
