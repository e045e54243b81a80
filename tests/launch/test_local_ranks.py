"""What each local rank is given, which port they meet at, and the command that starts ranks inside an allocation."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.launch.ranks.allocation import default_num_ranks, is_inside, srun_command
from scalewright.launch.ranks.local import held_port, pick_port, rank_environment
from scalewright.records.run_directory import RunDirectory
from scalewright.run.world import World

ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_GPUS_ON_NODE": "8", "SLURM_NTASKS": "4"}


@pytest.mark.parametrize(("num_ranks", "num_cores", "threads"), [(1, 8, "8"), (4, 8, "2"), (3, 8, "2"), (4, 2, "1")])
def test_cores_are_split_over_the_ranks(num_ranks: int, num_cores: int, threads: str) -> None:
    env = rank_environment({}, rank=0, num_ranks=num_ranks, num_cores=num_cores, port=1234, job="j")
    assert env["OMP_NUM_THREADS"] == threads


def test_threads_that_the_user_chose_stay() -> None:
    env = rank_environment({"OMP_NUM_THREADS": "5"}, rank=0, num_ranks=4, num_cores=8, port=1234, job="j")
    assert env["OMP_NUM_THREADS"] == "5"


def test_rank_finds_itself_in_what_the_launcher_set() -> None:
    slurm = {"SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_NTASKS": "64"}
    env = rank_environment(slurm, rank=2, num_ranks=3, num_cores=8, port=1234, job="local-1")
    world = World.from_environment(env, host="h")
    assert (world.rank, world.world_size, world.local_rank, world.local_world_size) == (2, 3, 2, 3)
    assert (world.launcher, world.master_addr, world.master_port, world.job_id) == (
        "local",
        "127.0.0.1",
        1234,
        "local-1",
    )


def test_port_in_use_is_refused_and_a_free_one_is_found() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentFailedError, match=f"port {port} cannot be used .*set MASTER_PORT"):
            pick_port({"MASTER_PORT": str(port)})
        assert pick_port({}) != port
    with pytest.raises(ConfigError, match="MASTER_PORT is 'x'"):
        pick_port({"MASTER_PORT": "x"})


def test_inside_an_allocation_means_not_inside_a_task() -> None:
    assert is_inside(ALLOCATION)
    assert not is_inside(ALLOCATION | {"SLURM_STEP_ID": "0"})
    assert not is_inside({})


def test_allocation_gives_one_rank_per_gpu_or_per_task() -> None:
    assert default_num_ranks(ALLOCATION) == 32
    assert default_num_ranks(ALLOCATION | {"SLURM_GPUS_ON_NODE": ""}) == 4


def test_srun_spreads_the_ranks_evenly(tmp_path: Path) -> None:
    command = srun_command(ALLOCATION, RunDirectory(tmp_path), kind="language", num_ranks=16)
    assert command[:5] == ["srun", "--nodes=4", "--ntasks=16", "--ntasks-per-node=4", "--kill-on-bad-exit=1"]
    assert command[-5:] == ["-m", "scalewright.run", "language", "--run-dir", str(tmp_path)]
    assert "--nodes=2" in srun_command(ALLOCATION, RunDirectory(tmp_path), kind="language", num_ranks=2)
    with pytest.raises(ConfigError, match="does not spread evenly over 4 nodes"):
        srun_command(ALLOCATION, RunDirectory(tmp_path), kind="language", num_ranks=6)


def test_a_port_is_held_until_the_first_rank_has_it() -> None:
    with held_port({}) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EnvironmentFailedError, match=f"port {port} cannot be used"):
            pick_port({"MASTER_PORT": str(port)})
    assert pick_port({"MASTER_PORT": str(port)}) == port
