"""`scalewright lab fault`: inject a fault into a real run, and see whether `explain` names it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewright.cli.options import AsJson

if TYPE_CHECKING:
    from scalewright.lab.faults.laboratory import FaultRun

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Inject faults into real runs.")


@app.callback()
def _root() -> None:
    """Inject a fault into a real run of a benchmark, and compare what `explain` says with the truth."""


@app.command("list")
def list_faults(as_json: AsJson = False) -> None:
    """List the kinds of faults, how each is injected, and the rules that must name it."""
    from scalewright.lab.faults.catalogue import FAULTS
    from scalewright.records.documents import document, to_json
    from scalewright.report.cluster.fault import fault_rows, print_faults
    from scalewright.report.console import answer_console

    if as_json:
        typer.echo(to_json(document("faults", {"faults": fault_rows(FAULTS)})), nl=False)
    else:
        print_faults(answer_console(), FAULTS)


@app.command("run")
def run(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="A kind that `list` names.")],
    variation: Annotated[int, typer.Option(help="Which of its variations, from 1.")] = 1,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Empty folder for its runs; default: runs/TIME-fault-KIND.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a benchmark with a fault, and without it if the fault slows a run. Exit 1: `explain` ranks another first."""
    from scalewright.lab.faults.catalogue import FAULTS
    from scalewright.lab.faults.fault import by_name
    from scalewright.lab.faults.laboratory import run_fault
    from scalewright.records.documents import to_json
    from scalewright.records.run_directory import new_run_id
    from scalewright.records.types import ExitCode
    from scalewright.report.cluster.fault import print_fault_run
    from scalewright.report.console import answer_console

    fault = by_name(FAULTS, kind)
    words = fault.variation(variation).words
    folder = run_dir or Path("runs") / new_run_id(f"fault-{kind}")
    typer.echo(f"{fault.title}: {words}", err=True)
    result = run_fault(fault, variation, folder)
    findings = _findings(result)
    is_right = bool(findings) and findings[0]["rule"] in result.rules
    if as_json:
        typer.echo(to_json(result.document() | {"findings": findings, "is_first": is_right}), nl=False)
    else:
        print_fault_run(answer_console(), result, findings)
    if not is_right:
        raise typer.Exit(ExitCode.NO)


@app.command("clean")
def clean() -> None:
    """Remove control groups, mounts, networks and processes of trials that were killed."""
    from scalewright.lab.faults.leftovers import sweep

    for folder in sweep():
        typer.echo(f"{folder.name} is removed", err=True)


def _findings(result: FaultRun) -> list[dict[str, Any]]:
    from scalewright.observe.findings.order import explain
    from scalewright.observe.findings.rule import FindingContext
    from scalewright.observe.readers.reading import read_evidence

    return [
        {
            "rule": one.rule.id, "severity": one.severity, "message": one.seen.message,
            "expected_gain_frac": None if one.seen.gain is None else one.seen.gain.step_time_frac,
        }
        for one in explain(read_evidence([result.evidence]), FindingContext())
    ]  # fmt: skip
