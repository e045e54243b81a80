"""`scalewright calibrate`: measure what the cost models need of this machine, so that `--system here` predicts it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog
    from scalewright.study.calibrate import Wanted

NameText = Annotated[str | None, typer.Option("--as", help="Name of the calibration; default: after the device.")]
BaseName = Annotated[str | None, typer.Option(help="Catalogued system that it refines; default: by the device.")]
OutFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Run directories; default: results/calibrate.")]
RankCount = Annotated[int | None, typer.Option(help="Ranks that exchange; default: one per GPU, two on a CPU.")]


def run(
    name: NameText = None,
    budget: Annotated[str, typer.Option(help="Time for all of it.")] = "10 min",
    device: Annotated[str, typer.Option(help="cpu, cuda (also AMD), or auto.")] = "auto",
    ranks: RankCount = None,
    system: BaseName = None,
    out: OutFolder = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a calibration of another machine.")] = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Measure this machine and write the calibration that `--system here` loads. Exit 75: stopped, run it again."""
    from scalewright.catalog.calibration import path_of
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import to_json
    from scalewright.report.calibration import print_calibration
    from scalewright.report.console import answer_console
    from scalewright.study.calibrate import StoppedError, calibrate

    library = open_catalog(catalog)
    wanted = _wanted(library, name, budget, device, ranks, system, out, force=force)
    try:
        found = calibrate(library, wanted, lambda text: typer.echo(text, err=True))
    except StoppedError as error:
        typer.echo(f"stopped: run it again to go on in {wanted.folder}", err=True)
        raise typer.Exit(error.code) from error
    typer.echo(f"run directories in {wanted.folder}, calibration in {path_of(found.name)}", err=True)
    if as_json:
        typer.echo(to_json(found.document()), nl=False)
        return
    print_calibration(answer_console(), found)


def _wanted(
    library: Catalog, name: str | None, budget: str, device: str, ranks: int | None, system: str | None,
    out: Path | None, *, force: bool,
) -> Wanted:  # fmt: skip
    from scalewright import units
    from scalewright.catalog.calibration import check_name
    from scalewright.costs.machine import machine_from_system
    from scalewright.launch.here import device_here
    from scalewright.launch.system_here import base_system, default_name, fingerprint_here
    from scalewright.study.calibrate import Wanted, study_folder

    budget_s = units.parse(budget, units.SECONDS)
    place = device_here(device, num_ranks=ranks or 1)
    fingerprint = fingerprint_here(place)
    base, partition = base_system(library, fingerprint, system)
    chosen = check_name(name or default_name(library, fingerprint))
    usual = min(2, fingerprint.num_cores) if place == "cpu" else fingerprint.num_devices
    return Wanted(
        name=chosen,
        base=machine_from_system(library, base, partition_name=partition),
        system=base,
        partition=partition,
        fingerprint=fingerprint,
        num_ranks=usual if ranks is None else ranks,
        budget_s=budget_s,
        folder=study_folder(Path("results") / "calibrate" if out is None else out, chosen),
        force=force,
    )
