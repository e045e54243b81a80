"""What is known of a generation before it starts: its loads predicted, and what the prediction rests on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewright.catalog.library import open_catalog
from scalewright.costs.machine import machine_from_system
from scalewright.costs.machine.generation_rates import GenerationRates
from scalewright.here.place import Place
from scalewright.launch.prepare.generate_setup import predict_loads
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_shape
from scalewright.workload.request_plan import RequestPlan

MACHINE = machine_from_system(open_catalog(), "generic-h200")
RATES = GenerationRates(
    matmul_flop_per_s={"bf16": 5e14}, weight_bytes_per_s=4.1e12, cache_bytes_per_s=3.3e12, layer_s=12e-6,
    prompt_layer_s=90e-6, step_s=150e-6, sequence_s=2e-6, blend=3.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("basis", "rates", "is_said"),
    [
        ("calibration mine of today", None, True),
        ("calibration mine of today", RATES, False),
        ("catalogue", None, False),
    ],
)
def test_a_calibration_without_decode_steps_says_so(basis: str, rates: GenerationRates | None, is_said: bool) -> None:
    place = Place(machine=replace(MACHINE, generation=rates), system="", basis=basis)
    spec = from_shape("layers=4,hidden=256,heads=4,vocab=4096")
    outlook = predict_loads(open_catalog(), RequestPlan(), spec, Layout(), place, precision="bf16")
    assert outlook.here.basis.startswith(basis)
    assert ("without decode steps" in outlook.here.basis) is is_said
