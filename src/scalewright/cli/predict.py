"""`scalewright predict`: time and memory of one training step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder, Explain, OutFile

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog
    from scalewright.planner.predict import Prediction
    from scalewright.workload.model import ModelSpec

ModelName = Annotated[
    str,
    typer.Option(help="Catalogue name, Hugging Face config.json, or layers=..,hidden=..,heads=..", show_default=False),
]
SystemName = Annotated[str, typer.Option(help="Catalogue name of the machine.", show_default=False)]
LayoutText = Annotated[
    str, typer.Option(help="tp=4,pp=16,vpp=2,dp=8,mbs=1,gbs=1536,zero=1,sp=1,recompute=full", show_default=False)
]
PrecisionName = Annotated[str, typer.Option(help="fp32, tf32, fp16, bf16, fp8, mxfp8, nvfp4, or auto.")]
StackName = Annotated[str, typer.Option(help="Software stack (see: catalog stacks), or auto.")]
SeqLength = Annotated[int | None, typer.Option(help="Tokens per sample; default: the model's own.")]
PartitionName = Annotated[str | None, typer.Option(help="Partition of the system; default: its main one.")]
TransportName = Annotated[str | None, typer.Option(help="Network path; default: the fabric's best.")]
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
    explain: Explain = False,
    as_json: AsJson = False,
    out: OutFile = None,
    plot: PlotFile = None,
    catalog: CatalogFolder = None,
) -> None:
    """Predict time and memory of one training step. Exit 1: it does not fit."""
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import to_json, write_document
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.prediction import print_explanation, print_prediction
    from scalewright.report.roofline import check_plot, plot_prediction

    if plot is not None:
        check_plot(plot)
    library = open_catalog(catalog)
    prediction = ask(library, model, system, layout, precision, stack, seq, partition, transport)
    if plot is not None:
        plot_prediction(plot, prediction)
    if out is not None:
        write_document(out, prediction.as_document())
    if as_json:
        typer.echo(to_json(prediction.as_document()), nl=False)
    else:
        console = answer_console()
        print_prediction(console, prediction)
        if explain:
            print_explanation(console, prediction, library)
    raise typer.Exit(ExitCode.YES if prediction.cost.fits else ExitCode.NO)


def ask(
    library: Catalog, model: str, system: str, layout: str, precision: str, stack: str, seq: int | None,
    partition: str | None, transport: str | None,
) -> Prediction:  # fmt: skip
    """The prediction for what was written on the command line."""
    from scalewright.costs.machine import machine_from_system
    from scalewright.planner.predict import predict, resolve_recipe, resolve_stack
    from scalewright.workload.layout import parse_layout

    spec = resolve_model(library, model)
    if seq is not None:
        spec = spec.with_seq(seq)
    machine = machine_from_system(library, system, partition_name=partition, transport_name=transport)
    recipe = resolve_recipe(precision, machine)
    split = parse_layout(layout)
    software = resolve_stack(stack, library, split)
    return predict(spec=spec, machine=machine, layout=split, recipe=recipe, stack=software)


def resolve_model(library: Catalog, name: str) -> ModelSpec:
    """A model by catalogue name, by shape (`layers=..`), or by the path of its config.json."""
    from scalewright.workload.hf import from_hf_config
    from scalewright.workload.model import from_catalog, from_shape

    if "=" in name:
        return from_shape(name)
    path = Path(name)
    if path.suffix == ".json":
        return from_hf_config(path)
    if path.is_dir() and (path / "config.json").exists():
        return from_hf_config(path / "config.json")
    return from_catalog(library.model(name))
