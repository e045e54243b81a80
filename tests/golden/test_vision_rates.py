"""Training rates of ResNet-50 against published ones. Kind: measured.

Rows and their sources: `catalog/data/published/vision_runs.toml`. Four constants are fitted to the rates of one device
(benchmarks/fit_vision.py); rates of several devices are predicted. On 2026-11-15: one device 0.85 to 1.17 of the
measured rate, several 0.87 to 1.14 but for 8 A100 in mixed precision (1.34, whose 84 % of linear scaling is not
explained by the gradients: the source loads real images).
"""

from __future__ import annotations

import math

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import Question, VisionModelStep
from scalewright.planner.validation.stage_rows import StageRow, left_out_coverage_frac, vision_rows
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import recipe

CATALOG = Catalog((packaged_data(),))
ROWS = vision_rows(CATALOG)
ALONE = [row for row in ROWS if row.what.startswith("1 x ")]


@pytest.mark.parametrize("row", ALONE, ids=lambda row: row.what)
def test_one_device_is_near_the_measured_rate(row: StageRow) -> None:
    assert 0.83 <= row.predicted / row.published <= 1.20


@pytest.mark.parametrize("row", [r for r in ROWS if r not in ALONE], ids=lambda row: row.what)
def test_several_devices_are_near_the_measured_rate(row: StageRow) -> None:
    """The upper bound leaves room for the one row above 1.14: see the head of this file."""
    assert 0.83 <= row.predicted / row.published <= 1.40


def test_errors_on_the_whole() -> None:
    logs = [math.log(row.predicted / row.published) for row in ALONE]
    assert abs(sum(logs) / len(logs)) < 0.05
    assert math.exp(sum(map(abs, logs)) / len(logs)) < 1.10


def test_the_interval_covers_sources_that_were_left_out() -> None:
    """Quantiles of the other sources; the constants are those of the fit to all."""
    assert left_out_coverage_frac(ROWS) >= 0.75
    c = CATALOG.constants()
    inside = sum(c.vision_interval_low.value <= row.time_ratio <= c.vision_interval_high.value for row in ROWS)
    assert inside / len(ROWS) >= 0.85


def vision(num_nodes: int, precision: str) -> Answer:
    machine = machine_from_system(CATALOG, "marenostrum5")
    num_gpus = num_nodes * machine.gpus_per_node
    return answer(Question(
        spec=from_catalog(CATALOG.model("resnet-50")), machine=machine, recipe=recipe(precision),
        stack=CATALOG.stack("eager"), layout=Layout(dp=num_gpus, mbs=256, gbs=256 * num_gpus), stage=VisionModelStep(),
))  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_marenostrum_keeps_its_efficiency_per_batch(precision: str) -> None:
    """EPICURE's guide: never below 89 % per batch, FP32 and AMP (256 images for 64 GiB; up to 64 nodes assumed)."""
    alone = float(vision(1, precision).time.total)
    efficiencies = [alone / float(vision(n, precision).time.total) for n in (2, 4, 8, 16, 32, 64)]
    assert min(efficiencies) >= 0.89
    assert efficiencies == sorted(efficiencies, reverse=True)
