"""A real Slurm cluster of two nodes on this host, for the tests.

One private munged, one slurmctld and one slurmd per node, all in the foreground as children of this process, with
every file in one directory. Debian builds Slurm with multiple-slurmd support: `slurmd -N n1`, each on its own port.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

NODES = ("n1", "n2")
GPUS_PER_NODE = 2
BINARIES = ("munged", "slurmctld", "slurmd", "sinfo", "sbatch", "srun", "scancel")
PR_SET_CHILD_SUBREAPER = 36
# The daemons live in sbin, which is not on every caller's PATH.
SEARCH_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

SLURM_CONF = """\
ClusterName=scalewright
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={dir}/munge.socket
MpiDefault=none
MailProg=/bin/true
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=2
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=00:10:00 State=UP
"""


class ClusterError(RuntimeError):
    """The cluster did not start; the message has the ends of its logs."""


def missing_binaries() -> list[str]:
    return [name for name in BINARIES if shutil.which(name, path=SEARCH_PATH) is None]


def free_ports(count: int) -> list[int]:
    # All are held until the last is chosen, so that no port comes twice.
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports


def inherited_steps() -> list[int]:
    """The ids of job steps, running or to be reaped, that have become children of this process."""
    steps = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = entry.read_text().split(" (", 1)
        except OSError:  # ended in the meantime
            continue
        name, fields = rest.rsplit(") ", 1)
        if name.startswith("slurmstepd") and int(fields.split()[1]) == os.getpid():
            steps.append(int(pid))
    return steps


class Cluster:
    """Start with `start`, run clients with `run`, and always call `stop`, also when `start` failed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.conf = directory / "slurm.conf"
        self._daemons: list[tuple[str, subprocess.Popen[bytes]]] = []

    @property
    def env(self) -> dict[str, str]:
        """This process's environment, pointed at this cluster and at no other."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH_", "SRUN_"))}
        return kept | {"SLURM_CONF": str(self.conf), "PATH": SEARCH_PATH}

    def run(self, *argv: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a client command to its end."""
        return subprocess.run(
            argv, env=self.env, cwd=self.directory, capture_output=True, text=True, timeout=timeout, check=False
        )

    def start(self) -> None:
        # Every job step outlives the slurmd that forked it; as a subreaper this process inherits and reaps them,
        # whatever PID 1 of a container does.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._write_files()
        d = self.directory
        files = (f"--{what}={d}/munge.{what.split('-')[0]}" for what in ("key-file", "socket", "pid-file", "log-file"))
        # --force: the directory may be below one that other users cannot enter, which munged only warns about then.
        self._spawn("munged", "--foreground", "--force", *files, f"--seed-file={d}/munge.seed")
        self._wait_for((d / "munge.socket").is_socket, "munged", 10)
        self._spawn("slurmctld", "-D", "-i", "-f", str(self.conf))
        for node in NODES:
            self._spawn("slurmd", "-D", "-N", node, "-f", str(self.conf), log=f"slurmd-{node}")
        self._wait_for(self._all_idle, "two idle nodes", 60)

    def stop(self) -> None:
        """End every process, by its id, the last started first."""
        if any(name == "slurmctld" and p.poll() is None for name, p in self._daemons):
            self._end_jobs()
        for _, process in reversed(self._daemons):
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._daemons.clear()
        for pid in inherited_steps():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _end_jobs(self) -> None:
        try:
            self.run("scancel", "--partition=gpu", timeout=10)
            self._wait_for(lambda: not self.run("squeue", "-h", timeout=10).stdout, "the jobs to end", 15)
        except (subprocess.TimeoutExpired, ClusterError):
            pass  # What is left is killed with its slurmstepd.

    def _write_files(self) -> None:
        d = self.directory
        d.chmod(0o755)
        (d / "state").mkdir()
        key = d / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        for i in range(GPUS_PER_NODE):
            # The devices must be character devices, or CUDA_VISIBLE_DEVICES stays empty in the jobs; 1:3 is /dev/null.
            os.mknod(d / f"nvidia{i}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        host = socket.gethostname().partition(".")[0]
        port, *node_ports = free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=4 RealMemory=1000"
            f" Gres=gpu:a100:{GPUS_PER_NODE} State=UNKNOWN"
            for node, node_port in zip(NODES, node_ports, strict=True)
        )
        self.conf.write_text(SLURM_CONF.format(dir=d, host=host, port=port, nodes=nodes))
        gres = f"Name=gpu Type=a100 File={d}/nvidia[0-{GPUS_PER_NODE - 1}]"
        (d / "gres.conf").write_text("AutoDetect=off\n" + "".join(f"NodeName={n} {gres}\n" for n in NODES))
        # Naming a plugin keeps slurmd from insisting on a mounted cgroup tree, which it would not use.
        (d / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
        for node in NODES:
            (d / f"spool-{node}").mkdir()

    def _spawn(self, *argv: str, log: str | None = None) -> None:
        name = log or argv[0]
        path = shutil.which(argv[0], path=SEARCH_PATH)
        if path is None:
            raise ClusterError(f"{argv[0]} is not installed")
        with (self.directory / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                [path, *argv[1:]],
                env=self.env,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._daemons.append((name, process))

    def _all_idle(self) -> bool:
        states = self.run("sinfo", "-h", "-N", "-o", "%N %T", timeout=30)
        return states.stdout.split("\n")[:-1] == [f"{node} idle" for node in NODES]

    def _wait_for(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            dead = [name for name, process in self._daemons if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                why = f"{', '.join(dead)} ended" if dead else f"no result in {seconds:g} s"
                raise ClusterError(f"waiting for {what}: {why}\n{self._log_ends()}")
            time.sleep(0.1)

    def _log_ends(self) -> str:
        logs = sorted([*self.directory.glob("*.out"), *self.directory.glob("*.log")])
        return "\n".join(
            f"{log.name}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-10:]) for log in logs
        )
