"""`scalewright predict`: time, memory and energy of a training step, of generation, of an RL step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder, ExplainAll, ExplainStep, OutFile, print_json, report_written
from scalewright.cli.planner import options as shared

SystemName = Annotated[
    str, typer.Option(help="Catalogue name of the machine, a calibration's, or here.", show_default=False)
]
LayoutText = Annotated[
    str, typer.Option(help="tp=4,pp=16,vpp=2,dp=8,mbs=1,gbs=1536,zero=1,sp=1,recompute=full", show_default=False)
]
TransportName = Annotated[str | None, typer.Option(help="Network path; default: the fabric's best.")]
GenerateText = Annotated[
    str | None,
    typer.Option(
        help="Generation instead: prompt=2048,response=lognormal:mean=512,cv=0.8; also answers=, rate=, running=, "
        "cache=fp8, weights=int4, engine=vllm. gbs is the number of answers."
    ),
]
RlText = Annotated[
    str | None,
    typer.Option(
        help="One GRPO step instead: prompts=128,samples=8,prompt=512,response=1024[,longest=4096,tp=4,gpus=16,lag=1,"
        "budget=2000000]."
    ),
]
LoraRank = Annotated[int | None, typer.Option(help="Rank of the adapters in mode lora; default: 16.")]
OptimizerText = Annotated[str | None, typer.Option(help="adam or sgd (with momentum); default: adam.")]
StorageName = Annotated[
    str | None, typer.Option(help="Where samples are read from (see: catalog storage), or here; default: the system's.")
]
SamplesText = Annotated[str, typer.Option(help="How samples lie there: shards, or files (one each).")]
CheckpointText = Annotated[str, typer.Option(help="sync, or async: one copy of the state waits in host memory.")]
TokensText = Annotated[
    str | None, typer.Option(help="Tokens of a whole run, such as 300B: its time, GPU-hours and cost as well.")
]
WhatIfText = Annotated[
    str | None, typer.Option(help="Also predict with this set otherwise: mbs=8, tp=4,dp=16, precision=fp8.")
]
PlotFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw roofline, time and memory: .png, .svg or .pdf.")
]


def run(
    model: shared.ModelName,
    system: SystemName,
    layout: LayoutText,
    precision: shared.PrecisionName = "auto",
    stack: shared.StackName = "auto",
    seq: shared.SeqLength = None,
    partition: shared.PartitionName = None,
    transport: TransportName = None,
    network: shared.NetworkText = None,
    generate: GenerateText = None,
    rl: RlText = None,
    mode: shared.ModeText = "full",
    lora_rank: LoraRank = None,
    optimizer: OptimizerText = None,
    storage: StorageName = None,
    samples: SamplesText = "shards",
    checkpoint: CheckpointText = "sync",
    tokens: TokensText = None,
    what_if: WhatIfText = None,
    explain: ExplainStep = False,
    explain_all: ExplainAll = False,
    as_json: AsJson = False,
    out: OutFile = None,
    plot: PlotFile = None,
    catalog: CatalogFolder = None,
) -> None:
    """Predict a training step, generation or an RL step: time, memory, energy. Exit 1: it does not fit."""
    from scalewright.catalog.library import open_catalog
    from scalewright.errors import ConfigError
    from scalewright.planner.answer import answer
    from scalewright.planner.plan import prediction_body, what_if_body
    from scalewright.planner.question import ask
    from scalewright.planner.whole_run import run_with
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.figure_file import check_plot
    from scalewright.report.planner.answer import print_answer, print_explanation
    from scalewright.report.planner.plan import print_what_if
    from scalewright.report.planner.roofline import plot_prediction
    from scalewright.report.planner.whole_run import print_run

    if plot is not None:
        check_plot(plot)
    if rl is not None and plot is not None:
        raise ConfigError("--plot draws one stage and an RL step has several: plot its generation or its training step")
    library = open_catalog(catalog)
    prediction = answer(
        ask(
            library, model=model, system=system, layout=layout, precision=precision, stack=stack, seq=seq,
            partition=partition, transport=transport, network=network, generate=generate, rl=rl, mode=mode,
            lora_rank=lora_rank, optimizer=optimizer, storage=storage, samples=samples, checkpoint=checkpoint,
        )
    )  # fmt: skip
    whole = None if tokens is None else run_with(library, prediction, tokens=tokens, checkpoint=checkpoint)
    document = prediction.document() | ({} if whole is None else {"whole_run": whole.as_dict()})
    change = None if what_if is None else prediction.what_if(what_if)
    document |= {} if change is None else {"what_if": what_if_body(change)}
    if plot is not None:
        plot_prediction(plot, prediction)
        report_written(plot)
    if not print_json(document, out=out, as_json=as_json):
        print_answer(answer_console(), prediction)
        if whole is not None:
            print_run(answer_console(), whole.as_dict(), origin="as asked", details=explain or explain_all)
        if change is not None:
            print_what_if(answer_console(), {**document, "best": prediction_body(change.before)})
        if explain or explain_all:
            print_explanation(answer_console(), prediction, library, whole=explain_all)
    raise typer.Exit(ExitCode.YES if prediction.fits else ExitCode.NO)
