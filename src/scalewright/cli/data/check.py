"""`scalewright data check`: a pipeline file, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson

PipelinePath = Annotated[Path, typer.Argument(metavar="PIPELINE", help="A TOML file.", show_default=False)]


def run(pipeline: PipelinePath, as_json: AsJson = False) -> None:
    """Check a pipeline file, its inputs and its tokenizer. Exit 2: one sentence says what is wrong."""
    from scalewright import units
    from scalewright.data.text.execution.preparation import prepare_job
    from scalewright.records.documents import document, to_json

    job = prepare_job(pipeline, out=Path("data-set"))
    steps = [name for name in type(job.pipeline).model_fields if name in job.pipeline.model_fields_set]
    steps = [name for name in steps if name not in ("schema_", "seed", "num_examples")]
    body = {
        "pipeline": str(pipeline), "id": job.id, "steps": steps, "num_files": len(job.files),
        "input_bytes": job.input_bytes, "num_tasks": len(job.chunks),
    }  # fmt: skip
    if as_json:
        typer.echo(to_json(document("data-check", body)), nl=False)
        return
    size = units.format(job.input_bytes, units.BYTES)
    typer.echo(f"{pipeline}: {' -> '.join(steps)}")
    typer.echo(f"{len(job.files)} files, {size}, in {len(job.chunks)} tasks; run it: scalewright data run {pipeline}")
