"""Control groups of an instance: whether the kernel can enforce memory limits here, and their removal."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMORY = ROOT / "memory"


def memory_control() -> str:
    """`cgroup` if this process may create a memory group with a limit (version 1), else `polling`.

    With version 2, Slurm needs a tree delegated by systemd. Containers and sessions often do not have one.
    """
    probe = MEMORY / f"scalewright-{uuid.uuid4().hex[:8]}"
    try:
        probe.mkdir()
    except OSError:
        return "polling"
    try:
        return "cgroup" if os.access(probe / "memory.limit_in_bytes", os.W_OK) else "polling"
    finally:
        probe.rmdir()


def remove_groups(nodes: list[str]) -> None:
    """Remove the groups that the slurmds of these nodes created. Their processes have ended."""
    for node in nodes:
        for top in ROOT.glob(f"*/slurm_{node}"):
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
