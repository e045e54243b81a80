"""Trace files as they lie around: packed, cut short, broken, hostile, without what they should say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.observe.trace_maker import collective, kernel, launch, read, span, step, trace, written

from scalewright.observe.readers.event_scan import ScanResult, scan_events

EVENTS = [step(0, 100), kernel(0, 60), collective(40, 80)]


def scanned(text: str, size: int = 7) -> tuple[list[object], ScanResult]:
    result = ScanResult()
    data = text.encode()
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return list(scan_events(pieces, result)), result


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 10_000])
@pytest.mark.parametrize("indent", [None, 2])
def test_events_are_the_same_whatever_the_pieces(size: int, indent: int | None) -> None:
    document = {
        "a": {"b": [1, 2.5e3]},
        "n": 12345,
        "traceEvents": [*EVENTS, {"ph": "M", "name": 'µ \\" }],{'}],
        "z": "end",
    }
    events, result = scanned(json.dumps(document, indent=indent, ensure_ascii=False), size)
    assert events == document["traceEvents"]
    assert result.metadata == {"a": {"b": [1, 2.5e3]}, "n": 12345, "z": "end"}
    assert not result.is_truncated
    assert result.num_broken == 0


@pytest.mark.parametrize("size", [3, 50, 4096])
def test_arrows_between_events_are_passed_over(size: int) -> None:
    arrows = [{"ph": phase, "id": 4, "pid": 0, "tid": 7, "ts": 1, "cat": "ac2g", "name": name}
              for phase in "sft" for name in ("ac2g", 'a "}],[{ b')]  # fmt: skip
    events, result = scanned(json.dumps(trace([*arrows, EVENTS[0], *arrows, *arrows, EVENTS[1]])), size)
    assert [event for event in events if isinstance(event, dict) and event["ph"] == "X"] == EVENTS[:2]
    assert (result.num_events, result.num_broken, result.is_truncated) == (20, 0, False)


def test_a_bare_list_may_lack_its_end() -> None:
    text = json.dumps(EVENTS)
    assert scanned(text)[0] == EVENTS
    events, result = scanned(text[:-1])
    assert events == EVENTS
    assert result.is_truncated


@pytest.mark.parametrize("cut", [10, 150, 400])
def test_a_cut_file_gives_what_is_there(cut: int) -> None:
    text = json.dumps(trace(EVENTS))
    events, result = scanned(text[:-cut])
    assert (events == EVENTS[: len(events)] and len(events) < 3) or cut == 10
    assert result.is_truncated


def test_an_event_that_is_no_json_is_repaired_or_left_out() -> None:
    good = json.dumps(EVENTS[1])
    empty = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"Description": , "x": -nan}}'
    hopeless = '{"ph": "X", "name": "a"b", "ts": 1}'
    events, result = scanned(f'{{"traceEvents": [{good},\n{empty},\n{hopeless},\n{good}], "rest": 1}}', 4096)
    assert [event.get("name") for event in events if isinstance(event, dict)] == [
        EVENTS[1]["name"],
        "k",
        EVENTS[1]["name"],
    ]
    assert result.num_broken == 2
    assert result.metadata == {"rest": 1}


def test_a_value_beside_the_events_that_is_no_json() -> None:
    events, result = scanned(f'{{"deviceProperties": [{{"name": }}], "traceEvents": {json.dumps(EVENTS)}}}', 4096)
    assert events == EVENTS
    assert result.left_out == ["deviceProperties"]


def test_a_key_that_is_no_json() -> None:
    events, result = scanned(f'{{broken: 1, "traceEvents": {json.dumps(EVENTS)}}}', 4096)
    assert events == EVENTS
    assert result.left_out == [""]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{x",
        "{x: 1}",
        "[",
        "[[[[",
        '{"traceEvents"',
        '{"traceEvents": {}}',
        "nonsense",
        "[" * 200_000,
        '{"a":' * 50_000,
    ],
)
def test_hostile_text_ends_quietly(text: str) -> None:
    assert scanned(text, 4096)[0] == []


def test_a_packed_trace_with_what_it_says_of_its_run(tmp_path: Path) -> None:
    path = written(
        tmp_path / "x", EVENTS, packed=True, rank=5, num_ranks=16, host_name="node7",
        deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
    )  # fmt: skip
    evidence = read(path)
    (time,) = evidence.rank_times
    assert (time.rank, time.host, time.step) == (5, "node7", 3)
    assert evidence.sources[0].kind == "kineto trace"
    assert evidence.sources[0].problem == ""
    assert evidence.settings["num_ranks"][0] == "16"
    assert evidence.settings["accelerator"][0] == "NVIDIA H100 80GB HBM3"


def test_a_rank_that_only_the_name_says_and_one_that_nothing_says(tmp_path: Path) -> None:
    written(tmp_path / "rank-3.json", EVENTS, rank=None)
    written(tmp_path / "trace.json", EVENTS, rank=None)
    evidence = read(tmp_path)
    assert sorted(time.rank for time in evidence.rank_times) == [0, 3]
    assert [note for note in evidence.notes if "does not say its rank" in note]


def test_a_truncated_file_says_how_much_was_read(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(trace(EVENTS))[:-150])
    evidence = read(path)
    assert "ends in the middle: 2 events up to 0.1 s were read" in evidence.sources[0].problem
    assert evidence.rank_times[0].compute_s == pytest.approx(0.06)


def test_a_packed_file_that_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace(EVENTS * 500)).encode())[:-200])
    problem = read(path).sources[0].problem
    assert "gzip data ends in the middle" in problem
    assert "events" in problem


def test_spans_beyond_a_limit_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewright.observe.readers.kineto.MOST_SPANS", 100)
    path = written(tmp_path / "t.json", [step(0, 100), *(kernel(n / 10, (n + 1) / 10) for n in range(1000))])
    evidence = read(path)
    assert "more than 100 spans: the rest is left out" in evidence.sources[0].problem
    assert evidence.rank_times[0].compute_s == pytest.approx(0.0099)


def test_launches_without_kernels_are_no_trace_of_a_cpu(tmp_path: Path) -> None:
    evidence = read(written(tmp_path / "t.json", [step(0, 100), launch(3, 1), span("cpu_op", "aten::mm", 0, 10)]))
    assert not evidence.rank_times
    assert "the device's part is missing" in evidence.sources[0].problem


def test_a_trace_without_anything(tmp_path: Path) -> None:
    evidence = read(written(tmp_path / "t.json", []))
    assert not evidence.rank_times
    assert "neither kernels nor operators" in evidence.sources[0].problem


def test_large_ids_and_odd_values_do_not_stop_the_reader(tmp_path: Path) -> None:
    odd = [
        kernel(60, 70, link=2**64 - 1), {**kernel(70, 80), "args": None},
        {**kernel(0, 1), "tid": [1], "args": {"stream": {}}},
        {"ph": "X", "cat": ["kernel"], "name": 3, "ts": {}, "dur": []},
        {"ph": "X", "cat": "kernel", "name": None, "ts": 1e400},
        collective(80, 90, **{"Process Group Ranks": [0, 1], "Group size": {}, "Collective name": 7}),
    ]  # fmt: skip
    (time,) = read(written(tmp_path / "t.json", [*EVENTS, *odd])).rank_times
    assert time.compute_s == pytest.approx(0.080)
