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
    cost = json.loads(done.stdout.splitlines()[0])
    assert cost["num_steps"] == 30
    assert 0 < cost["event_writes_frac"] < 0.005
    assert cost["sampler_frac"] + cost["event_writes_frac"] <= cost["all_measuring_frac"]
