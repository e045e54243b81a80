"""The breakdown in the terminal and in the document of an explanation."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.observe.trace_maker import collective, kernel, step, written

from scalewright.report.explain.build import explained_paths
from scalewright.report.explain.terminal import print_explanation


def test_ranks_collectives_and_the_rank_that_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a path is not broken, so that it can be copied
    for rank, ready in enumerate((50, 80, 50)):
        events = [step(0, 100), kernel(0, ready), collective(ready, 90)]
        written(tmp_path / f"{rank}.json", events, rank=rank, num_ranks=3)
    explanation = explained_paths([Path()])
    shown = Console(file=io.StringIO(), width=80, no_color=True)
    print_explanation(shown, explanation)
    assert isinstance(shown.file, io.StringIO)
    lines = [line.split() for line in shown.file.getvalue().splitlines()]
    assert ["1", "(last)", "100", "ms", "80", "%", "10", "%", "10", "%", "0", "s"] in lines
    assert ["0", "100", "ms", "50", "%", "40", "%", "10", "%", "30.0", "ms"] in lines
    assert ["all_reduce", "mesh_dp", "data", "parallel", "30.0", "ms", "30.0", "ms"] in lines
    assert max(map(len, shown.file.getvalue().splitlines())) <= 80
    document = json.loads(json.dumps(explanation.document()))["breakdown"]
    assert document["across"]["critical"]["rank"] == 1
    assert document["measured_by"] == "trace of a device"
    assert abs(sum(document["across"]["ranks"][0]["parts_s"].values()) - 0.1) < 1e-9


def test_logs_alone_have_no_breakdown(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("hello\n")
    assert explained_paths([tmp_path]).document()["breakdown"] is None
