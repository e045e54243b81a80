"""`scalewright jobs` against small stand-ins of Slurm's commands: what is asked, what is kept, what is said."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scalewright.launch.graph.manifest import LaunchFolder

if TYPE_CHECKING:
    from tests.conftest import Cli, Refused

# A scheduler of text files: sbatch counts up, squeue prints what a test wrote into `queue`; all keep what was asked.
SBATCH = """\
n=$(($(cat "$F/last" 2>/dev/null || echo 100) + 1)); echo $n >"$F/last"; echo $n
"""
SQUEUE = """\
case "$*" in *--version*) echo slurm-wlm 22.05.8; exit;; esac
if [ -e "$F/away" ]; then
    rm "$F/away"; echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1
fi
case "$*" in *%F\\|%k*) cat "$F/tags" 2>/dev/null; exit 0;; esac
if [ -e "$F/queue" ]; then cat "$F/queue"; else echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; fi
"""
SACCT = "echo 'Slurm accounting storage is disabled' >&2; exit 1\n"


@pytest.fixture
def fake(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in {"sbatch": SBATCH, "squeue": SQUEUE, "sacct": SACCT, "scancel": "exit 0\n"}.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nF={folder}\necho "{name} $*" >>$F/calls\n{body}')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder, {"PATH": f"{folder}:{os.environ['PATH']}"}


def graph_file(folder: Path, body: str) -> str:
    (folder / "job.sh").write_text("#!/bin/sh\n")
    path = folder / "graph.toml"
    path.write_text(f'schema = "scalewright.graph/1"\nname = "g"\n{body}')
    return str(path)


TWO = '[jobs.a]\nscript = "job.sh"\n[jobs.b]\nscript = "job.sh"\nitems = ["x", "y"]\nafter = {a = "ok"}\n'


def test_submit_writes_the_graph_and_the_jobs(cli: Cli, fake: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, env = fake
    done = cli("jobs", "submit", graph_file(tmp_path, TWO), "--out", str(tmp_path / "l"), env=env)
    assert done.returncode == 0, done.stderr
    first, second = [line for line in (folder / "calls").read_text().splitlines() if line.startswith("sbatch")]
    assert "--dependency" not in first
    assert "--array=0-1%2 --dependency=afterok:101 --kill-on-invalid-dep=yes" in second
    jobs = LaunchFolder(tmp_path / "l").read().slurm_jobs
    assert [(job.id, job.graph_job, job.tasks) for job in jobs] == [("101", "a", ""), ("102", "b", "0-1")]
    assert len({job.tag for job in jobs}) == 2
    assert all(f"--comment=scalewright:{job.tag}" in text for job, text in zip(jobs, (first, second), strict=True))
    assert json.loads((tmp_path / "l/graph.json").read_text())["schema"] == "scalewright.resolved-graph/1"
    again = cli("jobs", "submit", graph_file(tmp_path, TWO), "--out", str(tmp_path / "l"), env=env)
    assert (again.returncode, "holds a launch already" in again.stderr) == (2, True)


def test_scheduler_that_is_away_is_asked_again(cli: Cli, fake: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, env = fake
    cli("jobs", "submit", graph_file(tmp_path, TWO), "--out", str(tmp_path / "l"), env=env)
    (folder / "queue").write_text("101|N/A|RUNNING|n1|0:10|None|x\n102|0-1|PENDING||0:00|Dependency|x\n")
    (folder / "away").touch()
    listed = cli("jobs", "list", str(tmp_path / "l"), env=env)
    assert listed.returncode == 0
    assert "Unable to contact slurm controller" in listed.stderr
    assert "trying again" in listed.stderr
    assert "2 pending (Dependency)" in listed.stdout


def test_forgotten_jobs_are_judged_by_what_they_left(
    cli: Cli, fake: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    _, env = fake
    launch = tmp_path / "l"
    cli("jobs", "submit", graph_file(tmp_path, TWO), "--out", str(launch), env=env)
    (sweep,) = LaunchFolder(launch).read().slurm_jobs_of("b")
    info = {"schema": "scalewright.exit-info/1", "code": 0, "reason": "finished", "job": "7", "attempt": 0, "rank": 0,
            "last_checkpoint": None, "time": 4e9}  # fmt: skip
    ends = {0: info, 1: info | {"code": 1, "reason": "does not fit in memory: use more ranks"}}
    for task, body in ends.items():
        sweep.folder(task).mkdir()
        (sweep.folder(task) / "exit_info.json").write_text(json.dumps(body))
    answer = json.loads(cli("jobs", "list", str(launch), "--json", env=env).stdout)["launches"][0]
    assert answer["jobs"]["b"]["states"] == {"completed": 1, "out-of-memory": 1}
    assert answer["jobs"]["a"]["states"] == {"lost": 1}
    assert not LaunchFolder(launch).read().slurm_jobs[0].states, "a look writes nothing"


def test_intent_without_an_id_is_found_by_its_tag(cli: Cli, fake: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, env = fake
    launch = LaunchFolder(tmp_path / "l")
    cli("jobs", "submit", graph_file(tmp_path, TWO), "--out", str(launch.path), env=env)
    launch.journal.unlink()
    doc = json.loads(launch.manifest.read_text())
    assert [job["id"] for job in doc["slurm_jobs"]] == ["", ""], "intents were written first"
    (folder / "tags").write_text(f"101|scalewright:{doc['slurm_jobs'][0]['tag']}\n")
    (folder / "queue").write_text("101|N/A|RUNNING|n1|0:10|None|x\n")
    resumed = cli("jobs", "resume", str(launch.path), env=env)
    assert resumed.returncode == 0, resumed.stderr
    assert [(job.graph_job, job.id) for job in launch.read().slurm_jobs] == [("a", "101"), ("b", "103")]
    assert "afterok:101" in (folder / "calls").read_text().splitlines()[-1]


def test_ids_survive_a_driver_that_dies_before_the_manifest_is_written(
    cli: Cli, fake: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    _, env = fake
    launch = LaunchFolder(tmp_path / "l")
    cli("jobs", "submit", graph_file(tmp_path, TWO), "--out", str(launch.path), env=env)
    with launch.journal.open("a") as file:
        file.write('{"tag": "half a li')
    assert [job.id for job in launch.read().slurm_jobs] == ["101", "102"]
    launch.write(launch.read())
    assert not launch.journal.exists()
    assert [job.id for job in launch.read().slurm_jobs] == ["101", "102"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d | {"schema": "scalewright.jobs/2"}, "has jobs version 2, newer than 1"),
        (lambda d: d | {"schema": "scalewright.plan/1"}, "is a plan document, where a jobs was expected"),
        (lambda d: {k: v for k, v in d.items() if k != "token"}, "key 'token'"),
        (lambda d: d | {"slurm_jobs": [{"tag": 1}]}, "key 'slurm_jobs.0"),
    ],
)
def test_manifest_of_another_version_is_refused(  # type: ignore[no-untyped-def]
    cli: Cli, fake: tuple[Path, dict[str, str]], tmp_path: Path, refused: Refused, change, words: str
) -> None:
    _, env = fake
    launch = LaunchFolder(tmp_path / "l")
    cli("jobs", "submit", graph_file(tmp_path, TWO), "--out", str(launch.path), env=env)
    launch.manifest.write_text(json.dumps(change(json.loads(launch.manifest.read_text()))))
    before = launch.manifest.read_bytes()
    for command in ("resume", "cancel", "watch", "list"):
        assert words in refused(cli("jobs", command, str(launch.path), env=env))
    assert launch.manifest.read_bytes() == before


def test_old_graph_files_are_refused_with_the_new_name(cli: Cli, tmp_path: Path, refused: Refused) -> None:
    old = graph_file(tmp_path, TWO.replace("[jobs.", "[stages."))
    assert "has [stages.a], the old name of a graph's jobs: write [jobs.a]" in refused(cli("jobs", "submit", old))


def test_launch_of_an_earlier_version_is_continued(cli: Cli, fake: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    """Before, the folder and the keys of a graph's jobs were called stages."""
    _, env = fake
    launch = LaunchFolder(tmp_path / "l")
    cli("jobs", "submit", graph_file(tmp_path, TWO), "--out", str(launch.path), env=env)
    launch.write(launch.read())
    (launch.path / "jobs").rename(launch.path / "stages")
    for path, old_key, new_key in ((launch.graph, "stages", "jobs"), (launch.manifest, "jobs", "slurm_jobs")):
        doc = json.loads(path.read_text().replace('"graph_job"', '"stage"').replace('"ended_s"', '"settled_s"'))
        doc[old_key] = doc.pop(new_key)
        path.write_text(json.dumps(doc))
    assert [job.graph_job for job in launch.read().slurm_jobs] == ["a", "b"]
    assert launch.job("a") == launch.path / "stages/a"
    resumed = cli("jobs", "resume", str(launch.path), "--json", env=env)
    assert resumed.returncode == 0, resumed.stderr
    assert set(json.loads(resumed.stdout)["launches"][0]["jobs"]) == {"a", "b"}


def test_no_sbatch_no_launch(cli: Cli, tmp_path: Path, refused: Refused) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    result = cli("jobs", "submit", graph_file(tmp_path, TWO), "--out", str(tmp_path / "l"), env={"PATH": str(empty)})
    assert "sbatch is not on PATH" in refused(result, 3)
    assert not (tmp_path / "l").exists()


def test_refusal_is_shown_in_sbatchs_words_and_leaves_nothing(
    cli: Cli, fake: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    folder, env = fake
    (folder / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1\n"
    )
    result = cli("jobs", "submit", graph_file(tmp_path, TWO), "--out", str(tmp_path / "l"), env=env)
    assert result.returncode == 3
    assert result.stderr.splitlines()[-1] == "error: sbatch refused: Batch job submission failed: Invalid account"
    assert not (tmp_path / "l").exists()


def test_second_driver_is_refused_while_one_is_at_work(
    cli: Cli, fake: tuple[Path, dict[str, str]], tmp_path: Path, refused: Refused
) -> None:
    _, env = fake
    launch = LaunchFolder(tmp_path / "l")
    cli("jobs", "submit", graph_file(tmp_path, TWO), "--out", str(launch.path), env=env)
    with launch.held():
        assert "another scalewright jobs command is working there" in refused(
            cli("jobs", "resume", str(launch.path), env=env)
        )
        cancelled = cli("jobs", "cancel", str(launch.path), env=env)
    assert (cancelled.returncode, cancelled.stdout.strip()) == (0, "101 102")
    assert launch.stop.exists(), "the driver that is at work finds it"


def test_single_job_of_launch_is_listed_and_its_log_shown(
    cli: Cli, fake: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    folder, env = fake
    size = ("--site", "generic", "--nodes", "1", "--gpus-per-node", "1", "--time", "00:10:00")
    launched = cli("launch", *size, "--run-dir", "runs/one", "--", "true", cwd=tmp_path, env=env)
    assert (launched.returncode, launched.stdout) == (0, "101\n"), launched.stderr
    (folder / "queue").write_text("101|N/A|RUNNING|n1|0:10|None|x\n")
    listed = cli("jobs", "list", "--json", cwd=tmp_path, env=env)
    (launch_document,) = json.loads(listed.stdout)["launches"]
    assert [(job["id"], job["states"]) for job in launch_document["slurm_jobs"]] == [("101", {"running": "0"})]
    (tmp_path / "runs/one/logs/slurm-101.out").write_text("hello\n")
    assert "hello" in cli("jobs", "logs", "runs/one", cwd=tmp_path, env=env).stdout
    again = cli("launch", *size, "--run-dir", "runs/one", "--", "true", cwd=tmp_path, env=env)
    assert again.stdout == "102\n"
    assert [job.id for job in LaunchFolder(tmp_path / "runs/one").read().slurm_jobs] == ["101", "102"]


SIZED = TWO.replace('script = "job.sh"', 'script = "job.sh"\nnodes = 1\ngpus_per_node = 4\ntime = "01:00:00"')


def test_budget_refuses_warns_cuts_and_yields_to_force(
    cli: Cli, fake: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    folder, env = fake
    graph = graph_file(tmp_path, "[budget]\nlimit_gpu_hours = 10\nwarn_gpu_hours = 7\n" + SIZED)
    out = ("--out", str(tmp_path / "l"))
    over = cli("jobs", "submit", graph, *out, env=env)
    assert (over.returncode, over.stdout) == (1, "")
    assert "may use 12 GPU-hours, over the limit of 10" in over.stderr
    assert not (folder / "calls").exists()
    cut = cli("jobs", "submit", graph, "--cut", "--dry-run", env=env)
    assert cut.returncode == 0
    assert "b: the last 1 items are dropped to stay in the limit, from 'y' on" in cut.stderr
    assert "at most 8 GPU-hours" in cut.stdout
    assert not (folder / "calls").exists()
    forced = cli("jobs", "submit", graph, *out, "--force", env=env)
    assert forced.returncode == 0
    assert "12 GPU-hours, over warn_gpu_hours = 7" in forced.stderr
    large = graph_file(tmp_path, SIZED.replace("nodes = 1", "nodes = 64"))
    warned = cli("jobs", "submit", large, "--dry-run", env=env)
    assert "the graph may use 768 GPU-hours, and a request above 512 deserves a second look" in warned.stderr


def test_dry_run_and_drawing_write_no_launch(cli: Cli, tmp_path: Path) -> None:
    graph = graph_file(tmp_path, '[budget]\nsystem = "leonardo"\n' + SIZED)
    shown = cli("jobs", "submit", graph, "--dry-run", "--plot", str(tmp_path / "g.dot"), cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "afterok a" in shown.stdout
    assert "at most 12 GPU-hours" in shown.stdout
    assert "energy" in shown.stdout
    assert '"a" -> "b"' in (tmp_path / "g.dot").read_text()
    assert not (tmp_path / "runs").exists()
    picture = cli("jobs", "submit", graph, "--dry-run", "--plot", str(tmp_path / "g.svg"), cwd=tmp_path)
    assert picture.returncode == 0, picture.stderr
    assert "<svg" in (tmp_path / "g.svg").read_text()
