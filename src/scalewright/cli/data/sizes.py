"""`scalewright data sizes`: files, bytes and shards of images or of a text pipeline, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scalewright.cli.data.pipeline_sizes import show_pipeline_sizes
from scalewright.cli.options import AsJson

DataFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Class folders, a converted set, or a pipeline file.", show_default=False)
]
RankCount = Annotated[int, typer.Option("--ranks", help="Ranks that will read it.")]
LoaderCount = Annotated[int, typer.Option("--loaders", help="Loader workers of a rank.")]
Place = Annotated[
    Path | None, typer.Option("--at", metavar="PATH", help="Where it will be written; default: beside DIR.")
]
UseName = Annotated[Literal["training", "validation"], typer.Option("--use", help="Validation takes smaller shards.")]


def run(
    folder: DataFolder,
    ranks: RankCount = 8,
    loaders: LoaderCount = 4,
    at: Place = None,
    use: UseName = "training",
    as_json: AsJson = False,
) -> None:
    """Show the number and size of shards, and the inodes and bytes of each format. Exit 1: shards do not fit."""
    from dataclasses import asdict

    from scalewright.data.format_sizes import format_needs, set_size, shard_plan
    from scalewright.data.room import room_at
    from scalewright.records.documents import document, to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.data.sizes import print_sizes

    if folder.suffix == ".toml":
        show_pipeline_sizes(folder, at or Path("data-set"), as_json=as_json)
        return
    size = set_size(folder)
    plan = shard_plan(size, num_ranks=ranks, num_loaders=loaders, use=use)
    place = (at or folder.resolve().parent).absolute()
    room = room_at(place)
    needs = format_needs(size, plan, room)
    if as_json:
        body = {
            "folder": str(folder), "place": str(place), "size": asdict(size), "shards": asdict(plan),
            "room": asdict(room), "formats": [asdict(need) for need in needs],
        }  # fmt: skip
        typer.echo(to_json(document("data-sizes", body)), nl=False)
    else:
        print_sizes(answer_console(), folder, place, size, plan, room, needs)
    if not next(need.fits for need in needs if need.format == "shards"):
        raise typer.Exit(ExitCode.NO)
