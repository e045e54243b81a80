"""`scalewright predict`: time, memory and energy of a training step, of generation, of an RL step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewright.cli.options import AsJson, CatalogFolder, Explain, OutFile

if TYPE_CHECKING:
    from rich.console import Console

    from scalewright.catalog.library import Catalog
    from scalewright.catalog.types import Stack, Storage
    from scalewright.costs.machine import Machine
    from scalewright.workload.layout import Layout
    from scalewright.workload.model import ModelSpec
    from scalewright.workload.precision import Recipe
    from scalewright.workload.training import Feed, TrainingMode

ModelName = Annotated[
    str,
    typer.Option(help="Catalogue name, Hugging Face config.json, or layers=..,hidden=..,heads=..", show_default=False),
]
SystemName = Annotated[
    str, typer.Option(help="Catalogue name of the machine, a calibration's, or here.", show_default=False)
]
LayoutText = Annotated[
    str, typer.Option(help="tp=4,pp=16,vpp=2,dp=8,mbs=1,gbs=1536,zero=1,sp=1,recompute=full", show_default=False)
]
PrecisionName = Annotated[
    str, typer.Option(help="fp32, tf32, fp16, bf16, bf16-lean, bf16-pure, fp8, mxfp8, nvfp4, or auto.")
]
StackName = Annotated[str, typer.Option(help="Software stack (see: catalog stacks), or auto.")]
SeqLength = Annotated[int | None, typer.Option(help="Tokens per sample; default: the model's own.")]
PartitionName = Annotated[str | None, typer.Option(help="Partition of the system; default: its main one.")]
TransportName = Annotated[str | None, typer.Option(help="Network path; default: the fabric's best.")]
GenerateText = Annotated[
    str | None, typer.Option(help="Generation instead: prompt=2048,response=256; the layout's tp, dp and gbs count.")
]
RlText = Annotated[
    str | None, typer.Option(help="One GRPO step instead: prompts=128,samples=8,prompt=512,response=1024.")
]
ModeText = Annotated[str, typer.Option(help="full, offload (optimizer on the hosts) or lora (adapters).")]
LoraRank = Annotated[int | None, typer.Option(help="Rank of the adapters in mode lora; default: 16.")]
OptimizerText = Annotated[str | None, typer.Option(help="adam or sgd (with momentum); default: adam.")]
StorageName = Annotated[
    str | None, typer.Option(help="Where samples are read from (see: catalog storage), or here; default: the system's.")
]
SamplesText = Annotated[str, typer.Option(help="How samples lie there: shards, or files (one each).")]
CheckpointText = Annotated[str, typer.Option(help="sync, or async: one copy of the state waits in host memory.")]
PlotFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw roofline, time and memory: .png, .svg or .pdf.")
]


def run(
    model: ModelName,
    system: SystemName,
    layout: LayoutText,
    precision: PrecisionName = "auto",
    stack: StackName = "auto",
    seq: SeqLength = None,
    partition: PartitionName = None,
    transport: TransportName = None,
    generate: GenerateText = None,
    rl: RlText = None,
    mode: ModeText = "full",
    lora_rank: LoraRank = None,
    optimizer: OptimizerText = None,
    storage: StorageName = None,
    samples: SamplesText = "shards",
    checkpoint: CheckpointText = "sync",
    explain: Explain = False,
    as_json: AsJson = False,
    out: OutFile = None,
    plot: PlotFile = None,
    catalog: CatalogFolder = None,
) -> None:
    """Predict a training step, generation or an RL step: time, memory, energy. Exit 1: it does not fit."""
    from scalewright.catalog.library import open_catalog
    from scalewright.errors import ConfigError
    from scalewright.records.documents import to_json, write_document
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.planner.roofline import check_plot, plot_prediction

    if plot is not None:
        check_plot(plot)
    if generate is not None and rl is not None:
        raise ConfigError("--generate and --rl exclude each other: an RL step holds its own generation")
    if rl is not None and plot is not None:
        raise ConfigError("--plot draws one stage and an RL step has several: plot its generation or its training step")
    library = open_catalog(catalog)
    question = resolve(library, model, system, layout, precision, stack, seq, partition, transport)
    what = "generation trains nothing" if generate is not None else "vision models train all weights with momentum"
    if generate is not None or question.spec.is_vision:
        check_unused(what, mode=mode, lora_rank=lora_rank, optimizer=optimizer, checkpoint=checkpoint)
    question = with_training(
        library, question, mode=mode, lora_rank=lora_rank, optimizer=optimizer or "adam", storage=storage,
        samples=samples, checkpoint=checkpoint,
    )  # fmt: skip
    answer = answer_of(library, question, generate=generate, rl=rl)
    if plot is not None:
        plot_prediction(plot, answer.prediction)
    if out is not None:
        write_document(out, answer.document)
    if as_json:
        typer.echo(to_json(answer.document), nl=False)
    else:
        answer.show(answer_console(), explain)
    raise typer.Exit(ExitCode.YES if answer.fits else ExitCode.NO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was written on the command line, resolved."""

    spec: ModelSpec
    system: str
    machine: Machine
    layout: Layout
    recipe: Recipe
    stack: Stack
    mode: TrainingMode
    feed: Feed
    storage: Storage | None
    """Of the machine itself: as catalogued, or as measured there."""
    has_measured_storage: bool
    storage_named: bool = False
    """Asked for by name: a vision step then waits for its images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A prediction of whatever stage, ready to print or write."""

    prediction: Any
    document: dict[str, Any]
    fits: bool
    show: Callable[[Console, bool], None]


def resolve(
    library: Catalog, model: str, system: str, layout: str, precision: str, stack: str, seq: int | None,
    partition: str | None, transport: str | None,
) -> Question:  # fmt: skip
    from scalewright.here.place import place_of
    from scalewright.planner.predict import resolve_recipe, resolve_stack
    from scalewright.workload.layout import parse_layout
    from scalewright.workload.named import resolve_model
    from scalewright.workload.training import FULL, TEXT

    spec = resolve_model(library, model)
    if seq is not None:
        spec = spec.with_seq(seq)
    split = parse_layout(layout)
    place = place_of(library, system, partition=partition, transport=transport, num_ranks=int(split.num_gpus))
    machine, storage = place.machine, place.storage_of(library, num_gpus=int(split.num_gpus))
    return Question(
        spec=spec,
        system=place.system,
        machine=machine,
        layout=split,
        recipe=resolve_recipe(precision, machine),
        stack=resolve_stack(stack, library, split, machine, is_vision=spec.is_vision),
        mode=FULL,
        feed=TEXT,
        storage=storage,
        has_measured_storage=place.has_measured_storage and storage is place.storage,
    )


def check_unused(what: str, *, mode: str, lora_rank: int | None, optimizer: str | None, checkpoint: str) -> None:
    """Refuse flags of training that the answer would not follow."""
    from scalewright.errors import ConfigError

    given = {
        "--mode": mode != "full",
        "--lora-rank": lora_rank is not None,
        "--optimizer": optimizer is not None,
        "--checkpoint": checkpoint != "sync",
    }
    unused = [flag for flag, is_given in given.items() if is_given]
    if unused:
        raise ConfigError(f"{unused[0]} means nothing here: {what}; leave it out")


def with_training(
    library: Catalog, q: Question, *, mode: str, lora_rank: int | None, optimizer: str, storage: str | None,
    samples: str, checkpoint: str,
) -> Question:  # fmt: skip
    """The question with what is trained, by which optimizer, and where samples and checkpoints live."""
    from scalewright.errors import ConfigError
    from scalewright.here.place import HERE
    from scalewright.workload.training import Feed, training_mode

    if samples not in ("shards", "files"):
        raise ConfigError(f"samples do not lie in {samples!r}: choose shards or files")
    if samples == "files" and storage is None and q.spec.is_vision:
        raise ConfigError(
            "--samples files needs a --storage to read them from: images are taken to be ready without one"
        )
    if checkpoint not in ("sync", "async"):
        raise ConfigError(f"there is no checkpoint kind {checkpoint!r}: choose sync or async")
    if storage == HERE and not q.has_measured_storage:
        raise ConfigError(
            f"--storage {HERE}: no storage was measured on {q.machine.name}; run scalewright calibrate with a longer "
            "--budget, or name one (see: catalog storage)"
        )
    return replace(
        q,
        storage_named=storage is not None,
        recipe=q.recipe.with_optimizer(optimizer),
        mode=training_mode(mode, lora_rank=lora_rank),
        feed=Feed(
            storage=q.storage if storage is None or storage == HERE else library.storage(storage),
            one_file_each=samples == "files",
            async_checkpoint=checkpoint == "async",
        ),
    )


def answer_of(library: Catalog, q: Question, *, generate: str | None, rl: str | None) -> Answer:
    from scalewright.planner.energy_use import facility_of
    from scalewright.planner.predict import predict
    from scalewright.report.planner.prediction import print_explanation, print_prediction

    facility = facility_of(library, q.system, q.machine.accelerator.id)
    around = {
        "facility": facility,
    }
    if generate is not None:
        return _generation(library, q, generate, around)
    if rl is not None:
        return _rl_step(library, q, rl, around)
    if q.spec.is_vision:
        return _vision(library, q, around)
    prediction = predict(
        spec=q.spec, machine=q.machine, layout=q.layout, recipe=q.recipe, stack=q.stack, facility=facility,
        mode=q.mode, feed=q.feed,
    )  # fmt: skip

    def show(console: Console, explain: bool) -> None:
        print_prediction(console, prediction)
        if explain:
            print_explanation(console, prediction, library)

    return Answer(prediction=prediction, document=prediction.as_document(), fits=bool(prediction.cost.fits), show=show)


def _generation(library: Catalog, q: Question, text: str, around: dict[str, Any]) -> Answer:
    from scalewright.errors import ConfigError
    from scalewright.planner.stages.generation_rl import predict_generation
    from scalewright.report.planner.stages import print_generation
    from scalewright.workload.stage import parse_generate

    request, tp, dp = parse_generate(text), int(q.layout.tp), int(q.layout.dp)
    split = [name for name in ("pp", "cp", "ep") if int(getattr(q.layout, name)) > 1]
    if split:
        raise ConfigError(f"generation is split by tp and dp only: {split[0]} above 1 is not covered, set it to 1")
    found = predict_generation(
        spec=q.spec, machine=q.machine, stack=q.stack, recipe=q.recipe, num_gpus=tp * dp, tp=tp,
        batch=int(q.layout.gbs), prompt_len=request.prompt, response_len=request.response, longest_len=request.longest,
        **around,
    )  # fmt: skip
    return Answer(
        prediction=found,
        document=found.as_document(),
        fits=found.fits,
        show=lambda console, explain: print_generation(console, found, explain=explain, catalog=library),
    )


def _vision(library: Catalog, q: Question, around: dict[str, Any]) -> Answer:
    from scalewright.costs.machine import pick_partition
    from scalewright.planner.stages.vision_step import predict_vision
    from scalewright.report.planner.stages import print_vision

    cores = pick_partition(library.system(q.system), q.machine.name.partition("/")[2]).cpu_cores_per_node
    loaders = q.feed.num_loaders if cores is None else max(int(cores.value) // q.machine.gpus_per_node, 1)
    found = predict_vision(
        spec=q.spec, machine=q.machine, layout=q.layout, recipe=q.recipe, stack=q.stack,
        feed=replace(q.feed, num_loaders=loaders, storage=q.feed.storage if q.storage_named else None), **around,
    )  # fmt: skip
    return Answer(
        prediction=found,
        document=found.as_document(),
        fits=found.fits,
        show=lambda console, explain: print_vision(console, found, explain=explain, catalog=library),
    )


def _rl_step(library: Catalog, q: Question, text: str, around: dict[str, Any]) -> Answer:
    from scalewright.planner.stages.generation_rl import predict_rl
    from scalewright.report.planner.stages import print_rl
    from scalewright.workload.stage import parse_rl

    request = parse_rl(text)
    found = predict_rl(
        spec=q.spec, machine=q.machine, stack=q.stack, recipe=q.recipe, layout=q.layout, rollout_recipe=q.recipe,
        rollout_tp=request.tp, num_prompts=request.prompts, num_responses=request.samples, prompt_len=request.prompt,
        response_len=request.response, longest_len=request.longest, mode=q.mode, **around,
    )  # fmt: skip
    return Answer(
        prediction=found,
        document=found.as_document(),
        fits=found.fits,
        show=lambda console, explain: print_rl(console, found, explain=explain, catalog=library),
    )
