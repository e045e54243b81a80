"""A training step of a language or vision model: one layout on one system, predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.costs import vision
from scalewright.costs.breakdown import Breakdown
from scalewright.here.place import HERE, Place, place_of
from scalewright.launch.prepare.outlook import Ready
from scalewright.observe.collect import CollectedRun, collect
from scalewright.observe.summary import PROCESS_MEMORY, summarize
from scalewright.planner.answer import Answer, answer
from scalewright.planner.energy_use import Footprint
from scalewright.planner.limits import PASSES, term_times
from scalewright.planner.question import Question, ask
from scalewright.planner.stages.vision_step import NUM_IMAGENET, NUM_IMAGENET_VALIDATION
from scalewright.records import metric_names as names
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import Number
from scalewright.records.types import warnings_among
from scalewright.study.doubts import doubts_of_training
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.options import STRICT, parse_options
from scalewright.workload.layout import parse_layout

MEASURED = {
    "tokens_per_s": names.TOKENS_PER_S,
    "images_per_s": names.IMAGES_PER_S,
    "flop_per_s_per_gpu": names.FLOP_PER_S,
    "mfu_frac": names.MFU,
    "memory_bytes": names.PEAK_MEMORY,
    "process_memory_bytes": PROCESS_MEMORY,
}
"""Names in a run's events, by the study's metric."""
MAX_RANKS_SHOWN = 16


@checked(frozen=True, kw_only=True, config=STRICT)
class TrainingPoint:
    """Options of a training step: a model under a layout on a system."""

    model: str
    layout: str
    system: str = HERE
    partition: str = ""
    transport: str = ""
    network: str = ""
    """quiet or shared: whether other jobs use the fabric; empty: as the system's entry says."""
    precision: str = "auto"
    stack: str = "auto"
    seq: int = 0
    channels_last: bool | None = None
    tokens: str = ""
    """Tokens of the whole training, such as `20T`: adds the work of all its steps."""
    storage: str = ""
    """Storage that images are read from; empty: reading is not predicted."""
    images_per_epoch: int = 0
    """0: as many as ImageNet has."""
    epoch_fixed_s: float = 0.0
    """Time of an epoch that does not depend on its length: starts of loaders, stragglers at its end."""
    validation_fixed_s: float = 0.0
    """The part of `epoch_fixed_s` that belongs to the validation after the epoch."""
    epochs: int = 0
    """Of vision; 0: one, or as many as the protocol has."""
    image_size: int = 0
    num_images: int = 0
    """Images that are made, if data is `made`."""
    copy_to: str = ""
    """Folder that the data set is copied to before the first step; `ram`: /dev/shm."""
    steps: int = 30
    device: str = "auto"
    compile: str = "auto"
    data: str = "synthetic"
    protocol: str = "steady"
    scaling: str = "given"
    seed: int = 0
    checkpoint: str = "async"
    """async: training continues while a checkpoint is written; sync: it waits."""
    checkpoint_every: int | str = 0
    """Steps; 0: only when the run is stopped; auto: from the failure model."""
    keep: int = 2
    """Newest whole checkpoints that are kept."""
    start_from: str = ""
    """Checkpoint of another run of this model."""
    profile: bool = False
    """Keep a trace of the profiled steps."""
    profile_steps: int = 2
    channels: str = "auto"
    """Of images: last or first."""
    passes: int = 1
    """Times that an epoch reads each image."""
    workers: int | None = None
    """Decoding processes of a rank; None: its share of the cores."""
    label_smoothing: float = 0.0
    validates: bool = True
    """Score the held-out images after every epoch."""
    budget: str = "10 min"
    """Longest predicted time that the run may take."""


@checked(frozen=True, kw_only=True, config=STRICT)
class TrainingOptions(TrainingPoint):
    """Options of `bench language` and `bench vision`: a point whose model and layout may follow from other options."""

    model: str = ""
    layout: str = ""
    plan: str = ""
    """File of a stored plan, which says model, layout and precision."""
    ranks: int | None = None
    batch: int | None = None
    """Images of a rank."""
    this_system: str | None = None
    """Name of this machine as `--system` gives it; None: as it was calibrated, or by its devices."""

    @property
    def system_name(self) -> str | None:
        """The system to predict for; None: this machine, as it was calibrated, or by its devices."""
        return self.this_system if self.system == HERE else self.system


_OPTIONS = TypeAdapter(TrainingPoint)
BENCH_OPTIONS = TypeAdapter(TrainingOptions)


def read(options: Mapping[str, Value], *, where: str) -> TrainingPoint:
    return parse_options(_OPTIONS, options, where=where)


def _place(catalog: Catalog, system: str, partition: str, transport: str, num_ranks: int) -> Place:
    """The machine that a point names. Hundreds of points share one."""

    def make() -> Place:
        return place_of(
            catalog, system, partition=partition or None, transport=transport or None, num_ranks=num_ranks
        )  # fmt: skip

    return catalog.derived(("place", system, partition, transport, num_ranks), make)


def resolve(catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Question:
    """The planner's question for a point."""
    point = read(options, where=where)
    layout = parse_layout(point.layout)
    place = _place(catalog, point.system, point.partition, point.transport, int(layout.num_gpus))
    return ask(
        catalog, model=point.model, system=place, layout=layout, precision=point.precision, stack=point.stack,
        network=point.network or None, seq=point.seq or None, storage=point.storage or None,
        channels_last=point.channels_last,
    )  # fmt: skip


def system_facts(catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Value]:
    """Facts of a point's system: devices per node, nodes, memory of a device."""
    system = values.get("system")
    if not isinstance(system, str) or system == HERE:
        return {}
    partition, transport = (str(values.get(name, "")) for name in ("partition", "transport"))
    machine = _place(catalog, system, partition, transport, 1).machine
    return {
        "gpus_per_node": machine.gpus_per_node,
        "system_nodes": machine.num_nodes or 0,
        "gpu_memory_gb": machine.accelerator.memory.value / units.DECIMAL["G"],
        "gpu_memory_gib": machine.memory_bytes / units.GIB,
    }


def predict_point(catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome:
    """Predict a step. If the layout does not fit in memory, the outcome says so."""
    question = resolve(catalog, options, where=where)
    if question.spec.is_vision:
        return _vision(read(options, where=where), answer(question))
    outcome, tokens = outcome_of(answer(question)), read(options, where=where).tokens
    return outcome if not tokens else _with_training_flop(outcome, units.parse(tokens, units.COUNT))


def _with_training_flop(outcome: Outcome, num_tokens: float) -> Outcome:
    """The outcome with the model's work on so many tokens."""
    flop_per_token = outcome.numbers["flop_per_s_per_gpu"].value / outcome.numbers["tokens_per_s_per_gpu"].value
    return replace(outcome, numbers=outcome.numbers | {"training_flop": Number(value=flop_per_token * num_tokens)})


def outcome_of(prediction: Answer) -> Outcome:
    n, step_s, ends = prediction.question.num_gpus, prediction.time_s, prediction.interval_s
    top = prediction.limits[0]
    numbers = {
        "step_time_s": Number(value=step_s, low=ends[0], high=ends[1]),
        "tokens_per_s": _rate(prediction.num_units, step_s, ends),
        "tokens_per_s_per_gpu": _rate(prediction.num_units / n, step_s, ends),
        "flop_per_s_per_gpu": _rate(prediction.transformer.model_flop / n, step_s, ends),
        "mfu_frac": Number(value=prediction.transformer.mfu_frac),
        "hfu_frac": Number(value=prediction.transformer.hfu_frac),
        "memory_bytes": Number(value=prediction.memory_bytes),
        "communication_frac": Number(value=float(prediction.time.part("communication").total) / step_s),
        "num_gpus": Number(value=n),
        **_network(prediction),
        **_used(prediction.footprint),
    }
    return Outcome(
        numbers=numbers, limit=top.name.replace("_", " "), why=top.reason, parts=_parts(prediction.time),
        notes=(*_memory_note(prediction), *prediction.warnings),
        problem="" if prediction.fits else "does not fit in memory",
    )  # fmt: skip


def _memory_note(prediction: Answer) -> list[str]:
    """Memory of every pipeline rank in one line; with many ranks, of the first and last ones."""
    sizes = [units.format(size, units.BYTES) for size in prediction.transformer.memory_bytes_per_pipeline_rank]
    if len(sizes) < 2:
        return []
    shown = sizes if len(sizes) <= MAX_RANKS_SHOWN else [*sizes[:3], "...", *sizes[-2:]]
    return [f"memory by pipeline rank, first to last of {len(sizes)}: {', '.join(shown)}"]


def _vision(point: TrainingPoint, prediction: Answer) -> Outcome:
    step_s, ends, layout = prediction.time_s, prediction.interval_s, prediction.question.layout
    top = prediction.limits[0]
    # a study's images are ready, or its storage is in the step
    num_images = point.images_per_epoch or NUM_IMAGENET
    training_s = step_s * max(num_images / int(layout.gbs), 1.0) + point.epoch_fixed_s - point.validation_fixed_s
    epoch_s = training_s + (_validation_s(point, prediction, num_images) if point.validates else 0.0)
    numbers = {
        "step_time_s": Number(value=step_s, low=ends[0], high=ends[1]),
        "batch_time_s": Number(value=step_s, low=ends[0], high=ends[1]),
        "epoch_time_s": Number(value=epoch_s, low=epoch_s * ends[0] / step_s, high=epoch_s * ends[1] / step_s),
        "training_time_s": Number(
            value=training_s, low=training_s * ends[0] / step_s, high=training_s * ends[1] / step_s
        ),
        "images_per_s": _rate(int(layout.gbs), step_s, ends),
        "images_per_s_per_gpu": _rate(int(layout.mbs), step_s, ends),
        "memory_bytes": Number(value=prediction.memory_bytes),
        "num_gpus": Number(value=int(layout.dp)),
        **_used(prediction.footprint),
    }
    return Outcome(
        numbers=numbers, limit=top.name.replace("_", " "), why=top.reason, parts=_parts(prediction.time),
        notes=tuple(warnings_among(prediction.warnings)), problem="" if prediction.fits else "does not fit in memory",
    )  # fmt: skip


def _validation_s(point: TrainingPoint, prediction: Answer, num_images: int) -> float:
    """Of held-out images in ImageNet's ratio to those of training."""
    setting = prediction.vision.setting
    num_scored = num_images * NUM_IMAGENET_VALIDATION / NUM_IMAGENET
    scoring_s = vision.validation_time_s(step=prediction.time, setting=setting, num_images=num_scored)
    return scoring_s + point.validation_fixed_s


def _network(prediction: Answer) -> dict[str, Number]:
    """Mean traffic out of a node over a step: gradients of a ring once around, activations between pipeline ranks.

    Equation  (2 (n-1)/n w N/(t p) + 2 m w b s h) / t_step, n copies, w bytes a value, m micro-batches of b samples
    Source    thakur2005 (Optimization of Collective Communication Operations in MPICH), section 4.5
    Assumes   every copy or pipeline rank ends at a node's border; tensor parallelism stays inside a node
    Checked   tests/study/test_study_network.py: twice the gradients for many copies; nothing within one node
    """
    question, layout, shape = prediction.question, prediction.question.layout, prediction.question.spec.transformer
    if question.num_nodes < 2:
        return {}
    width, dp, pp = question.recipe.weight_bytes, int(layout.dp), int(layout.pp)
    gradients = 2.0 * (dp - 1) / dp * width * question.spec.num_params / (int(layout.tp) * pp)
    samples = int(layout.gbs) / dp
    activations = 2.0 * width * samples * shape.seq * shape.hidden if pp > 1 else 0.0
    return {"network_bytes_per_s": Number(value=(gradients + activations) / prediction.time_s)}


def _rate(work: float, step_s: float, ends: tuple[float, float]) -> Number:
    return Number(value=work / step_s, low=work / ends[1], high=work / ends[0])


def _used(used: Footprint | None) -> dict[str, Number]:
    if used is None:
        return {}
    numbers = {"energy_j": float(used.energy.total), "cost_usd": used.cost_usd, "carbon_kgco2e": used.carbon_kgco2e}
    return {name: Number(value=float(value)) for name, value in numbers.items() if value is not None}


def _parts(time: Breakdown) -> dict[str, float]:
    total = float(time.total)
    return {name.replace("_", " "): seconds / total for name, seconds in term_times(time)}


def measured_training(path: Path) -> tuple[CollectedRun, Outcome]:
    """The run and the outcome of a finished training run, of language or vision."""
    run = collect(RunDirectory(path))
    summary = summarize(run)
    step = summary.compared(names.STEP_TIME).measured
    if step is None:
        return run, Outcome(problem=summary.end)
    times = run.series(names.STEP_TIME, slowest=True)
    numbers = {
        "step_time_s": Number(value=step, low=float(times.min()), high=float(times.max())),
        "num_gpus": Number(value=summary.num_ranks),
    }
    for metric, name in MEASURED.items():
        value = next((c.measured for c in summary.comparisons if c.name == name), None)
        if value is not None:
            numbers[metric] = Number(value=value)
    for metric in ("tokens_per_s", "images_per_s"):
        if metric in numbers:
            numbers[f"{metric}_per_gpu"] = Number(value=numbers[metric].value / summary.num_ranks)
    split = sorted(summary.split_s.items(), key=lambda item: -item[1])
    total = sum(summary.split_s.values())
    shares = {name.removesuffix("_time").replace("_", " "): s / total for name, s in split} if total else {}
    if "communication" in shares:
        numbers["communication_frac"] = Number(value=shares["communication"])
    return run, Outcome(numbers=numbers, limit=next(iter(shares), ""), parts=shares, doubts=doubts_of_training(run))


def with_prediction(execution: Execution, ready: Ready[Any], *, detail: str = "") -> Execution:
    """The execution with the prediction of its run, and one sentence about it."""
    here, outlook = ready.here, ready.outlook
    forecast = ready.note
    if outlook is not None and here is not None:
        duration, step = (units.format(s, units.SECONDS) for s in (outlook.duration_s, outlook.step_s))
        forecast = f"predicted {duration}: {ready.config.steps} steps of {step} ({here.basis}){detail}"
        forecast = "\n".join([forecast, *warnings_among(outlook.prediction.warnings)])
    return replace(
        execution,
        config=ready.config.document(),
        num_ranks=ready.num_ranks,
        machine=None if here is None else here.as_document(ready.config.precision),
        prediction=None if outlook is None else outlook.prediction.document(),
        expected_s=None if outlook is None else outlook.duration_s,
        forecast=forecast,
    )


def stored_training_prediction(prediction: Mapping[str, Any]) -> Outcome:
    """The outcome of a `prediction/1` document that was written before a run."""
    step_s, n = float(prediction["step_time_s"]), int(prediction["num_gpus"])
    ends = tuple(float(end) for end in prediction["step_time_interval_s"])
    span = (ends[0], ends[1])
    numbers = {
        "step_time_s": Number(value=step_s, low=span[0], high=span[1]),
        "batch_time_s": Number(value=step_s, low=span[0], high=span[1]),
        "memory_bytes": Number(value=float(prediction["memory_bytes"])),
        "num_gpus": Number(value=n),
    }
    if prediction.get("images_per_s") is not None:
        numbers["images_per_s"] = _rate(float(prediction["images_per_s"]) * step_s, step_s, span)
        numbers["images_per_s_per_gpu"] = _rate(float(prediction["images_per_s"]) * step_s / n, step_s, span)
    each = prediction.get("tokens_per_s_per_gpu")
    if each is not None:
        numbers["tokens_per_s_per_gpu"] = _rate(float(each) * step_s, step_s, span)
        numbers["tokens_per_s"] = _rate(float(each) * n * step_s, step_s, span)
    if prediction.get("model_flop") is not None:
        numbers["flop_per_s_per_gpu"] = _rate(float(prediction["model_flop"]) / n, step_s, span)
    if prediction.get("mfu_frac") is not None:
        numbers["mfu_frac"] = Number(value=float(prediction["mfu_frac"]))
    parts = _stored_parts(prediction.get("time", {}))
    return Outcome(
        numbers=numbers, limit=next(iter(parts), ""), parts=parts, notes=tuple(prediction.get("warnings", ()))
    )


def _stored_parts(time: Mapping[str, Any]) -> dict[str, float]:
    """Shares of the leaf terms, forward and backward together, largest first."""
    seconds_by_name: dict[str, float] = {}

    def walk(term: Mapping[str, Any]) -> None:
        if term.get("parts"):
            for part in term["parts"]:
                walk(part)
        elif "total_s" in term:
            name = str(term["name"])
            for suffix in PASSES:
                name = name.removesuffix(suffix)
            name = name.replace("_", " ")
            seconds_by_name[name] = seconds_by_name.get(name, 0.0) + float(term["total_s"])

    walk(time)
    total = sum(seconds_by_name.values())
    ordered = sorted(seconds_by_name.items(), key=lambda item: -item[1])
    return {name: seconds / total for name, seconds in ordered if seconds > 0} if total else {}
