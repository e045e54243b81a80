"""Events of a run directory from what an engine's log says: step times, tokens, loss, memory.

The readers of `explain` read the log. Rates that a program computes itself are not taken: tokens and FLOP follow from
the layout, the sequence length and the time of a step.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import StepFact
from scalewright.observe.readers.reading import read_evidence
from scalewright.records import metric_names as names
from scalewright.records.events import EventLine, EventWriter
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.engine_run import EngineRun

FILLED = (
    "time_s", "loss", "grad_norm", "learning_rate", "memory_bytes", "memory_reserved_bytes", "tokens_per_s", "reward",
    "at_s", "num_tokens",
)  # fmt: skip
"""Fields that a second report of the same step may add."""
RUNTIME = "train_runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """What was understood of the logs of one run."""

    evidence: Evidence
    steps: tuple[StepFact, ...]
    """One fact for each step, in order."""
    dialect: str
    notes: tuple[str, ...]

    @property
    def has_times(self) -> bool:
        return any(fact.time_s is not None for fact in self.steps)

    @property
    def memory_bytes(self) -> float | None:
        """The highest peak that the log has: allocated where it says so, else reserved."""
        allocated = [fact.memory_bytes for fact in self.steps if fact.memory_bytes is not None]
        reserved = [fact.memory_reserved_bytes for fact in self.steps if fact.memory_reserved_bytes is not None]
        return max(allocated or reserved, default=None)


def harvest(logs: Sequence[Path], run: EngineRun) -> Harvest:
    """Read the logs of one run. Nothing that they hold raises."""
    evidence = read_evidence(list(logs))
    dialect = _main_dialect(evidence.steps)
    notes = list(evidence.notes)
    merged = _merged(evidence.steps, dialect)
    steps = [_timed(fact, run) for fact in merged]
    if steps and not any(fact.time_s is not None for fact in steps):
        steps = _by_whole_time(steps, evidence, notes)
    if any(fact.memory_reserved_bytes and not fact.memory_bytes for fact in steps):
        notes.append("the log has only the memory that the allocator reserved, which is more than what tensors used")
    return Harvest(evidence=evidence, steps=tuple(steps), dialect=dialect, notes=tuple(dict.fromkeys(notes)))


def _main_dialect(facts: Sequence[StepFact]) -> str:
    """The program whose reports say most: a loss and a time count twice."""
    weight: Counter[str] = Counter()
    for fact in facts:
        weight[fact.dialect] += 1 + 2 * (fact.loss is not None) + 2 * (fact.time_s is not None)
    return weight.most_common(1)[0][0] if weight else ""


def _merged(facts: Sequence[StepFact], dialect: str) -> list[StepFact]:
    """One fact a step. Of several attempts the last counts; other ranks and programs fill what is missing."""
    own = [fact for fact in facts if fact.dialect == dialect]
    sources = Counter((fact.rank, fact.spot.file) for fact in own)
    reporting = sources.most_common(1)[0][0] if sources else None
    by_step: dict[int, StepFact] = {}
    for fact in sorted((one for one in own if (one.rank, one.spot.file) == reporting), key=lambda one: one.attempt):
        by_step[fact.step] = fact
    for fact in facts:
        known = by_step.get(fact.step)
        if known is None or (fact.dialect == dialect and (fact.rank, fact.spot.file) == reporting):
            continue
        changes = {name: value for name in FILLED
                   if getattr(known, name) is None and (value := getattr(fact, name)) is not None}  # fmt: skip
        for name in ("memory_bytes", "memory_reserved_bytes"):
            both = [value for one in (known, fact) if (value := getattr(one, name)) is not None]
            changes |= {name: max(both)} if both else {}
        if "tokens_per_s" in changes:
            changes["is_per_device"] = fact.is_per_device
        by_step[fact.step] = replace(known, **changes)
    return [by_step[step] for step in sorted(by_step)]


def _timed(fact: StepFact, run: EngineRun) -> StepFact:
    """The fact with the time of its step, from the rate where the log has no time."""
    if fact.time_s is not None or not fact.tokens_per_s:
        return fact
    rate = fact.tokens_per_s * (run.num_ranks if fact.is_per_device else 1)
    return replace(fact, time_s=(fact.num_tokens or run.tokens_per_step) / rate)


def _by_whole_time(steps: list[StepFact], evidence: Evidence, notes: list[str]) -> list[StepFact]:
    """Where only the time of the whole run is known, each step has the mean."""
    total_s = next((float(one.values[RUNTIME]) for one in evidence.happenings if RUNTIME in one.values), None)
    num_steps = max(fact.step for fact in steps)
    if total_s is None or num_steps < 1:
        return steps
    notes.append(f"the log has no time of single steps: each is the mean of {num_steps} steps, start included")
    return [replace(fact, time_s=total_s / num_steps) for fact in steps]


def write_harvest(directory: RunDirectory, run: EngineRun, taken: Harvest, *, job: str, host: str = "") -> int:
    """Write the events of the first rank; how many steps have a time."""
    directory.rank_events(0).unlink(missing_ok=True)
    writer = EventWriter(directory.rank_events(0))
    line = EventLine(job=job, rank=0, host=host)
    try:
        writer.append("".join(_lines(line, run, taken)))
    finally:
        writer.close()
    return sum(fact.time_s is not None for fact in taken.steps)


def write_peaks(directory: RunDirectory, peaks_bytes: Mapping[int, float], *, step: int, job: str, host: str) -> None:
    """The most memory of each rank's process, at the last step."""
    for rank, peak in peaks_bytes.items():
        writer = EventWriter(directory.rank_events(rank))
        line = EventLine(job=job, rank=rank, host=host)
        writer.append(
            line.format(time_s=time.time(), step=step, name=names.PEAK_MEMORY, value=peak, unit="bytes")
        )  # fmt: skip
        writer.close()


def write_split(directory: RunDirectory, taken: Harvest, *, job: str, host: str) -> None:
    """Parts of the traced steps of every rank, scaled to the time of ordinary steps, as our own trainer writes them."""
    if not directory.traces.is_dir():
        return
    traced = [one for one in read_evidence([directory.traces]).rank_times if one.is_traced and one.step is not None]
    numbers = {one.step for one in traced}
    ordinary = [fact.time_s for fact in taken.steps if fact.time_s is not None and fact.step not in numbers]
    ordinary_s = median(ordinary[len(ordinary) // 2 :]) if ordinary else None  # the first ones are slow
    for one in traced:
        scale = min(ordinary_s / one.step_s, 1.0) if ordinary_s and one.step_s else 1.0
        parts = {names.COMPUTE_TIME: one.compute_s, names.COMMUNICATION_TIME: one.exposed_communication_s,
                 names.DATA_WAIT: one.data_s}  # fmt: skip
        parts[names.IDLE_TIME] = max(one.step_s - sum(parts.values()), 0.0)
        values = {name: seconds * scale for name, seconds in parts.items()}
        if one.rank:  # the log has the first rank's
            values = {names.STEP_TIME: one.step_s, **values}
        writer = EventWriter(directory.rank_events(one.rank))
        line = EventLine(job=job, rank=one.rank, host=host)
        writer.append("".join(
            line.format(time_s=time.time(), step=one.step or 0, name=name, value=value, unit=names.UNITS[name])
            for name, value in values.items()
        ))  # fmt: skip
        writer.close()


def _lines(line: EventLine, run: EngineRun, taken: Harvest) -> Iterator[str]:
    start_s = time.time()
    clock_s = next((fact.at_s for fact in taken.steps if fact.at_s is not None), start_s)
    for fact in taken.steps:
        clock_s = fact.at_s if fact.at_s is not None else clock_s + (fact.time_s or 0.0)
        for name, value in _values(fact, run):
            yield line.format(time_s=clock_s, step=fact.step, name=name, value=value, unit=names.UNITS[name])
    for note in taken.notes:
        yield line.format(time_s=clock_s, step=-1, name=names.EVENT_KERNELS, value=math.nan, unit="", detail=note)


def _values(fact: StepFact, run: EngineRun) -> Iterable[tuple[str, float]]:
    if fact.time_s is not None and fact.time_s > 0:
        yield names.STEP_TIME, fact.time_s
        yield names.TOKENS_PER_S, (fact.num_tokens or run.tokens_per_step) / fact.time_s
        yield names.FLOP_PER_S, run.step_flop / run.num_ranks / fact.time_s
    memory = fact.memory_bytes if fact.memory_bytes is not None else fact.memory_reserved_bytes
    for name, value in (
        (names.LOSS, fact.loss), (names.GRAD_NORM, fact.grad_norm), (names.LEARNING_RATE, fact.learning_rate),
        (names.PEAK_MEMORY, memory), (names.REWARD, fact.reward),
    ):  # fmt: skip
        if value is not None:
            yield name, value
