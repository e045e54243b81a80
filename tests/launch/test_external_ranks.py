"""Whether a process was started as one of several ranks, and what such ranks must agree on."""

from __future__ import annotations

import pytest

from scalewright.errors import ConfigError
from scalewright.launch.ranks.allocation import num_nodes
from scalewright.launch.ranks.external import num_ranks_here, rank_of_process

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "4"}
SRUN = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}
INTERACTIVE = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}
"""A shell that salloc started: one task on the first node of the allocation."""


def test_torchrun_and_srun_start_ranks_and_a_shell_in_an_allocation_is_none() -> None:
    assert rank_of_process(TORCHRUN) == (1, 4)
    assert rank_of_process(SRUN) == (0, 8)
    assert rank_of_process(INTERACTIVE) is None
    assert rank_of_process({}) is None
    assert rank_of_process(TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}) is None
    assert rank_of_process({"RANK": "0", "WORLD_SIZE": "2"}) is None  # our own launcher's ranks never come here


def test_ranks_agree_on_their_number_and_folder() -> None:
    assert num_ranks_here(TORCHRUN, requested_ranks=None, has_run_dir=True) == 4
    assert num_ranks_here(SRUN, requested_ranks=8, has_run_dir=True) == 8
    assert num_ranks_here({}, requested_ranks=3, has_run_dir=False) is None
    with pytest.raises(ConfigError, match="4 ranks were started"):
        num_ranks_here(TORCHRUN, requested_ranks=2, has_run_dir=True)
    with pytest.raises(ConfigError, match="give --run-dir"):
        num_ranks_here(SRUN, requested_ranks=None, has_run_dir=False)


def test_nodes_are_those_of_the_allocation_or_of_the_step() -> None:
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4"}
    assert num_nodes(allocation) == 4
    assert num_nodes({**allocation, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2"}) == 2
    assert num_nodes({}) == 1
