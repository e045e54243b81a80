"""Injections: what is done to a run from outside. Each returns a function that changes a trial before its start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from scalewright import units
from scalewright.errors import EnvironmentFailedError
from scalewright.lab.faults.fault import Injection
from scalewright.lab.faults.leftovers import descendants
from scalewright.lab.faults.trial import Running, Trial, copy_evidence, start_process, workers_of
from scalewright.lab.spec import search_path

PERIOD_S = 0.1
"""Period of a CPU limit: the kernel's default."""
SOURCE = Path(__file__).with_name("interposed.c")
COMPILE_TIMEOUT_S = 60.0
PORT = 20778
"""Each namespace has its own ports, so a fixed port is always free."""


def variables(**values: str) -> Injection:
    """Environment variables of the run."""

    def inject(trial: Trial) -> None:
        trial.env |= values

    return inject


def limit_cpu(rank: int, *, cores: float, after_step: int = 0) -> Injection:
    """A rank gets a share of the cores only: the quota of a control group."""

    def inject(trial: Trial) -> None:
        group = trial.leftovers.group("cpu")
        (group / "cpu.cfs_period_us").write_text(f"{PERIOD_S / units.MICRO:.0f}")
        (group / "cpu.cfs_quota_us").write_text(f"{PERIOD_S * cores / units.MICRO:.0f}")

        def act(running: Running) -> None:
            if running.wait_for_step(after_step, rank=rank) and (pid := running.rank(rank)) is not None:
                move(group, [pid, *descendants(pid)])

        trial.acts.append(act)

    return inject


def move(group: Path, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))


def limit_memory(rank: int, *, headroom_bytes: int, after_step: int = 1) -> Injection:
    """A rank may grow by this much over what it uses after a step; beyond, the kernel kills it."""

    def inject(trial: Trial) -> None:
        group = trial.leftovers.group("memory")
        started_s = time.time()

        def act(running: Running) -> None:
            if not running.wait_for_step(after_step) or (pid := running.rank(rank)) is None:
                return
            move(group, [pid])
            # Pages that were charged before stay with the old group: only what comes is counted.
            (group / "memory.limit_in_bytes").write_text(str(headroom_bytes))

        trial.acts.append(act)
        trial.at_end.append(lambda: save_kernel_log(trial.folder / "dmesg.txt", since_s=started_s))

    return inject


def memory_of_run(num_bytes: int) -> Injection:
    """The whole run starts in a control group with a memory limit, as a job of Slurm does."""

    def inject(trial: Trial) -> None:
        group = trial.leftovers.group("memory")
        (group / "memory.limit_in_bytes").write_text(str(num_bytes))
        trial.prefix = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *trial.prefix]
        started_s = time.time()
        trial.at_end.append(lambda: save_kernel_log(trial.folder / "dmesg.txt", since_s=started_s))

    return inject


def save_kernel_log(path: Path, *, since_s: float) -> None:
    """What the kernel logged meanwhile, as `dmesg -T` prints it: a support engineer takes the same."""
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    boot_s = time.time() - uptime_s
    done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=30, check=False)
    lines = []
    for line in done.stdout.splitlines():
        stamp, _, text = line.removeprefix("[").partition("] ")
        with contextlib.suppress(ValueError):
            at_s = boot_s + float(stamp)
            if at_s >= since_s - 1.0:
                lines.append(f"[{time.strftime('%a %b %e %H:%M:%S %Y', time.gmtime(at_s))}] {text}")
    if lines:
        path.write_text("\n".join(lines) + "\n")


def address_space(num_bytes: int) -> Injection:
    """Every process of the run may map this much memory (RLIMIT_AS): allocations beyond it fail."""

    def inject(trial: Trial) -> None:
        trial.prefix = ["prlimit", f"--as={num_bytes}", *trial.prefix]

    return inject


def cores(*numbers: int) -> Injection:
    """All ranks are bound to the same cores once they run."""

    def inject(trial: Trial) -> None:
        def act(running: Running) -> None:
            if not running.wait_for_step(0):
                return
            for pid in running.ranks().values():
                for task in Path(f"/proc/{pid}/task").iterdir():
                    with contextlib.suppress(ProcessLookupError):
                        os.sched_setaffinity(int(task.name), numbers)

        trial.acts.append(act)

    return inject


def bound_from_start(*numbers: int) -> Injection:
    """The command and all its ranks may use these cores only, as a wrong `taskset` or `--cpu-bind` does."""

    def inject(trial: Trial) -> None:
        trial.prefix = ["taskset", "-c", ",".join(map(str, numbers)), *trial.prefix]

    return inject


def send(number: signal.Signals, *, rank: int | None = None, after_step: int = 3) -> Injection:
    """A signal to a rank, or to the launcher, after a step."""

    def inject(trial: Trial) -> None:
        def act(running: Running) -> None:
            if not running.wait_for_step(after_step):
                return
            pid = running.processes[0].pid if rank is None else running.rank(rank)
            if pid is not None:
                os.kill(pid, number)

        trial.acts.append(act)

    return inject


def duty_cycle(*ranks: int, stopped_s: float, runs_s: float, after_step: int = 0, workers: bool = False) -> Injection:
    """Ranks, or the workers of their loaders, are stopped and continued again and again. No ranks: all.

    With `after_step=-1` it begins as soon as they are there.
    """

    def inject(trial: Trial) -> None:
        def act(running: Running) -> None:
            if after_step >= 0 and not running.wait_for_step(after_step):
                return
            while running.pause(runs_s):
                chosen = {r: pid for r, pid in running.ranks().items() if not ranks or r in ranks}
                pids = [one for pid in chosen.values() for one in (workers_of(pid) if workers else [pid])]
                try:
                    _signal(pids, signal.SIGSTOP)
                    running.pause(stopped_s)
                finally:
                    _signal(pids, signal.SIGCONT)

        trial.acts.append(act)

    return inject


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def small_disk(num_bytes: int) -> Injection:
    """The run directory is on a disk of this size. What is on it afterwards is kept as evidence."""

    def inject(trial: Trial) -> None:
        disk = trial.leftovers.disk(num_bytes)
        kept, trial.run_dir = trial.run_dir, disk / "run"

        def keep() -> None:
            if trial.run_dir.exists():
                copy_evidence(trial.run_dir, kept)

        trial.at_end.append(keep)

    return inject


def slow_files(
    files: str, *, open_s: float = 0.0, bytes_per_s: float = 0.0, flush_s: float = 0.0, for_s: float = 0.0
) -> Injection:
    """Files whose path begins with `files` are slow, as on a busy file system. {data}, {run}: its folders."""
    return interposed(
        FAULT_FILES=files, FAULT_OPEN_S=f"{open_s:g}", FAULT_BYTES_PER_S=f"{bytes_per_s:g}",
        FAULT_FLUSH_S=f"{flush_s:g}", FAULT_FOR_S=f"{for_s:g}",
    )  # fmt: skip


def interposed(**values: str) -> Injection:
    """Load the library of faults below every process of the run."""

    def inject(trial: Trial) -> None:
        library = _library(trial)
        filled = {
            k: v.replace("{data}", str(trial.data)).replace("{run}", str(trial.run_dir)) for k, v in values.items()
        }
        trial.env |= filled | {"LD_PRELOAD": str(library)}

    return inject


def _library(trial: Trial) -> Path:
    library = trial.leftovers.folder / "interposed.so"
    if library.exists():
        return library
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise EnvironmentFailedError("this fault needs a C compiler: apt-get install gcc libc6-dev") from error
    if done.returncode:
        raise EnvironmentFailedError(f"{SOURCE.name} could not be compiled: {done.stderr.strip()[:300]}")
    return library


def linked(num_ranks: int, rate_bytes_per_s: float | None) -> Injection:
    """One rank in each network namespace, with links of this rate; None: links as fast as the host."""

    def inject(trial: Trial) -> None:
        names = tuple(f"r{rank}" for rank in range(num_ranks))
        network = trial.leftovers.network(names, rate_bytes_per_s)

        def start(trial: Trial) -> list[subprocess.Popen[bytes]]:
            common = {
                "WORLD_SIZE": str(num_ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1",
                "GROUP_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": network.address(names[0]), "MASTER_PORT": str(PORT),
                "GLOO_SOCKET_IFNAME": "eth0", "TORCHELASTIC_RUN_ID": "lab",
                "PATH": search_path(),
            }  # fmt: skip
            return [
                start_process(
                    trial, network.command(name, trial.arguments),
                    trial.environment(common | {"RANK": str(rank), "SLURMD_NODENAME": name}), f"console-{rank}.log",
                )
                for rank, name in enumerate(names)
            ]  # fmt: skip

        trial.start = start

    return inject


def beside(name: str, text: str) -> Injection:
    """A file that was recorded elsewhere is put beside the run when it ends."""

    def inject(trial: Trial) -> None:
        def put() -> None:
            (trial.folder / name).write_text(text)

        trial.at_end.append(put)

    return inject


def busy_neighbour(num_processes: int) -> Injection:
    """Other processes of the machine compute while the run goes on."""

    def inject(trial: Trial) -> None:
        def act(running: Running) -> None:
            loops = [
                start_process(trial, ["sh", "-c", "while :; do :; done"], trial.environment(), "neighbour.log")
                for _ in range(num_processes)
            ]
            running.ended.wait()
            for loop in loops:
                loop.kill()
                loop.wait()
            (trial.folder / "neighbour.log").unlink(missing_ok=True)

        trial.acts.append(act)

    return inject
