"""A bounded look at a folder of data: how many files, how large, in which folders; links are not followed."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scalewright import units
from scalewright.errors import ConfigError, EnvironmentFailedError

MAX_ENTRIES = 1_000_000
MAX_TIME_S = 60.0
LARGE_BYTES = 256 * units.MIB
SMALL_BYTES = units.MIB
NUM_LARGEST = 4
TELL_EVERY = 5000


@dataclass(slots=True)
class FolderScan:
    """What a folder holds, as far as it was looked at."""

    path: Path
    num_files: int = 0
    num_folders: int = 0
    num_links: int = 0
    """Links are counted and not followed, so that a loop ends."""
    num_others: int = 0
    """Pipes, sockets and devices, which nobody opens here."""
    num_unreadable: int = 0
    total_bytes: int = 0
    num_small: int = 0
    """Files below 1 MiB."""
    num_large: int = 0
    """Files of 256 MiB and more."""
    most_in_folder: int = 0
    fullest_folder: Path = field(default_factory=Path)
    largest: list[tuple[int, Path]] = field(default_factory=list)
    suffixes: Counter[str] = field(default_factory=Counter)
    """Files by the ends of their names."""
    bytes_by_suffix: Counter[str] = field(default_factory=Counter)
    is_whole: bool = True
    """False: the scan stopped at its limit of entries or of time, and all numbers are at least so large."""

    @property
    def mean_bytes(self) -> float:
        return self.total_bytes / self.num_files if self.num_files else 0.0

    @property
    def main_suffix(self) -> str:
        """Of most of the bytes: descriptions beside the data are many small files at most."""
        return self.bytes_by_suffix.most_common(1)[0][0] if self.suffixes else ""


def scan_folder(
    path: Path, *, max_entries: int = MAX_ENTRIES, max_time_s: float = MAX_TIME_S,
    on_progress: Callable[[int], object] = str,
) -> FolderScan:  # fmt: skip
    """Look at a folder, breadth first, up to a number of entries and a time."""
    if not path.exists():
        raise ConfigError(f"{path}: no such folder; check the path")
    if not path.is_dir():
        raise ConfigError(f"{path}: is not a folder; name the folder that holds the data set")
    scan = FolderScan(path)
    deadline_s = time.monotonic() + max_time_s
    waiting, num_seen = [path], 0
    for folder in waiting:
        if not scan.is_whole:
            break
        entries = _entries(folder, scan, is_first=folder == path)
        in_folder = 0
        for entry in entries:
            num_seen, in_folder = num_seen + 1, in_folder + 1
            if num_seen > max_entries or (num_seen % 256 == 0 and time.monotonic() > deadline_s):
                scan.is_whole = False
                break
            if num_seen % TELL_EVERY == 0:
                on_progress(num_seen)
            _count(entry, scan, waiting)
        if in_folder > scan.most_in_folder:
            scan.most_in_folder, scan.fullest_folder = in_folder, folder
    return scan


def _entries(folder: Path, scan: FolderScan, *, is_first: bool) -> list[os.DirEntry[str]]:
    """Entries of one folder. One folder's names fit into memory: at most a few million."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        if is_first:
            raise EnvironmentFailedError(f"{folder}: cannot be listed: {error.strerror}; check its rights") from error
        scan.num_unreadable += 1
        return []


def _count(entry: os.DirEntry[str], scan: FolderScan, waiting: list[Path]) -> None:
    try:
        if entry.is_symlink():
            scan.num_links += 1
            return
        if entry.is_dir(follow_symlinks=False):
            scan.num_folders += 1
            waiting.append(Path(entry.path))
            return
        stats = entry.stat(follow_symlinks=False)
    except OSError:  # removed meanwhile, or not ours to look at
        scan.num_unreadable += 1
        return
    if not stat.S_ISREG(stats.st_mode):
        scan.num_others += 1
        return
    size = stats.st_size
    scan.num_files += 1
    scan.total_bytes += size
    scan.num_small += size < SMALL_BYTES
    scan.num_large += size >= LARGE_BYTES
    suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122  a Path for each of a million files
    scan.suffixes[suffix] += 1
    scan.bytes_by_suffix[suffix] += size
    if len(scan.largest) < NUM_LARGEST or size > scan.largest[-1][0]:
        scan.largest = sorted([*scan.largest, (size, Path(entry.path))], reverse=True)[:NUM_LARGEST]
