"""An engine as a role of its own: it pulls open rollouts, writes them, reports them, and takes new weights on the way.

Rank 0 talks to the controller. The work goes in turns: rank 0 decides what all ranks do next, and every rank of the
engine does the same. A turn takes over new weights, drops rollouts, adds some, and decodes a few steps. Tokens are
reported with the version that drew them. Weights are pulled into memory of their own between two steps: a pull that
fails leaves the old ones in use. Random numbers depend on the seed, the rollout and the position alone, so that another
engine that goes on from a prefix draws the same tokens from the same weights.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from scalewright.data.reasoning.problem_row import ProblemRow
from scalewright.errors import ConfigError
from scalewright.records import metric_names as names
from scalewright.records.documents import read_document
from scalewright.records.hybrid import TimelineWriter
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.device import allow_attention, choose_device, join_group, make_bf16_products_work
from scalewright.run.generate.copies import Copy, copy_of
from scalewright.run.generate.options import StepEvents
from scalewright.run.generate.requests import Request
from scalewright.run.hybrid.client import ControllerClient
from scalewright.run.hybrid.engine_weights import EngineWeights
from scalewright.run.hybrid.messages import (
    FinishedRow,
    LeaseLostError,
    Orders,
    ProgressRow,
    RolloutWork,
    SyncOrder,
)
from scalewright.run.rank_context import RankContext
from scalewright.run.reasoning.parts import StageTotals
from scalewright.run.reasoning.rollout import PolicyEngine, open_policy_engine
from scalewright.run.reasoning.run import SMALL_PARAMS
from scalewright.run.reasoning.session import sampling_of
from scalewright.run.reasoning.start import start_weights
from scalewright.run.weight_sync.plan import EngineRank
from scalewright.run.weight_sync.wire import WeightSyncError
from scalewright.workload.reasoning import stage_run
from scalewright.workload.reasoning.counted_work import ModelWork
from scalewright.workload.reasoning.stage_run import GrpoSettings, ReasonRun

TURN_S = 0.03
"""A turn decodes for about so long, at most `progress_every` steps: finished rollouts are reported after it."""
PULL_S = 0.05
"""Between two requests for rollouts when there were none."""
IDLE_S = (0.005, 0.1)
"""Shortest and longest pause of an engine without work."""
PULL_WAIT_S = 2.0
"""Longest pause between two pulls that fail: the trainer may be starting again."""
PULL_PATIENCE_S = 600.0
"""An engine whose pulls have failed for so long gives up and is started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTurn:
    """What all ranks of an engine do next, in this order."""

    sync: SyncOrder | None = None
    drops_all: bool = False
    """The controller gave all rollouts of this engine to others."""
    cut: tuple[str, ...] = ()
    added: tuple[RolloutWork, ...] = ()
    num_steps: int = 0
    is_last: bool = False


@dataclass(slots=True, kw_only=True)
class TurnResult:
    """What a turn came to; every rank has the same tokens."""

    rows: list[ProgressRow]
    """Tokens of rollouts that go on."""
    finished: list[FinishedRow]
    synced: dict[str, Any] | None = None
    problem: str = ""
    """Why the weights are still the old ones."""
    num_steps: int = 0
    num_tokens: int = 0


def run(rank: RankContext) -> ExitCode:
    """Write rollouts until the run is over."""
    role = read_document(rank.directory.config, "role")
    directory = RunDirectory.open(rank.directory.path.parent.parent)
    config = stage_run.from_document(read_document(directory.config, stage_run.KIND), where=str(directory.config))
    num_ranks, number = int(role["num_ranks"]), int(role["number"])
    if rank.world.world_size != num_ranks:
        raise ConfigError(f"engine {number} has {num_ranks} ranks, and {rank.world.world_size} were started")
    device = choose_device(config.device, rank.world)
    if device.type == "cpu" and config.spec.num_params < SMALL_PARAMS:
        torch.set_num_threads(1)
    precision = config.engine.precision
    make_bf16_products_work(device, ["bf16" if precision == "fp8" else precision])
    kernel = allow_attention("auto", device)
    rank.metrics.event(step=-1, name=names.EVENT_KERNELS, detail=f"attention: {kernel}; torch {torch.__version__}")
    join_group(rank.world, device)
    try:
        with rank.watchdog.suspended():
            writer = RolloutWriter(config, rank, device, number=number)
        if rank.world.is_first:
            return EngineLead(writer, directory, rank).run()
        writer.follow()
        return ExitCode.YES
    finally:
        dist.destroy_process_group()


def request_name(settings: GrpoSettings, place: int, problem: str) -> str:
    """Names the random numbers of the answers to a prompt as the co-located stage does: with the same weights, a role
    of its own writes the same answers."""
    if settings.token_budget:
        return str(place)
    step, number = divmod(place, settings.num_prompts)
    return f"{step}.0:{number}:{problem}"


class RolloutWriter:
    """One rank of an engine: it does turns."""

    def __init__(self, config: ReasonRun, rank: RankContext, device: torch.device, *, number: int) -> None:
        assert isinstance(config.settings, GrpoSettings)
        roles, self.settings = config.roles, config.settings
        self.config, self.number, self._watchdog = config, number, rank.watchdog
        size = roles.engine_ranks[number]
        self.capacity = min(self.settings.num_sequences, config.engine.max_running)
        self.copy: Copy = copy_of(rank.world.rank, tp=size, dp=1)
        first = sum(roles.engine_ranks[:number]) + rank.world.rank
        self.place = EngineRank(tp_rank=rank.world.rank, tp=size, number=first)
        self.policy = self._open(config, rank, device, size)
        self.engine = self.policy.engine
        self.version = -1
        self._num_steps = 0
        token_file = RunDirectory(rank.directory.path.parent.parent).controller_token
        self._weights = EngineWeights(self.place, self.copy, rank.world, token_file)
        self._row = ProblemRow(self.policy.task, seed=config.seed)
        self._ids: dict[tuple[str, int], str] = {}
        """Rollouts by request and number of the answer."""
        self._unsent: dict[str, tuple[list[int], list[float]]] = {}
        """Tokens that no report had yet."""

    def _open(self, config: ReasonRun, rank: RankContext, device: torch.device, size: int) -> PolicyEngine:
        from scalewright.data.reasoning.task import open_task

        start = start_weights(config.start_from, seed=config.seed, device=torch.device("cpu"))
        return open_policy_engine(
            config.shape, replace(config.engine, tp=size), task=open_task(config.task), copy=self.copy,
            work=ModelWork.of(config.shape, num_params=config.spec.num_params), totals=StageTotals(),
            num_sequences=self.capacity, num_local_ranks=rank.world.local_world_size, device=device,
            weights=config.seed, constants=start.constants, where=start.where,
        )  # fmt: skip

    def follow(self) -> None:
        """Do what rank 0 decides until it says that it was the last turn."""
        while not self.agreed(None).is_last:
            pass

    def agreed(self, turn: EngineTurn | None) -> EngineTurn:
        """The turn of rank 0, done on every rank; a lone rank talks to nobody."""
        with self._watchdog.suspended():
            turn = self._received(turn)
        self.result = self.do(turn)
        return turn

    def _received(self, turn: EngineTurn | None) -> EngineTurn:
        if self.copy.control is None:
            assert turn is not None
            return turn
        box: list[Any] = [turn]
        dist.broadcast_object_list(box, src=self.copy.first_rank, group=self.copy.control)
        chosen: EngineTurn = box[0]
        return chosen

    def do(self, turn: EngineTurn) -> TurnResult:
        result = TurnResult(rows=[], finished=[])
        if turn.sync is not None:
            with self._watchdog.suspended():
                self._sync(turn.sync, result)
        if turn.cut or turn.drops_all:
            self._drop(set(self._ids.values()) if turn.drops_all else set(turn.cut), result)
        for request in self._requests(turn.added):
            self.engine.add(request)
        for _ in range(turn.num_steps):
            if not self.engine.has_work:
                break
            begun_s = time.perf_counter()
            self._take(self.engine.step(), result)
            result.num_steps += 1
            took_s, self._num_steps = time.perf_counter() - begun_s, self._num_steps + 1
            self._watchdog.step_done(step=self._num_steps, seconds_s=took_s, loss=None, flop_per_s=0.0)
        return result

    def _requests(self, added: Sequence[RolloutWork]) -> list[Request]:
        """Answers to one prompt that begin share a request: their prompt is read once."""
        sampling, task = sampling_of(self.config), self.policy.task
        requests: list[Request] = []
        for work in added:
            problem = self._row.problem(work.prompt_place)
            name = request_name(self.settings, work.prompt_place, problem.id)
            self._ids[name, work.index] = work.id
            last = requests[-1] if requests else None
            if (
                last is not None and last.id == name and not work.prefix and not last.written
                and work.index == last.first_index + last.num_answers
            ):  # fmt: skip
                requests[-1] = replace(last, num_answers=last.num_answers + 1)
                continue
            requests.append(
                Request(
                    id=name, prompt=work.prompt, max_new_tokens=task.max_response, sampling=sampling,
                    stop_tokens=task.stop_tokens, first_index=work.index, written=work.prefix,
                )
            )  # fmt: skip
        return requests

    def _take(self, events: StepEvents, result: TurnResult) -> None:
        """Note the tokens of a step, which the weights in use drew."""
        result.num_tokens += len(events.tokens)
        for event in events.tokens:
            key = (event.request_id, event.index)
            tokens, log_probs = self._unsent.setdefault(self._ids[key], ([], []))
            tokens.append(event.token)
            log_probs.append(event.log_prob)
        for done in events.finished:
            rollout = self._ids.pop((done.request_id, done.index))
            tokens, log_probs = self._unsent.pop(rollout, ([], []))
            result.finished.append(
                FinishedRow(id=rollout, tokens=tokens, log_probs=log_probs, version=self.version, reason=done.reason)
            )

    def _drop(self, rollouts: set[str], result: TurnResult) -> None:
        """Forget rollouts that were given up or are another engine's. What is in flight of others is kept."""
        self._take(self.engine.fetch(), result)
        keys = [key for key, rollout in self._ids.items() if rollout in rollouts]
        self.engine.take_open(keys)
        for key in keys:
            self._unsent.pop(self._ids.pop(key), None)

    def unsent(self) -> list[ProgressRow]:
        """Tokens since the last report, of rollouts that go on."""
        rows = [
            ProgressRow(id=rollout, tokens=tokens, log_probs=log_probs, version=self.version)
            for rollout, (tokens, log_probs) in self._unsent.items()
            if tokens
        ]
        self._unsent.clear()
        return rows

    def _sync(self, order: SyncOrder, result: TurnResult) -> None:
        """Pull, then take over on all ranks or on none. Tokens so far belong to the version before."""
        self._take(self.engine.fetch(), result)
        result.rows += self.unsent()
        pulled = self._weights.pull(order)
        if isinstance(pulled, str):
            result.problem = pulled
            return
        tensors, came = pulled
        rereads = bool(self._ids) and not self.settings.stale_keys
        self.engine.replace_weights(tensors, rereads=rereads, are_parts=True)
        self.version = order.version
        result.synced = {"way": came.way, "bytes": came.num_bytes, "seconds": came.seconds, "checksum": came.checksum}


class EngineLead:
    """Rank 0 of an engine: talks to the controller and decides the turns."""

    def __init__(self, writer: RolloutWriter, directory: RunDirectory, rank: RankContext) -> None:
        self._writer, self._rank = writer, rank
        self._directory = directory
        self._every = writer.config.roles.progress_every
        self._client = ControllerClient(
            directory.path, "engine", writer.number, is_stopped=lambda: rank.stop.requested is not None
        )
        self._num_steps = 1
        self._since_report = 0
        self._pull_wait_s = IDLE_S[0]
        self._failing_since_s: float | None = None
        self._idle_s = IDLE_S[0]
        self._drops_all = False
        self._next_pull_s = 0.0

    def run(self) -> ExitCode:
        code = ExitCode.YES
        with contextlib.closing(self._client):
            orders = self._joined()
            offset_s = self._client.heartbeat()
            with (
                contextlib.closing(
                    TimelineWriter(self._directory, "engine", self._writer.number, offset_s)
                ) as self._timeline,
                self._client.beating(),
            ):
                code = self._turns(orders)
        self._writer.agreed(EngineTurn(is_last=True))
        return code

    def _joined(self) -> Orders:
        """Begin, or begin again without any rollout."""
        with self._rank.watchdog.suspended():
            self._client.join(self._writer.number, self._writer.capacity, version=self._writer.version)
            return self._client.poll()

    def _turns(self, orders: Orders) -> ExitCode:
        while orders.state != "stop":
            if self._rank.stop.requested is not None:
                return ExitCode.REQUEUE
            try:
                orders = self._turn(orders)
            except LeaseLostError:
                self._drops_all = True
                orders = self._joined()
        return ExitCode.YES

    def _turn(self, orders: Orders) -> Orders:
        """One turn and its report; the orders for the next."""
        writer = self._writer
        goes_on = orders.state == "go" and orders.sync is None
        added = self._pulled() if goes_on else ()
        held = bool(self._client.held) or bool(added)
        turn = EngineTurn(
            sync=orders.sync, drops_all=self._drops_all, cut=orders.cut, added=tuple(added),
            num_steps=self._num_steps if goes_on and held else 0,
        )  # fmt: skip
        self._drops_all = False
        if turn == EngineTurn():
            return self._idle(orders)
        self._idle_s = IDLE_S[0]
        begun_s = time.perf_counter()
        writer.agreed(turn)
        self._note(writer.result, begun_s, step=orders.step)
        with self._rank.watchdog.suspended():
            return self._reported(turn, writer.result)

    def _pulled(self) -> list[RolloutWork]:
        """Rollouts for the free places."""
        num_free = self._writer.capacity - len(self._client.held)
        if num_free < 1 or time.perf_counter() < self._next_pull_s:
            return []
        with self._rank.watchdog.suspended():
            work = self._client.pull(num_free)
        if not work:
            self._next_pull_s = time.perf_counter() + PULL_S
        return work

    def _idle(self, orders: Orders) -> Orders:
        waits_for = "training" if orders.state == "pause" else "weights" if self._writer.version < 0 else "rollouts"
        span = self._timeline.span("idle", step=orders.step, version=self._writer.version, waits_for=waits_for)
        with span, self._rank.watchdog.suspended():
            time.sleep(self._idle_s)
            self._idle_s = min(2 * self._idle_s, IDLE_S[1])
            return self._client.poll()

    def _note(self, result: TurnResult, begun_s: float, *, step: int) -> None:
        ended_s = time.perf_counter()
        if result.synced is not None:
            begun_decode_s = begun_s + float(result.synced["seconds"])
            self._timeline.add("sync", begun_s, begun_decode_s, step=step, version=self._writer.version)
            begun_s = begun_decode_s
        if result.num_steps:
            self._timeline.add(
                "decode", begun_s, ended_s, step=step, version=self._writer.version, num_tokens=result.num_tokens
            )
            each_s = (ended_s - begun_s) / result.num_steps
            self._num_steps = min(max(round(TURN_S / max(each_s, 1e-6)), 1), self._every)

    def _reported(self, turn: EngineTurn, result: TurnResult) -> Orders:
        """Finished rollouts are reported after each turn, tokens of others every so many steps and before a sync."""
        writer, orders = self._writer, None
        self._since_report += result.num_steps
        rows = result.rows
        if self._since_report >= self._every:
            rows = rows + writer.unsent()
            self._since_report = 0
        if rows:
            orders = self._client.progress(rows)
        if result.finished:
            orders = self._client.finished(result.finished)
        if turn.sync is not None:
            orders = self._synced(turn.sync, result)
        return self._client.poll() if orders is None else orders

    def _synced(self, order: SyncOrder, result: TurnResult) -> Orders:
        if result.synced is not None:
            self._pull_wait_s, self._failing_since_s = IDLE_S[0], None
            rank_versions = [order.version] * self._writer.place.tp  # all ranks took it, or none did
            return self._client.synced(order.version, result.synced, rank_versions=rank_versions)
        self._rank.metrics.event(step=-1, name=names.EVENT_SYNC, detail=result.problem)
        self._failing_since_s = self._failing_since_s or time.monotonic()
        if time.monotonic() - self._failing_since_s > PULL_PATIENCE_S:
            raise WeightSyncError(result.problem)
        time.sleep(self._pull_wait_s)
        self._pull_wait_s = min(2 * self._pull_wait_s, PULL_WAIT_S)
        return self._client.poll()
