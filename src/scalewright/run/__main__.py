"""The entry point of every rank: `python -m scalewright.run KIND --run-dir DIR`, started by our launcher, srun,
torchrun or a pod. Nothing else in the project imports `run`.

However a rank ends, it writes the exit code and the reason to the run directory. `signals.py` describes what happens
when a signal asks the run to stop.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import importlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from scalewright.errors import ConfigError, MissingExtraError, ScalewrightError
from scalewright.records.metric_names import EVENT_STOP
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import EnvName, ExitCode
from scalewright.run.metrics import MetricWriter
from scalewright.run.provenance import record_start
from scalewright.run.rank_context import RankContext
from scalewright.run.sampler import NodeSampler
from scalewright.run.signals import StopSignals
from scalewright.run.watchdog import SAVE_LIMIT_S, Watchdog, write_end
from scalewright.run.world import World

WATCHDOG_FACTOR = 10.0
WATCHDOG_MINIMUM_S = 120.0
PR_SET_PDEATHSIG = 1
LOST_ANOTHER = "another rank ended"
_LOST = re.compile(
    r"[Cc]onnection (?:closed|reset) by (?:remote )?peer|[Bb]roken pipe|remote process (?:exited|has terminated)"
    r"|ncclRemoteError"
)
"""What PyTorch says when the other end of a connection has gone."""


Kind = Callable[[RankContext], ExitCode]
KINDS = {
    "language": "scalewright.run.language.train:run",
    "vision": "scalewright.run.vision.train:run",
    "generate": "scalewright.run.traffic.bench:run",
    "reason": "scalewright.run.reasoning.run:run",
    "sync": "scalewright.run.weight_sync.bench:run",
    "engine": "scalewright.run.hybrid.engine_role:run",
    "collectives": "scalewright.run.micro.collectives:run",
    "gemm": "scalewright.run.micro.gemm:run",
    "memory": "scalewright.run.micro.memory:run",
    "attention": "scalewright.run.micro.attention:run",
    "convolution": "scalewright.run.micro.convolution:run",
    "dispatch": "scalewright.run.micro.dispatch:run",
    "decode": "scalewright.run.micro.decode:run",
    "storage": "scalewright.run.micro.disk.storage:run",
    "checkpoint": "scalewright.run.micro.disk.checkpoint:run",
}
"""The function that runs each kind. Its module is imported when the kind is started."""


def kind_named(name: str) -> Kind:
    """The function of a kind. It imports its module when called, so that a run without PyTorch records why it ended."""

    def run(rank: RankContext) -> ExitCode:
        module, _, function = KINDS[name].partition(":")
        with _torch_or_extra():
            run_kind: Kind = getattr(importlib.import_module(module), function)
        return run_kind(rank)

    return run


@contextlib.contextmanager
def _torch_or_extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "torch":
            raise MissingExtraError("run", "torch") from error
        raise


def _preflight(directory: RunDirectory, world: World, num_spares: int | None) -> int:
    """Check the nodes before step 1, in the directory of the run that follows. That run may be of any program."""
    from scalewright.records.preflight import read_request

    request = read_request(directory.preflight_request)
    if num_spares is not None:
        request = replace(request, num_spares=num_spares)
    with _torch_or_extra():
        from scalewright.run.preflight.check import run_preflight
    if world.launcher == "local":
        _end_with_the_launcher()
    return run_preflight(directory, world, request)


def _controller(directory: RunDirectory, world: World) -> int:
    """Be the controller of separate roles. It is no rank: how it ended is its exit code and its log."""
    from scalewright.run.hybrid.role_controller import serve

    if world.launcher == "local":
        _end_with_the_launcher()
    return int(serve(directory, world))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scalewright.run", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name in KINDS:
        kinds.add_parser(name).add_argument("--run-dir", type=Path, required=True)
    preflight = kinds.add_parser("preflight", help="check the nodes before step 1")
    preflight.add_argument("--run-dir", type=Path, required=True)
    preflight.add_argument("--spares", type=int, help="nodes that may be left out; default: the number in the request")
    controller = kinds.add_parser("controller", help="keep the rollouts of a run whose roles are separate")
    controller.add_argument("--run-dir", type=Path, required=True)
    probe = kinds.add_parser("probe", help="measure this machine for a second or two and print it as JSON")
    probe.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    probe.add_argument("--precision", choices=("fp32", "tf32", "fp16", "bf16"), default="fp32")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.kind == "probe":
            from scalewright.run.probe import print_probe

            print_probe(device=chosen.device, precision=chosen.precision)
            return ExitCode.YES
        world = World.from_environment(os.environ)
        if chosen.kind == "preflight":
            return _preflight(RunDirectory(chosen.run_dir), world, chosen.spares)
        directory = RunDirectory.open(chosen.run_dir)
        if chosen.kind == "controller":
            return _controller(directory, world)
    except ScalewrightError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return error.exit_code
    try:
        with _held_alone(directory, world):
            code = execute(kind_named(chosen.kind), directory, world)
    except ConfigError as error:  # before anything of the run that is active was touched
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return error.exit_code
    # The notice may arrive while the interpreter exits; a run that has recorded its end must not look killed.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return code


@contextlib.contextmanager
def _held_alone(directory: RunDirectory, world: World) -> Iterator[None]:
    """Refuse a second run in the directory. A launcher of ours holds it already, and says so to its ranks."""
    if not world.is_first or EnvName.HELD in os.environ or world.launcher == "local":
        yield
        return
    with directory.held(owner=world.job_id):
        yield


def execute(kind: Kind, directory: RunDirectory, world: World) -> int:
    """Run `kind` and record how it ended."""
    if world.launcher == "local":
        _end_with_the_launcher()
    screen = os.dup(2)
    stop = StopSignals()
    try:
        _redirect_output(directory.log(world.rank))
        with stop:
            code, reason = _guarded(kind, directory, world, stop)
    except BaseException as error:
        traceback.print_exc()
        code, reason = describe(error, world)
    if code != ExitCode.YES or world.is_first:
        with contextlib.suppress(Exception):  # on a full disk, the exit code and the message below must suffice
            write_end(directory, world, code=code, reason=reason, lost_another=LOST_ANOTHER in reason)
    if code not in (ExitCode.YES, ExitCode.REQUEUE):
        os.write(screen, f"error: rank {world.rank}: {' '.join(reason.split())}\n".encode())
    return int(code)


def _guarded(kind: Kind, directory: RunDirectory, world: World, stop: StopSignals) -> tuple[int, str]:
    if world.is_first:
        directory.exit_info.unlink(missing_ok=True)
        directory.stack_request.unlink(missing_ok=True)
        record_start(directory, world, os.environ)
    factor, minimum_s = (
        _positive_number(EnvName.WATCHDOG_FACTOR, WATCHDOG_FACTOR),
        _positive_number(EnvName.WATCHDOG_S, WATCHDOG_MINIMUM_S),
    )
    with (
        contextlib.closing(MetricWriter(directory, world)) as metrics,
        NodeSampler(directory, world),
        Watchdog(
            directory,
            world,
            metrics,
            factor=factor,
            minimum_s=minimum_s,
            save_limit_s=_positive_number(EnvName.WATCHDOG_SAVE_S, SAVE_LIMIT_S),
        ) as watchdog,  # fmt: skip
    ):
        rank = RankContext(directory=directory, world=world, metrics=metrics, stop=stop, watchdog=watchdog)
        code = kind(rank)
        if stop.requested is not None:
            metrics.event(step=-1, name=EVENT_STOP, detail=stop.requested)
    if code == ExitCode.YES and watchdog.not_finite_since is not None:
        return ExitCode.NO, (
            f"every step was done, but no loss since step {watchdog.not_finite_since} is finite: start again from a "
            "checkpoint before it, with a smaller learning rate"
        )
    if code == ExitCode.YES:
        return code, "finished"
    if stop.requested is not None:
        return code, f"stopped by {stop.requested} after a whole step: run it again to resume"
    return code, f"ended with exit code {int(code)}"


def describe(error: BaseException, world: World) -> tuple[int, str]:
    """Exit code and one sentence for the error that ended a run."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "EADDRINUSE" in text or "ddress already in use" in text:
        # The script of a job looks for a free port at its start: queued again, it finds another.
        code = ExitCode.REQUEUE if world.launcher == "slurm" else ExitCode.ENVIRONMENT
        return code, f"port {world.master_port} of {world.master_addr} is in use: set MASTER_PORT to another"
    if isinstance(error, ScalewrightError):
        return error.exit_code, text
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED, "interrupted: run it again to resume"
    if isinstance(error, SystemExit):
        return (error.code if isinstance(error.code, int) else ExitCode.ENVIRONMENT), f"exited with {error.code}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return (
            ExitCode.ENVIRONMENT,
            f"{error.filename or 'the run directory'}: {error.strerror}; free space, then resume",
        )
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return ExitCode.NO, f"does not fit in memory: use more ranks, a smaller model or recompute=full ({text[:200]})"
    if _LOST.search(text):
        return ExitCode.ENVIRONMENT, f"{LOST_ANOTHER}, see its log and logs/rank-{world.rank}.log ({text[:200]})"
    return ExitCode.ENVIRONMENT, f"{type(error).__name__}: {text[:400]}; see logs/rank-{world.rank}.log"


def _positive_number(name: str, default: float) -> float:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise ConfigError(f"{name} is {text!r}: give a number above 0")
    return value


def _redirect_output(path: Path) -> None:
    """Send what this rank prints to its own log; a resumed run adds to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)


def _end_with_the_launcher() -> None:
    """If the launcher is killed, the kernel sends its ranks TERM, and they stop after the current step."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
