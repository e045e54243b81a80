"""Data sets in every format hold the same samples, and a damaged one is named in one sentence."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from image_sets import SMALL, small_sets

from scalewright.data.opening import open_samples
from scalewright.data.order import epoch_order
from scalewright.data.samples import FORMATS, Sample, Samples, image_problem
from scalewright.data.shards import ShardWriter
from scalewright.data.writing import convert
from scalewright.errors import ConfigError, DocumentError

PAGE_BYTES = 4096


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return small_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture
def copies(sets: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Sets that a test may damage."""
    return {name: Path(shutil.copytree(path, tmp_path / name)) for name, path in sets.items()}


def all_samples(path: Path) -> list[Sample]:
    samples = open_samples(path)
    return [samples.read(index) for index in range(len(samples))]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_the_same_labelled_images(sets: dict[str, Path], name: str) -> None:
    samples = open_samples(sets[name])
    assert (samples.format, len(samples), samples.num_classes) == (name, SMALL.num_images, SMALL.num_classes)
    assert sorted(all_samples(sets[name])) == sorted(all_samples(sets["folder"]))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("start", "stop"), [(0, 12), (3, 9), (11, 12), (4, 4)])
def test_sequential_and_random_access_agree(sets: dict[str, Path], name: str, start: int, stop: int) -> None:
    assert list(open_samples(sets[name]).stream(start, stop)) == all_samples(sets[name])[start:stop]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_reader_in_use_may_be_handed_to_another_process(sets: dict[str, Path], name: str, method: str) -> None:
    samples = open_samples(sets[name])
    own = samples.read(7)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(samples.read, (7,)) == own
    assert pickle.loads(pickle.dumps(samples)).read(7) == own
    samples.close()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("index", [-1, 12])
def test_a_number_outside_the_set_is_an_index_error(sets: dict[str, Path], name: str, index: int) -> None:
    with pytest.raises(IndexError):
        open_samples(sets[name]).read(index)


def test_conversion_mixes_the_classes(sets: dict[str, Path]) -> None:
    sorted_labels = [label for _, label in all_samples(sets["folder"])]
    assert sorted_labels == sorted(sorted_labels)
    assert [label for _, label in all_samples(sets["shards"])] != sorted_labels


def test_shards_are_named_and_filled_as_webdataset_reads_them(sets: dict[str, Path]) -> None:
    (shard,) = sets["shards"].glob("*.tar")
    assert shard.name == "shard-000000.tar"
    with tarfile.open(shard) as tar:
        names = tar.getnames()
    assert names[:4] == ["00000000.cls", "00000000.jpg", "00000001.cls", "00000001.jpg"]


def test_shards_without_our_index_are_read_by_their_headers(copies: dict[str, Path]) -> None:
    before = all_samples(copies["shards"])
    (copies["shards"] / "dataset.json").unlink()
    (copies["shards"] / "index.npy").unlink()
    assert all_samples(copies["shards"]) == before


def test_a_shard_ends_where_the_next_sample_would_not_fit(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, shard_bytes=50_000)
    for index in range(10):
        writer.add(index, b"\xff\xd8" + bytes(20_000) + b"\xff\xd9", index % 2)
    writer.finish()
    samples = open_samples(tmp_path)
    assert samples.run_starts() == [0, 2, 4, 6, 8]
    assert max(path.stat().st_size for path in tmp_path.glob("*.tar")) <= 50_000 + tarfile.RECORDSIZE
    assert [label for _, label in samples.stream(0, 10)] == [0, 1] * 5


def test_an_epoch_visits_every_sample_once_and_stays_within_a_shard(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, shard_bytes=50_000)
    for index in range(40):
        writer.add(index, b"\xff\xd8" + bytes(9_000) + b"\xff\xd9", 0)
    writer.finish()
    samples = open_samples(tmp_path)
    orders = [epoch_order(samples, seed=3, epoch=epoch) for epoch in (0, 1, 0)]
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert (orders[0] == orders[2]).all()
    assert (orders[0] != orders[1]).any()
    shards = np.searchsorted(samples.run_starts(), orders[0], side="right")
    assert (np.diff(shards) != 0).sum() == len(samples.run_starts()) - 1


@pytest.mark.parametrize(("name", "file"), [("shards", "shard-000000.tar"), ("lmdb", "data.mdb")])
def test_a_file_that_was_cut_off_is_refused_by_name(copies: dict[str, Path], name: str, file: str) -> None:
    damaged = copies[name] / file
    os.truncate(damaged, damaged.stat().st_size // 2)
    with pytest.raises(DocumentError, match=rf"{damaged}: has \d+ bytes, not \d+: the data set is damaged"):
        open_samples(copies[name])


def test_a_description_that_names_an_impossible_file_is_refused(copies: dict[str, Path]) -> None:
    description = copies["shards"] / "dataset.json"
    body = json.loads(description.read_text())
    body["files"] = {"9" * 400 + ".tar": 3}
    description.write_text(json.dumps(body))
    with pytest.raises(DocumentError, match=r"dataset.json: names a file that cannot be read \(9+\.\.\. \(404"):
        open_samples(copies["shards"])


def test_a_shard_that_shrinks_while_it_is_read_is_refused_by_name_and_number(copies: dict[str, Path]) -> None:
    samples = open_samples(copies["shards"])
    shard = copies["shards"] / "shard-000000.tar"
    os.truncate(shard, 200_000)
    for read in (lambda: samples.read(11), lambda: list(samples.stream(0, 12))):
        with pytest.raises(DocumentError, match=rf"{shard} \(sample \d+\): the shard was cut off"):
            read()


def test_a_shard_with_a_damaged_header_is_refused_by_name_and_number(copies: dict[str, Path]) -> None:
    shard = copies["shards"] / "shard-000000.tar"
    content = bytearray(shard.read_bytes())
    content[1024 : 1024 + 512] = bytes(512)  # the header of the first image, after the header and block of its label
    shard.write_bytes(content)
    with pytest.raises(DocumentError, match=r"shard-000000.tar \(sample 0\): the tar header before it is damaged"):
        open_samples(copies["shards"]).read(0)


def test_an_lmdb_that_is_no_lmdb_is_refused(copies: dict[str, Path]) -> None:
    data = copies["lmdb"] / "data.mdb"
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(DocumentError, match="is not a whole LMDB"):
        open_samples(copies["lmdb"])


@pytest.mark.parametrize("reads", [lambda s: s.read(len(s) - 1), lambda s: list(s.stream(0, len(s)))])
def test_an_lmdb_whose_tree_is_damaged_is_refused_by_name_and_number(
    copies: dict[str, Path], reads: Callable[[Samples], object]
) -> None:
    data = copies["lmdb"] / "data.mdb"
    content = bytearray(data.read_bytes())
    content[2 * PAGE_BYTES :] = b"\xff" * (len(content) - 2 * PAGE_BYTES)  # all but the two pages that opening reads
    data.write_bytes(content)
    with pytest.raises(DocumentError, match=r"data.mdb \(sample \d+\): cannot be read .*; repair or remove it"):
        reads(open_samples(copies["lmdb"]))


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "is empty"), (b"\xff\xd8" + bytes(99), "cut off"), (b"GIF89a", "neither a JPEG nor a PNG")],
)
def test_conversion_names_the_image_that_is_damaged(copies: dict[str, Path], content: bytes, why: str) -> None:
    image = copies["folder"] / "class-0001" / "00000004.jpg"
    image.write_bytes(content)
    with pytest.raises(DocumentError, match=rf"{image} \(sample \d+\): .*{why}"):
        convert(copies["folder"], copies["folder"].parent / "new", to="shards")
    assert not (copies["folder"].parent / "new").exists()


def test_a_foreign_shard_that_lacks_a_label_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        info = tarfile.TarInfo("a.jpg")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    with pytest.raises(DocumentError, match=r"train-0.tar: sample a has no .cls"):
        open_samples(tmp_path)


@pytest.mark.parametrize(
    ("kind", "match"), [("missing", "no such data set"), ("file", "is a file"), ("empty", "holds no CLASS")]
)
def test_what_is_no_data_set_is_refused(tmp_path: Path, kind: str, match: str) -> None:
    path = tmp_path / "set"
    if kind == "file":
        path.write_text("x")
    elif kind == "empty":
        path.mkdir()
    with pytest.raises(ConfigError, match=match):
        open_samples(path)


def test_image_markers_tell_whole_images() -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(30) + b"\0\0\0\0IEND\xaeB`\x82"
    assert image_problem(b"\xff\xd8 \xff\xd9 trailing bytes") is None
    assert image_problem(png) is None
    assert image_problem(png[:-8]) == "is a PNG image that was cut off"
