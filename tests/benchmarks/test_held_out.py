"""The stored scores of sources that nothing was fitted to are those of today's code, and promise what they must."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DISPLAYED_FRAC = 5e-4
"""Half of the last digit that the documentation prints."""


def test_the_stored_scores_are_current() -> None:
    spec = importlib.util.spec_from_file_location("held_out", BENCHMARKS / "held_out.py")
    assert spec is not None
    assert spec.loader is not None
    held_out = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(held_out)
    fresh = held_out.summary(held_out.predicted_rows())
    stored = json.loads((BENCHMARKS / "results" / "held_out.json").read_text(encoding="utf-8"))
    for name, scores in [*fresh["sources"].items(), ("all", fresh["all"])]:
        kept = stored["all"] if name == "all" else stored["sources"][name]
        advice = "store the new scores with: python benchmarks/held_out.py --write"
        assert scores == pytest.approx(kept, abs=DISPLAYED_FRAC), f"{name}: {advice}"
    assert fresh["sources"].keys() == stored["sources"].keys()
