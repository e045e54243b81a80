"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

CatalogFolder = Annotated[
    Path | None, typer.Option("--catalog", metavar="DIR", help="Folder of entries that come before all others.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document: SI values, units in the keys.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show equations, inputs and sources.")]
ExplainStep = Annotated[
    bool, typer.Option("--explain", help="Show what limits the step, and the equations of its largest terms.")
]
ExplainAll = Annotated[bool, typer.Option("--explain-all", help="Show every equation, input and source.")]
OutFile = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the JSON document here.")]


def write_out(path: Path | None, document: dict[str, Any]) -> None:
    """What --out does, for every command that has it: write the document, and say so on stderr."""
    from scalewright.records.documents import write_document

    if path is not None:
        write_document(path, document)
        report_written(path)


def print_json(document: dict[str, Any], *, out: Path | None, as_json: bool) -> bool:
    """What --out and --json do together; whether the answer was printed, so that no table follows."""
    from scalewright.records.documents import to_json

    write_out(out, document)
    if as_json:
        typer.echo(to_json(document), nl=False)
    return as_json


def warn_left_out(problems: list[str]) -> None:
    """Name files that could not be read and are not in the answer."""
    for problem in problems:
        typer.echo(f"warning: left out: {problem}", err=True)


def report_written(path: Path) -> None:
    """One line on stderr, so that stdout stays the answer."""
    typer.echo(f"wrote {path}", err=True)


RunFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Default: runs/TIME-NAME. The same one resumes.")]
DeviceName = Annotated[str, typer.Option(help="cpu, cuda (also AMD), or auto.")]
