"""Start the roles of a run: on this machine, or on the nodes of the current Slurm allocation."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from scalewright.errors import EnvironmentFailedError
from scalewright.launch.ranks import allocation
from scalewright.launch.roles.division import (
    Role,
    check_engines_fit,
    divided_cores,
    divided_gpus,
    divided_nodes,
    roles_of,
)
from scalewright.launch.roles.supervisor import RoleObserver, Supervisor
from scalewright.launch.roles.worlds import LocalWorld, RoleWorld, StepWorld
from scalewright.records.run_directory import RunDirectory

TIMEOUT_S = 20.0
LOST = ("down", "fail", "not_responding", "power", "reboot", "unknown")
"""Beginnings of node states, as sinfo writes them, in which no rank of a node answers."""


def run_roles(
    run: RunDirectory, *, num_trainer_ranks: int, engine_ranks: Sequence[int], num_gpus: int, observer: RoleObserver
) -> int:
    """Start the roles and watch them to the end of the trainer. Returns the exit code of the run.

    `num_gpus`: of this machine, or of one node of the allocation; 0: the roles run on CPUs.
    """
    env = dict(os.environ)
    roles = roles_of(run, num_trainer_ranks=num_trainer_ranks, engine_ranks=engine_ranks)
    if allocation.is_inside(env):
        return _in_allocation(run, roles, env, num_gpus=num_gpus, observer=observer)
    cores = sorted(os.sched_getaffinity(0))
    check_engines_fit(
        num_trainer_ranks=num_trainer_ranks, engine_ranks=engine_ranks, num_gpus=num_gpus, num_cores=len(cores)
    )
    gpus = divided_gpus(num_gpus, roles) if num_gpus else {}
    shares = {} if num_gpus else divided_cores(cores, roles)
    placed = [replace(role, cores=shares.get(role.name, ()), gpus=gpus.get(role.name, ())) for role in roles]
    job = f"local-{int(time.time())}-{os.getpid()}"

    def start(role: Role, attempt: int) -> RoleWorld:
        each = max(len(cores) // sum(one.num_ranks for one in roles[1:]), 1) * role.num_ranks
        return LocalWorld(role, env, num_cores=each, job=f"{job}-{role.name}-{attempt}")

    return Supervisor(run, placed, start=start, observer=observer).supervise()


def _in_allocation(
    run: RunDirectory, roles: Sequence[Role], env: Mapping[str, str], *, num_gpus: int, observer: RoleObserver
) -> int:
    if shutil.which("srun") is None:
        raise EnvironmentFailedError("srun is not on PATH inside this Slurm allocation: load Slurm's module")
    nodes = nodes_of(env)
    most_ranks = num_gpus or max(_count(env, "SLURM_CPUS_ON_NODE"), 1)
    engine_ranks = [role.num_ranks for role in roles if role.kind == "engine"]
    trainer = next(role for role in roles if role.kind == "trainer")
    check_engines_fit(
        num_trainer_ranks=trainer.num_ranks, engine_ranks=engine_ranks, num_gpus=num_gpus * len(nodes),
        num_cores=most_ranks * len(nodes),
    )  # fmt: skip
    shares = divided_nodes(nodes, roles, most_ranks=most_ranks)
    placed = [replace(role, nodes=shares[role.name]) for role in roles]
    job = env["SLURM_JOB_ID"]

    def start(role: Role, attempt: int) -> RoleWorld:
        if role.kind == "controller":  # beside the supervisor: it needs neither a GPU nor a node of its own
            is_alone = len(nodes) == 1
            return LocalWorld(role, env, num_cores=1, job=f"{job}-{role.name}-{attempt}", is_alone=is_alone)
        return StepWorld(role, env, has_gpus=bool(num_gpus), attempt=attempt)

    return Supervisor(run, placed, start=start, is_lost=is_lost, observer=observer).supervise()


def nodes_of(env: Mapping[str, str]) -> list[str]:
    """Names of the allocation's nodes."""
    done = subprocess.run(
        ["scontrol", "show", "hostnames", env.get("SLURM_JOB_NODELIST", "")],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    names = done.stdout.split()
    if done.returncode or not names:
        raise EnvironmentFailedError(
            f"scontrol does not name the nodes of this allocation ({done.stderr.strip()}): check SLURM_JOB_NODELIST"
        )
    return names


def is_lost(role: Role) -> bool:
    """Whether Slurm says that a node of the role is down. Where it does not answer, no node is lost."""
    if not role.nodes or role.kind == "controller":
        return False
    try:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", f"--nodes={','.join(role.nodes)}", "--format=%T"],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(state.strip().lower().startswith(LOST) or state.strip().endswith("*") for state in done.stdout.split())


def _count(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    return int(text) if text.isdigit() else 0
