"""Waiting for a real Slurm, and what it knows of a job. Nobody fails for being slow: machines are shared."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scalewright.lab.cluster import Lab

PATIENCE_S = 300.0
PLAIN_PYTHON = sys._base_executable
"""The interpreter behind the tests' environment. It has no scalewright, so that a job which runs it goes on without the
pre-flight check: importing PyTorch takes longer than all that these jobs do. Other tests have the check."""
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"})


def wait_for(what: str, condition: Callable[[], object], *, shown: Callable[[], str] = str) -> None:
    """Until it is so; `shown` tells a reader of the failure where things stood."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}\n{shown()}"
        time.sleep(0.2)


def without_pause(script: str) -> str:
    """A rendered script without the pause of up to 15 s that spreads the first reads of many jobs."""
    changed, number = re.subn(r"sleep \$\(\(RANDOM.*", "true", script)
    assert number == 1, "the script has another pause"
    return changed


def without_preflight(script: str) -> str:
    """A rendered script without the check of its nodes, which takes longer than a small run. Other tests have it."""
    changed, number = re.subn(
        r'run_step "\$\{step_flags\[@\]\}" --kill-on-bad-exit=0(.*\n)*?.* \|\| true\n', "true\n", script
    )
    assert number == 1, "the script has another check"
    return changed


def path_without_preflight(folder: Path, path: str) -> str:
    """A PATH whose `python` has no scalewright: a job whose command is not Python checks its nodes with that one."""
    folder.mkdir()
    (folder / "python").symlink_to(PLAIN_PYTHON)
    return f"{folder}:{path}"


def job_field(lab: Lab, job: str, name: str) -> str:
    """One field of what the controller knows of the job; empty while it does not answer."""
    words = lab.run("scontrol", "-o", "show", "job", job).stdout.split()
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


def wait_for_end(lab: Lab, job: str, *, shown: Callable[[], str] = str) -> str:
    """The state in which the job ended for good."""
    wait_for("the end of the job", lambda: job_field(lab, job, "JobState") in ENDED, shown=shown)
    return job_field(lab, job, "JobState")


def update_job(lab: Lab, job: str, change: str) -> None:
    """A controller that has just started may need a moment."""
    wait_for(change, lambda: lab.run("scontrol", "update", f"JobId={job}", change).returncode == 0)


def limit_job(lab: Lab, job: str, *, minutes_left: int) -> None:
    """Slurm counts limits in whole minutes from the start, so that up to one less is left.

    A test of the time limit sets it once the ranks work: a busy machine may need all of a short one to start them.
    """
    clock = job_field(lab, job, "RunTime").rpartition("-")[2].split(":")
    elapsed_min = int(clock[0]) * 60 + int(clock[1])
    update_job(lab, job, f"TimeLimit={elapsed_min + minutes_left}")
