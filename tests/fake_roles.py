"""Engines and a trainer without PyTorch, and a controller in this process: to test the controller of separate roles.

A fake engine writes the one right continuation of every rollout, so whatever is trained can be checked token by token,
however often rollouts went from one engine to another.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright.data.reasoning.problem_row import ProblemRow
from scalewright.data.reasoning.task import Problem, Score, Split, Trace
from scalewright.records.documents import document, write_document
from scalewright.records.run_directory import RunDirectory
from scalewright.run.hybrid.client import ADDRESS, ControllerClient
from scalewright.run.hybrid.controller import Controller
from scalewright.run.hybrid.journal import Journal
from scalewright.run.hybrid.leases import LeaseClock
from scalewright.run.hybrid.messages import FinishedRow, LeaseLostError, ProgressRow, TrainBatch
from scalewright.run.hybrid.server import MessageServer, run_token
from scalewright.run.hybrid.state import StateSettings
from scalewright.workload.reasoning.rollout_pool import OpenRollout, PoolSettings

CLIENTS: list[ControllerClient] = []
"""Of all fake roles; closed with the controller."""
LONGEST = 24
"""Tokens of the longest fake answer."""


def right_token(rollout: str, place: int) -> int:
    return zlib.crc32(f"{rollout}@{place}".encode()) % 1000


def right_tokens(rollout: str) -> list[int]:
    num = 1 + zlib.crc32(rollout.encode()) % LONGEST
    return [right_token(rollout, place) for place in range(num)]


def log_prob_of(token: int) -> float:
    return -(token + 1) / 256


def is_right(one: OpenRollout) -> bool:
    """Whether a trained answer has each of its tokens once, in order, with its own log-probability."""
    tokens = right_tokens(one.id)
    return one.tokens == tokens and one.log_probs == [log_prob_of(token) for token in tokens]


class FakeTask:
    """Problems of two tokens; the reward is the parity of the answer's length."""

    vocab, pad_token, max_prompt, max_response = 1000, 0, 2, LONGEST
    stop_tokens = frozenset({0})

    def __init__(self, *, reward_s: float = 0.0) -> None:
        self._reward_s = reward_s

    def problems(self, split: Split, num: int, *, seed: int) -> list[Problem]:
        return [Problem(id=f"{seed}-{place}", prompt=(1, place % 1000)) for place in range(num)]

    def cold_start(self, num: int, *, seed: int) -> list[Trace]:
        return [Trace(problem=problem, response=(0,)) for problem in self.problems("train", num, seed=seed)]

    def score(self, problem: Problem, response: Sequence[int]) -> Score:
        failure = "time" if len(response) == 1 else ""
        reward = float(len(response) % 2)
        return Score(reward=reward, is_correct=reward > 0, why="its length", failure=failure)

    def score_many(self, pairs: Iterable[tuple[Problem, Sequence[int]]]) -> list[Score]:
        time.sleep(self._reward_s)
        return [self.score(problem, response) for problem, response in pairs]

    def text(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


@dataclass
class FakeRecord:
    """What a controller would write for reports."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    syncs: list[dict[str, Any]] = field(default_factory=list)
    num_scored: int = 0

    def step(self, counts: Mapping[str, Any]) -> None:
        self.steps.append(dict(counts))

    def sync(self, result: Mapping[str, Any]) -> None:
        self.syncs.append(dict(result))

    def scored(self, started_s: float, ended_s: float, num: int) -> None:
        self.num_scored += num


def settings_of(
    *, num_steps: int = 6, staleness: int = 0, token_budget: int = 0, num_prompts: int = 4, num_answers: int = 4,
    max_open: int = 16, **pool: Any,
) -> StateSettings:  # fmt: skip
    pool_settings = PoolSettings(
        token_budget=token_budget, num_prompts=num_prompts, num_answers=num_answers, max_open=max_open, **pool
    )
    return StateSettings(pool=pool_settings, num_steps=num_steps, staleness=staleness)


@contextmanager
def serving(
    run_dir: Path, settings: StateSettings, *, lease_s: float = 30.0, task: FakeTask | None = None,
    hello_s: float = 5.0, message_s: float = 30.0,
) -> Iterator[Controller]:  # fmt: skip
    """A controller on a loopback port, in a thread. What it holds may be read while nobody talks to it."""
    directory = RunDirectory(run_dir)
    task = task or FakeTask()
    started, loop = threading.Event(), asyncio.new_event_loop()
    stopped: list[asyncio.Event] = []
    made: list[Controller] = []
    errors: list[BaseException] = []

    async def serve() -> None:
        journal = Journal(directory.journal, directory.journal_snapshot)
        controller = Controller(
            settings, journal, task=task, problems=ProblemRow(task, seed=0), leases=LeaseClock(lease_s),
            record=FakeRecord(),
        )  # fmt: skip
        controller.replay()
        token = run_token(directory.controller_token)
        server = MessageServer(controller.answer, token=token, hello_s=hello_s, message_s=message_s)
        listener, port = await server.start("127.0.0.1")
        event = asyncio.Event()
        stopped.append(event)
        made.append(controller)
        body = {"host": "127.0.0.1", "port": port, "pid": 0, "time_s": time.time()}
        write_document(directory.controller_address, document(ADDRESS, body))
        started.set()
        try:
            await controller.run(event)
        finally:
            listener.close()
            await server.close()
            journal.close()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            errors.append(error)
        finally:
            started.set()
            loop.close()

    thread = threading.Thread(target=run, name="controller", daemon=True)
    thread.start()
    started.wait()
    try:
        if errors:
            raise errors[0]
        yield made[0]
    finally:
        if stopped and not loop.is_closed():
            loop.call_soon_threadsafe(stopped[0].set)
        thread.join()
        for client in CLIENTS:
            client.close()
    if errors:
        raise errors[0]


class FakeEngine:
    """Decodes `stride` tokens of each rollout that it holds, reports, and asks what to do next."""

    def __init__(
        self, run_dir: Path, number: int, *, capacity: int = 8, stride: int = 3, patience_s: float = 60.0
    ) -> None:
        self.client = ControllerClient(run_dir, "engine", number, patience_s=patience_s, timeout_s=10.0)
        CLIENTS.append(self.client)
        self.number, self.capacity, self.stride = number, capacity, stride
        self.version = -1
        self.held: dict[str, list[int]] = {}
        self.num_leases = 0
        self.num_written = 0
        self.acknowledged: list[str] = []
        """Ends of rollouts that the controller took, in order."""

    def join(self) -> None:
        self.client.join(self.number, self.capacity)
        self.version, self.held = -1, {}
        self.num_leases += 1

    def run(self, *, is_stopped: Callable[[], bool] = lambda: False, pause_s: float = 0.002) -> None:
        """Until the controller says stop."""
        self.join()
        while not is_stopped():
            try:
                if not self.turn(pause_s):
                    return
            except LeaseLostError:
                self.join()

    def turn(self, pause_s: float = 0.0) -> bool:
        """One round; false when the run is over."""
        orders = self.client.poll()
        for rollout in orders.cut:
            self.held.pop(rollout, None)
        if orders.state == "stop":
            return False
        if orders.sync is not None:
            self.version = orders.sync.version
            self.client.synced(self.version, {"way": orders.sync.way, "bytes": 1.0, "seconds": 0.1})
            return True
        if orders.state == "pause":
            time.sleep(pause_s)
            return True
        for work in self.client.pull(self.capacity - len(self.held)):
            self.held[work.id] = list(work.prefix)
        if not self.held:
            time.sleep(pause_s)
        self.decode()
        return True

    def decode(self) -> None:
        progress, finished = [], []
        for rollout, tokens in list(self.held.items()):
            right = right_tokens(rollout)
            assert tokens == right[: len(tokens)]
            fresh = right[len(tokens) : len(tokens) + self.stride]
            row = {"id": rollout, "tokens": fresh, "log_probs": [log_prob_of(token) for token in fresh],
                   "version": self.version}  # fmt: skip
            tokens.extend(fresh)
            self.num_written += len(fresh)
            if len(tokens) == len(right):
                finished.append(FinishedRow(**row, reason="stop"))
            else:
                progress.append(ProgressRow(**row))
        orders = self.client.progress(progress)
        self.acknowledged += self.client.finished(finished).taken
        for rollout in (*orders.cut, *(row.id for row in finished)):
            self.held.pop(rollout, None)


class FakeTrainer:
    """Takes batches; its weights are the list of the ids that each step trained on."""

    def __init__(self, run_dir: Path, *, num_steps: int, checkpoint_every: int = 2, patience_s: float = 60.0) -> None:
        self.client = ControllerClient(run_dir, "trainer", 0, patience_s=patience_s, timeout_s=10.0)
        CLIENTS.append(self.client)
        self.num_steps, self.checkpoint_every = num_steps, checkpoint_every
        self.path = run_dir / "fake_checkpoint.json"
        self.weights: list[list[str]] = []
        self.batches: list[TrainBatch] = []

    def resume(self) -> None:
        """Go back to the last checkpoint, as after a crash."""
        self.weights = json.loads(self.path.read_text()) if self.path.exists() else []
        del self.batches[len(self.weights) :]
        step = len(self.weights)
        self.client.resume(step)
        self.client.publish(step, [f"trainer-of-{step}"], "peers")

    def step(self, *, is_stopped: Callable[[], bool] = lambda: False, work_s: float = 0.0) -> bool:
        """One step; false if the run is over or stopped."""
        step = len(self.weights)
        if step >= self.num_steps:
            return False
        batch = None
        while batch is None:
            if is_stopped():
                return False
            batch = self.client.batch(step, wait_s=0.2)
        time.sleep(work_s)
        self.weights.append([one.rollout.id for group in batch.groups for one in group.answers])
        self.batches.append(batch)
        self.client.done(step, step + 1, [f"trainer-of-{step + 1}"], "peers", seconds={"train_s": 0.5})
        if (step + 1) % self.checkpoint_every == 0 or step + 1 == self.num_steps:
            self.path.write_text(json.dumps(self.weights))
            self.client.checkpointed(step + 1)
        return True

    def run(self, *, is_stopped: Callable[[], bool] = lambda: False, work_s: float = 0.0) -> None:
        self.resume()
        while self.step(is_stopped=is_stopped, work_s=work_s):
            pass


def check_trained(batches: Sequence[TrainBatch]) -> None:
    """Every trained answer is whole and right, and none is in two batches."""
    ids = [one.rollout.id for batch in batches for group in batch.groups for one in group.answers]
    assert len(set(ids)) == len(ids)
    for batch in batches:
        for group in batch.groups:
            for one in group.answers:
                assert is_right(one.rollout), one
                assert one.rollout.group == group.prompt_place
                assert one.reward == len(one.rollout.tokens) % 2


def run_roles(
    run_dir: Path, *, num_engines: int, num_steps: int, work_s: float = 0.0, **engine: Any
) -> tuple[FakeTrainer, list[FakeEngine]]:
    """A whole run with engines in threads, and the trainer in this one."""
    engines = [FakeEngine(run_dir, number, **engine) for number in range(num_engines)]
    threads = [threading.Thread(target=one.run, daemon=True) for one in engines]
    trainer = FakeTrainer(run_dir, num_steps=num_steps)
    for thread in threads:
        thread.start()
    trainer.run(work_s=work_s)
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    return trainer, engines
