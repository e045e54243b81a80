"""`data check` names every faulty input file before a run, and says nothing about good ones."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from text_cases import made_text, write_pipeline

if TYPE_CHECKING:
    from conftest import Cli, Refused


def lines(num: int, *, seed: int = 0) -> bytes:
    """Lines that do not compress well, so that half of a compressed file has many of them."""
    rng = random.Random(seed)
    texts = [f"{made_text(number, num_words=20)} {rng.getrandbits(800)}" for number in range(num)]
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(content)
    return sink.getvalue().to_pybytes()


def tar(num: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in range(num):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = 1000
            archive.addfile(member, io.BytesIO(b"x" * 1000))
    return buffer.getvalue()


def parquet(texts: list[str], column: str = "text") -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({column: texts}), sink)
    return sink.getvalue().to_pybytes()


def wet(num: int) -> bytes:
    text = "some words"
    record = f"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: {len(text)}\r\n\r\n{text}\r\n\r\n".encode()
    return gzip.compress(record * num)


GOOD = {
    "a.jsonl": lines(300), "b.jsonl.gz": gzip.compress(lines(300)), "c.jsonl.zst": zstd(lines(300)), "d.tar": tar(9),
    "e.parquet": parquet(["a", "b"]), "f.warc.wet.gz": wet(5), "g.txt": b"words",
    "h.tar.gz": gzip.compress(tar(9)),
}  # fmt: skip


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


DAMAGE = "file damaged or cut off"
FAULTS = [
    ("half.jsonl.gz", half(gzip.compress(lines(2000))), DAMAGE),
    ("no-trailer.jsonl.gz", gzip.compress(lines(50))[:-3], DAMAGE),
    ("half.jsonl.zst", half(zstd(lines(2000))), DAMAGE),
    ("other.jsonl.zst", b"this is not zstd at all" * 20, DAMAGE),
    ("other.jsonl.gz", b"this is not gzip at all" * 20, DAMAGE),
    ("flipped.jsonl.gz", gzip.compress(lines(500))[:9000] + bytes(50) + gzip.compress(lines(500))[9050:], DAMAGE),
    ("half.warc.wet.gz", half(wet(5000)), DAMAGE),
    ("half.tar", tar(9)[: 1536 * 4], DAMAGE),
    ("half.tar.gz", half(gzip.compress(tar(9))), DAMAGE),
    ("other.tar", b"no tar file" * 100, DAMAGE),
    ("half.parquet", half(parquet(["text"] * 1000)), "is no whole Parquet file"),
    ("other.parquet", parquet(["text"], "content"), "has no column 'text'; its columns are content"),
    ("empty.jsonl", b"", "empty file"),
    ("cut.jsonl", lines(2000) + b'{"text": "cut he', "not JSON"),
    ("mixed.jsonl", b'{"body": "x"}\n' + lines(20), "no text under the key"),
    ("latin.jsonl", '{"text": "Grüße"}\n'.encode("latin-1") + lines(20), "broken UTF-8"),
    ("latin.txt", "Grüße".encode("latin-1"), "broken UTF-8"),
    ("long.txt", b"x" * (9 << 20), "longer than max_document"),
]  # fmt: skip


def checked(cli: Cli, folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    path = write_pipeline(folder, paths="raw")
    done = cli("data", "check", str(path), "--json", *options)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def put(folder: Path, files: dict[str, bytes]) -> Path:
    (folder / "raw").mkdir()
    for name, content in files.items():
        (folder / "raw" / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("options", [(), ("--whole",)])
def test_good_files_of_every_kind_pass(cli: Cli, tmp_path: Path, options: tuple[str, ...]) -> None:
    code, answer = checked(cli, put(tmp_path, GOOD), *options)
    assert (code, answer["problems"]) == (0, [])
    assert (answer["num_files"], answer["num_not_read_to_end"]) == (len(GOOD), 0)
    done = cli("data", "check", str(tmp_path / "pipeline.toml"))
    assert "nothing is wrong" in done.stdout


@pytest.mark.parametrize(("name", "content", "words"), FAULTS, ids=[name for name, *_ in FAULTS])
def test_a_faulty_file_is_named_among_good_ones(
    cli: Cli, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    code, answer = checked(cli, put(tmp_path, GOOD | {name: content}))
    assert code == 1
    assert {one["file"] for one in answer["problems"]} == {str(tmp_path / "raw" / name)}
    assert words in answer["problems"][0]["problem"]
    done = cli("data", "check", str(tmp_path / "pipeline.toml"))
    assert done.returncode == 1
    assert "1 file with faults:" in done.stdout
    assert words in done.stdout
    assert not (tmp_path / "data-set").exists()


def test_a_fault_between_the_places_that_are_looked_at_needs_whole(cli: Cli, tmp_path: Path) -> None:
    content = lines(10_000)
    at = content.index(b"\n", len(content) // 2 - 200_000) + 1
    put(tmp_path, {"a.jsonl": content[:at] + b"not json\n" + content[at:]})
    assert checked(cli, tmp_path)[0] == 0
    code, answer = checked(cli, tmp_path, "--whole")
    assert code == 1
    assert answer["problems"][0]["place"] == f"{tmp_path / 'raw' / 'a.jsonl'} at byte {at}"


def test_compressed_files_beyond_the_bound_are_said_not_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scalewright.data.text.execution.check import check_pipeline
    from scalewright.data.text.reading import file_check

    content = gzip.compress(lines(3000))
    put(tmp_path, {f"{number}.jsonl.gz": half(content) if number == 2 else content for number in range(3)})
    path = write_pipeline(tmp_path, paths="raw")
    monkeypatch.setattr(file_check, "DRAINED_BYTES", 2 * len(content))
    beginnings = check_pipeline(path, is_whole=False, on_progress=lambda done, total: None)
    assert (beginnings.files.problems, beginnings.files.num_not_drained) == ((), 1)
    whole = check_pipeline(path, is_whole=True, on_progress=lambda done, total: None)
    assert [Path(one.file).name for one in whole.files.problems] == ["2.jsonl.gz"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scalewright.data.text.execution.check import check_pipeline
    from scalewright.data.text.reading import streams

    def refuse(path: Path) -> None:
        if path.name == "a.jsonl":
            raise PermissionError(13, "Permission denied")

    put(tmp_path, GOOD)
    monkeypatch.setattr(streams, "check_plain", refuse)
    answer = check_pipeline(write_pipeline(tmp_path, paths="raw"), is_whole=False, on_progress=lambda done, total: None)
    assert [(Path(one.file).name, one.problem) for one in answer.files.problems] == [
        ("a.jsonl", "cannot be read: Permission denied; ask its owner")
    ]


def test_fewer_compressed_files_than_cores_are_noted(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from scalewright.cli.data.check import run

    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    put(tmp_path, {"a.jsonl.gz": gzip.compress(lines(10)), "b.jsonl.gz": gzip.compress(lines(10))})
    run(write_pipeline(tmp_path, 'chunk = "1 kB"', paths="raw"))
    assert "2 tasks for the 16 cores of this machine: compressed files are not cut" in capsys.readouterr().out


def test_a_wrong_pipeline_file_is_still_refused(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    put(tmp_path, {"half.jsonl.gz": half(gzip.compress(lines(2000)))})
    path = write_pipeline(tmp_path, '[[filter]]\nrule = "wrds"', paths="raw")
    assert "words" in refused(cli("data", "check", str(path)), 2)
