"""Texts of `scalewright data convert`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import typer

TEXT_FORMATS = ("parquet", "jsonl", "tar", "megatron")


def convert_texts(
    source: Path, target: Path, *, to: str, tokenizer: str, text_field: str, num_workers: int, as_json: bool
) -> None:
    """Write the texts of a file or folder in another format; the same target resumes."""
    from scalewright.data.text.conversion import conversion_job
    from scalewright.data.text.execution.local import LocalBackend
    from scalewright.data.text.execution.run import run_job
    from scalewright.data.text.pipeline_file import OutputFormat
    from scalewright.errors import ConfigError
    from scalewright.records.documents import to_json
    from scalewright.report.data.phase_bar import PhaseBar
    from scalewright.report.data.terminal import print_data_set

    if to == "megatron" and not tokenizer:
        raise ConfigError("--to megatron holds tokens: give --tokenizer DIR")
    job = conversion_job(source, target, to=cast(OutputFormat, to), tokenizer=tokenizer, text_field=text_field)
    backend = LocalBackend(num_workers)
    try:
        with PhaseBar() as bar:
            result = run_job(job, backend, on_progress=bar.show)
    finally:
        backend.close()
    if as_json:
        typer.echo(to_json(result), nl=False)
    else:
        print_data_set(result, target)
