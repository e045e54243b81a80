"""The bounded scan: counts and sizes, and an end whatever lies in the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scalewright.data.scan import scan_folder
from scalewright.errors import ConfigError


def test_files_folders_links_and_pipes_are_counted_apart(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one.JPG").write_bytes(b"x" * 10)
    (tmp_path / "a" / "b" / "two.jpg").write_bytes(b"x" * 30)
    (tmp_path / "a" / "b" / "loop").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    scan = scan_folder(tmp_path)
    assert (scan.num_files, scan.num_folders, scan.num_links, scan.num_others) == (2, 2, 2, 1)
    assert (scan.total_bytes, scan.mean_bytes, scan.main_suffix, scan.is_whole) == (40, 20.0, ".jpg", True)
    assert scan.largest[0] == (30, tmp_path / "a" / "b" / "two.jpg")


def test_a_sparse_file_counts_with_its_length(tmp_path: Path) -> None:
    with (tmp_path / "big.tar").open("wb") as file:
        file.truncate(2**40)
    assert scan_folder(tmp_path).num_large == 1


def test_a_scan_stops_at_its_limit_and_says_so(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}").touch()
    scan = scan_folder(tmp_path, max_entries=10)
    assert not scan.is_whole
    assert scan.num_files == 10


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("absent", "file"):
        with pytest.raises(ConfigError, match=name):
            scan_folder(tmp_path / name)
