"""A run of separate roles whose processes are killed at random, again and again: `python tests/killed_roles.py 200`.

The controller is the real one. Engines and the trainer are those of `fake_roles.py`, each a process of its own. All are
forked from a process that has imported what they need, because starting Python takes longer than most of them live.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_roles import CLIENTS, FakeEngine, FakeTrainer, is_right
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.records.run_directory import RunDirectory
from scalewright.run.__main__ import main as run_main
from scalewright.run.hybrid.journal import Journal
from scalewright.run.hybrid.role_controller import state_settings
from scalewright.run.hybrid.state import ControllerState
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_shape
from scalewright.workload.reasoning.role_settings import RoleSettings
from scalewright.workload.reasoning.stage_run import EngineSettings, GrpoSettings, ReasonRun

LEAST_STEPS = 40
ROLES = ("controller", "trainer", "engine-0", "engine-1")
WEIGHTS = (6, 1, 2, 2)
"""How often each role is killed."""
LEASE_S = "1.5"
WORKING_FRAC = 0.8
"""So many kills come when the controller works again; the others may hit it while it starts."""


def roles_run(*, num_steps: int = LEAST_STEPS, **settings: Any) -> ReasonRun:
    """A stage with two engines, and the smallest task there is."""
    given = {"token_budget": 150, "retention": 3, "num_prompts": 4, "num_answers": 4, **settings}
    roles = given.pop("roles", RoleSettings(engine_ranks=(1, 1)))
    return ReasonRun(
        stage="grpo", model_id="tiny", shape=from_shape("layers=1,hidden=32,heads=2,vocab=40,seq=16").transformer,
        layout=Layout(mbs=8, gbs=8), settings=GrpoSettings(**given, roles=roles), steps=num_steps, device="cpu",
        task=TaskSettings(numbers=2, largest=11, values=24, operators="+", attempts=1),
        engine=EngineSettings(max_running=6),
    )  # fmt: skip


def make_run(path: Path, config: ReasonRun) -> RunDirectory:
    return RunDirectory.create_or_resume(path, config.document())


class AcknowledgedEngine(FakeEngine):
    """Writes down which ends of rollouts the controller has acknowledged."""

    def decode(self) -> None:
        num_before = len(self.acknowledged)
        super().decode()
        fresh = self.acknowledged[num_before:]
        with (self.client.directory.path / f"acknowledged-{self.number}.txt").open("a") as file:
            file.write("".join(f"{rollout}\n" for rollout in fresh))


def be(role: str, run_dir: Path) -> int:
    """The life of one process."""
    name, _, number = role.partition("-")
    if name == "controller":
        _slow_the_disk()
        return run_main(["controller", "--run-dir", str(run_dir)])
    if name == "engine":
        engine = AcknowledgedEngine(run_dir, int(number), capacity=6)
        with engine.client.beating(0.2):
            engine.run()
        return 0
    num_steps = json.loads(RunDirectory(run_dir).config.read_text())["steps"]
    trainer = FakeTrainer(run_dir, num_steps=num_steps, checkpoint_every=3)
    trainer.resume()
    while trainer.step():
        assert all(is_right(one.rollout) for group in trainer.batches[-1].groups for one in group.answers)
    return 0


def _slow_the_disk() -> None:
    """Time passes between the end of a message and the disk, so that kills hit it: an answer must not be earlier."""
    write = Journal.write

    def late(journal: Journal, lines: list[bytes]) -> None:
        time.sleep(0.005)
        write(journal, lines)

    Journal.write = late  # type: ignore[method-assign]


def forks(run_dir: Path) -> None:
    """Fork a process for each role that is named on standard input, and print its number."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the dead
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                with (run_dir / f"{line.strip()}.log").open("a") as log:
                    os.dup2(log.fileno(), 1)
                    os.dup2(log.fileno(), 2)
                code = be(line.strip(), run_dir)
            except BaseException as error:
                (run_dir / f"{line.strip()}.error").write_text(repr(error))
            finally:
                os._exit(code)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


@dataclass
class KilledRun:
    """What a run with kills came to."""

    num_kills: int
    seconds: float
    num_trained: int
    num_acknowledged: int
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.num_kills} kills in {self.seconds:.1f} s: {self.num_acknowledged} rollouts acknowledged, "
            f"{self.num_trained} trained, problems: {'; '.join(self.problems) or 'none'}"
        )


class _Roles:
    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        env = {**os.environ, "SCALEWRIGHT_LEASE_S": LEASE_S}
        command = [sys.executable, __file__, "forks", str(run_dir)]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self._pids: dict[str, int] = {}

    def start(self, role: str) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{role}\n")
        self._server.stdin.flush()
        self._pids[role] = int(self._server.stdout.readline())

    def is_alive(self, role: str) -> bool:
        try:
            os.kill(self._pids[role], 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self, role: str, number: signal.Signals = signal.SIGKILL) -> None:
        try:
            os.kill(self._pids[role], number)
        except ProcessLookupError:
            return
        while self.is_alive(role):
            time.sleep(0.001)

    def close(self) -> None:
        for role in self._pids:
            self.kill(role)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()


def run_with_kills(run_dir: Path, *, num_kills: int, seed: int, most_s: float) -> KilledRun:
    """Start the roles, kill and restart them, wait for the end, and check what is left."""
    config = roles_run(num_steps=max(LEAST_STEPS, round(0.8 * num_kills)))
    directory = make_run(run_dir, config)
    draws, begun_s, killed = random.Random(seed), time.monotonic(), 0
    roles = _Roles(run_dir)
    problems: list[str] = []
    try:
        for role in ROLES:
            roles.start(role)
        while killed < num_kills and roles.is_alive("trainer"):
            if draws.random() < WORKING_FRAC:
                _wait_for_work(directory, lambda: roles.is_alive("trainer"))
            time.sleep(draws.uniform(0.0, 0.1))
            role = draws.choices(ROLES, WEIGHTS)[0]
            roles.kill(role)
            killed += 1
            roles.start(role)
        while roles.is_alive("trainer") and time.monotonic() - begun_s < most_s:
            time.sleep(0.02)
        if roles.is_alive("trainer"):
            problems.append(f"the run has not ended within {most_s:g} s")
        roles.kill("controller", signal.SIGTERM)
    finally:
        roles.close()
    seconds = time.monotonic() - begun_s
    problems += [f"{path.name}: {path.read_text()}" for path in run_dir.glob("*.error")]
    return _checked(directory, config, KilledRun(killed, seconds, 0, 0, problems))


def _wait_for_work(directory: RunDirectory, is_running: Callable[[], bool]) -> None:
    """Until the journal has grown since now."""

    def size() -> tuple[int, int]:
        try:
            status = directory.journal.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_ino, status.st_size

    before = size()
    while size() == before and is_running():
        time.sleep(0.002)


def kill_after_answers(run_dir: Path, *, num_kills: int) -> list[str]:
    """Kill the controller at once whenever it has acknowledged the end of a rollout; the ends that its disk lacks."""
    config = roles_run()
    directory = make_run(run_dir, config)
    roles, missing, killed = _Roles(run_dir), [], 0
    trainer, engine = FakeTrainer(run_dir, num_steps=config.steps), FakeEngine(run_dir, 0, capacity=12)
    try:
        roles.start("controller")
        trainer.resume()
        engine.join()
        while killed < num_kills:
            num_before = len(engine.acknowledged)
            engine.turn()
            if len(engine.acknowledged) > num_before:
                roles.kill("controller")
                killed += 1
                state = state_on_disk(directory, config)
                ended = {one.rollout.id for one in state.pool.ended} | {row["id"] for row in state._late}
                ended |= {rollout for batch in state.batches.values() for rollout in batch.ids()}
                missing += [rollout for rollout in engine.acknowledged[num_before:] if rollout not in ended]
                roles.start("controller")
            elif trainer.client.batch(len(trainer.weights), wait_s=0.0) is not None:
                trainer.step()
    finally:
        roles.close()
        for client in CLIENTS:
            client.close()
    return missing


def state_on_disk(directory: RunDirectory, config: ReasonRun) -> ControllerState:
    """What a controller that started now would know."""
    assert isinstance(config.settings, GrpoSettings)
    journal = Journal(directory.journal, directory.journal_snapshot)
    snapshot, operations = journal.open()
    journal.close()
    settings = state_settings(config, config.settings)
    state = ControllerState(settings) if snapshot is None else ControllerState.from_document(snapshot)
    for operation in operations:
        state.apply(operation)
    return state


def _checked(directory: RunDirectory, config: ReasonRun, result: KilledRun) -> KilledRun:
    weights: list[list[str]] = json.loads((directory.path / "fake_checkpoint.json").read_text())
    trained = [rollout for step in weights for rollout in step]
    reports = [line for path in directory.path.glob("acknowledged-*.txt") for line in path.read_text().splitlines()]
    acknowledged = set(reports)
    state = state_on_disk(directory, config)
    result.num_trained, result.num_acknowledged = len(trained), len(acknowledged)
    problems = result.problems
    if len(weights) != config.steps or not state.is_over:
        problems.append(f"{len(weights)} of {config.steps} steps are in the weights")
    if len(set(trained)) < len(trained):
        problems.append(f"{len(trained) - len(set(trained))} rollouts were trained twice")
    if len(reports) > len(acknowledged):  # a rollout whose end is forgotten is written again
        problems.append(f"{len(reports) - len(acknowledged)} acknowledged ends were lost")
    kept = set(trained) | {one.rollout.id for one in state.pool.ended} | {row["id"] for row in state._late}
    lost = acknowledged - kept
    ended_of_group: dict[str, int] = {}
    for rollout in acknowledged:
        group = rollout.split(":")[0]
        ended_of_group[group] = ended_of_group.get(group, 0) + 1
    # An answer whose siblings were all given up teaches nothing, and is dropped.
    lost = {rollout for rollout in lost if ended_of_group[rollout.split(":")[0]] > 1}
    if lost:
        problems.append(f"{len(lost)} acknowledged rollouts are lost: {sorted(lost)[:5]}")
    return result


if __name__ == "__main__":
    if sys.argv[1] == "forks":
        forks(Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_with_kills(Path(folder) / "run", num_kills=int(sys.argv[1]), seed=os.getpid(), most_s=600.0)
        sys.stdout.write(f"{outcome}\n")
        sys.exit(bool(outcome.problems))
