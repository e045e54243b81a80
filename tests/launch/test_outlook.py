"""A run's length is predicted before it starts, for the machine that a probe describes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.here.devices import Here, Probe, machine_from_probe
from scalewright.launch.prepare.outlook import language_outlook, largest_that_fits
from scalewright.workload.language_run import LanguageRun, resolve
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import ModelSpec, from_catalog

CATALOG = Catalog((packaged_data(),))
PROBE = Probe(
    device="cpu", name="test CPU", num_devices=1, num_cores=8, precision="fp32", matmul_flop_per_s=4e11,
    memory_bytes_per_s=4e10, memory_bytes=64e9, import_s=2.0,
)  # fmt: skip


def here(probe: Probe = PROBE, *, num_ranks: int = 2) -> Here:
    return machine_from_probe(CATALOG, probe, num_ranks=num_ranks)


def make(spec: ModelSpec, *, steps: int = 50, layout: str = "dp=2,mbs=4") -> LanguageRun:
    return resolve(spec, parse_layout(layout), steps=steps, precision="fp32")


def run_of(name: str, **options: object) -> LanguageRun:
    return make(from_catalog(CATALOG.model(name)), **options)  # type: ignore[arg-type]


def test_probed_machine_is_never_faster_than_its_probe() -> None:
    for name in ("gpt2-tiny", "gpt2", "gpt3-1.3b"):
        outlook = language_outlook(CATALOG, run_of(name), here().machine, start_s=5.0)
        assert outlook.step_s >= outlook.prediction.transformer.model_flop / PROBE.matmul_flop_per_s * 0.9
        assert outlook.duration_s == pytest.approx(5.0 + 50 * outlook.step_s)


def test_ranks_share_a_cpu() -> None:
    two = language_outlook(CATALOG, run_of("gpt2", layout="dp=2,mbs=4"), here().machine, start_s=0.0)
    four = language_outlook(CATALOG, run_of("gpt2", layout="dp=4,mbs=4"), here(num_ranks=4).machine, start_s=0.0)
    assert four.step_s > 1.5 * two.step_s
    assert "probe" in " ".join(two.prediction.warnings)


def test_slower_machine_takes_longer_and_has_a_smaller_largest_preset() -> None:
    slow = replace(PROBE, matmul_flop_per_s=PROBE.matmul_flop_per_s / 100, memory_bytes_per_s=4e8)
    best = {}
    for name, probe in (("fast", PROBE), ("slow", slow)):
        largest = largest_that_fits(CATALOG, here(probe).machine, remake=make, start_s=5.0, budget_s=600.0)
        assert largest is not None
        assert largest[1] <= 600.0
        best[name] = CATALOG.model(largest[0])
    assert from_catalog(best["fast"]).num_params > from_catalog(best["slow"]).num_params


def test_nothing_fits_into_no_time() -> None:
    assert largest_that_fits(CATALOG, here().machine, remake=make, start_s=5.0, budget_s=1.0) is None


def test_model_larger_than_memory_does_not_fit() -> None:
    assert not language_outlook(CATALOG, run_of("gpt3-175b"), here().machine, start_s=5.0).prediction.fits
