"""Files and bytes of a data set in every format, for people."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.data.format_sizes import FormatNeed, SetSize
from scalewright.data.room import Room
from scalewright.data.sizing import ShardPlan
from scalewright.report.console import plain_table


def print_sizes(
    console: Console, folder: Path, place: Path, size: SetSize, plan: ShardPlan, room: Room, needs: list[FormatNeed]
) -> None:
    least = "" if size.is_whole else "at least "
    console.print(
        f"[bold]{escape(str(folder))}[/]: {least}{size.num_samples:,} samples, {_bytes(size.data_bytes)}, "
        f"{size.num_classes:,} classes", soft_wrap=True,
    )  # fmt: skip
    table = plain_table("format", "files", "on disk", "a file", "fits", right=("files", "on disk", "a file"))
    for need in needs:
        fits = "yes" if need.fits else "[red]no[/]"
        table.add_row(
            need.format, f"{need.num_files:,}", _bytes(need.disk_bytes), _bytes(need.mean_file_bytes), fits
        )  # fmt: skip
    console.print(table)
    inodes = "made as needed" if room.free_inodes is None else f"{room.free_inodes:,} free"
    console.print(
        f"{escape(str(place))}: {_bytes(room.free_bytes)} free, {_bytes(room.reserve_bytes)} of it left to others; "
        f"inodes {inodes}", soft_wrap=True,
    )  # fmt: skip
    console.print(f"shards: {plan.num_shards:,} of up to {_bytes(plan.shard_bytes)}", soft_wrap=True)
    if plan.note:
        console.print(f"note: {escape(plan.note)}", soft_wrap=True)


def _bytes(size: float) -> str:
    return units.format(size, units.BYTES)
