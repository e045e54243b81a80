"""The controller's process: `python -m scalewright.run controller --run-dir DIR`. It imports no torch.

It replays the journal, listens on a free port, writes its address to the run directory, and works until TERM or INT.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from scalewright.data.reasoning.problem_row import ProblemRow
from scalewright.data.reasoning.task import open_task
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.records.documents import document, read_document, write_document
from scalewright.records.hybrid import HybridSettings, HybridStep, HybridWriter, TimelineWriter, WeightSync
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import EnvName, ExitCode
from scalewright.run.hybrid.client import ADDRESS
from scalewright.run.hybrid.controller import Controller
from scalewright.run.hybrid.journal import Journal
from scalewright.run.hybrid.leases import LEASE_S, LeaseClock
from scalewright.run.hybrid.server import MessageServer, run_token
from scalewright.run.hybrid.state import StateSettings
from scalewright.run.world import World
from scalewright.workload.reasoning import stage_run
from scalewright.workload.reasoning.stage_run import GrpoSettings, ReasonRun

_STEP_KEYS = {one.name for one in fields(HybridStep)}
_SYNC_KEYS = {one.name for one in fields(WeightSync)}


def serve(directory: RunDirectory, world: World) -> ExitCode:
    """Be the controller of a run until a signal ends it."""
    where = directory.config
    config = stage_run.from_document(read_document(where, stage_run.KIND), where=str(where))
    settings = config.settings
    if not isinstance(settings, GrpoSettings) or not config.roles.are_separate:
        raise ConfigError(f"{directory.path}: has no separate roles to control: give --engines 1 or more")
    with _alone(directory):
        return asyncio.run(_serve(directory, world, config, state_settings(config, settings)))


def state_settings(config: ReasonRun, settings: GrpoSettings) -> StateSettings:
    """What the run's configuration means for the controller."""
    max_open = config.roles.num_engines * config.engine.max_running
    return StateSettings(
        pool=settings.pool_settings(max_open=max_open), num_steps=config.steps, staleness=config.roles.staleness
    )


async def _serve(directory: RunDirectory, world: World, config: ReasonRun, settings: StateSettings) -> ExitCode:
    task = open_task(config.task)
    assert isinstance(config.settings, GrpoSettings)
    config.settings.check_budget(task.max_response)
    with contextlib.closing(_Records(directory, config, settings)) as record:
        journal = Journal(directory.journal, directory.journal_snapshot)
        controller = Controller(
            settings, journal, task=task, problems=ProblemRow(task, seed=config.seed), leases=LeaseClock(_lease_s()),
            record=record,
        )  # fmt: skip
        controller.replay()
        server = MessageServer(controller.answer, token=run_token(directory.controller_token))
        is_local = world.launcher in ("local", "single")
        listener, port = await server.start("127.0.0.1" if is_local else "0.0.0.0")
        stopped = _stop_event()
        body = {
            "host": "127.0.0.1" if is_local else world.host,
            "port": port,
            "pid": os.getpid(),
            "time_s": time.time(),
        }
        work = asyncio.create_task(controller.run(stopped))
        write_document(directory.controller_address, document(ADDRESS, body))
        try:
            await work
        finally:
            listener.close()
            await server.close()
            journal.close()
    return ExitCode.YES if controller.state.is_over else ExitCode.REQUEUE


class _Records:
    """What the controller writes for reports. A step that was done before a kill is written again, and replaces it."""

    def __init__(self, directory: RunDirectory, config: ReasonRun, settings: StateSettings) -> None:
        pool, roles = settings.pool, config.roles
        self._has_sandbox = config.task.sandbox != "off"
        self._steps = HybridWriter(
            directory,
            HybridSettings(
                mode=roles.mode, token_budget=pool.token_budget, retention=pool.retention, staleness=settings.staleness,
                engine_ranks=list(roles.engine_ranks), sync_way=roles.sync, sandbox=config.task.sandbox,
                groups=pool.groups, old_tokens=pool.old_tokens,
            ),
        )  # fmt: skip
        self._timeline = TimelineWriter(directory, "controller", 0)

    def step(self, counts: Mapping[str, Any]) -> None:
        line = HybridStep(**{name: value for name, value in counts.items() if name in _STEP_KEYS})
        self._steps.step(line if self._has_sandbox else replace(line, sandbox_outcomes={}))

    def sync(self, result: Mapping[str, Any]) -> None:
        self._steps.sync(WeightSync(**{name: value for name, value in result.items() if name in _SYNC_KEYS}))

    def scored(self, started_s: float, ended_s: float, num: int) -> None:
        self._timeline.add("reward", started_s, ended_s, detail=f"{num} answers")

    def close(self) -> None:
        self._timeline.close()
        self._steps.close()


@contextlib.contextmanager
def _alone(directory: RunDirectory) -> Iterator[None]:
    """Refuse a second controller: two would write one journal."""
    path = directory.journal.parent / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EnvironmentFailedError(
                f"{directory.path}: another controller is active in it: end it first, or wait until it has ended"
            ) from error
        yield
    finally:
        os.close(handle)


def _stop_event() -> asyncio.Event:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


def _lease_s() -> float:
    text = os.environ.get(EnvName.LEASE_S, str(LEASE_S))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value < float("inf"):
        raise ConfigError(f"{EnvName.LEASE_S} is {text!r}: give seconds above 0")
    return value
