"""The daemons of one instance: started apart, known by process id and start time, stopped by nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from scalewright.errors import EnvironmentFailedError
from scalewright.lab.daemon import Request, start_ticks
from scalewright.lab.spec import search_path
from scalewright.lab.state import LabPaths

STARTER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.05
FOREIGN = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_")
"""Variables of another job or cluster."""


class Daemons:
    """Start, look at and stop the daemons of the instance at `paths`."""

    def __init__(self, paths: LabPaths) -> None:
        self._paths = paths

    def start(
        self, name: str, argv: list[str], *, hostname: str = "", hosts: Path | None = None, network: str = ""
    ) -> None:
        request = Request(
            argv=argv,
            record=str(self._paths.record(name)),
            log=str(self._paths.log(name)),
            directory=str(self._paths.directory),
            hostname=hostname,
            hosts=str(hosts or ""),
            network=network,
        )
        done = subprocess.run(
            [sys.executable, "-P", "-m", "scalewright.lab.daemon", request.to_json()],
            env=client_env(os.environ, self._paths),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STARTER_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise EnvironmentFailedError(f"{name} could not be started: {why}")

    def names(self) -> list[str]:
        """Every daemon that was ever started here, running or not."""
        return sorted(path.stem for path in self._paths.run.glob("*.json"))

    def pid(self, name: str) -> int | None:
        """The process id, if that very process still runs."""
        try:
            record = json.loads(self._paths.record(name).read_text())
        except (OSError, ValueError):
            return None
        pid, ticks = record.get("pid"), record.get("start_ticks")
        return pid if isinstance(pid, int) and ticks is not None and start_ticks(pid) == ticks else None

    def kill(self, names: Iterable[str]) -> None:
        """End daemons and all that they started, at once, as a power cut does."""
        try:
            self._signal(names, signal.SIGKILL)
        except TimeoutError as error:
            raise EnvironmentFailedError(
                f"processes of {self._paths.id} did not end in {STOP_TIMEOUT_S:g} s: look at them with"
                f" scalewright lab status {self._paths.id}"
            ) from error

    def stop(self, name: str) -> None:
        """Let a daemon save its state and end; end it after a while if it does not."""
        try:
            self._signal([name], signal.SIGTERM)
        except TimeoutError:
            self.kill([name])

    def _signal(self, names: Iterable[str], number: signal.Signals) -> None:
        pids = {name: pid for name in names if (pid := self.pid(name)) is not None}
        for name, pid in pids.items():
            # A descriptor names this process and no later one with its id.
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if self.pid(name) == pid:
                    signal.pidfd_send_signal(handle, number)
            except ProcessLookupError:
                pass
            finally:
                os.close(handle)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(self.pid(name) is not None for name in pids):
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(POLL_S)

    def wait(self, condition: Callable[[], bool], name: str, *, timeout_s: float) -> None:
        """Until `condition` holds; if `name` ends first or time is up, say so with the end of its log."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            ended = self.pid(name) is None
            if ended or time.monotonic() > deadline:
                what = "ended at once" if ended else f"was not ready after {timeout_s:g} s"
                log = self._paths.log(name)
                raise EnvironmentFailedError(f"{name} {what}: {last_line(log)}; its log is {log}")
            time.sleep(POLL_S)


def client_env(environ: Mapping[str, str], paths: LabPaths) -> dict[str, str]:
    """An environment pointed at this instance and at no other cluster or job."""
    kept = {k: v for k, v in environ.items() if not k.startswith(FOREIGN)}
    return kept | {"SLURM_CONF": str(paths.slurm_conf), "PATH": search_path()}


def last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").split("\n")
    except OSError:
        return "it has no log"
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if "fatal" in line.lower() or "error" in line.lower()]
    return (errors or said or ["it said nothing"])[-1]
