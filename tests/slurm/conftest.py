"""The practice clusters of the tests, one of each kind for the whole session, or for each of its workers.

A test that stops a daemon or a node starts it again: the next test finds the cluster whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.practice_cluster import started

from scalewright.lab.cluster import Lab
from scalewright.lab.spec import LabSpec

HERE = Path(__file__).parent
LONGEST = tuple(
    f"test_{name}.py"
    for name in ("training_survives", "study_slurm", "jobs_resume", "jobs_graphs", "rendered_job", "preflight_slurm")
)
"""Files to begin with, so that no worker is left alone with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests have deadlines of their own, which say what was waited for; several may follow each other."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(1200))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if item.path.parent != HERE:
        return 0
    return LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Lab]:
    """Four nodes with two fake GPUs each, with accounting, QOS and preemption."""
    yield from started(LabSpec(num_nodes=4, num_gpus_per_node=2))


@pytest.fixture(scope="session")
def slurm_without_accounting() -> Iterator[Lab]:
    """Two nodes, and nobody who remembers jobs."""
    yield from started(LabSpec(num_nodes=2, num_gpus_per_node=2, accounting=False))
