"""The running ranks of one role: processes on this machine, or one srun step on nodes of the allocation."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping
from typing import Protocol

from scalewright.launch.ranks.local import LocalRanks, held_port, rank_environment, start_rank
from scalewright.launch.roles.division import Role, visible_devices
from scalewright.records.types import EnvName, ExitCode

STEP_VARIABLES = ("SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK", "SLURM_SRUN", "PMI")
"""Beginnings of variables of the step that a supervisor may itself be in: a step of a role must not inherit them."""
STEP_SIZES = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION")
FIRST_PORT, NUM_PORTS = 20000, 10000


class RoleWorld(Protocol):
    """A role while it runs."""

    @property
    def pids(self) -> list[int]: ...

    def poll(self) -> int | None:
        """The exit code of the role; None while it runs. Below 0: a signal that nobody here sent."""
        ...

    def send(self, number: int) -> None: ...

    def kill(self) -> None:
        """End it at once and wait for it."""
        ...


class LocalWorld:
    """Ranks on this machine. Each is bound to its share of the role's cores."""

    def __init__(self, role: Role, env: Mapping[str, str], *, num_cores: int, job: str, is_alone: bool = True) -> None:
        """Without `is_alone`, roles are on other nodes too: the role must be reachable from there."""
        self._role = role
        self._ranks = LocalRanks()
        listener = held_port({name: text for name, text in env.items() if name != "MASTER_PORT"})
        port = int(listener.getsockname()[1])
        if not is_alone or role.kind == "controller":
            listener.close()  # its ranks listen at another address, or not at all
        cores = len(role.cores) or num_cores
        for rank in range(role.num_ranks):
            own = rank_environment(env, rank=rank, num_ranks=role.num_ranks, num_cores=cores, port=port, job=job)
            if role.gpus:
                own["CUDA_VISIBLE_DEVICES"] = visible_devices(env, role.gpus)
            elif role.kind == "controller":
                own["CUDA_VISIBLE_DEVICES"] = ""
            if not is_alone:
                del own[EnvName.LAUNCHER]
            given = None if listener.fileno() < 0 else listener
            process = start_rank(role.directory, role.program, rank, own, run_path=role.run_path, listener=given)
            self._ranks.processes.append(process)
            if role.cores:
                each = len(role.cores) // role.num_ranks
                share = role.cores[rank * each : (rank + 1) * each]
                with contextlib.suppress(OSError):  # it has ended, or may not choose its cores
                    os.sched_setaffinity(process.pid, share)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._ranks.processes]

    def poll(self) -> int | None:
        if self._ranks.are_running():
            return None
        return code_of(self._role, 0 if self._ranks.first is None else self._ranks.first[1])

    def send(self, number: int) -> None:
        self._ranks.send(number)

    def kill(self) -> None:
        self._ranks.kill()


class StepWorld:
    """One srun step. If a rank fails, srun ends the others of this role only."""

    def __init__(self, role: Role, env: Mapping[str, str], *, has_gpus: bool, attempt: int) -> None:
        self._role = role
        command = step_command(role, has_gpus=has_gpus)
        role.directory.logs.mkdir(parents=True, exist_ok=True)
        with (role.directory.logs / "srun.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=step_environment(env, role, attempt=attempt), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def pids(self) -> list[int]:
        return [self._process.pid]

    def poll(self) -> int | None:
        code = self._process.poll()
        if code is not None and code > 128:  # srun says so of a task that a signal ended
            return 128 - code
        return None if code is None else code_of(self._role, code)

    def send(self, number: int) -> None:
        """srun passes TERM and USR1 to its tasks. On INT it only prints, so INT becomes TERM."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM if number == signal.SIGINT else number)

    def kill(self) -> None:
        """A second TERM within a second would only abort srun; it is asked once, then killed."""
        if self._process.poll() is None:
            self.send(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10.0)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def step_command(role: Role, *, has_gpus: bool) -> list[str]:
    """The srun command of a role: on its own nodes, beside the steps of other roles."""
    per_node = role.num_ranks // len(role.nodes)
    shares = ["--exact", f"--gpus-per-node={per_node}"] if has_gpus else ["--overlap"]
    return [
        "srun", *shares, f"--nodes={len(role.nodes)}", f"--nodelist={','.join(role.nodes)}",
        f"--ntasks={role.num_ranks}", f"--ntasks-per-node={per_node}", "--kill-on-bad-exit=1",
        f"--job-name={role.name}", sys.executable, "-m", "scalewright.run", role.program, "--run-dir",
        str(role.run_path.resolve()),
    ]  # fmt: skip


def step_environment(env: Mapping[str, str], role: Role, *, attempt: int) -> dict[str, str]:
    """Without what belongs to the step of the supervisor, and with a port that no other role of the job uses.

    The supervisor holds the run directory for all of them.
    """
    kept = {name: text for name, text in env.items() if not name.startswith(STEP_VARIABLES) and name not in STEP_SIZES}
    key = f"{env.get('SLURM_JOB_ID', '')}:{role.name}:{attempt}:{time.time_ns()}"
    port = FIRST_PORT + zlib.crc32(key.encode()) % NUM_PORTS
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", EnvName.LAUNCHER):
        kept.pop(name, None)
    return {**kept, "MASTER_PORT": str(port), EnvName.HELD: "1"}


def code_of(role: Role, status: int) -> int:
    """The exit code of a role: the one that a rank recorded, since those that lost it may have ended before it."""
    recorded = role.directory.read_exit_info() if status > 0 else None
    return recorded.code if recorded is not None and recorded.code else status


def last_words(role: Role) -> str:
    """Why a role ended, by its own record or the last error in its log; empty: it left nothing."""
    info = role.directory.read_exit_info()
    if info is not None and role.kind != "trainer":
        return info.reason
    try:
        lines = role.directory.log(0).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")


def describe(code: int) -> str:
    """How a role ended, in words."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}" if code != ExitCode.REQUEUE else "stopped making progress (exit code 75)"
