"""What roles and the controller say to each other: JSON with its length before it, over TCP.

A message is four bytes of length (big-endian) and one JSON object without line breaks. The first message of a
connection, at most `MOST_HELLO_BYTES`, carries the token of the run directory. After it, each request
`{"number": n, "call": name, ...}` gets one answer `{"number": n, "ok": true, ...}` or
`{"number": n, "ok": false, "kind": ..., "why": one sentence}`. A longer message is refused, never read into memory.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scalewright import units
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.workload.reasoning.rollout_pool import OpenRollout, RolloutId

PROTOCOL = "scalewright.controller/1"
MOST_BYTES = 64 * units.MIB
"""Of one message. Senders split what is longer."""
MOST_HELLO_BYTES = 4096
PAGE_BYTES = 4 * units.MIB
"""About so much is put into one message: long ones would delay those of others."""
BYTES_PER_TOKEN = 24
"""Of a token with its log-probability in JSON, rounded up: to split rows before they are written."""
_LENGTH = struct.Struct(">I")

RoleName = Literal["engine", "trainer", "supervisor"]
EngineState = Literal["go", "pause", "stop"]
RefusalKind = Literal["lease", "refused", "input"]
"""lease: the engine was given up, join again; refused: the run cannot go on so; input: the message is not valid."""


class BrokenMessageError(EnvironmentFailedError):
    """What came over the connection is not a message."""


class ControllerLostError(EnvironmentFailedError):
    """The controller has not answered for longer than the caller's patience."""


class ControllerRefusedError(ConfigError):
    """The controller refuses a request, with one sentence."""


class LeaseLostError(EnvironmentFailedError):
    """The controller gave this engine's rollouts to others: drop them all, then `join` again."""


def encoded(message: Mapping[str, Any]) -> bytes:
    """The bytes of a message, with their length first."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MOST_BYTES:
        raise ConfigError(
            f"a message of {len(body)} bytes: at most {MOST_BYTES} are allowed; use a smaller max_response"
        )
    return _LENGTH.pack(len(body)) + body


def body_length(head: bytes, *, most: int = MOST_BYTES) -> int:
    (length,) = _LENGTH.unpack(head)
    if not 2 <= length <= most:
        raise BrokenMessageError(f"a message of {length} bytes: 2 to {most} are allowed")
    return int(length)


def decoded(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BrokenMessageError(f"a message is not JSON: {str(error)[:200]}") from error
    if not isinstance(message, dict):
        raise BrokenMessageError("a message is JSON, but not an object")
    return message


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(encoded(message))


def receive(connection: socket.socket) -> dict[str, Any]:
    return decoded(_exactly(connection, body_length(_exactly(connection, _LENGTH.size))))


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    buffer = bytearray(num_bytes)
    view, place = memoryview(buffer), 0
    while place < num_bytes:
        got = connection.recv_into(view[place:])
        if not got:
            raise ConnectionResetError("the connection ended within a message")
        place += got
    return bytes(buffer)


def rounded(log_probs: Iterable[float]) -> list[float]:
    """Nine digits restore every fp32 value exactly and halve the bytes of a message."""
    return [float(f"{value:.9g}") for value in log_probs]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutWork:
    """A rollout to write: the engine goes on after the prefix."""

    id: RolloutId
    prompt_place: int
    index: int
    """Which of the prompt's answers."""
    num_cuts: int
    prompt: tuple[int, ...]
    prefix: tuple[int, ...]
    """Tokens that were written before, by this engine or another."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> RolloutWork:
        return cls(**{**row, "prompt": tuple(row["prompt"]), "prefix": tuple(row["prefix"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """Tokens of a rollout since the last report. Tokens of two versions are two rows, the older first."""

    id: RolloutId
    tokens: Sequence[int]
    log_probs: Sequence[float]
    version: int
    """Of the weights that drew them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRow(ProgressRow):
    """The last tokens of a rollout, perhaps none, and why it ended."""

    reason: str
    """`stop` or `length`, as the engine names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOrder:
    """New weights for an engine. They come between two decode steps."""

    version: int
    way: str
    addresses: tuple[str, ...]
    """Of the trainer ranks' weight servers, in the order of the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What an engine does next. `sync` comes first, then `cut`, then `state`."""

    state: EngineState
    """go: pull and decode; pause: decode nothing, keep what is held; stop: the run is over."""
    sync: SyncOrder | None = None
    cut: tuple[RolloutId, ...] = ()
    """Rollouts to drop: they were given up, or are another engine's now."""
    step: int = -1
    """Iteration that is being written; -1: none."""
    taken: tuple[RolloutId, ...] = ()
    """Of the rollouts that were just reported as finished, those that count. Others had been given up before."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Orders:
        sync = row.get("sync")
        order = None if sync is None else SyncOrder(**{**sync, "addresses": tuple(sync["addresses"])})
        return cls(
            state=row["state"], sync=order, cut=tuple(row["cut"]), step=row["step"], taken=tuple(row.get("taken", ()))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """What a role learns when it joins."""

    version: int
    """Newest version that a weight server offers; -1: none yet."""
    step: int
    """First step that is not done."""
    checkpoint_step: int
    """The trainer may go back to this step, not further."""
    lease_s: float
    """An engine that is silent for longer loses its rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainAnswer:
    """One answer of a batch, with its reward."""

    rollout: OpenRollout
    reason: str
    reward: float
    is_correct: bool
    why: str
    failure: str = ""
    """How the reward itself failed in the sandbox; empty: it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGroup:
    """Answers to one prompt, which are compared with each other."""

    prompt_place: int
    problem_id: str
    prompt: tuple[int, ...]
    answers: tuple[TrainAnswer, ...]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> BatchGroup:
        answers = tuple(
            TrainAnswer(**{**answer, "rollout": OpenRollout.from_row(answer["rollout"])}) for answer in row["answers"]
        )
        return cls(
            prompt_place=row["prompt_place"], problem_id=row["problem_id"], prompt=tuple(row["prompt"]), answers=answers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """What one step trains on. The controller gives the same batch whenever this step is asked for."""

    step: int
    version: int
    """Of the weights that the iteration began with: older tokens may be masked."""
    groups: tuple[BatchGroup, ...]
    counts: Mapping[str, Any] = field(default_factory=dict)
    """Of the iteration: keys of records.hybrid.HybridStep."""


def pages(rows: Sequence[Any], sizes: Iterable[int], *, most: int = PAGE_BYTES) -> Iterator[list[Any]]:
    """The rows in their order, in parts of about `most` bytes; a longer row is a part of its own."""
    page: list[Any] = []
    total = 0
    for row, size in zip(rows, sizes, strict=True):
        if page and total + size > most:
            yield page
            page, total = [], 0
        page.append(row)
        total += size
    if page:
        yield page
