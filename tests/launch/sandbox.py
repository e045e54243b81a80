"""Run a rendered script under bash with small programs in place of Slurm's, and see what reached the command."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

# Starts what stands after its own flags once, as rank 0. What it was given is kept.
SRUN = """#!/bin/bash
# The check before step 1 is tested elsewhere; here it is as in an image without scalewright.
case "$*" in *' -m scalewright.run preflight '*) exit 1 ;; esac
printf '%s\\0' "$@" >>"$SANDBOX/srun.argv"; printf '\\n\\0' >>"$SANDBOX/srun.argv"
while [[ ${1-} == --* ]]; do shift; done
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8 SLURMD_NODENAME=n1
exec "$@"
"""
SCONTROL = """#!/bin/bash
if [[ $1 == show ]]; then printf 'n1\\nn2\\n'; else printf '%s ' "$@" >>"$SANDBOX/scontrol.calls"; fi
"""
# An image's runtime: it drops the environment but for what it is handed, as --cleanenv does.
RUNTIME = """#!/bin/bash
printf '%s\\0' "$@" >"$SANDBOX/runtime.argv"
while [[ $1 != *.sif && $1 != pytorch ]]; do shift; done
shift
exec "$@"
"""
# Keeps its arguments and one variable, whatever they are.
PROBE = """#!/bin/bash
printf '%s\\0' "$@" >"$SANDBOX/probe.argv"
printf '%s' "${CHOSEN-}" >"$SANDBOX/probe.env"
exit "${PROBE_EXIT:-0}"
"""


@dataclass(frozen=True)
class Ran:
    code: int
    stderr: str
    argv: list[str] | None
    """What the command was given; None where it never started."""
    chosen: str
    folder: Path

    @property
    def exit_info(self) -> dict[str, object]:
        document: dict[str, object] = json.loads((self.folder / "run" / "exit_info.json").read_text())
        return document

    @property
    def requeued(self) -> bool:
        return (self.folder / "scontrol.calls").exists()

    def created(self) -> set[str]:
        """Files outside of the run directory that nobody asked for."""
        own = {"bin", "run", "srun.argv", "probe.argv", "probe.env", "runtime.argv", "scontrol.calls", "job.sh", "tmp"}
        own.add("slurm.out")
        return {path.name for path in self.folder.iterdir()} - own


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": f"{folder}/bin:/usr/bin:/bin", "SANDBOX": str(folder), "USER": "me", "HOME": str(folder),
        "SLURM_JOB_ID": "4242", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ACCOUNT": "p",
        "SLURM_ARRAY_TASK_ID": "0", "TMPDIR": str(folder / "tmp"),
    }  # fmt: skip


def make(folder: Path) -> Path:
    """A sandbox; the command to launch in it is `probe`."""
    (folder / "bin").mkdir(parents=True)
    (folder / "tmp").mkdir()
    programs = {
        "srun": SRUN,
        "scontrol": SCONTROL,
        "probe": PROBE,
        "module": "#!/bin/bash\n",
        "shifterimg": "#!/bin/bash\n",
    }
    programs |= dict.fromkeys(("singularity", "apptainer", "shifter"), RUNTIME)
    for name, text in programs.items():
        path = folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    return folder


def execute(folder: Path, text: str, **more: str) -> Ran:
    """As Slurm does, with a file for what the job says."""
    script, log = folder / "job.sh", folder / "slurm.out"
    script.write_text(text, encoding="utf-8")
    with log.open("wb") as file:
        done = subprocess.run(
            ["bash", str(script)], cwd=folder, env=environment(folder) | more, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=file, timeout=60, check=False,
        )  # fmt: skip
    probe = folder / "probe.argv"
    argv = [os.fsdecode(word) for word in probe.read_bytes().split(b"\0")[:-1]] if probe.exists() else None
    chosen = (folder / "probe.env").read_bytes().decode() if probe.exists() else ""
    return Ran(code=done.returncode, stderr=log.read_text(), argv=argv, chosen=chosen, folder=folder)
