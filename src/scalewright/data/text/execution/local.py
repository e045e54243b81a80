"""Tasks in processes of this machine."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import parent_process

from scalewright.data.text.execution.backend import OnDone, PhaseTasks, Summary
from scalewright.data.text.execution.tasks import run_task
from scalewright.data.text.execution.worker_start import one_thread, without_main, worker_context
from scalewright.errors import ConfigError, EnvironmentFailedError

AHEAD = 4
"""Tasks per worker that may wait."""


class LocalBackend:
    """Processes of this machine; with one worker, this process."""

    def __init__(self, num_workers: int) -> None:
        if num_workers < 1:
            raise ConfigError(f"{num_workers} workers: a pipeline needs 1 or more")
        self._num_workers = num_workers
        self._pool: ProcessPoolExecutor | None = None
        if num_workers > 1:
            with one_thread(), without_main():
                self._pool = self._begun()
                self._pool.submit(os.getpid)  # workers start now, before a bar or a library starts a thread

    @property
    def num_workers(self) -> int:
        return self._num_workers

    def run(self, tasks: PhaseTasks, on_done: OnDone) -> None:
        """Do every task; the first error ends the others."""
        if self._num_workers == 1:
            with one_thread():
                for number in tasks.numbers:
                    on_done(number, run_task(tasks.work, tasks.phase, number))
            return
        try:
            self._run_in_pool(tasks, on_done)
        except BrokenProcessPool as error:
            self._pool = None
            raise EnvironmentFailedError(
                f"a worker of phase {tasks.phase} was killed, perhaps for memory; run the same command again to go on, "
                "with fewer --workers if it happens again"
            ) from error

    def _run_in_pool(self, tasks: PhaseTasks, on_done: OnDone) -> None:
        with one_thread(), without_main():  # while workers start
            self._pool = pool = self._pool or self._begun()
            waiting: dict[Future[Summary], int] = {}
            try:
                for number in tasks.numbers:
                    waiting[pool.submit(run_task, tasks.work, tasks.phase, number)] = number
                    if len(waiting) >= AHEAD * self._num_workers:
                        _collect(waiting, on_done)
                while waiting:
                    _collect(waiting, on_done)
            except BaseException as error:
                for future in waiting:
                    future.cancel()
                if not isinstance(error, Exception):  # Ctrl-C, which may have reached the pool's own parts as well
                    self._kill_workers(pool)
                raise

    def _begun(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._num_workers, mp_context=worker_context(), initializer=_begin)

    def _kill_workers(self, pool: ProcessPoolExecutor) -> None:
        """At once: a task that is cut off leaves no whole file and is done again."""
        self._pool = None
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _collect(waiting: dict[Future[Summary], int], on_done: OnDone) -> None:
    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        on_done(waiting.pop(future), future.result())


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers, which would wait for tasks for ever."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
