"""Timelines and iterations of a run: what is written comes back, on one clock, whatever a kill left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scalewright.errors import DocumentError
from scalewright.records.hybrid import (
    AllDoneGain,
    HybridSettings,
    HybridStep,
    HybridWriter,
    TimelineWriter,
    WeightSync,
    read_hybrid,
    read_timeline,
)
from scalewright.records.run_directory import RunDirectory

SETTINGS = HybridSettings(mode="async", token_budget=4096, retention=2, staleness=1, engine_ranks=[1, 2])
STEP = HybridStep(
    step=3, version=3, num_finished=20, carried_by_cuts={0: 5, 1: 2}, carried_by_version={2: 2, 3: 5}, num_purged=1,
    num_trained_by_staleness={0: 12, 1: 4}, num_decoded_tokens=4100, num_trained_tokens=3600, num_wasted_tokens=90,
    wall_s=2.0, rollout_s=1.2, train_s=0.5, sync_s=0.1, reward_s=0.05, sandbox_outcomes={"ok": 15, "time": 1},
)  # fmt: skip


def test_spans_come_back_in_order(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with TimelineWriter(directory, "engine", 1) as timeline:
        with timeline.span("decode", step=2, version=7) as span:
            span.num_tokens += 640
            with timeline.span("idle", waits_for="weights"):
                time.sleep(0.01)
        started_s = time.perf_counter()
        timeline.add("restart", started_s, started_s + 0.5, of="engine-0", detail='exit "9"')
    decode, idle, restart = read_timeline(directory)
    assert (decode.kind, decode.step, decode.version, decode.num_tokens, decode.lane) == (
        "decode",
        2,
        7,
        640,
        "engine-1",
    )
    assert (idle.kind, idle.waits_for) == ("idle", "weights")
    assert decode.start_s <= idle.start_s < idle.end_s <= decode.end_s
    assert idle.seconds >= 0.01
    assert (restart.of, restart.detail) == ("engine-0", 'exit "9"')
    assert restart.seconds == pytest.approx(0.5, abs=1e-5)


def test_roles_of_other_nodes_are_put_on_the_controllers_clock(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for role, rank, offset_s in (("controller", 0, 0.0), ("engine", 0, 100.0)):
        with TimelineWriter(directory, role, rank, offset_s) as timeline, timeline.span("idle"):
            pass
    controller, engine = read_timeline(directory)
    assert controller.lane == "controller-0"
    assert engine.start_s - controller.start_s == pytest.approx(100.0, abs=1.0)


def test_a_failed_body_leaves_its_span(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with pytest.raises(ZeroDivisionError), TimelineWriter(directory, "trainer", 0) as timeline, timeline.span("train"):
        _ = 1 / 0
    assert [span.kind for span in read_timeline(directory)] == ["train"]


def test_a_timeline_cut_anywhere_gives_its_whole_lines(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "whole")
    with TimelineWriter(directory, "trainer", 0) as timeline:
        for step in range(3):
            with timeline.span("train", step=step):
                pass
    content = directory.timeline_of("trainer", 0).read_bytes()
    for length in range(len(content)):
        cut = RunDirectory(tmp_path / "cut")
        path = cut.timeline_of("trainer", 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content[:length])
        num_whole = content[: length + 1].count(b"\n") if content[length : length + 1] == b"\n" else None
        steps = [span.step for span in read_timeline(cut)]
        assert steps == list(range(len(steps)))
        if num_whole is not None:
            assert len(steps) == num_whole - 1


def test_the_next_attempt_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with TimelineWriter(directory, "engine", 0) as timeline, timeline.span("decode", step=0):
        pass
    with directory.timeline_of("engine", 0).open("a") as file:
        file.write('{"kind":"dec')
    with TimelineWriter(directory, "engine", 0) as timeline, timeline.span("decode", step=1):
        pass
    assert [(span.step, span.attempt) for span in read_timeline(directory)] == [(0, 0), (1, 1)]


def test_a_killed_role_keeps_all_but_its_last_second(tmp_path: Path) -> None:
    code = """if True:
        import os, signal, sys, time
        from pathlib import Path
        from scalewright.records.hybrid import TimelineWriter
        from scalewright.records.run_directory import RunDirectory
        timeline = TimelineWriter(RunDirectory(Path(sys.argv[1])), "engine", 0, flush_s=0.05)
        for step in range(10):
            with timeline.span("decode", step=step):
                time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    steps = [span.step for span in read_timeline(RunDirectory(tmp_path))]
    assert steps == list(range(len(steps)))
    assert len(steps) >= 6


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with TimelineWriter(directory, "engine", 0):
        pass
    with directory.timeline_of("engine", 0).open("a") as file:
        file.write('{"kind":"dream","start_s":0,"end_s":1}\n')
    with pytest.raises(DocumentError, match=r"a span of kind 'dream'; this release knows .*: upgrade"):
        read_timeline(directory)


@pytest.mark.parametrize(
    "line", ['{"kind":"train","start_s":0}', '{"start_s":0}', '{"schema":"scalewright.hybrid-timeline/1"}']
)
def test_a_line_that_lacks_something_is_refused(tmp_path: Path, line: str) -> None:
    directory = RunDirectory(tmp_path)
    with TimelineWriter(directory, "engine", 0):
        pass
    with directory.timeline_of("engine", 0).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DocumentError, match="a line is not of a timeline"):
        read_timeline(directory)


def test_threads_share_a_writer(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with TimelineWriter(directory, "controller", 0, flush_s=0.0) as timeline:

        def work() -> None:
            for _ in range(200):
                with timeline.span("reward"):
                    pass

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read_timeline(directory)) == 800


def test_no_timeline_is_empty(tmp_path: Path) -> None:
    assert read_timeline(RunDirectory(tmp_path)) == []
    assert read_hybrid(RunDirectory(tmp_path)) is None


def test_iterations_come_back(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    sync = WeightSync(version=4, engine=1, way="peers", bytes=2e9, seconds=0.5, checksum="ab")
    gain = AllDoneGain(kind="simulated", rollout_gain=2.1, step_gain=1.4, detail="lognormal lengths")
    writer = HybridWriter(directory, SETTINGS)
    writer.step(STEP)
    writer.sync(sync)
    writer.gain(gain)
    writer.close()
    record = read_hybrid(directory)
    assert record is not None
    assert (record.settings, record.steps, record.syncs, record.gains) == (SETTINGS, [STEP], [sync], [gain])
    assert (STEP.num_carried, STEP.staleness_max, STEP.staleness_mean) == (7, 1, 0.25)
    document = json.loads(json.dumps(record.document()))
    assert document["schema"] == "scalewright.hybrid/1"
    assert document["steps"][0]["staleness_max"] == 1
    assert document["syncs"][0]["bytes_per_s"] == 4e9


def test_a_step_that_is_done_again_counts_once(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    first = HybridWriter(directory, SETTINGS)
    for step in (0, 1):
        first.step(HybridStep(step=step, version=step, num_trained_tokens=10))
    with directory.hybrid.open("a") as file:
        file.write('{"line":"step","step":2,"ver')
    again = HybridWriter(directory, SETTINGS)
    again.step(HybridStep(step=1, version=1, num_trained_tokens=12))
    record = read_hybrid(directory)
    assert record is not None
    assert [(one.step, one.num_trained_tokens) for one in record.steps] == [(0, 10), (1, 12)]
    assert record.num_attempts == 2


def test_an_unknown_line_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    HybridWriter(directory, SETTINGS).close()
    with directory.hybrid.open("a") as file:
        file.write('{"line":"dream"}\n')
    with pytest.raises(DocumentError, match="a line of kind 'dream'; this release knows step, sync, gain: upgrade"):
        read_hybrid(directory)


def test_a_newer_record_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.hybrid.write_text('{"schema":"scalewright.hybrid/2"}\n')
    with pytest.raises(DocumentError, match="hybrid version 2, newer than 1"):
        read_hybrid(directory)
