"""A writer killed at any moment leaves the old document or the new one, and no reader ever sees a part."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

NUM_KILLS = 20
NUM_ITEMS = 4000
WRITER = """
import sys
from pathlib import Path
from scalewright.records.documents import document, write_document
number = 0
while True:
    number += 1
    write_document(Path(sys.argv[1]), document("plan", {"number": number, "items": [number] * int(sys.argv[2])}))
"""


def whole_number_of(text: str) -> int:
    """The document's number, after checking that every part of it is there and is of the same write."""
    doc = json.loads(text)
    assert doc["schema"] == "scalewright.plan/1"
    assert doc["items"] == [doc["number"]] * NUM_ITEMS
    return int(doc["number"])


class Poller(threading.Thread):
    """Reads the file again and again while it is being replaced; keeps what it saw wrong."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.stop, self.problems, self.num_reads = path, threading.Event(), [], 0

    def run(self) -> None:
        while not self.stop.is_set():
            if self.path.exists():
                try:
                    whole_number_of(self.path.read_text())
                except Exception as error:
                    self.problems.append(repr(error)[:200])
                self.num_reads += 1
            time.sleep(0.002)


@pytest.mark.kills
def test_document_is_whole_after_every_kill_and_at_every_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    chance = random.Random(20)
    poller = Poller(path)
    poller.start()
    try:
        for _ in range(NUM_KILLS):
            before = path.stat().st_mtime_ns if path.exists() else 0
            child = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(NUM_ITEMS)])
            deadline = time.monotonic() + 30
            # The kill must fall into the loop of writes, not into the start of Python.
            while not path.exists() or path.stat().st_mtime_ns == before:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            time.sleep(chance.uniform(0.0, 0.05))
            child.send_signal(signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL
            assert whole_number_of(path.read_text()) >= 1
    finally:
        poller.stop.set()
        poller.join()
    assert poller.problems == []
    assert poller.num_reads > NUM_KILLS
