"""The daemons of one instance. A daemon is identified by process id and start time, so no other process is stopped."""

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
from scalewright.lab.daemon import DaemonRequest, start_ticks
from scalewright.lab.spec import search_path
from scalewright.lab.state import LabPaths

STARTER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.05
FOREIGN = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_")
"""Prefixes of variables that belong to another job or cluster."""


class Daemons:
    """Starts, checks and stops the daemons of the instance at `paths`."""

    def __init__(self, paths: LabPaths) -> None:
        self._paths = paths

    def start(
        self, name: str, argv: list[str], *, hostname: str = "", hosts: Path | None = None, network: str = ""
    ) -> None:
        request = DaemonRequest(
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
        """Every daemon that was started here, running or not."""
        return sorted(path.stem for path in self._paths.run.glob("*.json"))

    def pid(self, name: str) -> int | None:
        """The process id, if the same process is still running; else None."""
        try:
            record = json.loads(self._paths.record(name).read_text())
        except (OSError, ValueError):
            return None
        pid, ticks = record.get("pid"), record.get("start_ticks")
        return pid if isinstance(pid, int) and ticks is not None and start_ticks(pid) == ticks else None

    def kill(self, names: Iterable[str]) -> None:
        """End daemons and everything that they started at once, like a power cut."""
        try:
            self._signal(names, signal.SIGKILL)
        except TimeoutError as error:
            raise EnvironmentFailedError(
                f"processes of {self._paths.id} did not end within {STOP_TIMEOUT_S:g} s: see"
                f" scalewright lab status {self._paths.id}"
            ) from error

    def stop(self, name: str) -> None:
        """Ask a daemon to save its state and end. Kill it if it does not end in time."""
        try:
            self._signal([name], signal.SIGTERM)
        except TimeoutError:
            self.kill([name])

    def _signal(self, names: Iterable[str], number: signal.Signals) -> None:
        pids = {name: pid for name in names if (pid := self.pid(name)) is not None}
        for name, pid in pids.items():
            # A process descriptor refers to this process, never to a later one with the same id.
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
        """Wait until `condition` holds. If `name` ends or the time is up, raise an error with the end of its log."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            ended = self.pid(name) is None
            if ended or time.monotonic() > deadline:
                problem = "ended at once" if ended else f"was not ready after {timeout_s:g} s"
                log = self._paths.log(name)
                raise EnvironmentFailedError(f"{name} {problem}: {last_line(log)}; its log is {log}")
            time.sleep(POLL_S)


def client_env(environ: Mapping[str, str], paths: LabPaths) -> dict[str, str]:
    """The environment with Slurm's commands directed to this instance, without variables of other jobs or clusters."""
    kept = {k: v for k, v in environ.items() if not k.startswith(FOREIGN)}
    return kept | {"SLURM_CONF": str(paths.slurm_conf), "PATH": search_path()}


def last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").split("\n")
    except OSError:
        return "it has no log"
    messages = [line.strip() for line in lines if line.strip()]
    errors = [line for line in messages if "fatal" in line.lower() or "error" in line.lower()]
    return (errors or messages or ["its log is empty"])[-1]
