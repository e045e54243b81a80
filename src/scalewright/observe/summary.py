"""Summary of a run: split, throughput, memory, energy and network, each with its prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from scalewright.observe.collect import CollectedRun
from scalewright.observe.vision_summary import VisionSummary, summarize_vision
from scalewright.records import metric_names as names
from scalewright.records.documents import document
from scalewright.records.unit_keys import whole_interval

THROUGHPUTS = (names.TOKENS_PER_S, names.IMAGES_PER_S)
ENERGY_OF = {names.NODE_ENERGY: "whole nodes", names.GPU_ENERGY: "GPUs", names.CPU_ENERGY: "CPUs"}


PROCESS_MEMORY = "process_memory"
"""The most memory of a rank's process, PyTorch and its libraries included; nothing predicts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One number, measured and predicted."""

    name: str
    unit: str
    measured: float | None
    predicted: float | None
    interval: tuple[float, float] | None = None

    @property
    def ratio_frac(self) -> float | None:
        """Measured over predicted."""
        if self.measured is None or not self.predicted:
            return None
        return self.measured / self.predicted

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies in the predicted interval."""
        if self.interval is None or self.measured is None:
            return None
        return self.interval[0] <= self.measured <= self.interval[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    run: str
    path: str
    num_steps: int
    num_ranks: int
    comparisons: tuple[Comparison, ...]
    split_s: dict[str, float]
    """Mean over all ranks and profiled steps; the parts add up to an ordinary step."""
    split_of_s: float | None
    """Time of the step that is split."""
    num_split_steps: int
    tokens_per_j: float | None
    """Tokens of the steps that count over all energy, start-up and repeated steps included."""
    images_per_j: float | None
    """Likewise, of a vision run."""
    energy_j: float | None
    """Of the devices that have a counter, over the time that was sampled."""
    energy_of: str
    power_w: float | None
    """Of all GPUs together, the mean of the samples taken while the steps ran that count."""
    network_bytes_per_s: float | None
    """Received by all nodes together, over the time that was sampled."""
    sampling_frac: float | None
    """CPU time of sampling over the time sampled, for one core."""
    losses: tuple[float, float] | None
    """First and last."""
    end: str
    confidence: str
    not_finite_steps: tuple[int, int] | None = None
    """First step whose loss was NaN or infinite, and how many there are; None: every loss was finite."""
    vision: VisionSummary | None = None
    """Epochs, scores and the loader, of a vision run."""

    @property
    def throughput(self) -> Comparison:
        """Throughput of the whole job, in tokens or images."""
        return self.compared(names.TOKENS_PER_S if self.vision is None else names.IMAGES_PER_S)

    def compared(self, name: str) -> Comparison:
        return next(c for c in self.comparisons if c.name == name)

    def as_document(self) -> dict[str, Any]:
        body = asdict(self)
        body["comparisons"] = [{**asdict(c), "ratio_frac": c.ratio_frac, "inside": c.inside} for c in self.comparisons]
        return document("run-summary", body)


def summarize(run: CollectedRun) -> RunSummary:
    steps = run.step_numbers
    energy_j, energy_of = _energy(run)
    split_steps = _split_steps(run)
    split_s = {name: _mean_at(run, name, split_steps) for name in names.SPLIT} if split_steps else {}
    losses = [value for step in steps for value in run.steps.get(names.LOSS, {}).get(step, {}).values()]
    info, vision = run.exit_info, summarize_vision(run)
    per_j = {name: _num_done(run, name) / energy_j if energy_j else None for name in THROUGHPUTS}
    return RunSummary(
        run=run.directory.path.resolve().name,
        path=str(run.directory.path.resolve()),
        num_steps=len(steps),
        num_ranks=run.num_ranks,
        comparisons=_comparisons(run, is_vision=vision is not None),
        split_s=split_s,
        split_of_s=math.fsum(split_s.values()) if split_s else None,
        num_split_steps=len(split_steps),
        tokens_per_j=per_j[names.TOKENS_PER_S] if vision is None else None,
        images_per_j=None if vision is None else per_j[names.IMAGES_PER_S],
        energy_j=energy_j,
        energy_of=energy_of,
        power_w=_power(run),
        network_bytes_per_s=_network(run),
        sampling_frac=_sampling(run),
        losses=(losses[0], losses[-1]) if losses else None,
        end="still running, or killed before it could write why it ended" if info is None else info.reason,
        confidence=str((run.prediction or {}).get("confidence", "")),
        vision=vision,
        not_finite_steps=(run.not_finite_steps[0], len(run.not_finite_steps)) if run.not_finite_steps else None,
    )


def _comparisons(run: CollectedRun, *, is_vision: bool) -> tuple[Comparison, ...]:
    prediction = run.prediction or {}
    num_gpus = prediction.get("num_gpus", 1)
    per_gpu = prediction.get("tokens_per_s_per_gpu")
    flop, time_s = prediction.get("model_flop"), prediction.get("step_time_s")
    rate = flop / time_s / num_gpus if flop and time_s else None
    return (
        Comparison(
            name=names.STEP_TIME,
            unit="s",
            measured=run.median(names.STEP_TIME, slowest=True),
            predicted=time_s,
            interval=whole_interval(prediction.get("step_time_interval_s")),
        ),
        Comparison(
            name=names.IMAGES_PER_S,
            unit="images/s",
            measured=run.median(names.IMAGES_PER_S, slowest=True),
            predicted=prediction.get("images_per_s"),
        )
        if is_vision
        else Comparison(
            name=names.TOKENS_PER_S,
            unit="tokens/s",
            measured=run.median(names.TOKENS_PER_S, slowest=True),
            predicted=None if per_gpu is None else per_gpu * num_gpus,
        ),
        Comparison(
            name=names.FLOP_PER_S,
            unit="FLOP/s",
            measured=run.median(names.FLOP_PER_S, slowest=True),
            predicted=rate,
        ),
        Comparison(name=names.MFU, unit="1", measured=_mfu_frac(run), predicted=prediction.get("mfu_frac")),
        *_memory(run, prediction.get("memory_bytes")),
    )


def _memory(run: CollectedRun, allocated_bytes: float | None) -> Iterator[Comparison]:
    """What training allocates, measured on a GPU. On a CPU only the process can be measured: that is another figure."""
    peak = _largest(run, names.PEAK_MEMORY)
    on_cpu = run.config.get("device") == "cpu"
    yield Comparison(name=names.PEAK_MEMORY, unit="bytes", measured=None if on_cpu else peak, predicted=allocated_bytes)
    if on_cpu:
        yield Comparison(name=PROCESS_MEMORY, unit="bytes", measured=peak, predicted=None)


def _mfu_frac(run: CollectedRun) -> float | None:
    """As the ranks reported it; else their rate over the peak that launching wrote down."""
    measured, rate = run.median(names.MFU, slowest=True), run.median(names.FLOP_PER_S, slowest=True)
    peak = run.directory.peak_flop_per_s()
    if measured is not None or rate is None or not peak:
        return measured
    return rate / peak


def _largest(run: CollectedRun, name: str) -> float | None:
    values = [value for ranks in run.steps.get(name, {}).values() for value in ranks.values()]
    return max(values, default=None)


def _split_steps(run: CollectedRun) -> list[int]:
    """Steps that were profiled on every rank that reported."""
    tables = [run.steps.get(name, {}) for name in names.SPLIT]
    return [step for step in run.step_numbers if all(step in table for table in tables)]


def _mean_at(run: CollectedRun, name: str, steps: list[int]) -> float:
    values = [value for step in steps for value in run.steps.get(name, {}).get(step, {}).values()]
    return math.fsum(values) / len(values)


def _num_done(run: CollectedRun, throughput: str) -> float:
    """Tokens or images of all steps."""
    rates, times = run.steps.get(throughput, {}), run.steps.get(names.STEP_TIME, {})
    return math.fsum(
        rates[step][rank] * seconds / len(ranks)
        for step, ranks in times.items()
        for rank, seconds in ranks.items()
        if rank in rates.get(step, {})
    )


def _energy(run: CollectedRun) -> tuple[float | None, str]:
    """Joules, and of what: a whole node's counter where there is one, else GPUs plus CPUs."""
    for chosen in ((names.NODE_ENERGY,), (names.GPU_ENERGY, names.CPU_ENERGY)):
        counters = [counter for counter in run.counters if counter.name in chosen]
        if counters:
            of = " and ".join(sorted({ENERGY_OF[counter.name] for counter in counters}))
            return math.fsum(counter.grown for counter in counters), of
    return None, "no energy counter on these nodes"


def _power(run: CollectedRun) -> float | None:
    ends_s = [run.step_ends_s[step] for step in run.steady_steps]
    watts: dict[tuple[str, str], list[float]] = {}
    for event in run.power:
        if ends_s and event.value is not None and ends_s[0] <= event.time <= ends_s[-1]:
            watts.setdefault((event.host, event.detail), []).append(event.value)
    return math.fsum(math.fsum(values) / len(values) for values in watts.values()) if watts else None


def _network(run: CollectedRun) -> float | None:
    counters = [c for c in run.counters if c.name == names.NETWORK_RECEIVED and c.over_s > 0]
    return math.fsum(c.grown / c.over_s for c in counters) if counters else None


def _sampling(run: CollectedRun) -> float | None:
    spent = run.samples.get(names.SAMPLER_CPU_TIME, [])
    sampled_s = max((c.over_s for c in run.counters), default=0.0)
    return (spent[-1] - spent[0]) / sampled_s if len(spent) > 1 and sampled_s > 0 and spent[-1] >= spent[0] else None
