"""`scalewright calibrate`: measure what the cost models need of this machine, so that `--system here` predicts it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder, DeviceName

NameText = Annotated[str | None, typer.Option("--as", help="Name of the calibration; default: after the device.")]
BaseName = Annotated[str | None, typer.Option(help="Catalogued system that it refines; default: by the device.")]
OutFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Run directories; default: results/calibrate.")]
Workload = Annotated[str, typer.Option("--for", help="language, vision, generation, or all of them.")]
RankCount = Annotated[int | None, typer.Option(help="Ranks that exchange; default: one per GPU, two on a CPU.")]


def run(
    name: NameText = None,
    budget: Annotated[str, typer.Option(help="Time for all of it.")] = "10 min",
    device: DeviceName = "auto",
    ranks: RankCount = None,
    system: BaseName = None,
    out: OutFolder = None,
    workload: Workload = "all",
    force: Annotated[bool, typer.Option("--force", help="Replace a calibration of another machine.")] = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Measure this machine and write the calibration that `--system here` loads. Exit 75: stopped, run it again."""
    from scalewright import units
    from scalewright.catalog.calibration import path_of
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import to_json
    from scalewright.report.bench.calibration import print_calibration
    from scalewright.report.console import answer_console
    from scalewright.study.calibration.measure import CalibrationStoppedError, calibrate
    from scalewright.study.calibration.request import calibration_here

    library = open_catalog(catalog)
    request = calibration_here(
        library, budget_s=units.parse(budget, units.SECONDS), name=name, device=device, ranks=ranks, system=system,
        out=out, workload=workload, force=force,
    )  # fmt: skip
    try:
        calibration = calibrate(library, request, lambda text: typer.echo(text, err=True))
    except CalibrationStoppedError as error:
        typer.echo(f"stopped: run it again to continue in {request.folder}", err=True)
        raise typer.Exit(error.code) from error
    typer.echo(f"run directories in {request.folder}, calibration in {path_of(calibration.name)}", err=True)
    if as_json:
        typer.echo(to_json(calibration.document()), nl=False)
        return
    print_calibration(answer_console(), calibration)
