"""`bench generate`: put loads to our engine or to a server, keep every finished answer, and write the figures.

A run that is stopped, loses a rank or meets a server that fails keeps its answers. Run again, it asks for the others.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scalewright.errors import ScalewrightError
from scalewright.records.answers import AnswerLine, AnswerWriter, read_answers
from scalewright.records.documents import read_document
from scalewright.records.measurements import Measurements, write_measurements
from scalewright.records.metric_names import EVENT_PART
from scalewright.records.types import ExitCode
from scalewright.run.rank_context import RankContext
from scalewright.run.signals import StopRequestedError
from scalewright.run.traffic.energy import EnergyMeter
from scalewright.run.traffic.figures import load_row
from scalewright.run.traffic.load import LoadResult, RequestLoad
from scalewright.run.traffic.opened import Opened
from scalewright.workload import generate_run
from scalewright.workload.generate_run import EngineTarget, GenerateRun
from scalewright.workload.request_plan import PlannedRequest, planned_loads

REPORT_EVERY_S = 0.5


@dataclass(slots=True, kw_only=True)
class AnswerProgress:
    """What was answered so far, as the progress bar shows it."""

    rank: RankContext
    num_all: int
    num_copies: int = 1
    """Copies of the model that answer alike: this rank sees the answers of one."""
    num_done: int = 0
    num_tokens: int = 0
    begun_s: float = field(default_factory=time.monotonic)
    _reported_s: float = 0.0

    def count(self, answer: AnswerLine) -> None:
        self.num_done = min(self.num_done + self.num_copies, self.num_all)
        self.num_tokens += answer.num_tokens * self.num_copies

    def report(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s < REPORT_EVERY_S:
            return
        self._reported_s = now_s
        rate = self.num_tokens / max(now_s - self.begun_s, 1e-9)
        detail = f"{self.num_done:,} of {self.num_all:,} answers, {rate:,.0f} tokens/s"
        self.rank.metrics.event(step=-1, name=EVENT_PART, detail=detail, value=self.num_done / self.num_all)


def run(rank: RankContext) -> ExitCode:
    """Measure every load that is not answered yet. Rank 0 writes the figures."""
    where = rank.directory.config
    config = generate_run.from_document(read_document(where, generate_run.KIND), where=str(where))
    with rank.watchdog.suspended():  # compiling, loading weights and a silent server have limits of their own
        opened = _open(config, rank)
    try:
        return _run_loads(config, rank, opened)
    finally:
        opened.close()


def _run_loads(config: GenerateRun, rank: RankContext, opened: Opened) -> ExitCode:
    loads = planned_loads(config.requests)
    earlier = read_answers(rank.directory.all_rank_answers())
    attempt = 1 + max((answer.attempt for answer in earlier), default=0)
    progress = AnswerProgress(
        rank=rank, num_all=sum(map(len, loads)) * config.requests.num_answers, num_done=len(earlier),
        num_copies=config.target.dp if isinstance(config.target, EngineTarget) else 1,
    )  # fmt: skip
    writer = AnswerWriter(rank.directory.rank_answers(rank.world.rank)) if opened.records else None

    def record(answer: AnswerLine) -> None:
        if writer is not None:
            writer.write(answer)
        progress.count(answer)

    results: list[LoadResult | None] = []
    failure: ScalewrightError | StopRequestedError | None = None
    try:
        for number, requests in enumerate(loads):
            load = _remaining(config, number, requests, earlier)
            with contextlib.nullcontext() if opened.is_watched else rank.watchdog.suspended():
                results.append(
                    opened.answering.measure(
                        load, attempt=attempt, record=record, stop=rank.stop, report=progress.report
                    )
                    if load.requests
                    else None
                )
    except (ScalewrightError, StopRequestedError) as error:
        failure = error
    finally:
        if writer is not None:
            writer.close()
    return _end(rank, config, opened, results, failure)


def _remaining(
    config: GenerateRun, number: int, requests: Sequence[PlannedRequest], earlier: Sequence[AnswerLine]
) -> RequestLoad:
    """The requests of a load without all their answers. The first is due at once, the others keep their gaps."""
    counts: dict[int, int] = {}
    for answer in earlier:
        if answer.load == number:
            counts[answer.request] = counts.get(answer.request, 0) + 1
    left = tuple(request for request in requests if counts.get(request.number, 0) < config.requests.num_answers)
    shifted = tuple(replace(request, arrival_s=request.arrival_s - left[0].arrival_s) for request in left)
    return RequestLoad(
        number=number, words=config.requests.load_words(number), requests=shifted, num_done=len(requests) - len(left)
    )  # fmt: skip


def _open(config: GenerateRun, rank: RankContext) -> Opened:
    meter = EnergyMeter(local_world_size=rank.world.local_world_size) if rank.world.is_first_on_node else None
    if isinstance(config.target, EngineTarget):
        from scalewright.run.traffic.engine_load import open_engine_bench

        return open_engine_bench(config, rank, meter)
    from scalewright.run.traffic.server_load import ServerBench

    server = ServerBench.open(config, meter)
    device = {
        "type": "server", "name": f"{server.dialect.model} at {config.target.base}", "num_ranks": 1, "num_nodes": 1,
        "host": rank.world.host, "api": server.dialect.api,
    }  # fmt: skip
    return Opened(
        answering=server, device=device, versions={"python": platform.python_version()}, notes=server.dialect.notes
    )


def _end(
    rank: RankContext, config: GenerateRun, opened: Opened, results: Sequence[LoadResult | None],
    failure: ScalewrightError | StopRequestedError | None,
) -> ExitCode:  # fmt: skip
    """Write the figures of what was answered, also where not all was."""
    if rank.world.is_first:
        answers = read_answers(rank.directory.all_rank_answers())
        if answers:
            write_measurements(rank.directory, _measurements(config, opened, answers, results))
    if isinstance(failure, StopRequestedError):
        return ExitCode.REQUEUE
    if failure is not None:
        num = len(read_answers(rank.directory.all_rank_answers()))
        kept = f"{num} finished answer{' is' if num == 1 else 's are'} kept"
        raise type(failure)(f"{failure}; {kept}: run it again to ask for the others") from failure
    return ExitCode.YES


def _measurements(
    config: GenerateRun, opened: Opened, answers: Sequence[AnswerLine], results: Sequence[LoadResult | None]
) -> Measurements:
    plan, rows = config.requests, []
    for number in range(plan.num_loads):
        of_load = [answer for answer in answers if answer.load == number]
        if of_load:
            rate = plan.num_requests_per_s[number] if plan.num_requests_per_s else None
            result = results[number] if number < len(results) else None
            rows.append(load_row(of_load, result, words=plan.load_words(number), rate=rate))
    num_all = plan.num_loads * plan.num_requests * plan.num_answers
    notes = opened.notes()
    if len(answers) < num_all:
        notes.append(f"only {len(answers)} of {num_all} answers are there: run it again to ask for the others")
    if any(row["num_attempts"] > 1 for row in rows):
        notes.append("answers come from several attempts: figures of the engine are those of the last one")
    return Measurements(
        kind="generate", device=opened.device, versions=opened.versions, rows=rows, conditions=opened.conditions(),
        summary={
            "model": config.model_id, "num_requests": plan.num_requests, "num_answers_each": plan.num_answers,
            "num_ranks": config.num_ranks,
        },
        notes=notes,
    )  # fmt: skip
