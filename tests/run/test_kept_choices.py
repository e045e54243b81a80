"""Choices of kernels are kept in files; damaged ones are as good as none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalewright.run.generate.kept_choices import KeptChoices, choice_folder
from scalewright.run.generate.kernels.step_kernels import (
    PLACES,
    StepKernels,
    kept_kernels,
    padded_rows,
    possible_attention,
    possible_tiles,
)

KEY = {"device": "NVIDIA H200", "torch": "2.11.0", "triton": "3.6.0", "rows": 8, "products": {"qkv": [[6144, 2048]]}}


def possible(num_rows: int, *, is_fp32: bool = False) -> dict[str, list[Any]]:
    tiles = {place: possible_tiles(num_rows, can_split=place != "head", is_fp32=is_fp32) for place in PLACES}
    return tiles | {"attention": possible_attention(num_rows, 16, is_fp32=is_fp32, is_single=True)}


def last_choice(num_rows: int) -> StepKernels:
    """The last of our kernels for every part."""
    parts = {part: [c for c in choices if c is not None][-1] for part, choices in possible(num_rows).items()}
    return StepKernels(**parts)


def the_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("num_rows", [1, 8, 64])
def test_a_choice_comes_back_in_the_next_process(tmp_path: Path, num_rows: int) -> None:
    chosen = last_choice(num_rows)
    KeptChoices(tmp_path).write(KEY, chosen.document())
    assert kept_kernels(KeptChoices(tmp_path).read(KEY), possible(num_rows)) == chosen


def test_when_the_next_kernel_starts_is_kept_too(tmp_path: Path) -> None:
    chosen = last_choice(8)
    assert chosen.qkv is not None
    chosen = replace(chosen, qkv=replace(chosen.qkv, is_early=True), up=None)
    KeptChoices(tmp_path).write(KEY, chosen.document())
    assert kept_kernels(KeptChoices(tmp_path).read(KEY), possible(8)) == chosen


@pytest.mark.parametrize(
    "change", [{"device": "NVIDIA H100"}, {"torch": "2.12.0"}, {"triton": "3.7.0"}, {"rows": 16}, {"products": {}}]
)
def test_another_machine_version_or_size_is_timed_again(tmp_path: Path, change: dict[str, Any]) -> None:
    kept = KeptChoices(tmp_path)
    kept.write(KEY, last_choice(8).document())
    assert kept.read(KEY | change) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": "scalewright.kernel-choice/1"}', "\x00\xff"])
def test_a_damaged_file_is_ignored_and_written_again(tmp_path: Path, text: str) -> None:
    kept, choice = KeptChoices(tmp_path), last_choice(8).document()
    kept.write(KEY, choice)
    the_file(tmp_path).write_text(text)
    assert kept.read(KEY) == {}
    assert kept_kernels(kept.read(KEY), possible(8)) is None
    kept.write(KEY, choice)
    assert kept.read(KEY) == choice


@pytest.mark.parametrize("value", [3, "x", [], {"block_n": 64}, {"block_n": 63, "block_k": 128, "num_warps": 4}])
def test_tiles_that_are_not_possible_are_ignored(tmp_path: Path, value: object) -> None:
    kept = KeptChoices(tmp_path)
    kept.write(KEY, last_choice(8).document() | {"qkv": value})
    assert kept_kernels(kept.read(KEY), possible(8)) is None


def test_a_cut_file_is_never_seen(tmp_path: Path) -> None:
    KeptChoices(tmp_path).write(KEY, last_choice(8).document())
    assert json.loads(the_file(tmp_path).read_text())["key"] == KEY
    assert not list(tmp_path.glob("*.tmp"))


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    kept = KeptChoices(blocked / "folder")
    kept.write(KEY, last_choice(8).document())
    assert kept.read(KEY) == {}


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCALEWRIGHT_HOME", str(tmp_path))
    assert choice_folder() == tmp_path / "kernel_choices"
    monkeypatch.delenv("SCALEWRIGHT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert choice_folder() == tmp_path / "cache" / "scalewright" / "kernel_choices"


@pytest.mark.parametrize(("num_rows", "padded"), [(1, 1), (2, 8), (8, 8), (9, 16), (48, 64), (65, 128)])
def test_rows_are_padded_to_what_tensor_cores_take(num_rows: int, padded: int) -> None:
    assert padded_rows(num_rows) == padded


def test_many_rows_are_left_to_the_library() -> None:
    assert possible_tiles(129, can_split=True, is_fp32=False) == [None]
    assert possible_tiles(17, can_split=True, is_fp32=True) == [None]
