"""The fixture `slurm`: a real cluster of two nodes for the whole session."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, missing_binaries


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("a private Slurm cluster needs root")
    if missing := missing_binaries():
        pytest.skip(f"not installed: {', '.join(missing)}")
    # Not pytest's own directory: the path of the munge socket must stay below 108 bytes.
    with tempfile.TemporaryDirectory(prefix="slurm-") as directory:
        cluster = Cluster(Path(directory))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
