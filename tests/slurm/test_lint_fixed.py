"""Scripts that `lint --fix` rewrote run on a real cluster, and do what they did not do before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import wait_for, wait_for_end

if TYPE_CHECKING:
    from conftest import Cli
    from scalewright.lab.cluster import Lab

pytestmark = pytest.mark.slurm

HEAD = """#!/bin/bash
#SBATCH --job-name=fixed
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --output=out-%j.txt
#SBATCH --time=00:05:00
"""
LATE = HEAD.replace("#SBATCH --ntasks-per-node=2\n", "") + (
    "echo start\n#SBATCH --ntasks-per-node=2\necho tasks=$SLURM_NTASKS_PER_NODE\n"
)
CASES = {
    "dos-line-ends": (
        (HEAD + 'echo "host $(hostname)"\nsrun --ntasks=4 echo task\n').replace("\n", "\r\n"),
        "task\n" * 4,
    ),
    "backslash-space": (HEAD + "srun --label \\ \n  echo task\n", "3: task"),
    "directive-after-command": (LATE, "tasks=2"),
    "fixed-port": (HEAD + "export MASTER_PORT=29500\nsrun -N1 -n1 bash -c 'echo port=$MASTER_PORT'\n", "port=2"),
    "launcher-per-task": (
        HEAD + "export PATH=$PWD:$PATH\nsrun torchrun --nnodes 2 --nproc_per_node 2 train.py\n",
        "one torchrun on",
    ),
}
TORCHRUN = '#!/bin/bash\necho "one torchrun on $(hostname) of task $SLURM_PROCID"\n'
TRAP = """#!/bin/bash
#SBATCH --job-name=trapped
#SBATCH --output=out-%j.txt
#SBATCH --time=00:05:00
#SBATCH --signal=B:USR1@60
set -e
save() { touch saved; kill -TERM $pid; wait $pid || true; exit 0; }
trap save USR1
touch up
srun python3 -u work.py
"""


def submitted(slurm: Lab, path: Path) -> str:
    done = slurm.run("sbatch", "--parsable", f"--chdir={path.parent}", str(path))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def fixed(cli: Cli, path: Path, rule: str) -> None:
    done = cli("lint", str(path), "--fix", "--unsafe-fixes", "--select", rule)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", CASES)
def test_a_fixed_script_runs_and_does_what_was_meant(cli: Cli, slurm: Lab, tmp_path: Path, rule: str) -> None:
    text, expected = CASES[rule]
    path = tmp_path / "job.sh"
    path.write_bytes(text.encode())
    (tmp_path / "torchrun").write_text(TORCHRUN)
    (tmp_path / "torchrun").chmod(0o755)
    fixed(cli, path, rule)
    job = submitted(slurm, path)
    assert wait_for_end(slurm, job) == "COMPLETED"
    log = (tmp_path / f"out-{job}.txt").read_text()
    assert expected in log
    if rule == "launcher-per-task":
        assert log.count("one torchrun on") == 2
    if rule == "fixed-port":
        assert f"port={20000 + int(job) % 10000}" in log


def test_a_trap_that_waited_for_srun_runs_once_fixed(cli: Cli, slurm: Lab, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(TRAP)
    (tmp_path / "work.py").write_text("import time\ntime.sleep(240)\n")
    fixed(cli, path, "trap-blocked-by-srun")
    job = submitted(slurm, path)
    wait_for("the job to start", (tmp_path / "up").exists)
    wait_for("the step to start", lambda: f"{job}.0" in slurm.run("squeue", "--steps", "--noheader").stdout)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    wait_for("the trap to run", (tmp_path / "saved").exists, shown=path.read_text)
    assert wait_for_end(slurm, job) == "COMPLETED"


def test_everything_that_fix_does_to_a_whole_script_leaves_it_running(cli: Cli, slurm: Lab, tmp_path: Path) -> None:
    """All rules at once, safe and unsafe; what remains is what needs a person, and sbatch takes the script."""
    path = tmp_path / "job.sh"
    text = HEAD + "module() { :; }\nmodule load cuda\n#SBATCH --mem=200M\nexport NCCL_DEBUG=INFO MASTER_PORT=29500\n"
    path.write_bytes((text + "srun echo nccl=$NCCL_DEBUG \\ \n  port=$MASTER_PORT\n").encode())
    cli("lint", str(path), "--fix", "--unsafe-fixes")
    once = path.read_text()
    cli("lint", str(path), "--fix", "--unsafe-fixes")
    assert path.read_text() == once
    job = submitted(slurm, path)
    assert wait_for_end(slurm, job) == "COMPLETED", once
    logs = "".join(log_path.read_text() for log_path in tmp_path.glob("*out*"))
    assert logs.count("nccl=WARN port=2") == 4, once + logs
