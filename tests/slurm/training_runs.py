"""A small language run under a rendered script: submitted, watched, held still, and read afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from waiting import job_field, wait_for, wait_for_end, without_pause, without_preflight

from scalewright.catalog.library import open_catalog
from scalewright.lab.cluster import Lab
from scalewright.launch.script.render import render
from scalewright.launch.script.request import JobRequest
from scalewright.launch.slurm.sbatch import parse_job_id
from scalewright.records import metric_names as names
from scalewright.records.documents import write_text
from scalewright.records.events import Event, read_events
from scalewright.records.run_directory import RunDirectory
from scalewright.sites.loader import find_site
from scalewright.workload import language_run
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model

MODEL = "layers=2,hidden=256,heads=4,seq=128,vocab=512"
NUM_STEPS = 24
CHECKPOINT_EVERY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """One job of two nodes with a rank each."""

    lab: Lab
    job: str
    directory: RunDirectory

    @classmethod
    def submit(cls, lab: Lab, path: Path, **changes: Any) -> TrainingRun:
        """As `launch` does with a plan, which would ask for GPUs: the ranks and the script share a run directory."""
        spec = resolve_model(open_catalog(None), MODEL)
        config = language_run.resolve(
            spec, parse_layout("dp=2,mbs=4"), precision="fp32", device="cpu", steps=NUM_STEPS, profile_steps=0,
            checkpoint_every=CHECKPOINT_EVERY,
        )  # fmt: skip
        directory = RunDirectory.create_or_resume(path, config.document())
        request = JobRequest(
            command=(sys.executable, "-m", "scalewright.run", "language", "--run-dir", str(path)),
            num_nodes=2, gpus_per_node=1, run_dir=path, work_dir=path, finds_its_rank=True,
            **{"walltime_s": 600, "variables": {"OMP_NUM_THREADS": "1"}} | changes,
        )  # fmt: skip
        script = render(request, find_site("generic", None)).text
        write_text(directory.script, without_preflight(without_pause(script)))
        done = lab.run("sbatch", "--parsable", str(directory.script))
        assert done.returncode == 0, done.stderr
        return cls(lab=lab, job=parse_job_id(done.stdout), directory=directory)

    def again(self) -> TrainingRun:
        """The same script, submitted again."""
        done = self.lab.run("sbatch", "--parsable", str(self.directory.script))
        assert done.returncode == 0, done.stderr
        return replace(self, job=parse_job_id(done.stdout))

    def events(self) -> list[Event]:
        path = self.directory.rank_events(0)
        return list(read_events(path)) if path.exists() else []

    def losses(self) -> list[tuple[int, float]]:
        """Step and loss as rank 0 wrote them, a step that was repeated as often as it was."""
        return [(e.step, e.value) for e in self.events() if e.name == names.LOSS and e.value is not None]

    def last_step(self) -> int:
        return max((step for step, _ in self.losses()), default=-1)

    def resumed_at(self) -> list[int]:
        return [e.step for e in self.events() if e.name == names.EVENT_RESUME]

    def log(self) -> str:
        path = self.directory.logs / f"slurm-{self.job}.out"
        return path.read_text() if path.exists() else ""

    def field(self, name: str) -> str:
        return job_field(self.lab, self.job, name)

    def nodes(self) -> list[str]:
        return self.lab.run("scontrol", "show", "hostnames", self.field("NodeList")).stdout.split()

    def shown(self) -> str:
        ranks = [path.read_text()[-2000:] for path in sorted(self.directory.logs.glob("rank-*.log"))]
        state = self.lab.run("scontrol", "show", "job", self.job).stdout
        return "\n".join([state, self.log()[-4000:], *ranks])

    def hold(self) -> None:
        """Let it train past its first checkpoint, and keep it there: a fault must not find it finished."""
        wait_for("a checkpoint", lambda: bool(self.directory.checkpoint_steps()), shown=self.shown)
        signal_ranks(self.directory, signal.SIGSTOP)
        assert self.last_step() < NUM_STEPS - 5, "it is too fast to be stopped on the way: make the model larger"

    def release(self) -> None:
        signal_ranks(self.directory, signal.SIGCONT)

    def finish(self) -> TrainingRun:
        """Until the job has ended for good."""
        wait_for_end(self.lab, self.job, shown=self.shown)
        return self


def signal_ranks(directory: RunDirectory, number: signal.Signals) -> None:
    """Ranks that are stopped need no processor while a test waits for Slurm's timers."""
    for pid in ranks_of(directory):
        with contextlib.suppress(ProcessLookupError):  # it ended while we looked
            os.kill(pid, number)


def ranks_of(directory: RunDirectory) -> list[int]:
    """Processes of the ranks of a run."""
    pids: list[int] = []
    command = [sys.executable, "-m", "scalewright.run", "language", "--run-dir", str(directory.path)]
    cmdline = "\0".join(command).encode() + b"\0"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == cmdline:
                pids.append(int(path.parent.name))
        except OSError:
            continue  # it ended while we looked
    return sorted(pids)
