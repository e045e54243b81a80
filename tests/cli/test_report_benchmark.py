"""`report` of a micro benchmark's run: what it measured, not the steps that it has not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from calibration_cases import CPU, memory_rows
from scalewright.records.measurements import Measurements, write_measurements
from scalewright.records.run_directory import RunDirectory

Cli = Callable[..., subprocess.CompletedProcess[str]]


def test_the_table_and_the_document_are_the_benchmarks_and_a_plot_is_refused(tmp_path: Path, cli: Cli) -> None:
    directory = RunDirectory.create_or_resume(tmp_path / "r", {"schema": "scalewright.memory-run/1"})
    measurements = Measurements(kind="memory", device=CPU, versions={"torch": "2.13.0"}, rows=memory_rows(20e9))
    write_measurements(directory, measurements)
    shown = cli("report", "r", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "GB/s" in shown.stdout
    assert "0 steps" not in shown.stdout
    assert json.loads(cli("report", "r", "--json", cwd=tmp_path).stdout) == measurements.document()
    drawn = cli("report", "r", "--plot", "x.svg", cwd=tmp_path)
    assert drawn.returncode == 2
    assert "memory benchmark, which has no plot" in drawn.stderr
    assert not (tmp_path / "x.svg").exists()
