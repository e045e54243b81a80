"""`scalewright data`: data sets made, checked and shown, each command in a file of its own."""

from __future__ import annotations

import typer

from scalewright.cli.data import advise, check, convert, run, show, sizes, train_tokenizer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make data sets of text and images.")


@app.callback()
def _root() -> None:
    """Clean, deduplicate, tokenise, shard and place data sets."""


app.command("advise", short_help="Advise on striping, copies, loaders and small files.")(advise.run)
app.command("check", short_help="Check a pipeline file and what it would read.")(check.run)
app.command("run", short_help="Run a pipeline: the data set, whole and resumable.")(run.run)
app.command("convert", short_help="Convert images or texts to another format.")(convert.run)
app.command("sizes", short_help="Shards, inodes and bytes, before anything is written.")(sizes.run)
app.command("show", short_help="Show what a pipeline kept and dropped, also as a page.")(show.run)
app.command("train-tokenizer", short_help="Train a tokenizer on the texts of a pipeline.")(train_tokenizer.run)
