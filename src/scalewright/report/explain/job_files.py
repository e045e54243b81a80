"""Files of a Slurm job: what the scheduler accounts for it, its logs, and its run directory."""

from __future__ import annotations

import re
from pathlib import Path

from scalewright.errors import ConfigError, EnvironmentFailedError, ScalewrightError
from scalewright.records.documents import read_document
from scalewright.sites.scheduler import Runner

FIELDS = (
    "JobID,JobName,Partition,State,ExitCode,DerivedExitCode,Reason,Submit,Start,End,Elapsed,Timelimit,NNodes,NTasks,"
    "NCPUS,NodeList,ReqMem,MaxRSS,TotalCPU,AllocTRES,WorkDir"
)
JOB_ID = re.compile(r"^\d+(?:_\d+)?$")
_PATHS = re.compile(r"\b(StdOut|StdErr|WorkDir)=(\S+)")
MOST_RUNS = 500
"""Run directories below a job's folder that are looked at."""


def job_files(job_id: str, folder: Path, runner: Runner | None = None) -> list[Path]:
    """Paths that tell of a job. The account goes to a file in `folder`; an unknown job is an error of the input."""
    caller = runner or Runner(max_tries=2)
    account = caller.call(["sacct", "-j", job_id, "--parsable2", f"--format={FIELDS}"])
    rows = [line.split("|") for line in account.splitlines() if line.strip()]
    if len(rows) < 2:
        raise ConfigError(f"job {job_id}: the scheduler does not know it; check the id, or give its log files")
    path = folder / "sacct.txt"
    path.write_text(account, encoding="utf-8")
    work = Path(dict(zip(rows[0], rows[1], strict=False)).get("WorkDir", "") or ".")
    logs = _logs(caller, job_id, work)
    return [path, *logs, *_run_folders(job_id, work)]


def _logs(runner: Runner, job_id: str, work: Path) -> list[Path]:
    """Output files: as the scheduler names them while it remembers the job, else by Slurm's default name."""
    candidates = [work / f"slurm-{job_id}.out"]
    try:
        shown = runner.call(["scontrol", "show", "job", "-o", job_id])
    except (EnvironmentFailedError, ScalewrightError):
        shown = ""
    candidates += [Path(value) for name, value in _PATHS.findall(shown) if name != "WorkDir"]
    return list(dict.fromkeys(path for path in candidates if path.is_file()))


def _run_folders(job_id: str, work: Path) -> list[Path]:
    """Run directories of ours that this job wrote."""
    folders = []
    for count, run in enumerate(sorted(work.glob("runs/*/provenance.json"))):
        if count >= MOST_RUNS:
            break
        try:
            attempts = read_document(run, "provenance").get("attempts", [])
        except ScalewrightError:
            continue
        if any(isinstance(one, dict) and str(one.get("job")) == job_id for one in attempts):
            folders.append(run.parent)
    return folders
