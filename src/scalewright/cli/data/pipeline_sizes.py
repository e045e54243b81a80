"""Sizes of a text pipeline in `scalewright data sizes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def show_pipeline_sizes(pipeline: Path, out: Path, *, as_json: bool) -> None:
    """Text, tokens, shards, bytes and files, estimated. Exit 1: it does not fit in the free space."""
    from scalewright.data.text.execution.preparation import prepare_job
    from scalewright.data.text.execution.sizes import pipeline_sizes
    from scalewright.records.documents import document, to_json

    sizes = pipeline_sizes(prepare_job(pipeline, out=out))
    if as_json:
        typer.echo(to_json(document("data-sizes", sizes)), nl=False)
    else:
        _print(sizes, out)
    raise typer.Exit(0 if sizes["fits"] else 1)


def _print(sizes: dict[str, Any], out: Path) -> None:
    from scalewright import units
    from scalewright.observe.findings.words import counted
    from scalewright.report.console import answer_console, plain_table

    def size(key: str) -> str:
        return units.format(sizes[key], units.BYTES) if sizes[key] else "0 B"

    table = plain_table("", "bytes", "files", right=("bytes", "files"))
    table.add_row("input", size("input_bytes"), f"{sizes['num_input_files']:,}")
    table.add_row("text (estimate)", size("text_bytes"), "")
    result = f"result, {counted(sizes['num_shards'], 'shard')}"
    table.add_row(result, size("result_bytes"), f"{sizes['num_result_files']:,}")
    table.add_row("while it runs", size("work_bytes"), f"{sizes['num_work_files']:,}")
    table.add_row(f"free at {out}", size("free_bytes"), "")
    console = answer_console()
    console.print(table)
    if sizes["num_tokens"]:
        console.print(f"about {sizes['num_tokens']:,} tokens if nothing is dropped", markup=False)
    if not sizes["fits"]:
        console.print("it does not fit: free space or choose another --out", markup=False)
