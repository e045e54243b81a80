"""Lanes of a timeline: nothing overlaps, nothing is lost, pauses are left out, and the window is a typical one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hybrid_cases import Roles, write_async_run

from scalewright.observe.hybrid_summary import hybrid_shown, summarized
from scalewright.observe.lanes import NUM_SLICES, axis_of, segments_of, slice_edges, window_of
from scalewright.records.hybrid import HybridRecord, HybridSettings, RoleSpan, SpanKind, read_timeline
from scalewright.records.run_directory import RunDirectory


def span(kind: SpanKind, start_s: float, end_s: float, **others: object) -> RoleSpan:
    given = {"role": "trainer", "rank": 0, **others}
    return RoleSpan(kind=kind, start_s=start_s, end_s=end_s, **given)  # type: ignore[arg-type]


def record(**settings: object) -> HybridRecord:
    return HybridRecord(
        settings=HybridSettings(mode="co-located", **settings), steps=[], syncs=[], gains=[], num_attempts=1  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_innermost_span_counts_and_gaps_are_waiting() -> None:
    spans = [
        span("evaluate", 0, 10),
        span("decode", 2, 5),
        span("idle", 3, 4, waits_for="ranks"),
        span("train", 12, 13),
    ]
    assert [(one.kind, one.start_s, one.end_s) for one in segments_of(spans)] == [
        ("evaluate", 0, 2), ("decode", 2, 3), ("idle", 3, 4), ("decode", 4, 5), ("evaluate", 5, 10), ("idle", 10, 12),
        ("train", 12, 13),
    ]  # fmt: skip


def test_spans_of_two_threads_may_cross() -> None:
    segments = segments_of([span("reward", 0, 4), span("sync", 3, 6)])
    assert [(one.kind, one.start_s, one.end_s) for one in segments] == [("reward", 0, 3), ("sync", 3, 6)]


def test_time_between_two_attempts_is_no_waiting() -> None:
    segments = segments_of([span("train", 0, 1), span("train", 5, 6, attempt=1)])
    assert [(one.kind, one.start_s, one.end_s) for one in segments] == [("train", 0, 1), ("train", 5, 6)]


def test_a_pause_of_the_whole_run_is_left_out() -> None:
    spans = [
        span("train", 10, 20), span("train", 1000, 1005, attempt=1),
        span("decode", 12, 22, role="engine"), span("decode", 1001, 1006, role="engine", attempt=1),
    ]  # fmt: skip
    axis = axis_of(spans)
    assert axis.marks == ((12.0, 978.0),)
    assert [axis.at(time_s) for time_s in (10, 22, 500, 1000, 1006)] == [0, 12, 12, 12, 18]
    shown = summarized(record(), spans)
    assert shown.total_s == 18
    assert {one.of for one in shown.restarts} == {"trainer", "engine-0"}


def test_the_window_shows_usual_steps_without_a_restart() -> None:
    starts = [0.0, *(30.0 + 2.0 * place for place in range(8)), 60.0]
    spans = [span("train", start_s, start_s + 1, step=step) for step, start_s in enumerate(starts)]
    window = window_of(spans, total_s=62.0)
    assert 1 <= window.first_step <= 4
    assert window.end_s - window.start_s == 8.0
    assert window_of(spans, total_s=62.0, restarts=[33.0]).first_step >= 3


def test_a_run_without_steps_has_a_window() -> None:
    window = window_of([span("decode", 0, 5)], total_s=5.0)
    assert (window.start_s, window.end_s, window.first_step) == (0.0, 5.0, -1)


@pytest.mark.parametrize("num", [1, 7, 19, 20, 159, 160, 161, 1000])
def test_slices_follow_the_steps(num: int) -> None:
    spans = [span("train", float(step), step + 0.5, step=step) for step in range(num)]
    edges = slice_edges(spans, total_s=float(num))
    assert edges[0] == 0.0
    assert edges[-1] == num
    assert list(edges) == sorted(set(edges))
    assert len(edges) <= NUM_SLICES + 1


def test_no_second_of_a_rank_is_lost(tmp_path: Path) -> None:
    directory = write_async_run(tmp_path)
    shown = hybrid_shown(directory)
    assert shown is not None
    spans = read_timeline(directory)
    for lane in shown.lanes:
        own = [one for one in spans if (one.role, one.rank) == (lane.role, lane.rank)]
        lives = {one.attempt: [o for o in own if o.attempt == one.attempt] for one in own}.values()
        present_s = sum(max(o.end_s for o in life) - min(o.start_s for o in life) for life in lives)
        assert lane.present_s == pytest.approx(present_s, rel=1e-6)
        widths = [end - start for start, end in zip(shown.slice_edges, shown.slice_edges[1:], strict=False)]
        sliced_s = sum(w * sum(shares.values()) for w, shares in zip(widths, lane.shares, strict=True))
        assert sliced_s == pytest.approx(present_s, rel=1e-6)
        assert sum(lane.waits_s.values()) == pytest.approx(lane.seconds_by_kind.get("idle", 0.0))
        for before, after in zip(lane.segments, lane.segments[1:], strict=False):
            assert before.end_s <= after.start_s + 1e-9


def test_findings_say_who_waited_for_what(tmp_path: Path) -> None:
    shown = hybrid_shown(write_async_run(tmp_path))
    assert shown is not None
    assert "engine 1 waited 38 % of the time for weights" in shown.findings
    assert any(text.startswith("trainer 0 waited 17 % of the time: 9 % for rollouts, 7 %") for text in shown.findings)
    assert "engine 1 was restarted once and was away for 1.20 s" in shown.findings
    assert "60 of 2,540 rewards ended in a limit of the sandbox or broke: 40 by time, 20 by memory" in shown.findings
    assert any("1 at most; the bound is 1" in text for text in shown.findings)
    assert any("2.13 times as fast" in text and "simulated" in text for text in shown.findings)
    assert {use.role: use.num_ranks for use in shown.roles} == {
        "controller": 1, "trainer": 2, "engine": 2, "sandbox": 1
    }  # fmt: skip


def test_a_broken_bound_is_a_finding(tmp_path: Path) -> None:
    shown = hybrid_shown(write_async_run(tmp_path, steps=3, stale=2))
    assert shown is not None
    assert any("beyond the bound of 1" in text for text in shown.findings)


def test_a_role_of_many_ranks_is_in_the_table_and_not_all_in_the_picture(tmp_path: Path) -> None:
    roles = Roles(RunDirectory(tmp_path))
    for rank in range(9):
        roles.span("trainer", rank, "train", 0.0, 1.0, step=0)
    roles.close()
    shown = summarized(record(), read_timeline(roles.directory))
    assert (len(shown.lanes), shown.num_left_out, shown.roles[0].num_ranks) == (4, 5, 9)


def test_a_run_without_a_timeline_still_has_its_iterations(tmp_path: Path) -> None:
    directory = write_async_run(tmp_path, steps=3)
    for path in directory.timelines():
        path.unlink()
    shown = hybrid_shown(directory)
    assert shown is not None
    assert (shown.lanes, shown.window, len(shown.iterations)) == ((), None, 3)
    assert shown.num_decoded_tokens == 3 * 65_540
