"""`scalewright data train-tokenizer`: a tokenizer for the texts of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.data.check import PipelinePath
from scalewright.cli.options import AsJson

TokenizerFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the new tokenizer.json.")]
Vocab = Annotated[int, typer.Option("--vocab", help="Tokens of the vocabulary.")]
Sample = Annotated[str, typer.Option("--sample", metavar="SIZE", help="How much input to train on.")]


def run(
    pipeline: PipelinePath, out: TokenizerFolder = Path("tokenizer"), vocab: Vocab = 32_000, sample: Sample = "100 MB",
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Train a byte-level BPE tokenizer on what [read] names; other tables of the file may be missing."""
    from scalewright import units
    from scalewright.cli.options import report_written
    from scalewright.data.text.pipeline_file import load_pipeline
    from scalewright.data.text.tokens.training import END_TOKEN, train_tokenizer
    from scalewright.records.documents import document, to_json

    sample_bytes = round(units.parse(sample, units.BYTES))
    loaded = load_pipeline(pipeline)
    size = train_tokenizer(loaded, pipeline.resolve().parent, out, vocab=vocab, sample_bytes=sample_bytes)
    report_written(out / "tokenizer.json")
    if as_json:
        body = {"path": str(out / "tokenizer.json"), "vocab": size, "end_of_document": END_TOKEN}
        typer.echo(to_json(document("tokenizer", body)), nl=False)
    else:
        typer.echo(f"{size:,} tokens; use it: [tokenise] tokenizer = {str(out)!r}")
