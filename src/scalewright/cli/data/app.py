"""`scalewright data`: data sets made, checked and shown, each command in a file of its own."""

from __future__ import annotations

import typer

from scalewright.cli.data import advise, check, convert, run, sizes

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make data sets of text and images.")


@app.callback()
def _root() -> None:
    """Clean, deduplicate, tokenise, shard and place data sets."""


app.command("advise", short_help="Advise on striping, copies, loaders and small files.")(advise.run)
app.command("check", short_help="Check a pipeline file and what it would read.")(check.run)
app.command("run", short_help="Run a pipeline: the data set, whole and resumable.")(run.run)
app.command("convert", short_help="Convert images: class folders, tar shards, LMDB, SquashFS.")(convert.run)
app.command("sizes", short_help="Shards, inodes and bytes of images, before anything is written.")(sizes.run)
