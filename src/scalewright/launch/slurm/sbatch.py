"""sbatch: whether it is installed, and the job id in its output."""

from __future__ import annotations

import re
import shutil

from scalewright.errors import EnvironmentFailedError


class NoJobIdError(EnvironmentFailedError):
    """sbatch ended well and named no job. It is unknown whether there is one."""


_JOB_ID = re.compile(r"^(\d+)(?:;\S+)?$")


def parse_job_id(text: str) -> str:
    """The job id in the output of `sbatch --parsable`: `12345` or `12345;cluster`, after any messages of the site."""
    for line in reversed(text.splitlines()):
        if match := _JOB_ID.match(line.strip()):
            return match.group(1)
    raise NoJobIdError(f"sbatch printed no job id: {' '.join(text.split())[:200]!r}; look with squeue")


def check_sbatch() -> None:
    if shutil.which("sbatch") is None:
        raise EnvironmentFailedError(
            "sbatch is not on PATH, so nothing can be submitted here: use --dry-run, or log in to the cluster"
        )
