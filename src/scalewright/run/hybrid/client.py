"""ControllerClient: how engines and trainers talk to the controller, which may be killed and started again meanwhile.

A call connects when needed, sends, and waits for the answer. If the connection breaks or the answer does not come in
time, the call reads the controller's address again and repeats itself, waiting longer each time, until `patience_s`
is over. All calls can be repeated: the controller applies each once.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from scalewright.errors import ScalewrightError
from scalewright.records.documents import read_document
from scalewright.records.run_directory import RunDirectory
from scalewright.run.hybrid.messages import (
    BYTES_PER_TOKEN,
    PROTOCOL,
    BatchGroup,
    BrokenMessageError,
    ControllerLostError,
    ControllerRefusedError,
    FinishedRow,
    LeaseLostError,
    Orders,
    ProgressRow,
    RoleName,
    RolloutWork,
    TrainBatch,
    Welcome,
    pages,
    receive,
    rounded,
    send,
)

ADDRESS = "controller-address"
"""Kind of the document with the controller's address."""
PATIENCE_S = 300.0
TIMEOUT_S = 60.0
LEAST_WAIT_S = 0.02
MOST_WAIT_S = 2.0
BEAT_S = 2.0
"""Between two heartbeats."""
NUM_CLOCK_SAMPLES = 16
"""Of the last exchanges, the fastest one gives the offset of the clock."""
Row = TypeVar("Row", bound=ProgressRow)


class ControllerClient:
    """One role's connection. It is not for several threads; `beating` has a connection of its own."""

    def __init__(
        self, run_dir: Path, role: RoleName, rank: int, *, patience_s: float = PATIENCE_S, timeout_s: float = TIMEOUT_S,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """`rank`: number of the engine, or rank of the trainer. `is_stopped` ends the patience at once."""
        self.directory, self.role, self.rank = RunDirectory(run_dir), role, rank
        self.patience_s, self.timeout_s = patience_s, timeout_s
        self._is_stopped = is_stopped
        self._connection: socket.socket | None = None
        self._number = 0
        self._lease = -1
        self._num_sent: dict[str, int] = {}
        """Rollouts that this engine holds, with the tokens that the controller has of them."""
        self._offsets: list[tuple[float, float]] = []
        self.num_reconnects = 0

    # Calls of an engine

    def join(self, engine_id: int, capacity: int, *, version: int = -1) -> Welcome:
        """Begin, or begin again: what this engine held goes to others. `capacity`: rollouts that it decodes at once."""
        self._num_sent.clear()
        answer = self.request("join", engine=engine_id, capacity=capacity, version=version)
        self._lease = answer["lease"]
        return _welcome(answer)

    def pull(self, max_rollouts: int) -> list[RolloutWork]:
        """Rollouts to write, at most so many more; perhaps none."""
        answer = self._of_engine("pull", most=max_rollouts, held=self.held)
        work = [RolloutWork.from_row(row) for row in answer["rollouts"]]
        self._num_sent.update({one.id: len(one.prefix) for one in work})
        return work

    def progress(self, rows: Sequence[ProgressRow]) -> Orders:
        """Report tokens. If this engine dies, others go on after them."""
        return self._report("progress", rows)

    def finished(self, rows: Sequence[FinishedRow]) -> Orders:
        """Report rollouts that ended. When this returns, those that are `taken` are on the controller's disk."""
        orders = self._report("finished", rows)
        for row in rows:
            self._num_sent.pop(row.id, None)
        return orders

    def poll(self) -> Orders:
        """What to do next."""
        return self._orders(self._of_engine("poll", held=self.held))

    def synced(self, version: int, result: Mapping[str, Any], *, rank_versions: Sequence[int] = ()) -> Orders:
        """This engine decodes with weights of `version` from now on.

        `result`: way, bytes, seconds, checksum. `rank_versions`: the version that each rank of the engine has.
        """
        body = {"version": version, "result": dict(result), "ranks": list(rank_versions) or [version]}
        return self._orders(self._of_engine("synced", **body, held=self.held))

    @property
    def held(self) -> list[str]:
        """Ids of the rollouts that this engine has and has not finished."""
        return list(self._num_sent)

    # Calls of a trainer

    def resume(self, step: int) -> Welcome:
        """Rank 0 of the trainer starts, or starts again, before this step."""
        return _welcome(self.request("resume", step=step))

    def batch(self, step: int, *, wait_s: float = 5.0) -> TrainBatch | None:
        """What this step trains on; None if it is not ready within `wait_s`. The same batch whenever asked again."""
        answer = self.request("batch", step=step, page=0, wait_s=wait_s)
        if not answer["is_ready"]:
            return None
        rows = list(answer["groups"])
        for page in range(1, answer["num_pages"]):
            rows += self.request("batch", step=step, page=page, wait_s=wait_s)["groups"]
        return TrainBatch(
            step=step, version=answer["version"], groups=tuple(map(BatchGroup.from_row, rows)), counts=answer["counts"]
        )

    def publish(self, version: int, addresses: Sequence[str], way: str) -> None:
        """The trainer offers this version at its start, before any step."""
        self.request("publish", version=version, addresses=list(addresses), way=way)

    def done(
        self, step: int, version: int, addresses: Sequence[str], way: str, *, seconds: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """The step is trained, and the trainer offers `version`, which is step + 1. `seconds`: train_s and others.

        What engines took to pull weights so far, by way.
        """
        answer = self.request(
            "done", step=step, version=version, addresses=list(addresses), way=way, seconds=dict(seconds or {})
        )
        return dict(answer["pull_s"])

    def checkpointed(self, step: int) -> None:
        """A whole checkpoint resumes before this step. Batches of earlier steps may be forgotten."""
        self.request("checkpointed", step=step)

    # Calls of all

    def heartbeat(self) -> float:
        """Keep the lease; the controller's clock minus this node's, in seconds."""
        before_s = time.time()
        answer = self.request("heartbeat", lease=self._lease, engine=self.rank if self.role == "engine" else -1)
        after_s = time.time()
        self._offsets.append((after_s - before_s, answer["now_s"] - (before_s + after_s) / 2))
        del self._offsets[:-NUM_CLOCK_SAMPLES]
        return self.clock_offset_s

    @property
    def clock_offset_s(self) -> float:
        """The controller's clock minus this node's. The fastest heartbeat decides: off by half its time at most."""
        return min(self._offsets)[1] if self._offsets else 0.0

    @contextlib.contextmanager
    def beating(self, interval_s: float = BEAT_S) -> Iterator[None]:
        """Send heartbeats from a thread while the body runs. A step of the engine may take as long as it needs."""
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(ended, interval_s), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _beat(self, ended: threading.Event, interval_s: float) -> None:
        is_stopped = ended.is_set
        with contextlib.closing(
            ControllerClient(
                self.directory.path, self.role, self.rank, patience_s=self.patience_s, timeout_s=self.timeout_s,
                is_stopped=is_stopped,
            )
        ) as own:  # fmt: skip
            own._offsets = self._offsets
            while not ended.wait(interval_s):
                own._lease = self._lease
                with contextlib.suppress(ScalewrightError):  # the next call of the role itself says what is wrong
                    own.heartbeat()

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        self._connection = None

    # Below the calls

    def request(self, call: str, **body: Any) -> dict[str, Any]:
        """The answer to one call, repeated until there is one."""
        deadline_s, wait_s, last = time.monotonic() + self.patience_s, LEAST_WAIT_S, ""
        while True:
            try:
                return self._once(call, body)
            except (OSError, BrokenMessageError, json.JSONDecodeError) as error:
                self.close()
                last = " ".join(str(error).split()) or type(error).__name__
            if time.monotonic() + wait_s > deadline_s or self._is_stopped():
                raise ControllerLostError(
                    f"{self.directory.path}: the controller has not answered for {self.patience_s:g} s ({last}): see "
                    "roles/controller/logs; the journal is kept, so start the run again to go on"
                )
            time.sleep(wait_s * random.uniform(0.5, 1.0))  # reconnections spread out
            wait_s = min(2 * wait_s, MOST_WAIT_S)

    def _once(self, call: str, body: Mapping[str, Any]) -> dict[str, Any]:
        connection = self._connected()
        self._number += 1
        send(connection, {"number": self._number, "call": call, **body})
        answer = receive(connection)
        if answer.get("number") != self._number:
            raise BrokenMessageError(f"an answer to message {answer.get('number')} instead of {self._number}")
        return _checked(answer)

    def _connected(self) -> socket.socket:
        if self._connection is not None:
            return self._connection
        where = _address(self.directory)
        connection = socket.create_connection(where, timeout=min(self.timeout_s, 10.0))
        try:
            connection.settimeout(self.timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            token = self.directory.controller_token.read_text(encoding="ascii").strip()
            send(connection, {"protocol": PROTOCOL, "token": token, "role": self.role, "rank": self.rank})
            _checked(receive(connection))
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self.num_reconnects += 1
        return connection

    def _of_engine(self, call: str, **body: Any) -> dict[str, Any]:
        return self.request(call, engine=self.rank, lease=self._lease, **body)

    def _report(self, call: str, rows: Sequence[ProgressRow]) -> Orders:
        """Send rows in parts of a bounded size; each says how many tokens come before it, so none counts twice."""
        answer: dict[str, Any] = {}
        taken: list[str] = []
        sizes = [BYTES_PER_TOKEN * len(row.tokens) + 200 for row in rows]
        for part in list(pages(rows, sizes)) or [[]]:
            places = dict(self._num_sent)
            body = [self._report_row(row, places) for row in part]
            answer = self._of_engine(call, rows=body, held=self.held)
            self._num_sent = places
            taken += answer["orders"].get("taken", ())
        return replace(self._orders(answer), taken=tuple(taken))

    @staticmethod
    def _report_row(row: ProgressRow, places: dict[str, int]) -> dict[str, Any]:
        start = places.get(row.id, 0)
        places[row.id] = start + len(row.tokens)
        return {**asdict(row), "tokens": list(row.tokens), "log_probs": rounded(row.log_probs), "start": start}

    def _orders(self, answer: Mapping[str, Any]) -> Orders:
        orders = Orders.from_row(answer["orders"])
        for rollout in orders.cut:
            self._num_sent.pop(rollout, None)
        return orders


def _welcome(answer: Mapping[str, Any]) -> Welcome:
    return Welcome(**{name: answer[name] for name in ("version", "step", "checkpoint_step", "lease_s")})


def _address(directory: RunDirectory) -> tuple[str, int]:
    """Written anew at each start of the controller; absent before the first one."""
    path = directory.controller_address
    if not path.exists():
        raise FileNotFoundError(f"{path.name} is not there yet")
    body = read_document(path, ADDRESS)
    return str(body["host"]), int(body["port"])


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if answer.get("ok"):
        return answer
    kind, why = answer.get("kind"), str(answer.get("why"))
    if kind == "lease":
        raise LeaseLostError(why)
    raise ControllerRefusedError(why)
