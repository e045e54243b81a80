"""A rendered script under a real Slurm: the notice before the end reaches the ranks, and the job resumes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import PLAIN_PYTHON, job_field, limit_job, wait_for, wait_for_end

from scalewright.sites.walltime import parse_walltime_s

if TYPE_CHECKING:
    from conftest import Cli
    from scalewright.lab.cluster import Lab

pytestmark = pytest.mark.slurm

# Every rank saves and leaves with 75 when asked to; a rank that finds its checkpoint goes on from there.
RANK = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
saved = folder / f"rank-{rank}.saved"
if saved.exists():
    (folder / f"rank-{rank}.done").write_text(f"{saved.read_text()} {os.environ['SLURM_RESTART_COUNT']}")
    sys.exit(0)
def save(number, frame):
    time.sleep(0.5 * int(rank))  # the first to leave must not end those that still save
    saved.write_text(f"step 7 of {os.environ['WORLD_SIZE']} at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
    sys.exit(75)
signal.signal(signal.SIGUSR1, save)
(folder / f"rank-{rank}.up").touch()
while True:
    time.sleep(0.1)
"""


def test_notice_saves_requeues_and_the_second_start_resumes(cli: Cli, slurm: Lab, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    run_dir = tmp_path / "a run"  # a space must survive the header
    launched = cli(
        *("launch", "--site", "generic", "--nodes", "2", "--gpus-per-node", "2", "--time", "00:20:00"),
        *("--notice", "180 s", "--run-dir", str(run_dir), "--", PLAIN_PYTHON, "rank.py", str(tmp_path)),
        env=slurm.env,
        cwd=tmp_path,
    )
    assert launched.returncode == 0, launched.stderr
    job = launched.stdout.strip()
    assert job.isdigit()
    log = run_dir / "logs" / f"slurm-{job}.out"

    def shown() -> str:
        return log.read_text() if log.exists() else slurm.run("scontrol", "show", "job", job).stdout

    wait_for("the ranks to start", lambda: len(list(tmp_path.glob("*.up"))) == 4, shown=shown)
    limit_job(slurm, job, minutes_left=3)
    wait_for("the ranks to save", lambda: len(list(tmp_path.glob("*.saved"))) == 4, shown=shown)
    limit_job(slurm, job, minutes_left=20)  # at once: on a busy machine the second start may come before the next look
    wait_for("the requeue", lambda: job_field(slurm, job, "Restarts") == "1", shown=shown)
    assert wait_for_end(slurm, job, shown=shown) == "COMPLETED", shown()
    text = log.read_text()
    assert "notice: asking the ranks to save and leave" in text
    assert "queued again to resume" in text
    places = re.findall(r"rank (\d) on ([\w-]+):", text)[-4:]  # of the second start, which may be on other nodes
    first, second = (host for _, host in sorted(places)[::2])
    assert first != second
    assert sorted(places) == [("0", first), ("1", first), ("2", second), ("3", second)]
    rank_texts = {(tmp_path / f"rank-{rank}.done").read_text() for rank in range(4)}
    (rank_text,) = rank_texts
    before, _, restarts = rank_text.rpartition(" ")
    assert re.fullmatch(rf"step 7 of 4 at [\w-]+-n\d:{20000 + int(job) % 10000}", before), rank_text
    assert restarts == "1", text
    ended = json.loads((run_dir / "exit_info.json").read_text())
    assert (ended["code"], ended["reason"], ended["attempt"], ended["job"]) == (0, "finished", 1, job)
    assert (run_dir / "logs" / f"job-{job}-0.txt").read_text().startswith(f"job {job}, attempt 0, on ")


def test_cancelled_job_is_not_queued_again(cli: Cli, slurm: Lab, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK.replace("SIGUSR1, save", "SIGTERM, save"))
    launched = cli(
        *("launch", "--site", "generic", "--nodes", "1", "--gpus-per-node", "1", "--time", "00:05:00"),
        *("--run-dir", str(tmp_path / "run"), "--json", "--", PLAIN_PYTHON, "rank.py", str(tmp_path)),
        env=slurm.env,
        cwd=tmp_path,
    )
    job = json.loads(launched.stdout)["job"]
    wait_for("the rank to start", (tmp_path / "rank-0.up").exists)
    slurm.run("scancel", job)
    assert wait_for_end(slurm, job) == "CANCELLED"


# The first start of rank 1 is done at once; rank 0 fails when told to, as ranks do that lose a neighbour.
BEREFT = """
import os, pathlib, sys, time
folder, rank, start = pathlib.Path(sys.argv[1]), os.environ["RANK"], os.environ.get("SLURM_RESTART_COUNT", "0")
(folder / f"rank-{rank}.start-{start}").touch()
while rank == "0" and start == "0":
    if (folder / "fail").exists():
        sys.exit(1)
    time.sleep(0.1)
"""


def test_ranks_that_fail_because_a_node_is_gone_go_on_without_it(cli: Cli, slurm: Lab, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(BEREFT)
    launched = cli(
        *("launch", "--site", "generic", "--nodes", "2", "--gpus-per-node", "1", "--time", "00:20:00"),
        *("--directive", f"exclude={slurm.nodes[0]}", "--run-dir", str(tmp_path / "run")),
        *("--", PLAIN_PYTHON, "rank.py", str(tmp_path)),
        env=slurm.env,
        cwd=tmp_path,
    )
    job = launched.stdout.strip()
    log = tmp_path / "run" / "logs" / f"slurm-{job}.out"
    wait_for("the ranks to start", lambda: len(list(tmp_path.glob("rank-*.start-0"))) == 2)
    lost = slurm.run("scontrol", "show", "hostnames", job_field(slurm, job, "NodeList")).stdout.split()[1]
    slurm.kill_node(lost)
    try:
        (tmp_path / "fail").touch()
        assert wait_for_end(slurm, job, shown=log.read_text) == "COMPLETED", log.read_text()
    finally:
        slurm.start_node(lost)
    assert job_field(slurm, job, "Restarts") != "0"
    assert (tmp_path / "rank-1.start-1").exists()
    excluded = slurm.run("scontrol", "show", "hostnames", job_field(slurm, job, "ExcNodeList")).stdout.split()
    assert slurm.nodes[0] in excluded, "what the user left out stays out"


def test_array_tasks_take_their_lines_and_files_are_staged(cli: Cli, slurm: Lab, tmp_path: Path) -> None:
    items = ["one two", "$(touch bad)", "it's"]
    (tmp_path / "items.txt").write_text("\n".join(items))
    (tmp_path / "words.txt").write_text("staged")
    ask = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2] + open(sys.argv[3]).read())"
    launched = cli(
        *("launch", "--site", "generic", "--nodes", "1", "--gpus-per-node", "1", "--time", "00:05:00"),
        *("--array", "items.txt", "--width", "2", "--copy", "words.txt", "--run-dir", str(tmp_path / "run")),
        *("--", "python3", "-c", ask, "{run_dir}/answer", "{item}:", "{copy}/words.txt"),
        env=slurm.env,
        cwd=tmp_path,
    )
    assert launched.returncode == 0, launched.stderr
    job = launched.stdout.strip()
    answers = [tmp_path / "run" / f"task-{i}" / "answer" for i in range(3)]
    wait_for("the tasks", lambda: not slurm.run("squeue", "-h", "-j", job).stdout.strip())
    logs = "".join(path.read_text() for path in sorted((tmp_path / "run" / "logs").glob("*.out")))
    assert [path.exists() for path in answers] == [True] * 3, logs
    assert [path.read_text() for path in answers] == [f"{item}:staged" for item in items]
    assert not (tmp_path / "bad").exists()
    assert not list(Path("/tmp").glob(f"scalewright-*-{int(job)}"))


def test_refusal_of_sbatch_is_shown(cli: Cli, slurm: Lab, tmp_path: Path, refused) -> None:  # type: ignore[no-untyped-def]
    result = cli(
        *("launch", "--site", "generic", "--nodes", "1", "--gpus-per-node", "1", "--time", "00:05:00"),
        *("--partition", "nowhere", "--", "true"),
        env=slurm.env,
        cwd=tmp_path,
    )
    assert "invalid partition specified: nowhere" in refused(result, 3)


def test_profile_of_this_cluster_is_made_used_and_checked(cli: Cli, slurm: Lab, tmp_path: Path) -> None:
    env = slurm.env | {"SCALEWRIGHT_HOME": str(tmp_path)}
    made = cli("site", "detect", "--as", "mine", "--json", env=env)
    assert made.returncode == 0, made.stderr
    site = json.loads(made.stdout)["sites"][0]
    assert site["gpus_per_node"]["value"] == 2
    shown = dict(
        re.findall(r"PartitionName=(\w+) .*?MaxTime=(\S+)", slurm.run("scontrol", "-o", "show", "partition").stdout)
    )
    assert {p["name"]: p["max_time"] for p in site["partitions"]} == {n: parse_walltime_s(t) for n, t in shown.items()}
    assert "root" in site["account"]["form"]
    assert site["sources"]["live"]["kind"] == "live"
    script = cli(
        *("launch", "--site", "mine", "--nodes", "1", "--time", "00:05:00", "--dry-run", "--", "true"), env=env
    )
    assert "#SBATCH --gpus-per-node=2\n" in script.stdout, script.stderr
    request = ("--nodes", "1", "--time", "00:05:00", "--dry-run", "--run-dir", str(tmp_path / "run"), "--", "true")
    at_hand = cli("launch", "--site", "here", *request, env=env)
    assert "profile mine." in at_hand.stdout, at_hand.stderr
    assert cli("site", "check", "mine", env=env).returncode == 0
    other = cli("site", "check", "lumi", env=env)
    assert other.returncode == 1
    assert "partitions.standard-g" in other.stdout
