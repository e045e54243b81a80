"""What a data set needs in each format: bytes, files, and whether a place has room for them. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalewright.data.room import RESERVE_FRAC, Room
from scalewright.data.samples import read_description
from scalewright.data.scan import FolderScan, scan_folder
from scalewright.data.sizing import TAR_BYTES_PER_SAMPLE, ShardPlan, Use, plan_shards
from scalewright.data.squashfs import SQUASHFS_BYTES_PER_FILE
from scalewright.data.text.reading.inputs import RESULT_NAME
from scalewright.errors import ConfigError

StoredFormat = Literal["folder", "shards", "lmdb", "squashfs"]
BLOCK_BYTES = 4096
LMDB_HEADER_BYTES = 20
"""Label, key and page header of a sample."""
LMDB_TREE_FRAC = 0.01
"""Pages of the tree beside those of the samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSize:
    """A data set, whatever its format."""

    num_samples: int
    data_bytes: int
    num_classes: int
    is_whole: bool = True
    """False: the scan stopped at its limit, so that all is at least so large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatNeed:
    """What one format takes on disk."""

    format: StoredFormat
    num_files: int
    disk_bytes: int
    fits: bool

    @property
    def mean_file_bytes(self) -> float:
        return self.disk_bytes / self.num_files


def set_size(path: Path) -> SetSize:
    """The size of a data set: from its description, else by a bounded look at its files."""
    known = read_description(path) if path.is_dir() else None
    if known is not None:
        return SetSize(num_samples=known.num_samples, data_bytes=known.data_bytes, num_classes=known.num_classes)
    if (path / RESULT_NAME).is_file():
        raise ConfigError(f"{path}: is a set of texts or tokens: data show {path} tells its size; name a set of images")
    scan: FolderScan = scan_folder(path)
    if not scan.num_files:
        raise ConfigError(f"{path}: holds no file; name the folder of the class folders or of the shards")
    if scan.main_suffix in (".tar", ".mdb", ".sqfs"):
        raise ConfigError(
            f"{path}: holds {scan.main_suffix} files without dataset.json, so the number of samples is not known; "
            "name the class folders that they were made from"
        )
    return SetSize(
        num_samples=scan.num_files, data_bytes=scan.total_bytes, num_classes=max(scan.num_folders, 1),
        is_whole=scan.is_whole,
    )  # fmt: skip


def shard_plan(size: SetSize, *, num_ranks: int, num_loaders: int, use: Use = "training") -> ShardPlan:
    for name, value in (("--ranks", num_ranks), ("--loaders", num_loaders)):
        if value < 1:
            raise ConfigError(f"{name} {value} must be 1 or more")
    return plan_shards(
        data_bytes=size.data_bytes, num_samples=size.num_samples, num_consumers=num_ranks * num_loaders, use=use
    )


def format_needs(size: SetSize, plan: ShardPlan, room: Room) -> list[FormatNeed]:
    """Needs of every format, with a reserve for others left free."""
    n, total = size.num_samples, size.data_bytes
    mean = -(-total // n)
    in_blocks = n * (-(-mean // BLOCK_BYTES) * BLOCK_BYTES)
    in_pages = n * (-(-(mean + LMDB_HEADER_BYTES) // BLOCK_BYTES) * BLOCK_BYTES)
    needs: dict[StoredFormat, tuple[int, int]] = {
        "folder": (n + size.num_classes + 1, in_blocks),
        "shards": (plan.num_shards + 2, total + n * TAR_BYTES_PER_SAMPLE),
        "lmdb": (2, int(in_pages * (1 + LMDB_TREE_FRAC))),
        "squashfs": (1, total + n * SQUASHFS_BYTES_PER_FILE),
    }
    return [
        FormatNeed(format=name, num_files=files, disk_bytes=disk, fits=_fits(room, num_files=files, disk_bytes=disk))
        for name, (files, disk) in needs.items()
    ]


def _fits(room: Room, *, num_files: int, disk_bytes: int) -> bool:
    has_inodes = room.free_inodes is None or num_files <= room.free_inodes * (1 - RESERVE_FRAC)
    return disk_bytes <= room.usable_bytes and has_inodes
