"""`scalewright data convert`: images as class folders, tar shards, LMDB or SquashFS; texts in another format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from scalewright.cli.data.text_conversion import TEXT_FORMATS, convert_texts
from scalewright.cli.options import AsJson

if TYPE_CHECKING:
    from scalewright.data.samples import Format

SourceFolder = Annotated[
    Path, typer.Argument(metavar="SOURCE", help="Class folders, tar shards, LMDB; or texts.", show_default=False)
]
TargetPath = Annotated[Path, typer.Argument(metavar="TARGET", help="Where the new set goes.", show_default=False)]
ToFormat = Annotated[
    str, typer.Option("--to", help="shards, lmdb, folder, squashfs; texts: parquet, jsonl, tar, megatron.")
]
RankCount = Annotated[int, typer.Option("--ranks", help="Ranks that will read it, for the number of shards.")]
LoaderCount = Annotated[int, typer.Option("--loaders", help="Loader workers of a rank.")]
Workers = Annotated[int, typer.Option("--workers", help="Processes that read the source.")]
TokenizerFolder = Annotated[str, typer.Option("--tokenizer", metavar="DIR", help="Of texts, for megatron.")]
TextField = Annotated[str, typer.Option("--text-field", help="Of texts: the key or column that holds them.")]


def run(
    source: SourceFolder,
    target: TargetPath,
    to: ToFormat = "shards",
    ranks: RankCount = 1,
    loaders: LoaderCount = 4,
    workers: Workers = 1,
    tokenizer: TokenizerFolder = "",
    text_field: TextField = "text",
    as_json: AsJson = False,
) -> None:
    """Convert images, shuffled once, or texts, in their order. The new set is whole or not there. Exit 3: no room."""
    from scalewright import units
    from scalewright.data.format_sizes import set_size, shard_plan
    from scalewright.data.samples import FORMATS, read_description
    from scalewright.data.squashfs import SQUASHFS_BYTES_PER_FILE, make_image
    from scalewright.data.writing import convert
    from scalewright.errors import ConfigError
    from scalewright.records.documents import document, to_json
    from scalewright.report.data.count_bar import CountBar

    if to in TEXT_FORMATS:
        convert_texts(
            source, target, to=to, tokenizer=tokenizer, text_field=text_field, num_workers=workers, as_json=as_json
        )
        return
    known = (*FORMATS, "squashfs", *TEXT_FORMATS)
    if to not in known:
        raise ConfigError(f"--to {to!r} is not known: choose {', '.join(known)}")
    if workers < 1:
        raise ConfigError(f"--workers {workers} must be 1 or more")
    if source.exists() and target.resolve().is_relative_to(source.resolve()):
        raise ConfigError(f"{target}: lies inside the source {source}; choose another place")
    if to == "squashfs":
        size = set_size(source)
        expected = size.data_bytes + size.num_samples * SQUASHFS_BYTES_PER_FILE
        make_image(source, target, expected_bytes=expected)
        counts = (size.num_samples, 1, target.stat().st_size)
    else:
        if ranks < 1 or loaders < 1:
            shard_plan(set_size(source), num_ranks=ranks, num_loaders=loaders)  # says which of them is wrong
        with CountBar(f"writing {to}") as bar:
            convert(
                source, target, to=cast("Format", to), num_consumers=ranks * loaders, num_workers=workers,
                on_progress=bar.show,
            )  # fmt: skip
        made = read_description(target)
        assert made is not None
        files = [path for path in target.rglob("*") if path.is_file()]
        counts = (made.num_samples, len(files), sum(path.stat().st_size for path in files))
    num_samples, num_files, disk_bytes = counts
    if as_json:
        body = {
            "target": str(target), "format": to, "num_samples": num_samples, "num_files": num_files,
            "disk_bytes": disk_bytes,
        }  # fmt: skip
        typer.echo(to_json(document("converted-set", body)), nl=False)
        return
    typer.echo(
        f"{target}: {num_samples:,} samples in {num_files:,} file{'s' if num_files != 1 else ''}, "
        f"{units.format(disk_bytes, units.BYTES)} of {to}"
    )
