"""Controller: answers the roles, keeps the journal, and decides when iterations begin and end.

One thread changes the state, message by message. Each change is applied, put in the journal's row, and answered when
the journal is on disk up to it. One sync of the disk serves all messages that came meanwhile. No answer overtakes the
disk, so a kill at any time loses nothing that anybody was told. Rewards are computed in another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from scalewright.data.reasoning.problem_row import ProblemRow
from scalewright.data.reasoning.task import Task
from scalewright.run.hybrid.journal import Journal
from scalewright.run.hybrid.leases import LeaseClock, checked_lease, next_operation, orders_for, rollouts_for
from scalewright.run.hybrid.messages import BYTES_PER_TOKEN, pages
from scalewright.run.hybrid.state import ControllerState, StateSettings, StepBatch
from scalewright.workload.reasoning.rollout_pool import FinishedRollout, OpenRollout

MOST_WAIT_S = 30.0
"""Longest time that a request for a batch waits in the controller."""
MOST_TOKEN = 2**31
MOST_SCORED = 256
"""Answers that the reward gets at once."""


class ControllerRecord(Protocol):
    """Where the controller writes what reports need."""

    def step(self, counts: Mapping[str, Any]) -> None:
        """A step is done: keys of records.hybrid.HybridStep."""

    def sync(self, result: Mapping[str, Any]) -> None:
        """An engine took new weights: keys of records.hybrid.WeightSync."""

    def scored(self, started_s: float, ended_s: float, num: int) -> None:
        """Rewards of so many answers were computed, by `time.perf_counter()`."""


class Controller:
    """All of the controller but its sockets."""

    def __init__(
        self, settings: StateSettings, journal: Journal, *, task: Task, problems: ProblemRow, leases: LeaseClock,
        record: ControllerRecord, now_s: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.state = ControllerState(settings)
        self.journal, self.leases = journal, leases
        self._task, self._problems = task, problems
        self._record, self._now_s = record, now_s
        self._unscored: list[FinishedRollout] = []
        self._pages: dict[int, list[list[dict[str, Any]]]] = {}
        self._pull_s: dict[str, dict[int, float]] = {}
        self._num_written = 0
        self._is_compacting = False
        self._dirty, self._wakes = asyncio.Event(), asyncio.Event()
        self._written, self._changed = _Signal(), _Signal()
        self._calls: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "join": self._join, "pull": self._pull, "poll": self._poll,
            "synced": self._synced, "resume": self._resume, "publish": self._publish,
            "done": self._done, "checkpointed": self._checkpointed, "heartbeat": self._heartbeat,
        }  # fmt: skip

    def replay(self) -> None:
        """The state of the last start."""
        snapshot, operations = self.journal.open()
        if snapshot is not None:
            settings, self.state = self.state.settings, ControllerState.from_document(snapshot)
            assert self.state.settings == settings, "the run directory checks that its configuration is the same"
        for operation in operations:
            self.state.apply(operation)
        self._unscored = self.state.unscored()
        self._num_written = self.journal.next

    async def run(self, stopped: asyncio.Event) -> None:
        """Work until stopped. The error of a full disk or a broken reward ends it."""
        self._advance()
        if self._unscored:
            self._wakes.set()
        with ThreadPoolExecutor(1, "journal") as disk, ThreadPoolExecutor(1, "reward") as scorer:
            works = [self._flush(disk), self._score(scorer), self._expire(), stopped.wait()]
            tasks = [asyncio.create_task(work) for work in works]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        self.journal.write(self.journal.take())

    async def answer(self, message: dict[str, Any], body: bytes) -> dict[str, Any]:
        """The answer to one message, when all that it rests on is on disk."""
        call = message["call"]
        if call == "batch":
            result = await self._batch(message)
        elif call in ("progress", "finished"):
            result = self._report(message, body)
        else:
            result = self._calls[call](message)
        await self._on_disk(self.journal.next)
        return result

    # Calls of engines

    def _join(self, message: dict[str, Any]) -> dict[str, Any]:
        operation = {name: _whole(message[name]) for name in ("engine", "capacity", "version")}
        if operation["capacity"] < 1 or operation["engine"] < 0:
            raise ValueError("an engine has a number of 0 or more and room for 1 rollout or more")
        self._change({"call": "join", **operation})
        engine = operation["engine"]
        self.leases.heard(engine, time.monotonic())
        return {"lease": self.state.engines[engine].lease, **self._welcome()}

    def _pull(self, message: dict[str, Any]) -> dict[str, Any]:
        engine = self._engine(message)
        chosen = rollouts_for(self.state, engine, most=_whole(message["most"]), held=_ids(message["held"]))
        fresh = [one.id for one in chosen if one.id not in self.state.owners]
        if fresh:
            self._change({"call": "lease", "engine": engine, "ids": fresh})
        return {"rollouts": [self._work_row(one) for one in chosen]}

    def _report(self, message: dict[str, Any], body: bytes) -> dict[str, Any]:
        engine = self._engine(message)
        held = _ids(message["held"])
        for row in message["rows"]:
            _check_row(row)
        ends = [row["id"] for row in message["rows"] if "reason" in row and self.state.owners.get(row["id"]) == engine]
        if message["rows"]:
            self._change(message, body)
        taken = [rollout for rollout in ends if self.state.has_ended(rollout)]
        return {"orders": {**orders_for(self.state, engine, held), "taken": taken}}

    def _poll(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"orders": orders_for(self.state, self._engine(message), _ids(message["held"]))}

    def _synced(self, message: dict[str, Any]) -> dict[str, Any]:
        engine, held = self._engine(message), _ids(message["held"])
        version, ranks = _whole(message["version"]), [_whole(one) for one in message["ranks"]]
        is_new = self.state.engines[engine].version != version
        self._change({"call": "synced", "engine": engine, "version": version, "ranks": ranks})
        if is_new:
            result = message["result"]
            self._record.sync({"version": version, "engine": engine, **result})
            times_s = self._pull_s.setdefault(str(result["way"]), {})
            times_s[version] = max(times_s.get(version, 0.0), _number(result["seconds"]))
        return {"orders": orders_for(self.state, engine, held)}

    def _engine(self, message: dict[str, Any]) -> int:
        """Number of the engine that sent this, if its lease still counts."""
        engine = _whole(message["engine"])
        checked_lease(self.state, engine, _whole(message["lease"]))
        self.leases.heard(engine, time.monotonic())
        return engine

    def _work_row(self, one: OpenRollout) -> dict[str, Any]:
        prompt = self._problems.problem(one.prompt_place).prompt
        return {"id": one.id, "prompt_place": one.prompt_place, "index": one.index, "num_cuts": one.num_cuts,
                "prompt": list(prompt), "prefix": one.tokens}  # fmt: skip

    # Calls of the trainer

    def _resume(self, message: dict[str, Any]) -> dict[str, Any]:
        self._change({"call": "resume", "step": _whole(message["step"])})
        return self._welcome()

    def _publish(self, message: dict[str, Any]) -> dict[str, Any]:
        self._change({"call": "publish", **_offered(message)})
        return {}

    def _done(self, message: dict[str, Any]) -> dict[str, Any]:
        step = _whole(message["step"])
        seconds = {str(name): _number(value) for name, value in message["seconds"].items()}
        is_new = step >= self.state.num_done
        self._change({"call": "done", "step": step, **_offered(message), "seconds": seconds, "time_s": self._now_s()})
        if is_new:
            self._record.step(self.state.batches[step].counts)
        return {"pull_s": {way: min(times_s.values()) for way, times_s in self._pull_s.items()}}

    def _checkpointed(self, message: dict[str, Any]) -> dict[str, Any]:
        self._change({"call": "checkpointed", "step": _whole(message["step"])})
        self._pages = {step: page for step, page in self._pages.items() if step in self.state.batches}
        self._is_compacting = self.journal.is_long
        return {}

    async def _batch(self, message: dict[str, Any]) -> dict[str, Any]:
        step, page = _whole(message["step"]), _whole(message["page"])
        wait_s = min(_number(message["wait_s"]), MOST_WAIT_S)
        self.state.check_batch(step)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(wait_s, 0.0)):
                while not self.state.is_ready(step):
                    await self._changed.wait()
        if not self.state.is_ready(step):
            return {"is_ready": False}
        self.state.check_batch(step)
        batch = self.state.batches[step]
        if step not in self._pages:
            self._pages = {step: self._batch_pages(batch)}
        parts = self._pages[step]
        head = {"is_ready": True, "num_pages": len(parts), "version": batch.version}
        return {**head, "counts": batch.counts, "groups": parts[page] if parts else []}

    def _batch_pages(self, batch: StepBatch) -> list[list[dict[str, Any]]]:
        rows = []
        for group in batch.groups:
            problem = self._problems.problem(group.prompt_place)
            answers = [self._answer_row(one) for one in group.answers]
            rows.append(
                {"prompt_place": group.prompt_place, "problem_id": problem.id, "prompt": list(problem.prompt),
                 "answers": answers}
            )  # fmt: skip
        return list(pages(rows, [BYTES_PER_TOKEN * group.num_tokens + 200 for group in batch.groups]))

    def _answer_row(self, one: FinishedRollout) -> dict[str, Any]:
        score = self.state.scores[one.rollout.id]
        return {"rollout": one.rollout.to_row(), "reason": one.reason, "reward": score.reward,
                "is_correct": score.is_correct, "why": score.why, "failure": score.failure}  # fmt: skip

    def _welcome(self) -> dict[str, Any]:
        state = self.state
        version = -1 if state.offer is None else state.offer.version
        return {"version": version, "step": state.num_done, "checkpoint_step": state.checkpoint_step,
                "lease_s": self.leases.lease_s}  # fmt: skip

    def _heartbeat(self, message: dict[str, Any]) -> dict[str, Any]:
        if _whole(message["engine"]) >= 0 and _whole(message["lease"]) >= 0:
            self._engine(message)
        return {"now_s": self._now_s()}

    # Changing the state

    def _change(self, operation: Mapping[str, Any], body: bytes = b"") -> None:
        """Check, apply and write down one operation, then what follows from it. `body`: its bytes, if there are any."""
        self.state.check(operation)
        self._apply(operation, body)
        self._advance()

    def _apply(self, operation: Mapping[str, Any], body: bytes = b"") -> None:
        ended = self.state.apply(operation)
        if not body or b"\n" in body:
            body = json.dumps(operation, separators=(",", ":")).encode()
        self.journal.append(body)
        self._unscored += ended
        if ended:
            self._wakes.set()
        self._dirty.set()

    def _advance(self) -> None:
        """Begin and end iterations as long as one can."""
        while (call := next_operation(self.state)) is not None:
            self._apply({"call": call, "time_s": self._now_s()})
            self._changed.send()

    async def _on_disk(self, number: int) -> None:
        while self._num_written < number:
            await self._written.wait()

    async def _flush(self, disk: ThreadPoolExecutor) -> None:
        """Write what waits, again and again. Messages that come during a sync share the next one."""
        loop = asyncio.get_running_loop()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            lines, number = self.journal.take(), self.journal.next
            await loop.run_in_executor(disk, self.journal.write, lines)
            if self._is_compacting:
                self._is_compacting = False
                self.journal.write(self.journal.take())
                number = self.journal.next
                self.journal.compact(self.state.to_document())
            self._num_written = number
            self._written.send()

    async def _score(self, scorer: ThreadPoolExecutor) -> None:
        """Rewards of what has ended, many at once. A slow reward delays batches, never messages."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wakes.wait()
            self._wakes.clear()
            while self._unscored:
                some, self._unscored = self._unscored[:MOST_SCORED], self._unscored[MOST_SCORED:]
                pairs = [(self._problems.problem(one.rollout.prompt_place), tuple(one.rollout.tokens)) for one in some]
                started_s = time.perf_counter()
                scores = await loop.run_in_executor(scorer, self._task.score_many, pairs)
                ended_s = time.perf_counter()
                self._record.scored(started_s, ended_s, len(some))
                rows = [
                    [one.rollout.id, score.reward, score.is_correct, score.why, score.failure]
                    for one, score in zip(some, scores, strict=True)
                ]
                self._apply({"call": "scored", "rows": rows, "seconds": ended_s - started_s})
                self._changed.send()

    async def _expire(self) -> None:
        """Give up engines that are silent."""
        while True:
            await asyncio.sleep(self.leases.lease_s / 10)
            for engine in self.leases.expired(self.state.engines, time.monotonic()):
                self._change({"call": "expire", "engine": engine})


class _Signal:
    """Wakes all that wait for it."""

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    def send(self) -> None:
        futures, self._futures = self._futures, []
        for future in futures:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        await future


def _offered(message: Mapping[str, Any]) -> dict[str, Any]:
    """Version, addresses and way of a message, of the right types."""
    addresses = [_text(one) for one in message["addresses"]]
    return {"version": _whole(message["version"]), "addresses": addresses, "way": _text(message["way"])}


def _check_row(row: Mapping[str, Any]) -> None:
    """What is in the journal must always replay: refuse a row of wrong types before it gets there."""
    tokens, log_probs = row["tokens"], row["log_probs"]
    _text(row["id"])
    if "reason" in row:
        _text(row["reason"])
    if _whole(row["start"]) < 0 or type(tokens) is not list or type(log_probs) is not list:
        raise ValueError("tokens and log_probs are lists, and start is 0 or more")
    _whole(row["version"])
    _whole(sum(tokens))
    if tokens and not 0 <= min(tokens) <= max(tokens) < MOST_TOKEN:
        raise ValueError(f"tokens are from 0 up to {MOST_TOKEN}")
    if len(tokens) != len(log_probs) or not math.isfinite(sum(log_probs)):
        raise ValueError(f"{len(tokens)} tokens need as many finite log-probabilities")


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{str(value)[:40]!r} is not a whole number")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{str(value)[:40]!r} is not a finite number")
    return float(value)


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"{str(value)[:40]!r} is not a text")
    return value


def _ids(values: object) -> list[str]:
    if type(values) is not list:
        raise TypeError("held is a list of ids")
    return [_text(value) for value in values]
