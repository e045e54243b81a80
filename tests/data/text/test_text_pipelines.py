"""Text pipelines from outside: what is read, kept, dropped and written, whoever works and wherever it was ended."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from text_cases import made_text, run_pipeline, train_small_tokenizer, write_pipeline, write_rows, written_rows

from scalewright.errors import ConfigError

if TYPE_CHECKING:
    from conftest import Cli, Refused

TEXTS = [made_text(number) for number in range(8)]


def rows(texts: list[str]) -> list[dict[str, Any]]:
    return [{"text": text, "url": f"http://a.org/{number}"} for number, text in enumerate(texts)]


def as_tar(texts: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number, text in enumerate(texts):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def as_wet(texts: list[str]) -> bytes:
    records = [
        f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: http://a.org/{number}\r\n"
        f"Content-Length: {len(text.encode())}\r\n\r\n{text}\r\n\r\n"
        for number, text in enumerate(texts)
    ]
    return b"".join(gzip.compress(record.encode()) for record in records)  # a member for each, as crawls are stored


def as_zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(content)
    return sink.getvalue().to_pybytes()


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows(texts)).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("in.jsonl", lines(TEXTS)),
        ("in.jsonl.gz", gzip.compress(lines(TEXTS))),
        ("in.jsonl.zst", as_zstd(lines(TEXTS[:4])) + as_zstd(lines(TEXTS[4:]))),
        ("in.warc.wet.gz", as_wet(TEXTS)),
        ("in.tar", as_tar(TEXTS)),
        ("in.tar.gz", gzip.compress(as_tar(TEXTS))),
    ],
)
def test_every_format_gives_its_documents(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    result = run_pipeline(write_pipeline(tmp_path, paths=name), tmp_path / "out")
    assert [row["text"] for row in written_rows(tmp_path / "out")] == TEXTS
    assert result["num_documents"] == len(TEXTS)
    assert result["problems"] == []


def test_parquet_and_text_files_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": TEXTS[:6], "n": range(6)}), tmp_path / "a.parquet", row_group_size=2)
    (tmp_path / "b.txt").write_text(TEXTS[6])
    (tmp_path / "c.md").write_text(TEXTS[7])
    run_pipeline(write_pipeline(tmp_path, 'chunk = "100 B"', paths="*.[pmt]*"), tmp_path / "out")
    assert [row["text"] for row in written_rows(tmp_path / "out")][:6] == TEXTS[:6]
    kept = {row["text"] for row in written_rows(tmp_path / "out")}
    assert set(TEXTS) <= kept | {(tmp_path / "pipeline.toml").read_text()}


def test_a_page_of_a_crawl_gives_its_visible_text(tmp_path: Path) -> None:
    page = "<html><head><title>t</title><body><p>One &amp; two</p><script>x()</script><div>three</div></body></html>"
    http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n{page}"
    record = (
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://b.org/\r\n"
        f"Content-Length: {len(http)}\r\n\r\n{http}\r\n\r\n"
    )
    (tmp_path / "in.warc.gz").write_bytes(gzip.compress(record.encode()))
    run_pipeline(write_pipeline(tmp_path, paths="in.warc.gz"), tmp_path / "out")
    (row,) = written_rows(tmp_path / "out")
    assert (row["text"], row["url"]) == ("One & two\nthree", "http://b.org/")


def test_lines_cut_anywhere_are_read_once(tmp_path: Path) -> None:
    texts = [made_text(number, num_words=5 + number % 40) for number in range(200)]
    write_rows(tmp_path / "in.jsonl", rows(texts))
    for chunk in (97, 512, 4096):
        out = tmp_path / f"out-{chunk}"
        run_pipeline(write_pipeline(tmp_path, f'chunk = "{chunk} B"'), out)
        assert [row["text"] for row in written_rows(out)] == texts


def read_index(path: Path) -> tuple[int, list[int], list[int], list[int]]:
    """An index file by the published layout, read without our code."""
    content = path.read_bytes()
    assert content[:9] == b"MMIDIDX\x00\x00"
    version, code, num, num_documents = struct.unpack("<QBQQ", content[9:34])
    assert version == 1
    at = 34
    lengths = list(struct.unpack(f"<{num}i", content[at : at + 4 * num]))
    at += 4 * num
    pointers = list(struct.unpack(f"<{num}q", content[at : at + 8 * num]))
    at += 8 * num
    documents = list(struct.unpack(f"<{num_documents}q", content[at:]))
    return code, lengths, pointers, documents


def test_megatron_files_hold_the_documents_and_decode_to_the_texts(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = train_small_tokenizer(tmp_path / "tok")
    write_rows(tmp_path / "in.jsonl", rows([*TEXTS, "Ünïcode – 文字 🙂 text"]))
    path = write_pipeline(tmp_path, '[tokenise]\ntokenizer = "tok"', write='format = "megatron"')
    result = run_pipeline(path, tmp_path / "out")
    code, lengths, pointers, documents = read_index(tmp_path / "out" / "shard-00000.idx")
    tokens = np.fromfile(tmp_path / "out" / "shard-00000.bin", np.uint16)
    assert code == 8
    assert documents == list(range(10))
    assert len(tokens) == sum(lengths) == result["num_tokens"]
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = []
    for length, pointer in zip(lengths, pointers, strict=True):
        piece = tokens[pointer // 2 : pointer // 2 + length]
        assert piece[-1] == inner.token_to_id("<|endoftext|>")
        texts.append(inner.decode(piece[:-1].tolist()))
    assert texts == [*TEXTS, "Ünïcode – 文字 🙂 text"]


def test_packed_sequences_hold_every_token_once(tmp_path: Path) -> None:
    train_small_tokenizer(tmp_path / "tok")
    write_rows(tmp_path / "in.jsonl", rows(TEXTS))
    pack = '[tokenise]\ntokenizer = "tok"\n[pack]\nsequence = 64'
    run_pipeline(write_pipeline(tmp_path, pack, write='format = "npy"'), tmp_path / "plain")
    run_pipeline(write_pipeline(tmp_path, pack + "\n[shuffle]", write='format = "npy"'), tmp_path / "mixed")
    whole = write_pipeline(tmp_path, '[tokenise]\ntokenizer = "tok"', write='format = "megatron"')
    run_pipeline(whole, tmp_path / "whole")
    plain, mixed = (np.load(tmp_path / name / "shard-00000.npy") for name in ("plain", "mixed"))
    tokens = np.fromfile(tmp_path / "whole" / "shard-00000.bin", np.uint16)
    assert plain.shape == (len(tokens) // 64, 64)
    assert np.array_equal(plain.reshape(-1), tokens[: plain.size])
    assert not np.array_equal(plain, mixed)
    assert mixed.shape == plain.shape


def test_our_readers_open_what_is_written(tmp_path: Path) -> None:
    from scalewright.data.tokens.token_set import open_token_set

    train_small_tokenizer(tmp_path / "tok")
    write_rows(tmp_path / "in.jsonl", rows(TEXTS))
    pack = '[tokenise]\ntokenizer = "tok"\n[pack]\nsequence = 64\n[shuffle]'
    for name in ("npy", "megatron", "parquet"):
        result = run_pipeline(
            write_pipeline(tmp_path, pack, write=f'format = "{name}"\nnum_shards = 2'), tmp_path / name
        )
        assert open_token_set(tmp_path / name).num_tokens == result["num_tokens"] > 0


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name.startswith("shard-")}


FULL = """chunk = "3 kB"
[normalise]
[[filter]]
rule = "gopher_quality"
[deduplicate]
url = true
near = {}
[tokenise]
tokenizer = "tok"
[shuffle]"""


def varied_rows(num: int) -> list[dict[str, Any]]:
    made = rows([made_text(number) for number in range(num)])
    copies = [{**row, "url": ""} for row in made[: num // 10]]
    near = [{"text": f"{row['text']} one more.", "url": ""} for row in made[num // 10 : num // 5]]
    return [*made, *copies, *near, {"text": "too short", "url": ""}]


def test_the_number_of_workers_changes_no_byte(tmp_path: Path) -> None:
    train_small_tokenizer(tmp_path / "tok")
    write_rows(tmp_path / "in.jsonl", varied_rows(60))
    path = write_pipeline(tmp_path, FULL, write='format = "megatron"\nnum_shards = 3')
    results = {num: run_pipeline(path, tmp_path / f"out-{num}", num_workers=num) for num in (1, 2, 4)}
    assert files_of(tmp_path / "out-1") == files_of(tmp_path / "out-2") == files_of(tmp_path / "out-4")
    assert len(files_of(tmp_path / "out-1")) == 6
    assert results[1]["steps"]["deduplicate"]["reasons"] == {"equal text": 6, "near duplicate": 6}
    assert results[1]["steps"]["filter gopher_quality"]["reasons"] == {"words": 1}
    for result in results.values():
        for step in result["steps"].values():
            step["cpu_s"] = 0
    assert results[1]["steps"] == results[2]["steps"] == results[4]["steps"]
    again = run_pipeline(path, tmp_path / "out-1")
    assert again["id"] == results[1]["id"]
    assert not (tmp_path / "out-1" / ".work").exists()


def test_another_seed_gives_another_order_of_the_same_documents(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", rows([made_text(number) for number in range(40)]))
    path = write_pipeline(tmp_path, "[shuffle]")
    run_pipeline(path, tmp_path / "a")
    path.write_text(path.read_text().replace("seed = 3", "seed = 4"))
    run_pipeline(path, tmp_path / "b")
    one, two = ([row["id"] for row in written_rows(tmp_path / name)] for name in "ab")
    assert one != two
    assert sorted(one) == sorted(two) == list(range(40))
    assert one != sorted(one)


def test_near_duplicates_are_found_and_others_kept(tmp_path: Path) -> None:
    """Planted pairs around the threshold, judged by the exact Jaccard index of their 5-grams."""
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(5000)]
    texts = []
    for number in range(400):
        first = [str(word) for word in rng.choice(words, 300)]
        second = first.copy()
        for at in rng.choice(300, 1 + number % 15, replace=False):
            second[at] = f"x{rng.integers(10**9)}"
        texts += [" ".join(first), " ".join(second)]
    write_rows(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    run_pipeline(write_pipeline(tmp_path, "[deduplicate]\nnear = {}"), tmp_path / "out")
    kept = {row["text"] for row in written_rows(tmp_path / "out")}

    def ngrams(text: str) -> set[tuple[str, ...]]:
        split = text.split()
        return {tuple(split[at : at + 5]) for at in range(len(split) - 4)}

    likeness = [
        len(a & b) / len(a | b)
        for a, b in ((ngrams(x), ngrams(y)) for x, y in zip(texts[::2], texts[1::2], strict=True))
    ]
    dropped = [text not in kept for text in texts[1::2]]
    alike = [drop for drop, value in zip(dropped, likeness, strict=True) if value >= 0.8]
    others = [drop for drop, value in zip(dropped, likeness, strict=True) if value < 0.8]
    assert len(alike) > 100 < len(others)
    assert sum(alike) / len(alike) >= 0.95
    assert sum(alike) / max(sum(dropped), 1) >= 0.99
    assert not any(others)
    assert all(text in kept for text in texts[::2])  # the first of each pair stays


def test_documents_with_a_benchmark_in_them_are_left_out(tmp_path: Path) -> None:
    question = "A train leaves the station at noon and travels at sixty miles an hour for three hours."
    write_rows(tmp_path / "bench.jsonl", [{"question": question}])
    write_rows(tmp_path / "in.jsonl", rows([*TEXTS, f"{TEXTS[0]} {question.upper()} {TEXTS[1]}"]))
    table = '[decontaminate]\npaths = ["bench.jsonl"]'
    result = run_pipeline(write_pipeline(tmp_path, table), tmp_path / "out")
    assert [row["text"] for row in written_rows(tmp_path / "out")] == TEXTS
    assert sum(result["steps"]["decontaminate"]["reasons"].values()) == 1


def test_broken_input_is_counted_and_the_rest_is_kept(tmp_path: Path) -> None:
    good = lines(TEXTS[:2])
    bad = (
        b'{"text": "a\xff b"}\n' + b"not json\n" + b'{"other": 1}\n' + b'{"text": 5}\n' + b'{"text": "\\ud83d half"}\n'
    )
    long = b'{"text": "' + b"x" * 5000 + b'"}\n'
    (tmp_path / "in.jsonl").write_bytes(good + bad + long + lines(TEXTS[2:4]))
    whole = gzip.compress(lines([made_text(number) for number in range(100, 400)]))
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    result = run_pipeline(write_pipeline(tmp_path, 'max_document = "4 kB"', paths="*.jsonl*"), tmp_path / "out")
    counts = {one["problem"]: one["count"] for one in result["problems"]}
    assert counts == {
        "broken UTF-8, repaired": 2, "not JSON": 1, "no text under the key": 2, "longer than max_document": 1,
        "file damaged or cut off": 1,
    }  # fmt: skip
    texts = [row["text"] for row in written_rows(tmp_path / "out")]
    assert "a\ufffd b" in texts
    assert set(TEXTS[:4]) <= set(texts)
    assert len(texts) > 20  # what came before the cut
    aside = [json.loads(line) for line in (tmp_path / "out" / "aside.jsonl").read_text().splitlines()]
    assert result["num_aside"] == len(aside) == 5  # what was repaired is in the result
    assert aside[0]["reason"] == "file damaged or cut off"
    assert aside[0]["file"] == str(tmp_path / "cut.jsonl.gz")
    source = (tmp_path / "in.jsonl").read_bytes()
    for one in aside[1:]:
        begins = source[one["byte"] :]
        assert begins.startswith(one["text"].encode())
        assert one["origin"] == f"{tmp_path / 'in.jsonl'} at byte {one['byte']}"
        assert begins[one["num_bytes"] : one["num_bytes"] + 1] == b"\n"
    assert [one["reason"] for one in aside[1:]] == [
        "not JSON", "no text under the key", "no text under the key", "longer than max_document"
    ]  # fmt: skip
    assert [one["is_whole"] for one in aside[1:]] == [True, True, True, False]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_what_is_kept_aside_does_not_depend_on_the_workers(tmp_path: Path, num_workers: int) -> None:
    rows_of_file = b"".join(lines([text]) + b"broken %d\n" % number for number, text in enumerate(TEXTS))
    (tmp_path / "in.jsonl").write_bytes(rows_of_file)
    run_pipeline(write_pipeline(tmp_path, 'chunk = "900 B"'), tmp_path / "out", num_workers=num_workers)
    aside = [json.loads(line) for line in (tmp_path / "out" / "aside.jsonl").read_text().splitlines()]
    assert [one["text"] for one in aside] == [f"broken {number}" for number in range(8)]


def test_contents_kept_aside_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scalewright.data.text.reading import aside as module

    monkeypatch.setattr(module, "MOST_CONTENT_BYTES", 10_000)
    (tmp_path / "in.jsonl").write_bytes((b"x" * 5000 + b"\n") * 40 + lines(TEXTS[:1]))
    run_pipeline(write_pipeline(tmp_path), tmp_path / "out")
    aside = [json.loads(line) for line in (tmp_path / "out" / "aside.jsonl").read_text().splitlines()]
    assert [len(one["text"]) for one in aside] == [4096] * 3 + [0] * 37
    assert [one["byte"] for one in aside] == [5001 * number for number in range(40)]


def test_a_callable_that_fails_on_one_document_loses_no_other(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def keep(text, url):\n"
        "    if url.endswith('3'):\n        return 1 / 0 > 1\n"
        "    return 'my reason' if url.endswith('5') else True\n"
    )
    write_rows(tmp_path / "in.jsonl", rows(TEXTS))
    result = run_pipeline(write_pipeline(tmp_path, '[[filter]]\ncallable = "mine.py:keep"'), tmp_path / "out")
    assert result["steps"]["filter callable keep"]["reasons"] == {"raised an error": 1, "my reason": 1}
    (aside,) = [json.loads(line) for line in (tmp_path / "out" / "aside.jsonl").read_text().splitlines()]
    assert (aside["text"], aside["error"]) == (TEXTS[3], "ZeroDivisionError: division by zero")
    assert (aside["reason"], aside["url"], aside["is_whole"]) == ("raised an error", "http://a.org/3", True)
    assert len(written_rows(tmp_path / "out")) == 6


@pytest.mark.parametrize(
    ("tables", "paths", "words"),
    [
        ("", "none/*.jsonl", "matches no file"),
        ("", "empty", "is a folder without files"),
        ('text_field = "body"', "in.jsonl", "set text_field"),
        ('[tokenise]\ntokenizer = "tok"\nvocab = 200', "in.jsonl", "the model's vocabulary is 200"),
        ('[tokenise]\ntokenizer = "nowhere"', "in.jsonl", "train-tokenizer"),
        ('[tokenise]\ntokenizer = "tok"\nend_of_document = "<no>"', "in.jsonl", "has no token '<no>'"),
        ('[[filter]]\nrule = "gopher"', "in.jsonl", "gopher_quality"),
        ('[[filter]]\nrule = "words"\nminimum = 5\nmaximum = 2', "in.jsonl", "above maximum"),
        ('[[filter]]\ncallable = "none.py:f"', "in.jsonl", "is not there"),
        ('[[filter]]\nrule = "language"\nlanguages = ["english"]', "in.jsonl", "no language is called"),
        ("[deduplicate]\nnear = {bandz = 3}", "in.jsonl", "bands"),
        ("", "other.parquet", "has no column 'text'"),
        ("", "half.parquet", "no whole Parquet file"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(tmp_path: Path, tables: str, paths: str, words: str) -> None:
    write_rows(tmp_path / "in.jsonl", rows(TEXTS))
    train_small_tokenizer(tmp_path / "tok")
    (tmp_path / "empty").mkdir()
    pq.write_table(pa.table({"content": TEXTS}), tmp_path / "other.parquet")
    (tmp_path / "half.parquet").write_bytes((tmp_path / "other.parquet").read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r".") as refused:
        run_pipeline(write_pipeline(tmp_path, tables, paths=paths), tmp_path / "out")
    assert words in str(refused.value)
    assert not list((tmp_path / "out").glob("shard*")) if (tmp_path / "out").exists() else True


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", rows(TEXTS))
    path = write_pipeline(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"is not empty \(thesis.tex\)"):
        run_pipeline(path, tmp_path / "mine")
    run_pipeline(path, tmp_path / "out")
    before = files_of(tmp_path / "out")
    write_rows(tmp_path / "in.jsonl", rows(TEXTS[:3]))
    with pytest.raises(ConfigError, match="inputs have changed"):
        run_pipeline(path, tmp_path / "out")
    assert files_of(tmp_path / "out") == before


def test_a_set_is_read_again_without_what_lies_beside_its_shards(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(TEXTS) + b"not json\n")
    run_pipeline(write_pipeline(tmp_path, write='format = "parquet"'), tmp_path / "first")
    assert (tmp_path / "first" / "aside.jsonl").is_file()
    result = run_pipeline(write_pipeline(tmp_path, paths="first"), tmp_path / "second")
    assert [row["text"] for row in written_rows(tmp_path / "second")] == TEXTS
    assert (result["input"]["num_files"], result["problems"]) == (1, [])


def test_a_wrong_key_can_be_corrected_for_the_same_folder(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"body": text} for text in TEXTS])
    with pytest.raises(ConfigError, match="set text_field"):
        run_pipeline(write_pipeline(tmp_path), tmp_path / "out")
    result = run_pipeline(write_pipeline(tmp_path, 'text_field = "body"'), tmp_path / "out")
    assert result["num_documents"] == len(TEXTS)


def test_a_folder_without_a_result_is_named_as_such(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    assert "no run of a pipeline has ended there" in refused(cli("data", "show", str(tmp_path)), 2)
    write_rows(tmp_path / "in.jsonl", rows(TEXTS))
    run_pipeline(write_pipeline(tmp_path), tmp_path / "out")
    assert "is a set of texts or tokens" in refused(cli("data", "sizes", str(tmp_path / "out")), 2)


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    import fcntl

    write_rows(tmp_path / "in.jsonl", rows(TEXTS))
    path = write_pipeline(tmp_path)
    (tmp_path / "out").mkdir()
    handle = os.open(tmp_path / "out" / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another run"):
        run_pipeline(path, tmp_path / "out")
    os.close(handle)
    assert run_pipeline(path, tmp_path / "out")["num_documents"] == len(TEXTS)


def test_the_page_escapes_what_documents_hold(tmp_path: Path) -> None:
    from scalewright.report.data.page import data_page

    hostile = "<script>alert(1)</script> & <b>bold</b>"
    write_rows(tmp_path / "in.jsonl", [*rows(TEXTS), {"text": hostile, "url": "javascript:<img>"}])
    result = run_pipeline(write_pipeline(tmp_path, '[[filter]]\nrule = "words"'), tmp_path / "out")
    page = data_page(result, "<i>name</i>")
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert "<i>name" not in page
    assert "filter words: words" in page


def test_a_line_that_is_larger_than_memory_for_it_is_skipped(tmp_path: Path) -> None:
    """The file is sparse: it takes no room on disk."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(TEXTS[:1]))
    os.truncate(path, 400 * 2**20)
    with path.open("ab") as file:
        file.write(b"\n" + lines(TEXTS[1:2]))
    code = (
        "import re, sys; from pathlib import Path; from text_cases import run_pipeline\n"
        "r = run_pipeline(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        # ru_maxrss would count the memory of the process that started this one
        "peak = re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())\n"
        "print(r['num_documents'], r['problems'][0]['count'], peak.group(1))"
    )
    pipeline = write_pipeline(tmp_path, 'chunk = "128 MiB"')
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(pipeline), str(tmp_path / "out")],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    num_documents, num_long, peak_kib = map(int, done.stdout.split())
    assert (num_documents, num_long) == (2, 1)
    assert peak_kib < 300 * 1024
