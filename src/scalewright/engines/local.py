"""Start an engine on this machine, wait for it, and turn its log into the events of its run directory."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scalewright.engines.harvest import harvest, write_harvest, write_peaks, write_split
from scalewright.engines.samples_file import write_samples
from scalewright.engines.types import EngineJob
from scalewright.launch.ranks.forwarding import signals_to
from scalewright.launch.ranks.local import LocalRanks, pick_port, rank_environment
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.readers.reading import read_evidence
from scalewright.records.documents import document, read_document, write_document, write_text
from scalewright.records.events import Event, EventTail
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.records.types import ExitCode
from scalewright.units import KIB
from scalewright.workload.engine_run import EngineRun

POLL_S = 0.2
LOOK_EVERY_S = 2.0
"""How often the log is read while the engine runs."""
OUR_ERROR = "error: "
"""Begins the sentence of a program of ours that ended with 2 or 3."""
_PEAK = re.compile(r"^VmHWM:\s*(\d+) kB", re.MULTILINE)
MOST_WORDS = 300
"""Characters of an engine's own error in the reason of a run."""
_CAUSES = ("traceback", "device_out_of_memory", "host_out_of_memory", "bad_configuration", "missing_file")


@dataclass(slots=True)
class _Watched:
    """What is seen of the ranks' processes while they run."""

    ranks: LocalRanks = field(default_factory=LocalRanks)
    peaks_bytes: dict[int, float] = field(default_factory=dict)

    def look(self) -> None:
        """The most memory of each process so far."""
        for rank, process in enumerate(self.ranks.processes):
            with contextlib.suppress(OSError, ValueError):
                match = _PEAK.search(Path(f"/proc/{process.pid}/status").read_text())
                if match:
                    self.peaks_bytes[rank] = float(match[1]) * KIB


def run_engine(
    directory: RunDirectory, job: EngineJob, run: EngineRun, *, num_cores: int, installed: Mapping[str, str],
    on_events: Callable[[list[Event]], None], on_signal: Callable[[int], None],
) -> int:  # fmt: skip
    """Start every rank, wait, and write down what happened. Returns the exit code of the run."""
    name = f"local-{int(time.time())}-{os.getpid()}"
    _write_files(directory, job)
    write_samples(directory, run)
    _record(directory, job, run, installed, name)
    directory.exit_info.unlink(missing_ok=True)
    for log in directory.logs.glob("rank-*.log"):
        log.unlink()
    watched, logs = _Watched(), [directory.log(rank) for rank in range(_num_processes(job, run))]
    with signals_to(watched.ranks.pass_on):
        try:
            _start(directory, job, run, watched.ranks, num_cores=num_cores, name=name)
            _wait(directory, run, watched, logs, name, on_events, on_signal)
        finally:
            watched.ranks.kill()
    taken = harvest(logs, run)
    num_timed = write_harvest(directory, run, taken, job=name, host=socket.gethostname())
    if run.device == "cpu" and taken.steps:
        write_peaks(directory, watched.peaks_bytes, step=taken.steps[-1].step, job=name, host=socket.gethostname())
    write_split(directory, taken, job=name, host=socket.gethostname())
    on_events(EventTail(directory.rank_events(0)).read())
    code, reason = _end(watched.ranks, job, logs, taken.evidence, num_timed=num_timed)
    first = watched.ranks.first
    info = ExitInfo(
        code=code, reason=reason, job=name, attempt=0, rank=0 if first is None else first[0], last_checkpoint=None,
        time=time.time(),
    )  # fmt: skip
    with contextlib.suppress(OSError):  # a full disk may be the reason why it ended
        directory.write_exit_info(info, is_cause=True)
    return code


def _num_processes(job: EngineJob, run: EngineRun) -> int:
    return run.num_ranks if job.started_by == "ranks" else 1


def _write_files(directory: RunDirectory, job: EngineJob) -> None:
    for name, text in job.files.items():
        path = directory.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def _record(
    directory: RunDirectory, job: EngineJob, run: EngineRun, installed: Mapping[str, str], name: str
) -> None:  # fmt: skip
    """Versions and command of this attempt, beside those of earlier ones."""
    attempts = []
    if directory.provenance.exists():
        attempts = list(read_document(directory.provenance, "provenance").get("attempts", []))
    packages = {key: value for key, value in installed.items() if key != "python"}
    attempts.append({
        "job": name, "attempt": len(attempts), "time": time.time(), "host": socket.gethostname(), "launcher": "local",
        "num_ranks": run.num_ranks, "num_nodes": 1, "python": installed.get("python", ""),
        "platform": platform.platform(), "packages": packages, "command": list(job.command),
        "variables": dict(job.variables),
    })  # fmt: skip
    write_document(directory.provenance, document("provenance", {"attempts": attempts}))


def _start(
    directory: RunDirectory, job: EngineJob, run: EngineRun, ranks: LocalRanks, *, num_cores: int, name: str
) -> None:  # fmt: skip
    port, num = pick_port(os.environ), _num_processes(job, run)
    for rank in range(num):
        env = rank_environment(os.environ, rank=rank, num_ranks=num, num_cores=num_cores, port=port, job=name)
        # The engine's interpreter has packages of its own.
        env = {key: value for key, value in env.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        env |= {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", **job.variables}
        with directory.log(rank).open("ab") as log:
            ranks.processes.append(
                subprocess.Popen(
                    job.command, env=env, cwd=directory.path, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )
            )  # fmt: skip


def _wait(
    directory: RunDirectory, run: EngineRun, watched: _Watched, logs: list[Path], name: str,
    on_events: Callable[[list[Event]], None], on_signal: Callable[[int], None],
) -> None:  # fmt: skip
    """Until every process has ended. The log is read now and then, so that progress can be shown."""
    num_reported, looked_s, num_shown = 0, time.monotonic(), 0
    while watched.ranks.are_running():
        time.sleep(POLL_S)
        watched.look()
        for number in watched.ranks.signals[num_reported:]:
            on_signal(number)
            num_reported += 1
        if time.monotonic() - looked_s >= LOOK_EVERY_S:
            write_harvest(directory, run, harvest(logs[:1], run), job=name)
            events = EventTail(directory.rank_events(0)).read()
            on_events(events[num_shown:])
            looked_s, num_shown = time.monotonic(), len(events)


def _end(
    ranks: LocalRanks, job: EngineJob, logs: list[Path], evidence: Evidence, *, num_timed: int
) -> tuple[int, str]:  # fmt: skip
    """Exit code of the run, and one sentence with the engine's own first error."""
    if signal.SIGINT in ranks.signals:
        return ExitCode.INTERRUPTED, "stopped with Ctrl-C"
    if ranks.first is None:
        if num_timed:
            return ExitCode.YES, "finished"
        return ExitCode.ENVIRONMENT, f"{job.engine} ended well, but its log has no step: see logs/rank-0.log"
    rank, status = ranks.first
    if status == ExitCode.REQUEUE:
        return ExitCode.REQUEUE, "stopped by a signal after a whole step: run the same command again to resume"
    sentence = _our_error(logs)
    if sentence and status in (ExitCode.BAD_INPUT, ExitCode.ENVIRONMENT):
        return status, sentence
    how = f"exit code {status}" if status > 0 else f"signal {signal.Signals(-status).name}"
    cause = first_error(evidence) or first_error(read_evidence([logs[rank]])) or _last_line(logs[rank])
    words = f": {cause}" if cause else ""
    return ExitCode.ENVIRONMENT, f"{job.engine} ended with {how} on rank {rank}{words} (logs/rank-{rank}.log)"


def _our_error(logs: list[Path]) -> str:
    for path in logs:
        for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
            if line.startswith(OUR_ERROR):
                return line.removeprefix(OUR_ERROR)
    return ""


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((" ".join(line.split())[:MOST_WORDS] for line in reversed(lines) if line.strip()), "")


def first_error(evidence: Evidence) -> str:
    """The first error that the engine printed; empty where the readers know none."""
    errors = evidence.of_kind(*_CAUSES)
    return " ".join(errors[0].message.split())[:MOST_WORDS] if errors else ""
