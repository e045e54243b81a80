"""A practice cluster for the length of a fixture; the test is skipped where none can be started."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from scalewright.lab.cluster import Lab
from scalewright.lab.spec import LabSpec, missing_programs


def started(spec: LabSpec) -> Iterator[Lab]:
    if os.geteuid() != 0:
        pytest.skip("a practice cluster needs root")
    if missing := missing_programs(spec):
        pytest.skip(f"not installed: {', '.join(missing)}")
    lab = Lab.up(spec)
    try:
        yield lab
    finally:
        lab.down()
