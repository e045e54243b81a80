"""What a folder says of its samples: real small sets of every kind, with and without a description."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_sets import SMALL, small_sets

from scalewright.data.contents import SetContents, set_contents
from scalewright.data.samples import DESCRIPTION
from scalewright.data.scan import scan_folder

sys.path.insert(0, str(Path(__file__).parent / "text"))
from text_cases import made_text, run_pipeline, train_small_tokenizer, write_pipeline, write_rows

if TYPE_CHECKING:
    from conftest import Cli


def contents_of(folder: Path) -> SetContents:
    return set_contents(scan_folder(folder))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return small_sets(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize("form", ["folder", "shards", "lmdb"])
@pytest.mark.parametrize("is_described", [True, False])
def test_images_in_every_format_have_their_number(images: dict[str, Path], form: str, is_described: bool) -> None:
    description = images[form] / DESCRIPTION
    hidden = description.read_bytes()
    if not is_described:
        description.unlink()
    try:
        contents = contents_of(images[form])
    finally:
        description.write_bytes(hidden)
    # Without its description, a folder of LMDB has a file with the names of the classes, and no more entries than that.
    assert contents.num_samples == pytest.approx(SMALL.num_images, abs=0.01 if is_described else 1.01)
    mean = json.loads(hidden)["data_bytes"] / SMALL.num_images
    assert contents.sample_bytes == pytest.approx(mean, rel=0.01 if is_described else 0.25)
    assert contents.is_file_each == (form == "folder")
    assert contents.is_opened_by_all == (form == "lmdb")


@pytest.mark.parametrize(
    ("tables", "write"),
    [
        ('[tokenise]\ntokenizer = "tok"\n[pack]\nsequence = 64', "npy"),
        ('[tokenise]\ntokenizer = "tok"\n[pack]\nsequence = 64', "megatron"),
        ('[tokenise]\ntokenizer = "tok"\n[pack]\nsequence = 64', "parquet"),
        ('[tokenise]\ntokenizer = "tok"', "megatron"),
        ("", "parquet"),
        ("", "jsonl"),
        ("", "tar"),
    ],
)
def test_text_sets_have_their_sequences_or_documents(tmp_path: Path, tables: str, write: str) -> None:
    train_small_tokenizer(tmp_path / "tok")
    write_rows(tmp_path / "in.jsonl", [{"text": made_text(number)} for number in range(90)])
    path = write_pipeline(tmp_path, tables, write=f'format = "{write}"\nnum_shards = 3')
    result = run_pipeline(path, tmp_path / "out")
    described = contents_of(tmp_path / "out")
    is_packed, is_tokens = "pack" in tables, "tokenise" in tables
    expected = result["num_sequences"] if is_packed else result["num_tokens"] / 4096 if is_tokens else 90
    assert described.num_samples == expected > 0
    assert described.kind == (f"sequences of {64 if is_packed else '4,096'} tokens" if is_tokens else "documents")
    data_bytes = sum(file.stat().st_size for file in (tmp_path / "out").glob("shard-*"))
    assert described.sample_bytes * described.num_samples == pytest.approx(data_bytes)
    assert described.num_files == (6 if write == "megatron" else 3)
    (tmp_path / "out" / "data.json").unlink()
    seen = contents_of(tmp_path / "out")
    if write == "parquet" and is_packed:  # rows of tokens are read as windows, whatever their length
        assert seen.num_samples == pytest.approx(result["num_tokens"] / 4096)
    elif write == "jsonl":  # four times as much text as bytes of zstd is assumed where a file is not read to its end
        assert seen.num_samples == pytest.approx(90, rel=0.1)
    else:
        assert seen.num_samples == pytest.approx(expected, rel=0.05)
    assert seen.num_files == described.num_files


def write_files(folder: Path, name: str, content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    match content:
        case bytes():
            (folder / name).write_bytes(content)
        case pa.Table():
            pq.write_table(content, folder / name)
        case _:
            np.save(folder / name, content)
    return folder


@pytest.mark.parametrize(
    ("name", "content", "kind", "num"),
    [
        ("a.npy", np.arange(40_960, dtype=np.uint16), "sequences of 4,096 tokens", 10),
        ("a.npy", np.zeros((30, 128), np.uint16), "sequences of 128 tokens", 30),
        ("a.npy", np.zeros((30, 128), np.float32), "files", 1),
        ("a.parquet", pa.table({"input_ids": [[1] * 512] * 80}), "sequences of 4,096 tokens", 10),
        ("a.parquet", pa.table({"text": ["some words"] * 50}), "rows", 50),
        ("a.jsonl", b'{"text": "some words"}\n' * 70, "lines", 70),
        ("a.jsonl.gz", gzip.compress(b'{"text": "some words"}\n' * 70), "lines", 70),
        ("a.tar", b"no tar file" * 100, "files", 1),
        ("data.mdb", b"no LMDB" * 10_000, "files", 1),
        ("a.bin", b"without an index" * 100, "files", 1),
        ("a.parquet", b"no Parquet", "files", 1),
        ("a.jsonl.gz", b"no gzip", "files", 1),
        ("a.npy", b"no array", "files", 1),
    ],
)
def test_files_of_others_are_read_by_their_headers(
    tmp_path: Path, name: str, content: Any, kind: str, num: float
) -> None:
    contents = contents_of(write_files(tmp_path / "set", name, content))
    assert (contents.kind, round(contents.num_samples, 3)) == (kind, num)


def test_a_foreign_lmdb_and_a_foreign_tar_are_counted(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    (tmp_path / "lmdb").mkdir()
    with lmdb.open(str(tmp_path / "lmdb"), map_size=2**24) as environment:
        for start in range(0, 300, 100):  # several commits: the newer of the two descriptions counts
            with environment.begin(write=True) as transaction:
                for number in range(start, start + 100):
                    transaction.put(f"{number:08d}".encode(), bytes(2000))
    assert contents_of(tmp_path / "lmdb").num_samples == 300
    import io
    import tarfile

    (tmp_path / "tar").mkdir()
    for shard in range(2):
        with tarfile.open(tmp_path / "tar" / f"{shard}.tar", "w") as archive:
            for number in range(40):
                for suffix in (".jpg", ".json"):
                    member = tarfile.TarInfo(f"{number:04d}{suffix}")
                    member.size = 3000
                    archive.addfile(member, io.BytesIO(bytes(3000)))
    contents = contents_of(tmp_path / "tar")
    assert (round(contents.num_samples), contents.is_estimate) == (80, True)


def test_a_token_set_is_not_taken_for_files_of_samples(cli: Cli, tmp_path: Path) -> None:
    """Sequences of 2 kB need bandwidth, and no more opens than there are files."""
    for number in range(4):
        write_files(tmp_path / "set", f"{number}.npy", np.zeros((100, 1024), np.uint16))
    words = ["data", "advise", str(tmp_path / "set"), "--site", "leonardo", "--ranks", "16", "--samples-per-s", "100"]
    done = cli(*words)
    assert "a sample: one of 400 sequences of 1,024 tokens, 2.00 KiB (headers of the largest files)" in done.stdout
    assert done.returncode == 0, done.stdout
    found = json.loads(cli(*words, "--json").stdout)
    assert found["contents"]["num_samples"] == pytest.approx(400)
    assert found["data_wait_frac"] == 0
    assert found["num_operations_per_epoch"] == 20 + 16  # 3 x 4 files x 16 ranks, once in 10 epochs; and listing
    again = json.loads(cli(*words, "--json", "--sample-size", "4 KiB").stdout)
    assert again["contents"]["num_samples"] == pytest.approx(200, rel=0.01)
