"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CatalogFolder = Annotated[
    Path | None, typer.Option("--catalog", metavar="DIR", help="Folder of entries that come before all others.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document: SI values, units in the keys.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show equations, inputs and sources.")]
OutFile = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the JSON document here.")]
