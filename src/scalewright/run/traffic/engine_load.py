"""Put loads to our engine and record when each token came. Copies of the model share the requests of a load.

The ranks of one copy (tensor parallelism) must take the same requests in the same order: the first of them looks at
the clock and tells the others how many are due.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
import torch.distributed as dist

from scalewright.errors import ConfigError
from scalewright.records import metric_names as names
from scalewright.records.answers import AnswerLine
from scalewright.run.device import allow_attention, choose_device, join_group, make_bf16_products_work
from scalewright.run.generate.copies import Copy, copy_of
from scalewright.run.generate.engine import Engine
from scalewright.run.generate.open import open_engine
from scalewright.run.generate.options import EngineOptions, StepEvents
from scalewright.run.generate.requests import Completion, Request, Sampling
from scalewright.run.micro.conditions import ConditionsWatch, open_board
from scalewright.run.micro.free_memory import free_bytes
from scalewright.run.micro.session import device_identity, software_versions
from scalewright.run.rank_context import RankContext
from scalewright.run.signals import StopRequestedError, StopSignals
from scalewright.run.traffic.device_use import DeviceUse
from scalewright.run.traffic.energy import EnergyMeter
from scalewright.run.traffic.load import LoadResult, RequestLoad
from scalewright.run.traffic.opened import Opened
from scalewright.run.traffic.weights import ServedWeights, served_weights
from scalewright.workload.generate_run import EngineTarget, GenerateRun
from scalewright.workload.model import ModelSpec
from scalewright.workload.request_plan import PlannedRequest, planned_loads

MOST_RUNNING = 256
"""Answers that are decoded at once, unless the options say otherwise."""
AGREE_EVERY = 16
"""Steps between two looks at the signals, where ranks must agree on what to do."""
FREE_FRAC = 0.85
"""Share of the free memory that weights and cache may take; activations and graphs have the rest."""
SHORTEST_SLEEP_S = 0.0005
WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "fp8": 1}

Record = Callable[[AnswerLine], None]


@dataclass(slots=True, kw_only=True)
class _Counts:
    """What the steps of one load did."""

    num_steps: int = 0
    num_preemptions: int = 0
    cache_fracs: list[float] = field(default_factory=list)
    read_bytes: float = 0.0
    decode_s: float = 0.0
    num_decoded: int = 0
    prefill_tokens: int = 0
    prefill_s: float = 0.0

    def add(self, events: StepEvents, took_s: float, engine: Engine) -> None:
        self.num_steps += 1
        self.num_preemptions += len(events.preempted)
        self.cache_fracs.append(events.occupancy_frac)
        if events.num_prefill_tokens:
            self.prefill_tokens += events.num_prefill_tokens
            self.prefill_s += took_s
        elif events.num_decoded:
            stats = engine.stats
            self.read_bytes += stats.weight_bytes + events.num_context_tokens * stats.cache_bytes_per_token
            self.decode_s += took_s
            self.num_decoded += events.num_decoded


class EngineBench:
    """One rank's engine, put under load after load."""

    def __init__(
        self, config: GenerateRun, rank: RankContext, engine: Engine, weights: ServedWeights, copy: Copy,
        device: torch.device, meter: EnergyMeter | None,
    ) -> None:  # fmt: skip
        self._weights = weights
        self._config, self._rank, self._engine, self._copy = config, rank, engine, copy
        self._device, self._meter = device, meter
        self._num_steps = 0

    def measure(
        self, load: RequestLoad, *, attempt: int, record: Record, stop: StopSignals, report: Callable[[], None]
    ) -> LoadResult:
        """Answer this copy's share of the requests. Every rank of the run ends the load together."""
        mine = deque(load.requests[self._copy.number :: self._copy.num_copies])
        before = None if self._meter is None else self._meter.read()
        _wait_for_all(self._rank)
        counts, begun_s = _Counts(), time.perf_counter()
        driver = _LoadDriver(
            bench=self, mine=mine, begun_s=begun_s, attempt=attempt, record=record, counts=counts, load=load.number
        )
        index = self._device.index if self._device.type == "cuda" else None
        with DeviceUse(gpu_index=index, local_world_size=self._rank.world.local_world_size) as use:
            is_stopped = driver.run(stop, report)
        result = LoadResult(
            time_s=time.perf_counter() - begun_s, busy_frac=use.busy_frac, cache_fracs=tuple(counts.cache_fracs),
            num_preemptions=counts.num_preemptions, num_steps=counts.num_steps, read_bytes=counts.read_bytes,
            decode_s=counts.decode_s, num_decoded=counts.num_decoded, prefill_tokens=counts.prefill_tokens,
            prefill_s=counts.prefill_s,
        )  # fmt: skip
        worked_s = use.cpu_s if self._device.type == "cpu" else driver.stepping_s
        result = self._gathered(result, worked_s, is_stopped)
        return result if before is None or self._meter is None else result.with_energy(self._meter.since(before))

    def _gathered(self, result: LoadResult, worked_s: float, is_stopped: bool) -> LoadResult:
        """What all ranks measured: times each, preemptions of all copies, the mean of busy shares."""
        world = self._rank.world
        if world.world_size == 1:
            if is_stopped:
                raise StopRequestedError
            return result
        each: list[tuple[float, bool, LoadResult] | None] = [None] * world.world_size
        dist.all_gather_object(each, (worked_s, is_stopped, replace(result, cache_fracs=())))
        known = [one for one in each if one is not None]
        if any(stopped for _, stopped, _ in known):
            raise StopRequestedError
        shares = [one.busy_frac for _, _, one in known if one.busy_frac is not None]
        firsts = [one for number, (_, _, one) in enumerate(known) if number % (world.world_size // self._copies) == 0]
        return replace(
            result,
            busy_frac=sum(shares) / len(shares) if shares else None,
            num_preemptions=sum(one.num_preemptions or 0 for one in firsts),
            rank_busy_s=tuple(worked for worked, _, _ in known),
        )

    @property
    def _copies(self) -> int:
        return self._copy.num_copies


@dataclass(slots=True, kw_only=True)
class _LoadDriver:
    """The loop of one load: take what is due, step, stamp."""

    bench: EngineBench
    mine: deque[PlannedRequest]
    load: int
    begun_s: float
    attempt: int
    record: Record
    counts: _Counts
    stepping_s: float = 0.0
    """Time inside the engine's steps."""
    _times_s: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    _sent_s: dict[str, float] = field(default_factory=dict)
    _planned: dict[str, PlannedRequest] = field(default_factory=dict)
    _num_open: dict[str, int] = field(default_factory=dict)
    """Answers of a request that are still to come."""

    def run(self, stop: StopSignals, report: Callable[[], None]) -> bool:
        """True if a signal asked to stop before the end."""
        engine, copy, watchdog = self.bench._engine, self.bench._copy, self.bench._rank.watchdog
        while self.mine or engine.has_work:
            if self.bench._num_steps % AGREE_EVERY == 0 and copy.agreed(int(stop.requested is not None)):
                return True
            if self.mine:
                self._admit()
            begun_s = time.perf_counter()
            if engine.has_work:
                events = engine.step()
                took_s = time.perf_counter() - begun_s
                self.stepping_s += took_s
                self.counts.add(events, took_s, engine)
                self._stamp(events)
            else:
                time.sleep(SHORTEST_SLEEP_S)
            self.bench._num_steps += 1
            watchdog.step_done(
                step=self.bench._num_steps, seconds_s=time.perf_counter() - begun_s, loss=None, flop_per_s=0.0
            )
            report()
        return False

    def _admit(self) -> None:
        """Give the engine the requests that are due, as many as may be in flight."""
        now_s, limit = time.perf_counter() - self.begun_s, self._limit()
        num = 0
        for request in self.mine:
            if request.arrival_s > now_s or (limit and len(self._num_open) + num >= limit):
                break
            num += 1
        for _ in range(self.bench._copy.agreed(num)):
            request = self.mine.popleft()
            self._add(request, now_s)

    def _limit(self) -> int:
        """Requests of this copy in flight."""
        limit = self.bench._config.requests.most_at_once
        return -(-limit // self.bench._copy.num_copies) if limit else 0

    def _add(self, request: PlannedRequest, now_s: float) -> None:
        config, name = self.bench._config, f"{request.load}-{request.number}"
        sampling, prompt = config.sampling, self.bench._weights.prompt(config.requests, request)
        self.bench._engine.add(
            Request(
                id=name,
                prompt=prompt,
                max_new_tokens=request.num_answer,
                num_answers=config.requests.num_answers,
                sampling=Sampling(
                    temperature=sampling.temperature, top_p=sampling.top_p_frac, top_k=sampling.top_k,
                    seed=config.requests.seed,
                ),
            )
        )  # fmt: skip
        self._planned[name], self._sent_s[name] = replace(request, num_prompt=len(prompt)), now_s
        self._num_open[name] = config.requests.num_answers

    def _stamp(self, events: StepEvents) -> None:
        now_s = time.perf_counter() - self.begun_s
        for token in events.tokens:
            self._times_s[token.request_id, token.index].append(now_s)
        for completion in events.finished:
            self._finish(completion)

    def _finish(self, completion: Completion) -> None:
        name = completion.request_id
        request, times_s = self._planned[name], self._times_s.pop((name, completion.index))
        plan = self.bench._config.requests
        is_due_when_sent = plan.most_at_once > 0 and not plan.num_requests_per_s and not plan.uses_file_times
        self._num_open[name] -= 1
        if not self._num_open[name]:
            del self._num_open[name]
        self.record(
            AnswerLine(
                load=self.load, request=request.number, index=completion.index, attempt=self.attempt,
                num_prompt=request.num_prompt, num_tokens=len(completion.tokens), reason=completion.reason,
                arrival_s=self._sent_s[name] if is_due_when_sent else request.arrival_s, sent_s=self._sent_s[name],
                first_s=times_s[0], gaps_s=tuple(b - a for a, b in pairwise(times_s)), tokens=completion.tokens,
            )
        )  # fmt: skip


def _wait_for_all(rank: RankContext) -> None:
    if rank.world.world_size > 1:
        dist.barrier()


def open_engine_bench(config: GenerateRun, rank: RankContext, meter: EnergyMeter | None) -> Opened:
    """This rank's engine, warmed up: kernels are compiled and caches allocated before anything is timed."""
    target = config.target
    assert isinstance(target, EngineTarget)
    assert config.shape is not None
    if rank.world.world_size != target.num_ranks:
        raise ConfigError(
            f"{rank.world.world_size} ranks were started, and tp={target.tp} x dp={target.dp} is {target.num_ranks}: "
            "start as many"
        )
    device = choose_device(config.device, rank.world)
    note = make_bf16_products_work(device, [target.precision])
    allow_attention("auto", device)
    join_group(rank.world, device)
    copy = copy_of(rank.world.rank, tp=target.tp, dp=target.dp)
    weights = served_weights(
        target.weights, config.shape, seed=config.requests.seed, device=device, has_texts=config.requests.has_texts
    )
    options = engine_options(config, target, device, local_world_size=rank.world.local_world_size)
    engine = open_engine(
        weights.shape, options, device=device, weights=weights.tensors, constants=weights.constants, group=copy.group,
        where=target.weights or "the weights",
    )  # fmt: skip
    chosen = config.sampling
    _warm_up(engine, Sampling(temperature=chosen.temperature, top_p=chosen.top_p_frac, top_k=chosen.top_k), rank)
    rank.metrics.event(step=-1, name=names.EVENT_KERNELS, detail=f"torch {torch.__version__}; {note or device.type}")
    watch = ConditionsWatch(open_board(device))
    stack = contextlib.ExitStack()
    stack.enter_context(watch)

    def conditions() -> dict[str, object]:
        stack.close()
        return watch.conditions().document()

    return Opened(
        answering=EngineBench(config, rank, engine, weights, copy, device, meter),
        device=device_identity(device, rank.world) | {"precision": target.precision, "tp": target.tp, "dp": target.dp},
        versions=software_versions(device),
        records=copy.is_first,
        conditions=conditions,
        notes=lambda: [*filter(None, [note]), *watch.notes()],
        is_watched=True,
        close=dist.destroy_process_group,
    )


def _warm_up(engine: Engine, sampling: Sampling, rank: RankContext) -> None:
    """Kernels of every size of batch, and one short answer: what happens on first use only is no request's time."""

    def report(number: int, count: int) -> None:
        detail = f"preparing kernels, {number + 1} of {count} sizes of a batch"
        rank.metrics.event(step=-1, name=names.EVENT_PART, detail=detail, value=0.0)

    engine.prepare(sampling, report)
    engine.add(Request(id="warm-up", prompt=(1, 2, 3), max_new_tokens=2))
    engine.drain()


def engine_options(
    config: GenerateRun, target: EngineTarget, device: torch.device, *, local_world_size: int
) -> EngineOptions:
    """Options of the engine. What the run leaves open follows from its requests and the memory that is free."""
    shape = config.shape
    assert shape is not None
    loads = planned_loads(config.requests)
    num = max(len(load[copy :: target.dp]) for load in loads for copy in range(target.dp)) * config.requests.num_answers
    running = target.max_running or max(min(num, MOST_RUNNING), 1)
    width = 4 if target.precision == "fp32" else 2
    each = 2 * shape.layers * max(shape.kv_heads // target.tp, 1) * shape.head_dim * width
    needed = running * (target.max_context + 64) * each
    sharing = 1 if device.type == "cuda" else local_world_size
    room = free_bytes(device) / sharing * FREE_FRAC - _weight_bytes(config, target)
    chosen = target.cache_size_bytes or (int(room) if needed > room > 0 else 0)
    chunk = {"prefill_chunk": target.prefill_chunk} if target.prefill_chunk else {}
    return EngineOptions(
        max_context=target.max_context, cache_bytes=chosen, max_running=running, precision=target.precision,
        execution=target.execution, **chunk,
    )  # fmt: skip


def _weight_bytes(config: GenerateRun, target: EngineTarget) -> float:
    assert config.shape is not None
    spec = ModelSpec(id=config.model_id, name=config.model_id, shape=config.shape)
    return spec.num_params * WEIGHT_BYTES[target.precision] / target.tp
