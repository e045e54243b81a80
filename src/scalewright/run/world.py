"""World: this process's rank, from the environment variables of Slurm, torchrun, PyTorchJob or our own launcher."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scalewright.errors import ConfigError
from scalewright.records.types import EnvName

Launcher = Literal["slurm", "torchrun", "pytorchjob", "local", "single"]
FIRST_PORT = 20000
NUM_PORTS = 10000
"""Ports 20000 to 29999: below the range that Linux gives to clients (32768 and up)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The rank of one process, its node and its job."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    num_nodes: int
    host: str
    job_id: str
    master_addr: str
    master_port: int
    launcher: Launcher
    attempt: int = 0
    """How often the scheduler or torchrun has restarted this job."""
    switch: str = ""
    """Path of switches above this node, as the scheduler names them: `group.switch`; empty if it does not."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_first_on_node(self) -> bool:
        return self.local_rank == 0

    @classmethod
    def from_environment(cls, env: Mapping[str, str], *, host: str | None = None) -> World:
        """The world that the variables describe; without any of them, a single process."""
        name = host or env.get("SLURMD_NODENAME") or socket.gethostname()
        if "RANK" in env and "WORLD_SIZE" in env:
            return _checked(_from_rank_variables(env, name))
        if "SLURM_PROCID" in env and ("SLURM_STEP_ID" in env or "SLURM_STEPID" in env):
            return _checked(_from_slurm(env, name))
        if _number(env, "SLURM_NTASKS", 1) > 1:
            raise ConfigError(
                f"SLURM_NTASKS is {env['SLURM_NTASKS']}, but this is the batch script and not one of its tasks: "
                "start it with srun"
            )
        return cls(
            rank=0,
            world_size=1,
            local_rank=0,
            local_world_size=1,
            num_nodes=1,
            host=name,
            job_id=env.get("SLURM_JOB_ID", "single"),
            master_addr="127.0.0.1",
            master_port=_number(env, "MASTER_PORT", FIRST_PORT),
            launcher="single",
        )


def _from_rank_variables(env: Mapping[str, str], host: str) -> World:
    """torchrun and our launcher set LOCAL_RANK; PyTorchJob starts one process per pod and does not."""
    rank, world_size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    local_world_size = _number(env, "LOCAL_WORLD_SIZE", 1)
    launcher: Launcher = "torchrun" if "LOCAL_RANK" in env else "pytorchjob"
    if EnvName.LAUNCHER in env:
        launcher = "local"
    job = env.get(EnvName.JOB) or env.get("TORCHELASTIC_RUN_ID") or env.get("SLURM_JOB_ID") or env.get("JOB_NAME", "")
    return World(
        rank=rank,
        world_size=world_size,
        local_rank=_number(env, "LOCAL_RANK", 0),
        local_world_size=local_world_size,
        num_nodes=_number(env, "GROUP_WORLD_SIZE", -(-world_size // max(local_world_size, 1))),
        host=host,
        job_id=job or launcher,
        master_addr=env.get("MASTER_ADDR", "127.0.0.1"),
        master_port=_number(env, "MASTER_PORT", FIRST_PORT),
        launcher=launcher,
        attempt=_number(env, "TORCHELASTIC_RESTART_COUNT", _number(env, "SLURM_RESTART_COUNT", 0)),
        switch=_switch(env),
    )


def _from_slurm(env: Mapping[str, str], host: str) -> World:
    job = env.get("SLURM_JOB_ID", "0")
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or host
    world_size = _number(env, "SLURM_STEP_NUM_TASKS", _number(env, "SLURM_NTASKS", 1))
    num_nodes = _number(env, "SLURM_STEP_NUM_NODES", _number(env, "SLURM_NNODES", 1))
    per_node = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or ""
    local_world_size = tasks_on_node(per_node, _number(env, "SLURM_NODEID", 0)) or -(-world_size // num_nodes)
    return World(
        rank=_number(env, "SLURM_PROCID"),
        world_size=world_size,
        local_rank=_number(env, "SLURM_LOCALID", 0),
        local_world_size=local_world_size,
        num_nodes=num_nodes,
        host=host,
        job_id=job,
        master_addr=env.get("MASTER_ADDR") or first_host(nodes),
        master_port=_number(env, "MASTER_PORT", port_of_job(job)),
        launcher="slurm",
        attempt=_number(env, "SLURM_RESTART_COUNT", 0),
        switch=_switch(env),
    )


def first_host(nodelist: str) -> str:
    """First node of Slurm's compact form: `gpu[007-012,020],login1` gives `gpu007`; `r[1-2]n[3-4]` gives `r1n3`."""
    depth, end = 0, len(nodelist)
    for position, character in enumerate(nodelist):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            end = position
            break
    return re.sub(r"\[([^\]\-,]+)[^\]]*\]", r"\1", nodelist[:end].strip())


def tasks_on_node(per_node: str, node: int) -> int | None:
    """Tasks on the given node of Slurm's compact form: `4(x2),3` is 4, 4 and 3."""
    counts: list[int] = []
    for part in filter(None, per_node.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return None
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts[node] if node < len(counts) else None


def port_of_job(job: str) -> int:
    """A port that jobs sharing a node are unlikely to share."""
    digits = re.sub(r"\D", "", job)
    return FIRST_PORT + int(digits or 0) % NUM_PORTS


def _switch(env: Mapping[str, str]) -> str:
    """Slurm names the node last: `core1.leaf3.node17` with the pattern `switch.switch.node`."""
    address, pattern = env.get("SLURM_TOPOLOGY_ADDR", ""), env.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    if not address or ("switch" not in pattern and "block" not in pattern):
        return ""
    return ".".join(address.split(".")[: pattern.split(".").index("node")] if "node" in pattern else [address])


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None or text == "":
        if default is None:
            raise ConfigError(f"{name} is not set: start this with torchrun, srun or scalewright bench")
        return default
    if not re.fullmatch(r"\d+", text):
        raise ConfigError(f"{name} is {text!r}: it must be a whole number of 0 or more; check how the job was started")
    return int(text)


def _checked(world: World) -> World:
    if not world.rank < world.world_size:
        raise ConfigError(
            f"rank {world.rank} of {world.world_size} ranks: ranks count from 0; check how the job was started"
        )
    if not world.local_rank < world.local_world_size <= world.world_size:
        raise ConfigError(
            f"local rank {world.local_rank} of {world.local_world_size} on a node, of {world.world_size} in all: "
            "the counts contradict each other; check how the job was started"
        )
    return world
