"""Measuring costs less than half a percent of a step: CPU time of sampling and event writes over wall time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sampler_cost.py"


def test_measuring_costs_less_than_half_a_percent_of_a_step() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--steps", "30"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stderr == ""
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout.splitlines()[0])
    assert found["num_steps"] == 30
    assert 0 < found["event_writes_frac"] < 0.005
    assert found["sampler_frac"] + found["event_writes_frac"] <= found["all_measuring_frac"]
