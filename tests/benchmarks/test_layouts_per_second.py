"""The benchmark counts what it says it counts, and its columns are predictions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.planner.answer import answer
from scalewright.planner.question import Question
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import recipe

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "layouts_per_second.py"
CATALOG = Catalog((packaged_data(),))


def test_small_run_counts_every_layout_and_agrees_with_predict() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--layouts", "1000", "--passes", "1"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "costed 1000 layouts in" in done.stdout
    assert re.search(r"^layouts per second: [\d,]+$", done.stdout, re.MULTILINE)
    checked = re.findall(r"^checked (\S+): (\S+) s, (\S+) bytes$", done.stdout, re.MULTILINE)
    assert checked
    for text, time_s, memory_bytes in checked:
        layout = parse_layout(text)
        assert layout.num_gpus == 1024
        prediction = answer(
            Question(
                spec=from_catalog(CATALOG.model("gpt3-175b")),
                machine=machine_from_system(CATALOG, "selene"),
                layout=layout,
                recipe=recipe("bf16"),
                stack=CATALOG.stack("megatron-core"),
            )
        )
        assert float(time_s) == pytest.approx(prediction.time_s, rel=1e-12)
        assert float(memory_bytes) == pytest.approx(prediction.memory_bytes, rel=1e-12)
