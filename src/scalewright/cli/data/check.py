"""`scalewright data check`: a pipeline file, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson

PipelinePath = Annotated[Path, typer.Argument(metavar="PIPELINE", help="A TOML file.", show_default=False)]


def run(pipeline: PipelinePath, as_json: AsJson = False) -> None:
    """Check a pipeline file, its inputs and its tokenizer. Exit 2: one sentence says what is wrong."""
    from scalewright.data.text.pipeline_file import load_pipeline
    from scalewright.records.documents import document, to_json

    loaded = load_pipeline(pipeline)
    steps = [name for name in loaded.model_fields_set if name not in ("schema_", "seed", "num_examples")]
    if as_json:
        typer.echo(to_json(document("data-check", {"pipeline": str(pipeline), "steps": steps})), nl=False)
        return
    typer.echo(f"{pipeline}: {', '.join(steps)}")
