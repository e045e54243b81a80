"""Who am I: tables of variables as Slurm, torchrun, PyTorchJob and our launcher set them."""

from __future__ import annotations

import pytest

from scalewright.errors import ConfigError
from scalewright.run.world import World, first_host, port_of_job, tasks_on_node

SLURM = {
    "SLURM_JOB_ID": "4213370",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "6",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_NODELIST": "nid[001234-001235]",
    "SLURM_RESTART_COUNT": "3",
    "SLURM_TOPOLOGY_ADDR": "group2.switch17.nid001235",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
    "SLURMD_NODENAME": "nid001235",
}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run7",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
PYTORCHJOB = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "bench-master-0",
    "MASTER_PORT": "23456",
    "PYTHONUNBUFFERED": "1",
}


def test_slurm() -> None:
    world = World.from_environment(SLURM)
    assert world == World(
        rank=6, world_size=8, local_rank=2, local_world_size=4, num_nodes=2, host="nid001235", job_id="4213370",
        master_addr="nid001234", master_port=20000 + 3370, launcher="slurm", attempt=3, switch="group2.switch17",
    )  # fmt: skip


def test_torchrun() -> None:
    world = World.from_environment(TORCHRUN, host="h")
    assert world == World(
        rank=5, world_size=8, local_rank=1, local_world_size=4, num_nodes=2, host="h", job_id="run7",
        master_addr="head", master_port=29500, launcher="torchrun", attempt=2,
    )  # fmt: skip


def test_torchrun_inside_slurm_is_torchrun() -> None:
    world = World.from_environment(SLURM | TORCHRUN)
    assert (world.launcher, world.rank, world.host) == ("torchrun", 5, "nid001235")


def test_pytorchjob_has_one_process_per_pod() -> None:
    world = World.from_environment(PYTORCHJOB, host="bench-worker-2")
    assert (world.launcher, world.rank, world.local_rank, world.num_nodes) == ("pytorchjob", 3, 0, 4)
    assert world.master_addr == "bench-master-0"
    assert world.is_first_on_node


def test_our_launcher() -> None:
    mine = {"SCALEWRIGHT_LAUNCHER": "local", "SCALEWRIGHT_JOB": "local-1-2", "GROUP_WORLD_SIZE": "1"}
    env = TORCHRUN | mine | {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "6", "LOCAL_RANK": "5"}
    world = World.from_environment(env, host="h")
    assert (world.launcher, world.job_id, world.num_nodes) == ("local", "local-1-2", 1)


def test_alone() -> None:
    world = World.from_environment({}, host="h")
    assert (world.launcher, world.rank, world.world_size, world.is_first) == ("single", 0, 1, True)


def test_batch_script_with_several_tasks_is_told_to_use_srun() -> None:
    env = {k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"}
    with pytest.raises(ConfigError, match="srun"):
        World.from_environment(env)


def test_batch_script_with_one_task_runs_alone() -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    world = World.from_environment(env, host="h")
    assert (world.launcher, world.job_id) == ("single", "7")


@pytest.mark.parametrize(
    "changes",
    [
        {"RANK": "8"},
        {"RANK": "one"},
        {"RANK": "-1"},
        {"LOCAL_RANK": "4"},
        {"LOCAL_WORLD_SIZE": "9"},
        {"MASTER_PORT": "http"},
    ],
)
def test_contradictions_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"check how the job was started"):
        World.from_environment(TORCHRUN | changes, host="h")


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("login1", "login1"),
        ("gpu[007-012,020],login1", "gpu007"),
        ("gpu[7,9-12]", "gpu7"),
        ("a1,b2", "a1"),
        ("r[1-2]n[3-4]", "r1n3"),
        ("nid[001234-001235]-eth", "nid001234-eth"),
        ("jwb0001.juwels", "jwb0001.juwels"),
    ],
)
def test_first_host_of_a_node_list(nodelist: str, first: str) -> None:
    assert first_host(nodelist) == first


@pytest.mark.parametrize(
    ("text", "node", "count"), [("4(x2),3", 0, 4), ("4(x2),3", 1, 4), ("4(x2),3", 2, 3), ("2", 0, 2), ("2", 1, None)]
)
def test_tasks_on_a_node(text: str, node: int, count: int | None) -> None:
    assert tasks_on_node(text, node) == count


@pytest.mark.parametrize("job", ["1", "4213370", "12345_7", "999999999", "odd"])
def test_port_is_below_what_clients_are_given(job: str) -> None:
    assert 20000 <= port_of_job(job) < 30000


@pytest.mark.parametrize(
    ("address", "pattern", "switch"),
    [
        ("core.leaf3.n7", "switch.switch.node", "core.leaf3"),
        ("block1.n7", "block.node", "block1"),
        ("n7", "node", ""),
        ("", "", ""),
    ],
)
def test_place_in_the_network(address: str, pattern: str, switch: str) -> None:
    env = SLURM | {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    assert World.from_environment(env).switch == switch
