"""Hand a script to Slurm: the one effect, and reading its answer."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from scalewright.errors import EnvironmentFailedError

TIMEOUT_S = 60.0
_JOB_ID = re.compile(r"^(\d+)(?:;\S+)?$")


def parse_job_id(text: str) -> str:
    """The job's number in what `sbatch --parsable` prints: `12345` or `12345;cluster`, after any talk of the site."""
    for line in reversed(text.splitlines()):
        if match := _JOB_ID.match(line.strip()):
            return match.group(1)
    raise EnvironmentFailedError(f"sbatch printed no job number: {' '.join(text.split())[:200]!r}; look with squeue")


def check_sbatch() -> None:
    if shutil.which("sbatch") is None:
        raise EnvironmentFailedError(
            "sbatch is not on PATH, so nothing can be submitted here: use --dry-run, or go to the cluster's login node"
        )


def submit(script: Path) -> str:
    """The number of the new job. Slurm's own words where it refuses."""
    check_sbatch()
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(script)],
            capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailedError(
            f"sbatch did not answer in {TIMEOUT_S:.0f} s: see with squeue whether the job is there before trying again"
        ) from error
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise EnvironmentFailedError(f"sbatch refused {script}: {words}")
    return parse_job_id(done.stdout)
