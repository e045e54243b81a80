"""Put loads to a server and record when each token came. The first failure stops what was not sent yet."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from scalewright.errors import ScalewrightError
from scalewright.records.answers import AnswerLine
from scalewright.run.signals import StopRequestedError, StopSignals
from scalewright.run.traffic.answer_stream import StreamedAnswer
from scalewright.run.traffic.dialect import Dialect, address_of, ask_on, find_dialect
from scalewright.run.traffic.energy import EnergyMeter
from scalewright.run.traffic.http_stream import Address, Connection, ServerFailedError, connect, get_text
from scalewright.run.traffic.load import LoadResult, RequestLoad
from scalewright.run.traffic.server_metrics import ServerReadings
from scalewright.workload.generate_run import GenerateRun, ServerTarget
from scalewright.workload.request_plan import PlannedRequest

CONNECT_AHEAD_S = 0.5
"""A connection is opened so long before its request is due."""
TICK_S = 0.2
READ_METRICS_EVERY_S = 1.0
METRICS_TIMEOUT_S = 2.0

Record = Callable[[AnswerLine], None]


@dataclass(slots=True, kw_only=True)
class ServerLoad:
    """One load against one server."""

    run: GenerateRun
    address: Address
    dialect: Dialect
    load: RequestLoad
    attempt: int
    record: Record
    stop: StopSignals
    report: Callable[[], None]
    """Called a few times a second."""
    first_error: ScalewrightError | None = None
    begun_s: float = 0.0
    readings: ServerReadings = field(default_factory=ServerReadings)

    async def measure(self) -> LoadResult:
        """Send every request when it is due. Raises the first failure once all that was sent has ended."""
        limit = self.run.requests.most_at_once
        places = asyncio.Semaphore(limit) if limit else None
        self.begun_s = time.perf_counter() + self._ahead_s()
        tasks = [asyncio.create_task(self._one(request, places)) for request in self.load.requests]
        watch, reading = asyncio.create_task(self._watch(tasks)), asyncio.create_task(self._read_metrics())
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for task in (watch, reading):
                task.cancel()
            await asyncio.gather(watch, reading, return_exceptions=True)
        if self.stop.requested is not None:
            raise StopRequestedError
        failures = [error for task in tasks if (error := _failure(task)) is not None]
        if self.first_error is not None:
            raise self.first_error
        if failures:
            raise failures[0]
        return LoadResult(
            time_s=time.perf_counter() - self.begun_s, cache_fracs=tuple(self.readings.cache_fracs),
            num_preemptions=self.readings.num_preemptions,
        )  # fmt: skip

    def _ahead_s(self) -> float:
        """Time to open the connections of what is due at once, before the clock starts."""
        return CONNECT_AHEAD_S if self.run.requests.most_at_once == 0 else 0.0

    async def _one(self, request: PlannedRequest, places: asyncio.Semaphore | None) -> None:
        due_s = self.begun_s + request.arrival_s
        await _until(due_s - CONNECT_AHEAD_S)
        async with places or contextlib.nullcontext():
            if self.first_error is not None or self.stop.requested is not None:
                return
            try:
                connection = await connect(self.address)
            except ScalewrightError as error:
                self._fail(request, error)
                return
            try:
                await _until(due_s)
                await self._ask(connection, request)
            except ScalewrightError as error:
                self._fail(request, error)
            finally:
                await connection.close()

    async def _ask(self, connection: Connection, request: PlannedRequest) -> None:
        plan = self.run.requests
        body = self.dialect.body(plan, request, self.run.sampling, vocab=self.run.vocab)
        sent_s = time.perf_counter() - self.begun_s
        streamed = await ask_on(connection, self.dialect, body, num_answers=plan.num_answers)
        # With a limit and no rate, a request is due when an earlier one has ended.
        is_due_when_sent = plan.most_at_once > 0 and not plan.num_requests_per_s and not plan.uses_file_times
        arrival_s = sent_s if is_due_when_sent else request.arrival_s
        for line in self._lines(request, streamed, arrival_s=arrival_s, sent_s=sent_s):
            self.record(line)

    def _lines(
        self, request: PlannedRequest, streamed: StreamedAnswer, *, arrival_s: float, sent_s: float
    ) -> list[AnswerLine]:
        lines = []
        for index, choice in sorted(streamed.choices.items()):
            times_s = choice.times_s
            lines.append(
                AnswerLine(
                    load=request.load, request=request.number, index=index, attempt=self.attempt,
                    num_prompt=streamed.num_prompt or request.num_prompt, num_tokens=streamed.num_tokens(index),
                    reason=choice.reason, arrival_s=arrival_s, sent_s=sent_s, first_s=times_s[0] - self.begun_s,
                    gaps_s=tuple(b - a for a, b in pairwise(times_s)),
                )
            )  # fmt: skip
        return lines

    def _fail(self, request: PlannedRequest, error: ScalewrightError) -> None:
        if self.first_error is None:
            number = f"request {request.number + 1} of {self.run.requests.num_requests}"
            text = str(error).removeprefix(f"{self.address.base}: ")
            self.first_error = type(error)(f"{self.address.base}: {text} ({number})")

    async def _watch(self, tasks: list[asyncio.Task[None]]) -> None:
        """Report progress. On a signal, end what is in flight: finished answers are kept."""
        while True:
            await asyncio.sleep(TICK_S)
            self.report()
            if self.stop.requested is not None:
                for task in tasks:
                    task.cancel()

    async def _read_metrics(self) -> None:
        short = Address(base=self.address.base, timeout_s=METRICS_TIMEOUT_S, headers=self.address.headers)
        while True:
            try:
                status, text = await get_text(short, "/metrics")
            except ServerFailedError:
                return
            if status != 200:
                return
            self.readings.add(text)
            await asyncio.sleep(READ_METRICS_EVERY_S)


async def _until(time_s: float) -> None:
    wait_s = time_s - time.perf_counter()
    if wait_s > 0.0:
        await asyncio.sleep(wait_s)


def _failure(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


@dataclass(slots=True, kw_only=True)
class ServerBench:
    """A server that answers: found once, then asked load after load."""

    run: GenerateRun
    address: Address
    dialect: Dialect
    meter: EnergyMeter | None

    @classmethod
    def open(cls, run: GenerateRun, meter: EnergyMeter | None) -> ServerBench:
        target = run.target
        assert isinstance(target, ServerTarget)
        address = address_of(target)
        try:
            dialect = asyncio.run(find_dialect(address, run))
        except ServerFailedError as error:
            raise ServerFailedError(f"{address.base}: {error}: start the server, or check --url") from error
        return cls(run=run, address=address, dialect=dialect, meter=meter if target.is_here else None)

    def measure(
        self, load: RequestLoad, *, attempt: int, record: Record, stop: StopSignals, report: Callable[[], None]
    ) -> LoadResult:
        one = ServerLoad(
            run=self.run, address=self.address, dialect=self.dialect, load=load, attempt=attempt, record=record,
            stop=stop, report=report,
        )  # fmt: skip
        before = None if self.meter is None else self.meter.read()
        result = asyncio.run(one.measure())
        return result if self.meter is None or before is None else result.with_energy(self.meter.since(before))
