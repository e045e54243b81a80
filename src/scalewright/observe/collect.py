"""One run from its directory: steps of every rank, counters of every node, what happened, and a summary."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.errors import ConfigError, DocumentError
from scalewright.records import metric_names as names
from scalewright.records.documents import parse_json, read_document, read_text
from scalewright.records.events import Event, read_events
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.records.unit_keys import check_keys

TEXTS_OF_CONFIG = ("schema", "layout", "precision", "model_id", "device", "data")
NUM_WARMUP_STEPS = 3
"""Steps left out of a summary: compilation, first collectives, allocators that grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter of one device or port of one node, as it grew over the run."""

    name: str
    host: str
    of: str
    grown: float
    over_s: float


@dataclass(frozen=True)
class CollectedRun:
    """Everything that a run directory holds about what was measured."""

    directory: RunDirectory
    config: dict[str, Any]
    prediction: dict[str, Any] | None
    exit_info: ExitInfo | None
    steps: dict[str, dict[int, dict[int, float]]]
    """metric -> step -> rank -> value; a step that a resumed run repeated counts once, as it was last."""
    counters: list[Counter]
    samples: dict[str, list[float]]
    """Readings of nodes that are no counters."""
    power: list[Event]
    """Samples of GPUs' power, which have a meaning only with their time."""
    step_ends_s: dict[int, float]
    """When a step was over on the last rank, in seconds since 1970."""
    happenings: list[Event]
    not_finite_steps: tuple[int, ...] = ()
    """Steps whose loss was NaN or infinite."""

    @cached_property
    def step_numbers(self) -> list[int]:
        return sorted(self.steps.get(names.STEP_TIME, {}))

    @cached_property
    def steady_steps(self) -> list[int]:
        """Steps a summary is made of: those that count by the run's own verdict, else all but the first few.

        Profiled steps are slower for being profiled, and left out.
        """
        every = self.step_numbers
        steady = [event.step for event in self.happenings if event.name == names.EVENT_STEADY]
        first = steady[-1] if steady else every[NUM_WARMUP_STEPS] if len(every) > 2 * NUM_WARMUP_STEPS else 0
        last = max((e.step for e in self.happenings if e.name == names.EVENT_STEADY_END), default=math.inf)
        profiled = self.steps.get(names.COMPUTE_TIME, {})
        kept = [step for step in every if first <= step <= last and step not in profiled]
        return kept or every

    @property
    def num_ranks(self) -> int:
        """Ranks that reported; of another program, whose log is one rank's, those that it was started with."""
        reporting = max((len(ranks) for ranks in self.steps.get(names.STEP_TIME, {}).values()), default=0)
        return int(self.config.get("num_ranks", reporting)) if "engine" in self.config else reporting

    def series(self, name: str, *, slowest: bool = False) -> NDArray[np.float64]:
        """A metric over the steady steps: the mean of the ranks, or that of the one which everybody waits for."""
        table = self.steps.get(name, {})
        reduce = (min if name in names.RATES else max) if slowest else _mean
        return np.array([reduce(table[step].values()) for step in self.steady_steps if table.get(step)])

    def median(self, name: str, *, slowest: bool = False) -> float | None:
        values = self.series(name, slowest=slowest)
        return float(np.median(values)) if values.size else None


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def collect(directory: RunDirectory) -> CollectedRun:
    """Read a run directory; a run that is still going on, or was killed, is read as far as it got."""
    ranks = directory.all_rank_events()
    if not ranks:
        raise ConfigError(f"{directory.path}: has no events yet: start the run, or look into logs/ for why it did not")
    steps: dict[str, dict[int, dict[int, float]]] = {}
    happenings: list[Event] = []
    step_ends_s: dict[int, float] = {}
    is_finite: dict[int, bool] = {}
    for rank, path in ranks.items():
        for event in read_events(path):
            if event.name.startswith(names.EVENT_PREFIX):
                happenings.append(event)
                continue
            if event.name == names.LOSS and event.step >= 0:
                is_finite[event.step] = event.value is not None
            if event.step >= 0 and event.value is not None:
                steps.setdefault(event.name, {}).setdefault(event.step, {})[rank] = event.value
                step_ends_s[event.step] = max(event.time, step_ends_s.get(event.step, 0.0))
    node_events = [event for path in directory.all_node_events() for event in read_events(path)]
    happenings += [event for event in node_events if event.name.startswith(names.EVENT_PREFIX)]
    return CollectedRun(
        directory=directory,
        config=_config(directory),
        prediction=_prediction(directory),
        exit_info=directory.read_exit_info(),
        steps=steps,
        counters=_counters(node_events),
        samples=_samples(node_events),
        power=[event for event in node_events if event.name == names.GPU_POWER],
        step_ends_s=step_ends_s,
        happenings=sorted(happenings, key=lambda event: event.time),
        not_finite_steps=tuple(sorted(step for step, finite in is_finite.items() if not finite)),
    )


def _config(directory: RunDirectory) -> dict[str, Any]:
    doc = parse_json(read_text(directory.config), where=str(directory.config))
    if not isinstance(doc, dict) or "schema" not in doc:
        raise DocumentError(f"{directory.config}: is not a configuration of a run; check the path")
    check_keys(doc, where=str(directory.config))
    for key in TEXTS_OF_CONFIG:
        if not isinstance(doc.get(key, ""), str):
            raise DocumentError(f"{directory.config}: key {key!r} is not a text; the file is not as it was written")
    return doc


def _prediction(directory: RunDirectory) -> dict[str, Any] | None:
    if not directory.prediction.exists():
        return None
    prediction = read_document(directory.prediction, "prediction")
    num_gpus = prediction.get("num_gpus", 1)
    if isinstance(num_gpus, bool) or not isinstance(num_gpus, int | float) or num_gpus < 1:
        raise DocumentError(
            f"{directory.prediction}: key 'num_gpus' is no number of devices; make the prediction again"
        )
    return prediction


def _counters(events: list[Event]) -> list[Counter]:
    """Growth of every counter, added up over attempts: after a reboot or driver restart a counter starts anew."""
    last: dict[tuple[str, str, str], Event] = {}
    grown: dict[tuple[str, str, str], float] = {}
    over_s: dict[tuple[str, str, str], float] = {}
    for event in events:
        if event.name not in names.COUNTERS or event.value is None:
            continue
        key = (event.name, event.host, event.detail)
        before = last.get(key)
        last[key] = event
        grown.setdefault(key, 0.0)
        over_s.setdefault(key, 0.0)
        if before is None or before.value is None or before.job != event.job or event.value < before.value:
            continue
        grown[key] += event.value - before.value
        over_s[key] += event.time - before.time
    return [
        Counter(name=name, host=host, of=of, grown=grown[name, host, of], over_s=over_s[name, host, of])
        for name, host, of in grown
    ]


def _samples(events: list[Event]) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    for event in events:
        is_sample = event.name not in names.COUNTERS and not event.name.startswith(names.EVENT_PREFIX)
        if is_sample and event.value is not None:
            samples.setdefault(event.name, []).append(event.value)
    return samples
