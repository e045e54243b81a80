"""Event files: what was written whole is read back, what was torn is never data, and a resumed writer starts afresh."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.errors import DocumentError, EnvironmentFailedError
from scalewright.records.events import Event, EventLine, EventTail, EventWriter, read_events


def line(step: int, value: float = 1.5, **more: str) -> str:
    formatter = EventLine(job='j"1', rank=3, host="node-7")
    return formatter.format(time_s=1000.25, step=step, name="loss", value=value, unit="1", **more)


def test_event_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "events" / "rank-3.jsonl"
    writer = EventWriter(path)
    writer.append(line(4, detail='a "quote"\nand a line'))
    writer.close()
    assert list(read_events(path)) == [
        Event(time=1000.25, job='j"1', rank=3, host="node-7", step=4, name="loss", value=1.5, unit="1",
              detail='a "quote"\nand a line')
    ]  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_number_that_json_cannot_hold_says_which(tmp_path: Path, value: float) -> None:
    path = tmp_path / "e.jsonl"
    writer = EventWriter(path)
    writer.append(line(1, value=value))
    (event,) = read_events(path)
    assert (event.value, event.detail) == (None, repr(value))
    for text in path.read_text().splitlines():
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in the file"))


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-1, 2**40))
def test_every_finite_number_survives(tmp_path_factory: pytest.TempPathFactory, value: float, step: int) -> None:
    path = tmp_path_factory.mktemp("e") / "e.jsonl"
    writer = EventWriter(path)
    writer.append(line(step, value=value))
    writer.close()
    (event,) = read_events(path)
    assert (event.value, event.step) == (value, step)


def test_file_torn_at_any_byte_gives_the_whole_lines_and_a_resumed_writer_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    writer = EventWriter(path)
    writer.append("".join(line(step) for step in range(4)))
    writer.close()
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        survived = whole[header:cut].count(b"\n") if cut > header else 0
        # a line that only lacks its newline is whole all the same
        ends_whole = cut > header and whole[cut : cut + 1] == b"\n"
        assert [e.step for e in read_events(path)] == list(range(survived + ends_whole)), cut
        again = EventWriter(path)
        again.append(line(9))
        again.close()
        assert [e.step for e in read_events(path)] == [*range(survived + ends_whole), 9], cut


def test_tail_gives_each_event_once_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    tail = EventTail(path)
    assert tail.read() == []
    writer = EventWriter(path)
    writer.append(line(0))
    assert [e.step for e in tail.read()] == [0]
    with path.open("ab") as file:
        file.write(line(1).encode()[:20])
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(line(1).encode()[20:])
    assert [e.step for e in tail.read()] == [1]
    assert tail.read() == []


def test_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"schema": "scalewright.events/2"}\n')
    with pytest.raises(DocumentError, match="newer"):
        list(read_events(path))


def test_line_without_what_an_event_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"time": 1.0, "name": "loss"}\n')
    with pytest.raises(DocumentError, match="an event lacks"):
        list(read_events(path))


def test_full_disk_is_one_sentence() -> None:
    with pytest.raises(EnvironmentFailedError, match="No space left"):
        EventWriter(Path("/dev/full"))


WRITER = """
import sys
from pathlib import Path
from scalewright.records.events import EventLine, EventWriter
formatter, writer = EventLine(job="j", rank=0, host="h"), EventWriter(Path(sys.argv[1]))
for step in range(200):
    writer.append(3 * formatter.format(time_s=1.0, step=step, name="loss", value=1.5, unit="1"))
"""


@pytest.mark.ranks
def test_two_writers_of_one_file_never_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(list(read_events(path))) == 2 * 200 * 3
    assert all(json.loads(text) for text in path.read_text().splitlines())
