"""Metric events reach the disk; a signal is noted and the handlers come back."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from scalewright.records.documents import document
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory
from scalewright.run.metrics import MetricWriter
from scalewright.run.signals import StopSignals
from scalewright.run.world import World

WORLD = World.from_environment({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, host="h")


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create_or_resume(tmp_path / "r", document("language-run", {}))


def test_metrics_of_a_rank_are_in_its_file(directory: RunDirectory) -> None:
    writer = MetricWriter(directory, WORLD)
    writer.write(step=1, name="loss", value=2.5, unit="1")
    writer.event(step=1, name="event_x", detail="something")
    events = [(e.rank, e.host, e.step, e.name, e.value, e.detail) for e in read_events(directory.rank_events(1))]
    assert events == [(1, "h", 1, "loss", 2.5, ""), (1, "h", 1, "event_x", 1.0, "something")]
    writer.write(step=2, name="loss", value=2.0, unit="1")
    writer.close()
    writer.close()
    writer.write(step=3, name="loss", value=2.0, unit="1")
    assert [e.step for e in read_events(directory.rank_events(1))] == [1, 1, 2]


def test_threads_do_not_mix_their_lines(directory: RunDirectory) -> None:
    writer = MetricWriter(directory, WORLD)

    def write(name: str) -> None:
        for step in range(2000):
            writer.write(step=step, name=name, value=1.0, unit="1")

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    events = list(read_events(directory.rank_events(1)))
    for name in ("a", "b"):
        assert [e.step for e in events if e.name == name] == list(range(2000))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_signal_is_noted_and_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert stop.requested is None
        os.kill(os.getpid(), number)
        assert stop.requested == number.name
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.requested == number.name
    assert signal.getsignal(number) is before


def test_second_interrupt_is_meant() -> None:
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
