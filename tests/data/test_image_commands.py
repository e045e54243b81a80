"""`data convert` and `data sizes`: images in every format, and what they need before anything is written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from image_sets import SMALL

from scalewright.data.format_sizes import SetSize, format_needs, shard_plan
from scalewright.data.imagenet_like import make_images
from scalewright.data.opening import open_samples
from scalewright.data.room import Room
from scalewright.data.squashfs import make_image, mounted

if TYPE_CHECKING:
    from conftest import Cli, Refused


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images") / "images", SMALL)


def contents(path: Path) -> set[tuple[bytes, int]]:
    samples = open_samples(path)
    return {samples.read(index) for index in range(len(samples))}


def test_a_set_goes_through_every_format_and_comes_back(cli: Cli, images: Path, tmp_path: Path) -> None:
    source = images
    for to in ("shards", "lmdb", "folder"):
        done = cli("data", "convert", str(source), str(tmp_path / to), "--to", to, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["num_samples"] == SMALL.num_images
        source = tmp_path / to
    assert contents(source) == contents(images)


def test_sizes_foresee_what_a_conversion_writes(cli: Cli, images: Path, tmp_path: Path) -> None:
    foreseen = json.loads(cli("data", "sizes", str(images), "--ranks", "1", "--json").stdout)
    of_format = {one["format"]: one for one in foreseen["formats"]}
    for to in ("shards", "lmdb"):
        written = json.loads(cli("data", "convert", str(images), str(tmp_path / to), "--to", to, "--json").stdout)
        assert of_format[to]["num_files"] == written["num_files"]
        # A set of a few samples has some pages and padding that a large one does not notice.
        assert of_format[to]["disk_bytes"] == pytest.approx(written["disk_bytes"], rel=0.05, abs=40_000)
    assert foreseen["shards"]["num_shards"] == 1


def test_no_room_and_no_inodes_are_seen_before() -> None:
    size = SetSize(num_samples=1_281_167, data_bytes=140 * 10**9, num_classes=1000)
    plan = shard_plan(size, num_ranks=64, num_loaders=4)
    assert 128e6 < plan.shard_bytes < 1e9
    assert plan.num_shards % 256 == 0
    few_inodes = Room(free_bytes=10**12, whole_bytes=10**12, free_inodes=100_000)
    assert {need.format: need.fits for need in format_needs(size, plan, few_inodes)} == {
        "folder": False, "shards": True, "lmdb": True, "squashfs": True,
    }  # fmt: skip
    full = Room(free_bytes=100 * 10**9, whole_bytes=10**12, free_inodes=None)
    assert not any(need.fits for need in format_needs(size, plan, full))


def test_bad_conversions_are_refused(cli: Cli, refused: Refused, images: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    target = str(tmp_path / "new")
    for words, match in (
        (["convert", "absent", target], "no such data set"), (["convert", str(images), target, "--to", "zip"], "'zip'"),
        (["convert", str(images), str(images / "x")], "inside the source"),
        (["convert", str(images), target, "--ranks", "0"], "--ranks 0"),
        (["convert", str(images), target, "--workers", "0"], "--workers 0"),
        (["convert", str(tmp_path / "empty"), target], "holds no CLASS"),
        (["sizes", "absent"], "no such folder"), (["sizes", str(tmp_path / "empty")], "holds no file"),
        (["sizes", str(images), "--loaders", "0"], "--loaders 0"),
    ):  # fmt: skip
        assert match in refused(cli("data", *words), 2)
    assert not Path(target).exists()


needs_squashfs = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="mksquashfs is not installed")


@needs_squashfs
def test_a_squashfs_image_is_whole_the_same_each_time_and_never_overwritten(
    cli: Cli, refused: Refused, images: Path, tmp_path: Path
) -> None:
    for name in ("a.sqfs", "b.sqfs"):
        done = cli("data", "convert", str(images), str(tmp_path / name), "--to", "squashfs")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.sqfs").read_bytes() == (tmp_path / "b.sqfs").read_bytes()
    assert "exists already" in refused(
        cli("data", "convert", str(images), str(tmp_path / "a.sqfs"), "--to", "squashfs"), 2
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sqfs", "b.sqfs"]


@needs_squashfs
@pytest.mark.skipif(
    shutil.which("squashfuse") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="FUSE is not permitted"
)
def test_a_mounted_image_reads_as_the_folders_it_was_made_from(images: Path, tmp_path: Path) -> None:
    image = make_image(images, tmp_path / "set.sqfs", expected_bytes=10**7)
    with mounted(image, tmp_path / "mount") as folder:
        assert contents(folder) == contents(images)
    assert not (tmp_path / "mount").exists()


def test_a_missing_program_is_named(cli: Cli, refused: Refused, images: Path, tmp_path: Path) -> None:
    done = cli(
        "data", "convert", str(images), str(tmp_path / "a.sqfs"), "--to", "squashfs", env={"PATH": str(tmp_path)}
    )
    assert "install squashfs-tools" in refused(done, 3)
