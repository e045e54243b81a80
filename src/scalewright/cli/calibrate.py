"""`scalewright calibrate`: measure what the cost models need of this machine, so that `--system here` predicts it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.bench.engine import PythonPath, SetText
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName
from scalewright.errors import ConfigError

NameText = Annotated[str | None, typer.Option("--as", help="Name of the calibration; default: after the device.")]
BaseName = Annotated[str | None, typer.Option(help="Catalogued system that it refines; default: by the device.")]
OutFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Run directories; default: results/calibrate.")]
Workload = Annotated[str, typer.Option("--for", help="language, vision, generation, or all of them.")]
RankCount = Annotated[
    int | None, typer.Option(help="Ranks that exchange; default: one per GPU, two on a CPU; with --engine one.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace a calibration of another machine; take an untested release.")
]
EngineName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Fit this training program's stack instead: deepspeed, trl, ...")
]


def run(
    name: NameText = None,
    budget: Annotated[str, typer.Option(help="Time for all of it.")] = "10 min",
    device: DeviceName = "auto",
    ranks: RankCount = None,
    system: BaseName = None,
    out: OutFolder = None,
    workload: Workload = "all",
    engine: EngineName = None,
    python: PythonPath = None,
    settings: SetText = None,
    force: Annotated[bool, typer.Option("--force", help="Replace another machine's; take untested releases.")] = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Measure this machine and write the calibration that `--system here` loads. Exit 75: stopped, run it again."""
    from scalewright import units
    from scalewright.catalog.calibration import path_of
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import to_json
    from scalewright.report.bench.calibration import print_calibration
    from scalewright.report.bench.engine_fit import print_engine
    from scalewright.report.console import answer_console
    from scalewright.study.calibration.engine import calibrate_engine, engine_calibration_here
    from scalewright.study.calibration.measure import CalibrationStoppedError, calibrate
    from scalewright.study.calibration.request import calibration_here

    library = open_catalog(catalog)
    budget_s = units.parse(budget, units.SECONDS)

    def say(text: str) -> None:
        typer.echo(text, err=True)

    try:
        if engine is not None:
            _check_engine_options(system=system, workload=workload)
            fit = engine_calibration_here(
                library, engine=engine, budget_s=budget_s, name=name, device=device, ranks=ranks,
                python="" if python is None else str(python), settings=shlex.join(settings or []), out=out, force=force,
            )  # fmt: skip
            folder, calibration = fit.folder, calibrate_engine(library, fit, say)
        else:
            _check_no_engine(python=python, settings=settings)
            request = calibration_here(
                library, budget_s=budget_s, name=name, device=device, ranks=ranks, system=system, out=out,
                workload=workload, force=force,
            )  # fmt: skip
            folder, calibration = request.folder, calibrate(library, request, say)
    except CalibrationStoppedError as error:
        say("stopped: run it again to continue" if engine is None else "stopped: nothing is written")
        raise typer.Exit(error.code) from error
    say(f"run directories in {folder}, calibration in {path_of(calibration.name)}")
    if as_json:
        typer.echo(to_json(calibration.document()), nl=False)
        return
    if engine is None:
        print_calibration(answer_console(), calibration)
    else:
        print_engine(answer_console(), next(one for one in calibration.engines if one.engine == fit.info.id))


def _check_engine_options(*, system: str | None, workload: str) -> None:
    for flag, given in (("--system", system is not None), ("--for", workload != "all")):
        if given:
            raise ConfigError(f"{flag} has no meaning with --engine, which fits one program: leave it out")


def _check_no_engine(*, python: Path | None, settings: list[str] | None) -> None:
    for flag, given in (("--python", python is not None), ("--set", bool(settings))):
        if given:
            raise ConfigError(f"{flag} is of a training program: name it with --engine")
