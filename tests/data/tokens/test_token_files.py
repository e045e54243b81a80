"""Token sets on disk: each format gives the same tokens, and damaged ones are refused in one sentence."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from token_cases import write_megatron, write_npy, write_parquet

from scalewright.data.tokens.mixture import WeightedPath, parse_sets
from scalewright.data.tokens.samples import TokenSamples, open_samples_of
from scalewright.data.tokens.token_set import TokenSet, open_token_set, token_files
from scalewright.errors import ConfigError, DocumentError

DOCUMENTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [10, 11], [12, 13, 14, 15, 16, 17]]
TOKENS = list(range(1, 18))


def all_tokens(one: TokenSet) -> list[int]:
    return one.read(0, one.num_tokens).tolist()


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int32", "int64"])
def test_every_format_gives_the_same_tokens(tmp_path: Path, kind: str) -> None:
    sets = [
        write_npy(tmp_path / "set.npy", TOKENS),
        write_megatron(tmp_path / "set", DOCUMENTS, kind),
        write_parquet(tmp_path / "set.parquet", DOCUMENTS),
    ]
    for path in sets:
        opened = open_token_set(path)
        assert all_tokens(opened) == TOKENS
        for start in range(len(TOKENS)):
            assert opened.read(start, min(start + 4, len(TOKENS))).tolist() == TOKENS[start : start + 4]


def test_samples_of_a_mapped_set_do_not_depend_on_its_format(tmp_path: Path) -> None:
    npy, megatron = write_npy(tmp_path / "a.npy", TOKENS), write_megatron(tmp_path / "b", DOCUMENTS)
    rows = [
        open_samples_of([WeightedPath(path=p)], seq_len=4, seed=5).read(range(12)).tolist() for p in (npy, megatron)
    ]
    assert rows[0] == rows[1]


def test_parquet_decodes_a_row_group_once_while_its_windows_last(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(3):
        rows = [rng.integers(0, 99, rng.integers(5, 30)).tolist() for _ in range(40)]
        write_parquet(tmp_path / f"part{number}.parquet", rows, rows_per_group=2)
    one = open_token_set(tmp_path)
    samples = TokenSamples([one], seq_len=4, seed=0)
    total = samples.num_windows[0]
    whole = one.read(0, one.num_tokens)
    for first in range(0, total, 7):
        indices = range(first, min(first + 7, total))
        for row, window in zip(samples.read(indices), samples.places(indices)[1], strict=True):
            assert row.tolist() == whole[window * 4 : window * 4 + 5].tolist()
    assert sorted(samples.places(range(total))[1].tolist()) == list(range(total))


def test_a_folder_and_a_prefix_name_a_set(tmp_path: Path) -> None:
    write_megatron(tmp_path / "text_document", DOCUMENTS)
    assert token_files(tmp_path / "text_document") == [tmp_path / "text_document.bin"]
    assert token_files(tmp_path / "text_document.idx") == [tmp_path / "text_document.bin"]
    assert token_files(tmp_path) == [tmp_path / "text_document.bin"]
    folder = tmp_path / "many"
    folder.mkdir()
    write_npy(folder / "b.npy", [4, 5])
    write_npy(folder / "a.npy", [1, 2, 3])
    assert all_tokens(open_token_set(folder)) == [1, 2, 3, 4, 5]


def test_sets_with_weights_are_read_from_one_text(tmp_path: Path) -> None:
    odd = write_npy(tmp_path / "odd:3.npy", TOKENS)
    plain = write_npy(tmp_path / "a.npy", TOKENS)
    assert parse_sets(f"{plain}:0.25,{odd}") == [WeightedPath(path=plain, weight=0.25), WeightedPath(path=odd)]
    assert parse_sets(str(odd)) == [WeightedPath(path=odd)]
    assert parse_sets(",".join(map(str, parse_sets(f"{plain}:0.25,{odd}:7")))) == parse_sets(f"{plain}:0.25,{odd}:7")
    for bad in (":2", "a.npy,", "a.npy:0", "a.npy:-1", "a.npy:nan", "a.npy:inf"):
        with pytest.raises(ConfigError):
            parse_sets(bad)


def test_what_is_no_token_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    write_npy(mixed / "a.npy", [1])
    write_parquet(mixed / "b.parquet", [[1]])
    (tmp_path / "notes.txt").write_text("text")
    write_npy(tmp_path / "short.npy", [1, 2, 3])
    for name, match in (
        ("absent.npy", "no such data set"), ("empty", "holds no token set"), ("mixed", r"\.npy and \.parquet"),
        ("notes.txt", "is not a token set"), ("short.npy", "3 tokens, fewer than one sample of 8"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=match):
            open_samples_of([WeightedPath(path=tmp_path / name)], seq_len=8, seed=0)


@pytest.mark.parametrize("content", [b"", b"not numpy", b"\x93NUMPY\x01\x00"])
def test_a_damaged_npy_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.npy"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"tokens\.npy"):
        open_token_set(path)


def test_a_truncated_or_three_dimensional_npy_file_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "cube.npy", np.zeros((4, 4, 4), dtype=np.uint16))
    np.save(tmp_path / "floats.npy", np.zeros(4))
    np.save(tmp_path / "short.npy", np.zeros(1000, dtype=np.uint16))
    whole = (tmp_path / "short.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(whole[:500])
    for name in ("cube", "short", "floats"):
        with pytest.raises(ConfigError, match=name):
            open_token_set(tmp_path / f"{name}.npy")


def test_a_damaged_megatron_set_is_refused(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "set", DOCUMENTS)
    index = (tmp_path / "set.idx").read_bytes()
    floats = index[:17] + struct.pack("<B", 7) + index[18:]
    for content in (b"", b"junk" * 20, index[:-1], index[:9] + struct.pack("<Q", 2) + index[17:], floats):
        (tmp_path / "set.idx").write_bytes(content)
        with pytest.raises(ConfigError, match=r"set\.idx"):
            open_token_set(path)
    (tmp_path / "set.idx").write_bytes(index)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ConfigError, match=r"has 32 bytes, and its index 17 tokens"):
        open_token_set(path)
    (tmp_path / "set.idx").unlink()
    with pytest.raises(ConfigError, match="no such file"):
        open_token_set(path)


def test_a_parquet_file_of_texts_is_refused_and_not_trained_on_its_numbers(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]}), tmp_path / "shard.parquet")
    with pytest.raises(DocumentError, match="has id, text, and none of them is clearly the tokens; write a column"):
        open_token_set(tmp_path)


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "set.parquet", DOCUMENTS, column="words")
    assert all_tokens(open_token_set(path)) == TOKENS  # the only column that can be tokens
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="not a whole Parquet file"):
        open_token_set(path)
    write_parquet(path, [[1, 2], []])
    with pytest.raises(ConfigError, match="empty rows"):
        all_tokens(open_token_set(path))


def test_tokens_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    path = write_npy(tmp_path / "set.npy", [1, 2, 70, 3, 4])
    with pytest.raises(ConfigError, match="token 70"):
        open_samples_of([WeightedPath(path=path)], seq_len=2, seed=0, vocab=64).read(range(2))
