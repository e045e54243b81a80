"""One rule for all readers: an ordinary file of a sensible size, finite numbers, the types that belong there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.errors import DocumentError
from scalewright.records.documents import document, parse_json, read_document, read_text, to_json, write_document
from scalewright.records.events import json_lines, read_events
from scalewright.records.loader import parse_toml
from scalewright.records.plain_file import open_plain, read_plain
from scalewright.records.run_directory import RunDirectory
from scalewright.records.terminal_text import printable

READERS: tuple[Callable[[Path], object], ...] = (
    read_text,
    read_plain,
    open_plain,
    lambda path: read_document(path, "plan"),
    lambda path: list(read_events(path)),
    lambda path: list(json_lines(path)),
)


@pytest.mark.parametrize("number", range(len(READERS)))
def test_a_pipe_and_an_endless_device_are_refused_at_once(number: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in ((tmp_path / "pipe", "is a pipe"), (Path("/dev/zero"), "is a device"), (tmp_path, "a folder")):
        with pytest.raises(DocumentError, match=words):
            READERS[number](path)


def test_a_file_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no space
    with pytest.raises(DocumentError, match="1,099,511,627,776 bytes"):
        read_text(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 5000])
def test_json_numbers_are_finite(number: str) -> None:
    with pytest.raises(DocumentError) as refusal:
        parse_json(f'{{"a": {number}}}', where="here")
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e999", "9" * 5000, "[" * 5000, str(2**64)])
def test_toml_numbers_are_finite_and_small(value: str) -> None:
    with pytest.raises(DocumentError) as refusal:
        parse_toml(f"a = {value}", where="here")
    assert len(str(refusal.value)) < 250


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("step_time_s", -1.0, "cannot be negative"),
        ("step_time_s", "fast", "not a number"),
        ("step_time_interval_s", [3.0, 1.0], "from low to high"),
        ("memory_bytes", {"a": "b"}, "not a number"),
        ("num_gpus", 1e60, "no quantity"),
        ("is_efficient", 3, "not true or false"),
        ("reason", ["a", 3], "not a text"),
    ],
)
def test_values_of_plans_are_checked_by_their_keys(key: str, value: object, words: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_document(path, document("plan", {"best": {key: value}}))
    with pytest.raises(DocumentError, match=words) as refusal:
        read_document(path, "plan")
    assert f"best.{key}" in str(refusal.value)


def test_differences_of_plans_may_be_negative(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_document(path, document("plan", {"loss_s": -0.5, "terms_s": {"matmul": -0.1}, "step_time_interval_s": None}))
    assert read_document(path, "plan")["loss_s"] == -0.5


EXIT = {"code": 0, "reason": "finished", "job": "1", "attempt": 0, "rank": 0, "last_checkpoint": None, "time": 1.0}


def test_an_exit_info_of_a_newer_release_is_read(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    write_document(directory.exit_info, document("exit-info", EXIT | {"cause": "new", "ranks": [1, 2]}))
    info = directory.read_exit_info()
    assert info is not None
    assert (info.code, info.reason) == (0, "finished")


@pytest.mark.parametrize("body", [{}, EXIT | {"code": "x"}, EXIT | {"reason": ["a"]}])
def test_a_damaged_exit_info_is_refused(body: dict[str, object], tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    write_document(directory.exit_info, document("exit-info", body))
    with pytest.raises(DocumentError, match="not as it was written"):
        directory.read_exit_info()


@pytest.mark.parametrize("peak", [{}, "fast", -1.0, True])
def test_a_damaged_peak_is_refused(peak: object, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    write_document(directory.machine, document("machine", {"peak_flop_per_s": peak}))
    with pytest.raises(DocumentError, match="peak_flop_per_s"):
        directory.peak_flop_per_s()


EVENT = {"time": 1.0, "job": "1", "rank": 0, "host": "n", "step": 1, "name": "loss", "value": 1.0, "unit": "1"}


def test_events_with_numbers_that_are_not_finite_are_no_data(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    lines = [json.dumps(EVENT), json.dumps(EVENT | {"value": float("nan")}), json.dumps(EVENT).replace("1.0", "1e999")]
    path.write_text("\n".join([*lines, "[" * 100_000, "x" * 3_000_000, json.dumps(EVENT | {"step": 2}), ""]))
    assert [event.step for event in read_events(path)] == [1, 2]


@pytest.mark.parametrize("change", [{"rank": "x"}, {"step": 1.5}, {"step": 10**30}, {"time": -1.0}, {"value": {}}])
def test_an_event_with_a_wrong_value_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text(json.dumps(EVENT | change) + "\n")
    with pytest.raises(DocumentError, match=r"not written by scalewright|seconds since 1970"):
        list(read_events(path))


def test_no_character_of_a_file_steers_the_terminal() -> None:
    assert printable("a\x1b[31mb\x07\x9b2J\u202ec\td\n") == "a[31mb2Jc\td\n"
    assert "\x9b" not in to_json({"schema": "x", "a": "\x9b2J\u202e"})
    assert json.loads(to_json({"a": "\x9b2J\x1b"})) == {"a": "\x9b2J\x1b"}
