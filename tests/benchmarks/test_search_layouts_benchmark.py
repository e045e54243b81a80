"""The search benchmark counts what it says it counts, and stops where a column is not a prediction."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "search_layouts.py"


def test_first_problem_reports_counts_time_and_ratio() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--first-only", "--passes", "1", "--sample", "40"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    pattern = r"considered ([\d,]+), divide ([\d,]+), feasible ([\d,]+), costed ([\d,]+)"
    match = re.search(pattern, done.stdout)
    assert match is not None
    considered, divide, feasible, costed = (int(group.replace(",", "")) for group in match.groups())
    assert considered > divide > feasible == costed > 0
    assert divide > 155_000
    ratio = re.search(r"ratio: ([\d,]+)", done.stdout)
    assert ratio is not None
    assert int(ratio.group(1).replace(",", "")) > 10
