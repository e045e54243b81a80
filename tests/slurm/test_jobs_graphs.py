"""Graphs of jobs on a real Slurm with accounts: every kind of dependency, caps, retries, gates, ends told apart.

All graphs are submitted first, each with a driver of its own, and waited for together.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from tests.conftest import Cli, Refused

    from scalewright.lab.cluster import Lab

pytestmark = pytest.mark.slurm
Json = dict[str, Any]

HEAD = "#!/bin/bash\n#SBATCH --mem-per-cpu=64M\n"
OK = HEAD + 'echo "ran $SLURM_JOB_ID"\n'
BAD = HEAD + "exit 7\n"
EVEN = HEAD + "exit $((SLURM_ARRAY_TASK_ID % 2))\n"
TIMED = HEAD + "date +%s.%N; sleep 0.7; date +%s.%N\n"
STARVED = HEAD + (
    "[[ $SLURM_ARRAY_TASK_ID != 0 ]] || exit 9\n"
    'exec python3 -c "import time; b = bytearray(600 << 20); time.sleep(60)"\n'
)
SCORE = HEAD + 'd=$SCALEWRIGHT_RUN_DIR/task-$SLURM_ARRAY_TASK_ID; mkdir -p $d\n' \
    'echo "{\\"eval\\": {\\"score\\": 0.$SLURM_ARRAY_TASK_ID}}" >$d/eval.json\n'  # fmt: skip
# The node of whichever task comes first is bad: what runs there fails.
BAD_NODE = HEAD + (
    "#SBATCH --cpus-per-task=4\n"
    'b=$SCALEWRIGHT_RUN_DIR/bad; mkdir "$b" 2>/dev/null && echo "$SLURMD_NODENAME" >"$b/name"; sleep 1\n'
    '[[ $(<"$b/name") != "$SLURMD_NODENAME" ]]\n'
)
PREEMPTED = HEAD + "((${SLURM_RESTART_COUNT:-0} > 0)) || sleep 300\n"
SCRIPTS = {
    "ok": OK, "bad": BAD, "even": EVEN, "timed": TIMED, "starved": STARVED, "score": SCORE, "bad_node": BAD_NODE,
    "low": PREEMPTED.replace("((", "echo started; ((", 1),
}  # fmt: skip

GRAPHS = {
    "deps": """
[jobs.a]
script = "ok.sh"
[jobs.b]
script = "bad.sh"
[jobs.sweep]
script = "even.sh"
items = ["0", "1", "2"]
[jobs.after_ok]
script = "ok.sh"
after = {a = "ok"}
[jobs.after_any]
script = "ok.sh"
after = {b = "any", a = "ok"}
[jobs.after_notok]
script = "ok.sh"
after = {b = "notok"}
[jobs.never]
script = "ok.sh"
after = {b = "ok"}
[jobs.after_corr]
script = "ok.sh"
items = ["0", "1", "2"]
after = {sweep = "corr"}
[jobs.single]
script = "ok.sh"
singleton = true
""",
    "capped": """
[jobs.tasks]
script = "timed.sh"
items = ["0", "1", "2", "3", "4", "5", "6", "7", "8"]
width = 3
""",
    "many": """
[jobs.tasks]
script = "ok.sh"
items_file = "items.txt"
width = 500
""",
    "retried": """
exclude_after = 1
[jobs.sweep]
script = "bad_node.sh"
items = ["0", "1", "2", "3", "4", "5"]
retries = {limit = 4, backoff = "1 s"}
[jobs.given_up]
script = "bad.sh"
retries = {limit = 1, backoff = "1 s"}
[jobs.gated]
script = "score.sh"
items = ["0", "1", "2"]
gate = {file = "eval.json", key = "eval.score", min = 0.1}
[jobs.passed]
script = "ok.sh"
items = ["0", "1", "2"]
after = {gated = "corr"}
[jobs.all_passed]
script = "ok.sh"
after = {gated = "ok"}
""",
    "starved": """
[jobs.tasks]
script = "starved.sh"
items = ["0", "1"]
retries = {limit = 0}
""",
    "low": """
[jobs.low]
script = "low.sh"
qos = "low"
gpus_per_node = 2
directives = {nodelist = "@LAST@"}
""",
    "high": """
[jobs.high]
script = "ok.sh"
qos = "high"
gpus_per_node = 2
directives = {nodelist = "@LAST@"}
""",
}


def write_graph(folder: Path, name: str, body: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(f'schema = "scalewright.graph/1"\nname = "{name}"\n{body}')
    for script, text in SCRIPTS.items():
        (folder / f"{script}.sh").write_text(text)
    return path


def environment(slurm: Lab) -> dict[str, str]:
    """A counting sbatch, squeue, ... in front of the real ones: what the driver asks of the scheduler is on record."""
    return {**slurm.env, "COLUMNS": "80", "NO_COLOR": "1"}


def with_counters(folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    shims = folder / "shims"
    shims.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scontrol", "scancel"):
        shim = shims / name
        shim.write_text(f'#!/bin/sh\necho {name} >>{folder}/calls\nPATH=${{PATH#*:}} exec {name} "$@"\n')
        shim.chmod(0o755)
    return {**env, "PATH": f"{shims}:{env['PATH']}"}


@dataclass
class Ended:
    code: int
    stderr: str
    launch: Json
    folder: Path

    def job(self, name: str) -> Json:
        return dict(self.launch["jobs"][name])

    def slurm_jobs(self, name: str) -> list[Json]:
        return [job for job in self.launch["slurm_jobs"] if job["job"] == name]


@pytest.fixture(scope="module")
def ended(slurm: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ended]]:
    """Start every graph with a driver that watches it; give each one's end when asked for."""
    root = tmp_path_factory.mktemp("graphs")
    root.chmod(0o755)
    drivers: dict[str, subprocess.Popen[str]] = {}
    ends: dict[str, Ended] = {}
    slurm.run("sbatch", "--job-name=deps.single", "--output=/dev/null", "--mem=64M", "--wrap", "sleep 4")
    try:
        for name, body in GRAPHS.items():
            folder = root / name
            folder.mkdir()
            (folder / "items.txt").write_text("".join(f"{i}\n" for i in range(500)))
            path = write_graph(folder, name, body.replace("@LAST@", slurm.nodes[-1]))
            if name == "high":
                wait_for(
                    "the first to run",
                    lambda: "started" in text_of((root / "low").glob("launch/jobs/low/logs/*.out")),
                )
            drivers[name] = subprocess.Popen(
                [*(sys.executable, "-m", "scalewright", "jobs", "submit", str(path), "--out", str(folder / "launch")),
                 *("--watch", "--poll", "2 s", "--json")],
                env=with_counters(folder, environment(slurm)), cwd=folder, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip

        def end_of(name: str) -> Ended:
            if name not in ends:
                out, err = drivers[name].communicate(timeout=PATIENCE_S)
                assert out, err
                launch = json.loads(out)["launches"][0]
                ends[name] = Ended(drivers[name].returncode, err, launch, root / name)
            return ends[name]

        yield end_of
    finally:
        for driver in drivers.values():
            driver.kill()
            driver.wait()
            for stream in (driver.stdout, driver.stderr):  # of a graph that no test asked for
                if stream is not None:
                    stream.close()


def text_of(paths: Any) -> str:
    return "".join(path.read_text() for path in sorted(paths))


def test_every_kind_of_dependency(ended: Callable[[str], Ended], slurm: Lab) -> None:
    graph = ended("deps")
    assert graph.code == 1, graph.stderr
    for name in ("a", "after_ok", "after_any", "after_notok", "single"):
        assert graph.job(name)["states"] == {"completed": 1}, name
    assert graph.job("b")["states"] == {"failed": 1}
    assert graph.job("never")["states"] == {"cancelled": 1}
    assert graph.job("never")["skipped"] == "b did not succeed"
    assert graph.job("sweep")["states"] == {"completed": 2, "failed": 1}
    assert graph.job("after_corr")["states"] == {"completed": 2, "cancelled": 1}
    used = {job["job"]: re.sub(r":[\d:]+", "", job["dependency"]) for job in graph.launch["slurm_jobs"]}
    assert used == {
        "a": "", "b": "", "sweep": "", "after_ok": "afterok", "after_any": "afterany,afterok", "never": "afterok",
        "after_notok": "afternotok", "after_corr": "aftercorr", "single": "singleton",
    }  # fmt: skip
    assert (graph.folder / "calls").read_text().split().count("sbatch") == len(GRAPHS["deps"].split("[jobs.")) - 1
    single = graph.slurm_jobs("single")[0]["id"]
    spans = slurm.run("sacct", "-n", "-P", "-X", "--name=deps.single", "-o", "JobID,Start,End").stdout.split()
    starts = {row.split("|")[0]: row.split("|")[1:] for row in spans}
    first = next(end for job, (_, end) in starts.items() if job != single)
    assert starts[single][0] >= first, starts


def test_array_keeps_to_its_cap_with_one_sbatch(ended: Callable[[str], Ended]) -> None:
    graph = ended("capped")
    assert (graph.code, graph.job("tasks")["states"]) == (0, {"completed": 9}), graph.stderr
    spans = [tuple(map(float, path.read_text().split())) for path in graph.folder.glob("launch/jobs/tasks/logs/*.out")]
    assert len(spans) == 9
    at_once = max(sum(begin <= start < end for begin, end in spans) for start, _ in spans)
    assert at_once <= 3
    assert (graph.folder / "calls").read_text().split().count("sbatch") == 1


def test_failed_items_are_resubmitted_alone_and_the_bad_node_is_left_out(ended: Callable[[str], Ended]) -> None:
    graph = ended("retried")
    first, *again = graph.slurm_jobs("sweep")
    bad = (graph.folder / "launch/jobs/sweep/bad/name").read_text().strip()
    assert graph.job("sweep")["states"] == {"completed": 6}, graph.stderr
    assert first["tasks"] == "0-5"
    assert again
    assert again[0]["tasks"] == first["states"]["failed"]
    assert again[0]["exclude"] == [bad]


def test_retries_end_at_the_limit_and_gates_stop_what_follows(ended: Callable[[str], Ended]) -> None:
    graph = ended("retried")
    assert graph.code == 1
    assert [job["attempt"] for job in graph.slurm_jobs("given_up")] == [0, 1]
    assert graph.job("given_up")["states"] == {"failed": 1}
    assert graph.job("gated")["states"] == {"below-gate": 1, "completed": 2}
    assert graph.slurm_jobs("gated")[0]["reason"] == "eval.score is 0, below the gate of 0.1"
    (passed,) = graph.slurm_jobs("passed")
    assert (passed["tasks"], passed["states"]) == ("1-2", {"completed": "1-2"})
    assert graph.job("all_passed") == {
        "num_items": 1, "states": {}, "final": True, "ok": False, "skipped": "gated did not succeed",
    }  # fmt: skip


def test_out_of_memory_is_told_apart_from_failure(ended: Callable[[str], Ended]) -> None:
    graph = ended("starved")
    assert graph.code == 1
    assert graph.slurm_jobs("tasks")[0]["states"] == {"failed": "0", "out-of-memory": "1"}, graph.launch


def test_preempted_job_is_queued_again_and_ends_well(ended: Callable[[str], Ended], slurm: Lab) -> None:
    low, high = ended("low"), ended("high")
    assert (low.code, high.code) == (0, 0), low.stderr + high.stderr
    job = low.slurm_jobs("low")[0]["id"]
    states = slurm.run("sacct", "-n", "-P", "-X", "-D", "-j", job, "-o", "State").stdout.split()
    assert states == ["PREEMPTED", "COMPLETED"]


def test_500_jobs_take_a_bounded_number_of_scheduler_calls(ended: Callable[[str], Ended]) -> None:
    graph = ended("many")
    assert (graph.code, graph.job("tasks")["states"]) == (0, {"completed": 500}), graph.stderr
    calls = (graph.folder / "calls").read_text().split()
    assert calls.count("sbatch") == 1
    assert calls.count("scontrol") == calls.count("scancel") == 0
    assert len(calls) < 100, "fewer than one call for five jobs, however slow the cluster"


def test_spent_comes_from_the_accounts(ended: Callable[[str], Ended], cli: Cli, slurm: Lab) -> None:
    low = ended("low").folder / "launch"
    result = cli("jobs", "spent", str(low), "--system", "leonardo", "--limit-gpu-hours", "100", "--json", env=slurm.env)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    rows = slurm.run(
        "sacct", "-n", "-P", "-X", "-D", "-j", ended("low").slurm_jobs("low")[0]["id"], "-o", "ElapsedRaw"
    ).stdout
    hours = 2 * sum(map(int, rows.split())) / 3600
    assert hours > 0
    assert answer["num_gpu_hours"] == pytest.approx(hours)
    assert answer["num_gpu_hours_left"] == pytest.approx(100 - hours)
    assert answer["bill"]["energy_j"] > 0
    over = cli("jobs", "spent", str(low), "--limit-gpu-hours", "0", env=slurm.env)
    assert over.returncode == 1
    assert "by 1 jobs (Slurm's accounting)" in over.stdout


def test_refusal_half_way_lists_what_was_submitted_and_one_command_ends_it(
    cli: Cli, slurm: Lab, tmp_path: Path, refused: Refused
) -> None:
    body = '[jobs.a]\nscript = "low.sh"\n[jobs.b]\nscript = "ok.sh"\npartition = "nowhere"\nafter = {a = "any"}\n'
    path = write_graph(tmp_path, "half", body)
    launch = tmp_path / "launch"
    result = cli("jobs", "submit", str(path), "--out", str(launch), env=slurm.env)
    last = result.stderr.splitlines()[-1]
    assert (result.returncode, result.stdout) == (3, "")
    assert "invalid partition specified: nowhere" in last
    job = re.search(r"1 jobs are submitted \((\d+)\)", last)
    assert job is not None, last
    assert f"scalewright jobs cancel {launch}" in last
    cancelled = cli("jobs", "cancel", str(launch), env=slurm.env)
    assert (cancelled.returncode, cancelled.stdout.strip()) == (0, job.group(1))
    wait_for("its end", lambda: "CANCELLED" in slurm.run("scontrol", "show", "job", job.group(1)).stdout)
    alone = write_graph(tmp_path, "alone", '[jobs.b]\nscript = "ok.sh"\npartition = "nowhere"\n')
    result = cli("jobs", "submit", str(alone), "--out", str(tmp_path / "none"), env=slurm.env)
    assert result.returncode == 3
    assert not (tmp_path / "none").exists()


def test_driver_killed_between_sbatch_and_its_answer_submits_nothing_twice(
    cli: Cli, slurm: Lab, tmp_path: Path
) -> None:
    body = '[jobs.a]\nscript = "ok.sh"\n[jobs.b]\nscript = "ok.sh"\nafter = {a = "ok"}\n'
    path, launch = write_graph(tmp_path, "killed", body), tmp_path / "launch"
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "sbatch").write_text('#!/bin/sh\nPATH=${PATH#*:} sbatch "$@"\nkill -KILL $PPID\n')
    (shims / "sbatch").chmod(0o755)
    env = {**slurm.env, "PATH": f"{shims}:{os.environ['PATH']}"}
    killed = cli("jobs", "submit", str(path), "--out", str(launch), env=env)
    assert killed.returncode == -9
    resumed = cli("jobs", "resume", str(launch), "--json", env=slurm.env)
    assert resumed.returncode == 0, resumed.stderr
    jobs = json.loads(resumed.stdout)["launches"][0]["slurm_jobs"]
    assert [job["job"] for job in jobs] == ["a", "b"]
    names = slurm.run("squeue", "-h", "--states=all", "--name=killed.a,killed.b", "-o", "%F").stdout.split()
    assert sorted(names) == sorted(job["id"] for job in jobs)
    watched = cli("jobs", "watch", str(launch), "--poll", "1 s", env=slurm.env)
    assert watched.returncode == 0, watched.stderr
    logs = cli("jobs", "logs", str(launch), "b")
    assert f"ran {jobs[1]['id']}" in logs.stdout
    (log,) = json.loads(cli("jobs", "logs", str(launch), "b", "--json").stdout)["logs"]
    assert f"ran {jobs[1]['id']}" in log["lines"]
