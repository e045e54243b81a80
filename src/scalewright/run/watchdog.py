"""The watchdog: if a run makes no more steps, it writes the stack of every rank and exits with 75 (requeue).

It also records what never happens in a healthy run: a loss that is not finite, a loss that does not change, and work
done faster than the device can.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from scalewright.errors import ConfigError
from scalewright.records.documents import document, read_document, write_document
from scalewright.records.metric_names import EVENT_FROZEN, EVENT_IMPOSSIBLE, EVENT_NAN, EVENT_STALL
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.metrics import MetricWriter
from scalewright.run.world import World

START_LIMIT_S = 1800.0
"""Before the first step: imports on a cold file system, compilation, the first collectives."""
SAVE_LIMIT_S = 3600.0
"""For a save or a load of a checkpoint: the slowest file systems take some minutes."""
NUM_REMEMBERED = 64
NUM_FROZEN = 20
"""Steps in a row with exactly the same loss. The loss of a model that learns changes by rounding alone."""
STACKS_WAIT_S = 10.0
REPORT_TIMEOUT_S = 30.0
"""Time limit of the last report, because the file system may hang."""
MAX_POLL_S = 1.0
GUARD_FACTOR = 2.0


class Watchdog:
    """Watches one rank from a thread. Use it as a context manager around the training loop."""

    def __init__(
        self,
        directory: RunDirectory,
        world: World,
        metrics: MetricWriter,
        *,
        factor: float,
        minimum_s: float,
        start_limit_s: float = START_LIMIT_S,
        save_limit_s: float = SAVE_LIMIT_S,
    ) -> None:
        self._directory, self._world, self._metrics = directory, world, metrics
        self._factor, self._minimum_s, self._start_limit_s = factor, minimum_s, max(start_limit_s, minimum_s)
        self._poll_s = min(MAX_POLL_S, minimum_s / 4)
        self._durations_s: deque[float] = deque(maxlen=NUM_REMEMBERED)
        self._step = -1
        self._last_s = time.monotonic()
        self._num_suspended = 0
        self._save_limit_s = save_limit_s
        self._longest_save_s = 0.0
        self._saving_since_s: float | None = None
        self._known_request = self._request_identity()
        self._same_loss: tuple[float | None, int] = (None, 0)
        self._noted: set[str] = set()
        self._not_finite_since: int | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._started_s = time.time()
        self._guard: int | None = None
        # A probe on a busy machine measures a low peak; a run may exceed it.
        self._peak_is_measured = directory.read_machine().get("peak_kind") == "measured"

    def __enter__(self) -> Watchdog:
        self._last_s = time.monotonic()
        self._guard = self._open_guard()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        if self._guard is not None:
            os.close(self._guard)
            self._guard = None
            path = self._directory.stack(self._world.rank)
            with contextlib.suppress(OSError):
                if path.stat().st_size == 0:
                    path.unlink()

    @property
    def limit_s(self) -> float:
        """Longest time without a step that is not a stall."""
        if not self._durations_s:
            return self._start_limit_s
        return max(self._minimum_s, self._factor * statistics.median(self._durations_s))

    def step_done(
        self,
        *,
        step: int,
        seconds_s: float,
        loss: float | None,
        flop_per_s: float,
        peak_flop_per_s: float | None = None,
    ) -> None:
        with self._lock:
            self._step, self._last_s = step, time.monotonic()
            self._durations_s.append(seconds_s)
        if loss is not None:
            self._check_loss(step, loss)
        too_fast = peak_flop_per_s is not None and not self._peak_is_measured and flop_per_s > peak_flop_per_s
        peak = f"the device's peak of {peak_flop_per_s or 0:.3e}"
        detail = f"{flop_per_s:.3e} FLOP/s is above {peak}: the time or the work is wrong"
        self._note(EVENT_IMPOSSIBLE, too_fast, step=step, detail=detail)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Use around long work that is not a step: saving or loading a checkpoint, an evaluation."""
        with self._lock:
            self._num_suspended += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_suspended -= 1
                self._last_s = time.monotonic()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Use around saving and loading of a checkpoint. It may take long, but not for ever: a rank may be stopped."""
        with self._lock:
            began_s = self._saving_since_s = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._last_s = time.monotonic()
                self._longest_save_s = max(self._longest_save_s, self._last_s - began_s)
                self._saving_since_s = None

    @property
    def save_limit_s(self) -> float:
        """Longest time of a save or a load that is not a stall."""
        return max(self._save_limit_s, self._factor * self._longest_save_s)

    @property
    def not_finite_since(self) -> int | None:
        """The step since which every loss has been NaN or infinite; None if the last one was finite."""
        return self._not_finite_since

    def _check_loss(self, step: int, loss: float) -> None:
        if math.isfinite(loss):
            self._not_finite_since = None
        elif self._not_finite_since is None:
            self._not_finite_since = step
        self._note(EVENT_NAN, not math.isfinite(loss), step=step, detail=f"the loss is {loss}")
        before, count = self._same_loss
        count = count + 1 if loss == before else 1
        self._same_loss = (loss, count)
        detail = f"the loss has been {loss!r} for {NUM_FROZEN} steps: no gradient reaches the weights"
        self._note(EVENT_FROZEN, count >= NUM_FROZEN, step=step, detail=detail)

    def _note(self, name: str, is_true: bool, *, step: int, detail: str) -> None:
        """Write one event when a condition begins, not one per step while it lasts."""
        if is_true and name not in self._noted:
            self._metrics.event(step=step, name=name, detail=detail)
            self._noted.add(name)
        elif not is_true:
            self._noted.discard(name)

    def _watch(self) -> None:
        while not self._done.wait(self._poll_s):
            if self._guard is not None:
                # This thread needs the interpreter's lock. If it never gets it, a C thread writes the stacks.
                faulthandler.dump_traceback_later(GUARD_FACTOR * self.limit_s, exit=False, file=self._guard)
            if self._is_stack_requested():
                self._exit_after(self._dump)
            reason = self._overdue()
            if reason:
                self._stall(reason)

    def _overdue(self) -> str:
        """What takes too long, in words; empty if nothing does."""
        with self._lock:
            now_s = time.monotonic()
            after = f"after step {self._step}" if self._step >= 0 else "before the first step"
            if self._saving_since_s is not None:
                waited_s, limit_s = now_s - self._saving_since_s, self.save_limit_s
                what = f"a save or load of a checkpoint {after} does not end: it has taken {waited_s:.1f} s"
            elif self._num_suspended:
                return ""
            else:
                waited_s, limit_s = now_s - self._last_s, self.limit_s
                what = f"no step for {waited_s:.1f} s {after}"
        return f"{what} (limit {limit_s:.1f} s)" if waited_s > limit_s else ""

    def _open_guard(self) -> int | None:
        try:
            self._directory.stacks.mkdir(parents=True, exist_ok=True)
            return os.open(self._directory.stack(self._world.rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError:
            return None

    def _is_stack_requested(self) -> bool:
        """Of this attempt. An earlier one may have left a request, and its clock may have been ahead of ours."""
        identity = self._request_identity()
        if identity is None or identity == self._known_request:
            return False
        try:
            request = read_document(self._directory.stack_request, "stack-request")
        except ConfigError:
            return False
        return (request.get("job"), request.get("attempt")) == (self._world.job_id, self._world.attempt)

    def _request_identity(self) -> tuple[int, int] | None:
        try:
            status = self._directory.stack_request.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _stall(self, problem: str) -> None:
        reason = f"{problem}: see stacks/ for the stack of each rank; resume from the last checkpoint"

        def report() -> None:
            with contextlib.suppress(Exception):  # a full disk must not stop the request to the other ranks
                write_end(self._directory, self._world, code=ExitCode.REQUEUE, reason=reason)
            with contextlib.suppress(Exception):
                body = {
                    "rank": self._world.rank, "reason": reason, "time": time.time(), "job": self._world.job_id,
                    "attempt": self._world.attempt,
                }  # fmt: skip
                write_document(self._directory.stack_request, document("stack-request", body))
            self._dump()
            with contextlib.suppress(Exception):
                self._metrics.event(step=self._step, name=EVENT_STALL, detail=reason)
            self._wait_for_stacks()

        self._exit_after(report)

    def _dump(self) -> None:
        with contextlib.suppress(OSError), self._directory.stack(self._world.rank).open("a") as file:
            file.write(f"rank {self._world.rank} on {self._world.host}, after step {self._step}\n")
            file.flush()
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.write("end of stacks\n")

    def _wait_for_stacks(self) -> None:
        deadline_s = time.monotonic() + STACKS_WAIT_S
        missing = set(range(self._world.world_size)) - {self._world.rank}
        while missing and time.monotonic() < deadline_s:
            missing = {rank for rank in missing if not _is_dumped(self._directory.stack(rank), self._started_s)}
            time.sleep(self._poll_s)

    def _exit_after(self, work: Callable[[], None]) -> None:
        """Do `work`, then end the process, whose main thread is stuck. It also ends if `work` hangs on the disk."""

        def finish() -> None:
            work()
            with contextlib.suppress(Exception):
                self._metrics.flush()

        writer = threading.Thread(target=finish, name="watchdog report", daemon=True)
        writer.start()
        writer.join(REPORT_TIMEOUT_S)
        os._exit(ExitCode.REQUEUE)


def _is_dumped(path: Path, since_s: float) -> bool:
    try:
        return path.stat().st_mtime >= since_s and path.read_text(errors="replace").endswith("end of stacks\n")
    except OSError:
        return False


def write_end(directory: RunDirectory, world: World, *, code: int, reason: str, lost_another: bool = False) -> None:
    """Record how this rank ended. The first cause of an attempt is kept."""
    checkpoint = directory.last_checkpoint()
    directory.write_exit_info(
        ExitInfo(
            code=int(code),
            reason=" ".join(reason.split()),
            job=world.job_id,
            attempt=world.attempt,
            rank=world.rank,
            last_checkpoint=None if checkpoint is None else str(checkpoint.relative_to(directory.path)),
            time=time.time(),
            lost_another=lost_another,
        )
    )
