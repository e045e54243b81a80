"""Tasks on the nodes of a Ray cluster, as `launch --ray` starts it. A task whose node is lost is done again."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from scalewright.data.text.execution.backend import OnDone, PhaseTasks, Summary
from scalewright.data.text.execution.local import AHEAD
from scalewright.data.text.execution.tasks import run_task
from scalewright.data.text.execution.worker_start import ONE_THREAD
from scalewright.errors import EnvironmentFailedError, MissingExtraError, ScalewrightError

MAX_RETRIES = 10
"""Of a task whose worker or node was lost. An error of the task itself is not repeated."""


class RayBackend:
    """Workers of a running Ray, one task for each CPU. The work folder must be on storage that all nodes share."""

    def __init__(self, address: str = "") -> None:
        self._ray = _ray_module()
        address = address or os.environ.get("RAY_ADDRESS", "")
        if not address:
            raise EnvironmentFailedError(
                "no Ray to connect to: RAY_ADDRESS is not set; start it on the nodes of a job with: "
                "scalewright launch --ray ... -- scalewright data run FILE --ray"
            )
        try:
            self._ray.init(
                address=address, log_to_driver=False, logging_level="error", runtime_env={"env_vars": ONE_THREAD}
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise EnvironmentFailedError(f"Ray at {address} does not answer: {first}; check the job's log") from error
        self._remote = self._ray.remote(num_cpus=1, max_retries=MAX_RETRIES, scheduling_strategy="SPREAD")(
            _visible_task
        )

    @property
    def num_workers(self) -> int:
        return max(int(self._ray.cluster_resources().get("CPU", 1)), 1)

    def run(self, tasks: PhaseTasks, on_done: OnDone) -> None:
        """Do every task; the first error ends the others."""
        waiting: dict[Any, int] = {}
        try:
            for number in tasks.numbers:
                waiting[self._remote.remote(tasks.work, tasks.phase, number)] = number
                if len(waiting) >= AHEAD * self.num_workers:
                    self._collect(waiting, on_done, tasks.phase)
            while waiting:
                self._collect(waiting, on_done, tasks.phase)
        except BaseException:
            for reference in waiting:
                self._ray.cancel(reference)
            raise

    def close(self) -> None:
        self._ray.shutdown()

    def _collect(self, waiting: dict[Any, int], on_done: OnDone, phase: str) -> None:
        done, _ = self._ray.wait(list(waiting), num_returns=1)
        for reference in done:
            on_done(waiting.pop(reference), self._result(reference, phase))

    def _result(self, reference: Any, phase: str) -> Summary:
        errors = self._ray.exceptions
        try:
            summary: Summary = self._ray.get(reference)
        except errors.RayTaskError as error:
            if isinstance(error.cause, ScalewrightError):
                raise error.cause from error
            if isinstance(error.cause, ImportError):
                raise EnvironmentFailedError(
                    f"a node lacks what the pipeline needs ({error.cause}): Ray must start from the environment of "
                    "scalewright on all nodes, see launch --venv"
                ) from error
            raise
        except errors.RayError as error:
            raise EnvironmentFailedError(
                f"a task of phase {phase} was lost more than {MAX_RETRIES} times ({type(error).__name__}); run the "
                "same command again to go on"
            ) from error
        return summary


def _visible_task(work: Path, phase: str, number: int) -> Summary:
    if not work.is_dir():
        raise EnvironmentFailedError(
            f"{work} is not there on {socket.gethostname()}: give an --out on storage that all nodes share"
        )
    return run_task(work, phase, number)


def _ray_module() -> Any:
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError as error:
        raise MissingExtraError("ray", "ray") from error
    return ray
