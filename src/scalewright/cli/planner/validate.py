"""`scalewright validate`: predictions against published runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder, OutFile, print_json

if TYPE_CHECKING:
    from scalewright.planner.validation.error_table import Scores


KINDS = ("steps", "campaign", "generation", "rl")
LEAST_INSIDE_FRAC = 0.8
"""Share of the shipped whole runs, and of the rates of generation, that the interval has to hold."""
MOST_ERROR_FRAC = 0.2
"""Mean error of the shipped rates of generation, and of the shipped RL steps, each model left out."""


def run(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.jsonl", help="Rows to predict; default: those shipped.", show_default=False),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="steps: training steps; generation: tokens/s; rl: RL steps; campaign: GPU-hours of whole runs (TOML)."
        ),
    ] = "steps",
    record: Annotated[
        bool, typer.Option("--record", help="For developers: keep the scores of the shipped rows as those to hold.")
    ] = False,
    as_json: AsJson = False,
    out: OutFile = None,
    catalog: CatalogFolder = None,
) -> None:
    """Predict published runs from their own model, hardware and layout, and print how far off we are.

    Exit 1: none of a file's rows can be predicted; without a file, a score is worse than the one recorded. With --kind
    campaign: fewer than 80 % of the shipped whole runs are inside the interval, each family left out. Of generation:
    the same of the shipped rates, or a mean error above 20 %. Of RL steps: the mean error of those shipped, each model
    left out, is above 20 %.
    """
    from scalewright.catalog.library import open_catalog
    from scalewright.catalog.published import load_runs
    from scalewright.errors import ConfigError, UnknownNameError
    from scalewright.planner.validation.error_table import validation_table
    from scalewright.planner.validation.vision_rows import read_left_out, vision_table
    from scalewright.records.documents import document
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.planner.validation import print_error_table
    from scalewright.report.planner.vision_validation import print_vision_table

    if kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS, hint=f"choose {' or '.join(KINDS)}")
    if kind != "steps":
        if record:
            raise ConfigError(f"--record keeps scores of steps, not of kind {kind}: leave it or --kind out")
        tables = {"campaign": _campaigns, "generation": _generation, "rl": _rl_steps}
        tables[kind](file, as_json=as_json, out=out, catalog=catalog)
        return
    if record and file is not None:
        raise ConfigError(f"--record keeps the scores of the shipped rows, not of {file}: leave the file out")
    entries = open_catalog(catalog)
    images = vision_table(entries, file)
    table = validation_table(entries, file) if file is None or not images.rows or load_runs(file) else None
    body = (document("validation", {}) if table is None else table.as_document()) | {"vision": images.as_dict()}
    if not print_json(body, out=out, as_json=as_json):
        console = answer_console()
        if table is not None:
            print_error_table(console, table)
        print_vision_table(console, images, left_out=read_left_out() if file is None else {})
    if file is None:
        assert table is not None
        _hold(table.overall, record=record)
    elif not images.predicted and not (table is not None and table.overall["num_expressed"]):
        raise typer.Exit(ExitCode.NO)


def _campaigns(file: Path | None, *, as_json: bool, out: Path | None, catalog: Path | None) -> None:
    """Planned beside published GPU-hours."""
    from scalewright.catalog.campaign_runs import campaign_runs
    from scalewright.catalog.library import open_catalog
    from scalewright.planner.validation.campaign_rows import campaign_table
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.planner.campaigns import print_campaigns

    table = campaign_table(open_catalog(catalog), None if file is None else campaign_runs(file))
    if not print_json(table.as_document(), out=out, as_json=as_json):
        print_campaigns(answer_console(), table)
    num_needed = 1 if file is not None else LEAST_INSIDE_FRAC * len(table.planned)
    num_held = len(table.planned) if file is not None else table.num_inside_left_out
    if num_held < num_needed:
        raise typer.Exit(ExitCode.NO)


def _rl_steps(file: Path | None, *, as_json: bool, out: Path | None, catalog: Path | None) -> None:
    """Predicted beside published RL steps."""
    from scalewright.catalog.library import open_catalog
    from scalewright.planner.validation.rl_rows import read_rl_left_out
    from scalewright.planner.validation.rl_table import rl_table
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.planner.rl_validation import print_rl_table

    table = rl_table(open_catalog(catalog), file)
    left_out = {} if file is not None else read_rl_left_out()
    body = table.as_document() | ({"left_out": left_out} if left_out else {})
    if not print_json(body, out=out, as_json=as_json):
        print_rl_table(answer_console(), table, left_out=left_out)
    if not table.predicted or left_out.get("mape_frac", 0.0) > MOST_ERROR_FRAC:
        raise typer.Exit(ExitCode.NO)


def _generation(file: Path | None, *, as_json: bool, out: Path | None, catalog: Path | None) -> None:
    """Predicted beside published rates of generation."""
    from scalewright.catalog.library import open_catalog
    from scalewright.planner.validation.generation_table import generation_scores, generation_table
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.planner.generation_validation import print_generation_table

    table = generation_table(open_catalog(catalog), file)
    if not print_json(table.as_document(), out=out, as_json=as_json):
        print_generation_table(answer_console(), table)
    overall = generation_scores(table.predicted)
    mape, inside = overall["mape_frac"], overall["coverage_frac"]
    if mape is None or inside is None:
        raise typer.Exit(ExitCode.NO)
    if file is None and (mape > MOST_ERROR_FRAC or inside < LEAST_INSIDE_FRAC):
        raise typer.Exit(ExitCode.NO)


def _hold(overall: Scores, *, record: bool) -> None:
    """Keep these scores, or say which differ from those kept; a worse one is the answer no."""
    from scalewright.planner.validation.recorded import compare_scores, read_scores, record_scores, recorded_scores_path
    from scalewright.records.types import ExitCode

    if record:
        record_scores(recorded_scores_path(), overall)
        return
    changes = compare_scores(read_scores(recorded_scores_path()), overall)
    for change in changes:
        typer.echo(change.sentence, err=True)
    if any(change.is_worse for change in changes):
        raise typer.Exit(ExitCode.NO)
