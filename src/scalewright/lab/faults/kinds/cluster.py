"""Faults of jobs on a practice cluster: a real Slurm ends them, and accounts for it. Each takes a minute or more."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable

from scalewright.lab.cluster import Lab
from scalewright.lab.faults.fault import Fault, Injection, Variation
from scalewright.lab.faults.trial import Running, Trial, start_process
from scalewright.lab.faults.workloads import TINY_MODEL, language, vision
from scalewright.lab.spec import LabSpec

LONG = 100_000
NODES = 2
FIELDS = (
    "JobID,JobName,Partition,State,ExitCode,DerivedExitCode,Reason,Submit,Start,End,Elapsed,Timelimit,NNodes,NTasks,"
    "NodeList,ReqMem,MaxRSS"
)
ACCOUNTING_S = 15.0
"""How long accounting may be late."""
RUNNING = ("PENDING", "RUNNING", "COMPLETING", "REQUEUED")


def job(*options: str, act: Callable[[Lab, str], None] | None = None, after_step: int = 3) -> Injection:
    """The command runs as a job of two nodes; `act` gets the cluster and the job's id once a step is done."""

    def inject(trial: Trial) -> None:
        lab = Lab.up(LabSpec(num_nodes=NODES, num_gpus_per_node=0))
        trial.leftovers.note("cluster", lab.id)
        script = trial.folder / "job.sh"

        def start(trial: Trial) -> list[subprocess.Popen[bytes]]:
            header = ["#!/bin/bash", f"#SBATCH --nodes={NODES} --ntasks-per-node=1 --no-requeue --job-name=train",
                      f"#SBATCH --output={trial.folder}/slurm-%j.out", *(f"#SBATCH {one}" for one in options),
                      "export OMP_NUM_THREADS=1", f"exec srun {shlex.join(trial.arguments)}"]  # fmt: skip
            script.write_text("\n".join(header) + "\n")
            return [start_process(trial, ["sbatch", "--wait", str(script)], lab.env | trial.env, "sbatch.log")]

        def do(running: Running) -> None:
            if act is not None and running.wait_for_step(after_step):
                act(lab, _job_id(trial))

        trial.start = start
        trial.acts.append(do)
        trial.at_end.append(lambda: _save_accounting(lab, trial))

    return inject


def _job_id(trial: Trial) -> str:
    return (trial.folder / "sbatch.log").read_text().split()[-1]


def _save_accounting(lab: Lab, trial: Trial) -> None:
    """What Slurm says of the job, once its record is whole."""
    until_s = time.monotonic() + ACCOUNTING_S
    while True:
        done = lab.run("sacct", "-j", _job_id(trial), "--parsable2", f"--format={FIELDS}")
        states = [line.split("|")[3].split()[0] for line in done.stdout.splitlines()[1:]]
        if (states and not any(state in RUNNING for state in states)) or time.monotonic() > until_s:
            break
        time.sleep(0.5)
    (trial.folder / "sacct.txt").write_text(done.stdout)


def _kill_node(number: int) -> Callable[[Lab, str], None]:
    return lambda lab, _: lab.kill_node(lab.nodes[number])


def _cancel(*options: str) -> Callable[[Lab, str], None]:
    def act(lab: Lab, id: str) -> None:
        lab.run("scancel", *options, id)

    return act


SMALL = language(steps=LONG, model=TINY_MODEL)
IMAGES = vision(steps=LONG, ranks=2)

LOST_NODE = Fault(
    kind="lost-node",
    title="a node of the job is lost",
    effect="ended",
    rules=("node-failure",),
    how="all processes of a node of the practice cluster are killed at once",
    is_slow=True,
    variations=(
        Variation(words="the second of 2 nodes", command=SMALL, inject=job(act=_kill_node(1))),
        Variation(words="the first of 2 nodes", command=SMALL, inject=job(act=_kill_node(0))),
        Variation(
            words="the second node, late", command=SMALL, inject=job(act=_kill_node(1), after_step=150),
        ),
    ),
)  # fmt: skip

CANCELLED = Fault(
    kind="cancelled-job",
    title="somebody cancels the job",
    effect="ended",
    rules=("cancelled",),
    how="scancel",
    is_slow=True,
    variations=(
        Variation(words="scancel", command=SMALL, inject=job(act=_cancel())),
        Variation(words="scancel, late", command=SMALL, inject=job(act=_cancel(), after_step=150)),
        Variation(words="scancel by name", command=SMALL, inject=job(act=_cancel("--name=train"))),
    ),
)  # fmt: skip

TIME_LIMIT = Fault(
    kind="time-limit",
    title="the job reaches its time limit",
    effect="ended",
    rules=("time-limit",),
    how="a job with a limit of one minute",
    is_slow=True,
    variations=(
        Variation(words="1 minute, no notice", command=SMALL, inject=job("--time=1")),
        Variation(
            words="1 minute, saves on the way", command=(*SMALL, "--checkpoint-every", "500"), inject=job("--time=1"),
        ),
        Variation(words="1 minute, a residual network", command=IMAGES, inject=job("--time=1")),
    ),
)  # fmt: skip

FAULTS = (LOST_NODE, CANCELLED, TIME_LIMIT)
