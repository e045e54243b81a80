"""Several processes write one document at once: every reader sees one writer's whole document."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scalewright.records.documents import read_document

NUM_WRITERS = 4
NUM_WRITES = 60
NUM_ITEMS = 1000
WRITER = """
import sys
from pathlib import Path
from scalewright.records.documents import document, write_document
rank, path = int(sys.argv[1]), Path(sys.argv[2])
for number in range(int(sys.argv[3])):
    body = {"rank": rank, "number": number, "items": [[rank, number]] * int(sys.argv[4])}
    write_document(path, document("plan", body))
"""


@pytest.mark.ranks
def test_reader_always_sees_one_whole_document(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(rank), str(path), str(NUM_WRITES), str(NUM_ITEMS)])
        for rank in range(NUM_WRITERS)
    ]
    seen: set[tuple[int, int]] = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            doc = read_document(path, "plan")
            assert doc["items"] == [[doc["rank"], doc["number"]]] * NUM_ITEMS
            seen.add((doc["rank"], doc["number"]))
    assert [writer.wait() for writer in writers] == [0] * NUM_WRITERS
    assert len({rank for rank, _ in seen}) > 1, "the writers did not overlap, so nothing was tested"
    assert read_document(path, "plan")["number"] == NUM_WRITES - 1
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.ranks
def test_predictions_written_to_one_file_at_once_leave_a_whole_document(
    tmp_path: Path, cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    path = tmp_path / "same.json"

    def predict(layout: str) -> subprocess.CompletedProcess[str]:
        return cli("predict", "--model", "gpt3-6.7b", "--system", "selene", "--layout", layout, "--out", str(path))

    layouts = ["tp=8,dp=1,gbs=8", "dp=8,gbs=8", "tp=2,dp=4,gbs=8,recompute=full"]
    with ThreadPoolExecutor(len(layouts)) as pool:
        results = list(pool.map(predict, layouts))
    assert all(r.returncode in (0, 1) for r in results), [r.stderr for r in results]
    doc = read_document(path, "prediction")
    assert doc["input"]["layout"]["gbs"] == 8
    assert json.loads(path.read_text())["step_time_s"] > 0
    assert [p.name for p in tmp_path.iterdir()] == ["same.json"]
