"""`scalewright run import`: a run directory from a log that somebody else kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder, RunFolder

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make run directories of runs from elsewhere.")


@app.callback()
def _root() -> None:
    """Make run directories of runs that were not started here, so that report and explain work on them."""


LogFiles = Annotated[list[Path], typer.Argument(metavar="LOG...", help="Log files of one run.", show_default=False)]
ModelName = Annotated[
    str, typer.Option(help="Catalogue name, config.json, or layers=..,hidden=..,heads=..", show_default=False)
]
LayoutText = Annotated[str, typer.Option(help="tp=4,pp=2,dp=8,mbs=1,gbs=256,...", show_default=False)]
SystemName = Annotated[
    str | None, typer.Option(help="System that it ran on; without it there is no prediction.", show_default=False)
]


@app.command("import", short_help="A run directory from a log: Megatron, torchtitan, Trainer, ...")
def import_run(
    logs: LogFiles,
    model: ModelName,
    layout: LayoutText,
    system: SystemName = None,
    partition: Annotated[str | None, typer.Option(help="Partition of the system.")] = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16, fp8, ...")] = "bf16",
    stack: Annotated[str, typer.Option(help="auto: that of the program that wrote the log.")] = "auto",
    seq: Annotated[int, typer.Option(help="Tokens per sample; 0: the model's own.")] = 0,
    network: Annotated[str | None, typer.Option(help="quiet or shared; default: as the system's entry says.")] = None,
    run_dir: RunFolder = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Make a run directory of somebody else's log, with the prediction beside it. Exit 2: the log contradicts it."""
    from scalewright.catalog.library import open_catalog
    from scalewright.engines.imported import ImportRequest, read_import, write_import
    from scalewright.records.documents import to_json
    from scalewright.records.run_directory import new_run_id
    from scalewright.report.console import answer_console
    from scalewright.report.run.report import run_report

    imported = read_import(
        open_catalog(catalog),
        ImportRequest(
            logs=tuple(logs), model=model, layout=layout, precision=precision, seq=seq, system=system or "",
            partition=partition or "", stack=stack, network=network or "",
        ),
    )  # fmt: skip
    path = run_dir or Path("runs") / new_run_id(f"imported-{imported.run.engine}-{imported.run.model_id}")
    for note in imported.notes:
        typer.echo(note, err=True)
    directory = write_import(path, imported, logs)
    typer.echo(f"run directory {path}", err=True)
    report = run_report(directory)
    if as_json:
        typer.echo(to_json(report.document()), nl=False)
    else:
        report.show(answer_console())
