"""Values of a calibration from measurements whose truth is known, and residuals from steps that were made with some."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration_cases import (
    CPU,
    CPU_VALUES,
    GPU,
    GPU_VALUES,
    attention_rows,
    calibration,
    memory_rows,
    product_rows,
    source,
)
from scalewright.catalog.calibration import Calibration, ResidualName
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.compute import tiled_product_time_s
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.launch.prepare.outlook import language_outlook, vision_outlook
from scalewright.observe.calibrate import convolution_rows, full_tile_flop_per_s, unmeasured_words, values_from
from scalewright.observe.residuals import RealStep, bounded_factor, fit_residuals
from scalewright.workload import language_run
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_shape
from scalewright.workload.vision_run import VisionRun

CATALOG = Catalog((packaged_data(),))
LAPTOP, H200 = (machine_from_system(CATALOG, name) for name in ("laptop", "generic-h200"))
SHAPES = (
    ("layers=4,hidden=256,heads=4,vocab=4096,seq=128", 4),
    ("layers=6,hidden=64,heads=2,vocab=512,seq=64", 2),
    ("layers=2,hidden=512,heads=8,vocab=8192,seq=256", 2),
    ("layers=8,hidden=128,heads=4,vocab=512,seq=64", 2),
    ("layers=3,hidden=384,heads=6,vocab=2048,seq=256", 4),
)


def value_of(name: str, values: object, of: str = "") -> float:
    assert isinstance(values, tuple)
    return next(float(v.value) for v in values if (v.name, v.of) == (name, of))


def test_rate_and_start_of_a_cpus_products_are_recovered() -> None:
    values = values_from([source("gemm", product_rows(150e9, start_s=3e-6), CPU)], LAPTOP)
    assert value_of("matmul_flop_per_s", values, "fp32") == pytest.approx(150e9, rel=0.03)
    assert value_of("matmul_start_s", values) == pytest.approx(3e-6, rel=0.1)


def test_a_product_that_others_slowed_down_does_not_move_a_cpus_rate() -> None:
    rows = product_rows(150e9, start_s=3e-6)
    rows[-1] = {**rows[-1], "time_s": 20.0 * rows[-1]["time_s"], "flop_per_s": rows[-1]["flop_per_s"] / 20.0}
    values = values_from([source("gemm", rows, CPU)], LAPTOP)
    assert value_of("matmul_flop_per_s", values, "fp32") == pytest.approx(150e9, rel=0.1)


def test_a_cpu_that_was_held_up_keeps_the_catalogues_rate_and_says_so() -> None:
    three_products = source("gemm", product_rows(3e6)[:3], CPU)
    assert values_from([three_products], LAPTOP) == ()
    assert (
        "gemm: 3 products in fp32 were measured in its time, and 4 are needed" in unmeasured_words([three_products])[0]
    )
    assert unmeasured_words([source("gemm", product_rows(150e9), CPU)]) == []


def test_saves_of_the_largest_state_and_the_copy_that_training_waits_for() -> None:
    rows = [
        {"mode": mode, "size_bytes": size, "bytes_per_s": 2e8, "stall_s": size / (2e8 if mode == "sync" else 4e9)}
        for size in (2**26, 2**28)
        for mode in ("sync", "async")
    ]
    values = values_from([source("checkpoint", rows, {**CPU, "num_ranks": 2})], LAPTOP)
    assert value_of("checkpoint_bytes_per_s", values, "sync") == 2e8
    assert value_of("checkpoint_copy_bytes_per_s", values) == pytest.approx(2e9)  # a rank's half of the state


def test_a_gpus_products_are_what_it_holds_and_its_best_is_kept_beside() -> None:
    rows = [*product_rows(700e12, precision="bf16"), *product_rows(640e12, precision="bf16", series="sustained")[-1:]]
    values = values_from([source("gemm", rows, GPU)], H200)
    assert value_of("matmul_flop_per_s", values, "bf16") == pytest.approx(640e12, rel=0.01)
    assert value_of("best_matmul_flop_per_s", values, "bf16") == pytest.approx(700e12, rel=0.01)


def test_memory_is_read_where_no_cache_helps() -> None:
    values = values_from([source("memory", memory_rows(12e9), CPU)], LAPTOP)
    assert value_of("memory_bytes_per_s", values) == pytest.approx(12e9, rel=0.01)
    assert [v.catalogue for v in values] == [pytest.approx(LAPTOP.hbm_bytes_per_s)]


def test_attention_is_the_fastest_kernels_and_its_ramp_is_recovered() -> None:
    values = values_from([source("attention", attention_rows(600e12, 3.2, half_at=500.0), GPU)], H200)
    assert value_of("attention_flop_per_s", values, "bf16") == pytest.approx(600e12, rel=0.02)
    assert value_of("attention_seq_ramp", values) == pytest.approx(500.0, rel=0.05)
    assert value_of("attention_backward_ratio", values, "bf16") == pytest.approx(3.2, rel=0.01)


@pytest.mark.parametrize(("m", "n", "k"), [(8192, 6144, 2048), (2048, 2048, 2048), (16384, 4096, 1024), (300, 700, 90)])
def test_the_rate_of_full_tiles_is_what_the_tile_model_made_a_time_from(m: int, n: int, k: int) -> None:
    units = H200.accelerator.num_compute_units
    assert units is not None
    time_s = tiled_product_time_s(m=m, n=n, k=k, flop_per_s=880e12, num_units=units.value, constants=H200.constants)
    row = {"m": m, "n": n, "k": k, "time_s": float(time_s)}
    assert full_tile_flop_per_s(H200, row) == pytest.approx(880e12, rel=1e-6)


def test_cool_products_and_held_ones_are_told_apart() -> None:
    big, odd = (8192, 8192, 8192), (1536, 1536, 8192)
    rows = [
        {"precision": "bf16", "m": m, "n": n, "k": k, "series": series, "name": name, "time_s": time_s,
         "flop_per_s": 2 * m * n * k / time_s}
        for series, name, (m, n, k), time_s in (
            ("shapes", "", big, 1.6e-3), ("cool", "cool", big, 1.3e-3), ("cool", "cool, the one held", odd, 50e-6),
            ("sustained", "sustained", odd, 60e-6),
        )
    ]  # fmt: skip
    values = values_from([source("gemm", rows, GPU)], H200)
    cool, held = (value_of("full_matmul_flop_per_s", values, of) for of in ("bf16 cool", "bf16"))
    assert cool == pytest.approx(full_tile_flop_per_s(H200, rows[1]))
    assert held / cool == pytest.approx(50 / 60)
    assert value_of("best_matmul_flop_per_s", values, "bf16") == pytest.approx(
        2 * 8192**3 / 1.6e-3
    )  # a pause is no merit


def test_operators_of_convolutions_are_kept_of_gpus_and_the_later_run_counts() -> None:
    row = {"op": "convolution", "precision": "bf16", "layout": "last", "batch": 128, "channels_in": 64, "kernel": 3,
           "channels_out": 64, "in_size": 56, "out_size": 56, "count": 3, "direction": "forward",
           "repeats": 9}  # fmt: skip
    first, second = (source("convolution", [row | {"time_s": time_s}], GPU) for time_s in (1e-3, 2e-3))
    kept = convolution_rows([first, second, source("convolution", [row | {"time_s": 9.0}], CPU)])
    assert [(one["time_s"], "repeats" in one) for one in kept] == [(2e-3, False)]


def test_a_start_that_only_others_explain_is_not_believed() -> None:
    rows = product_rows(150e9, start_s=10e-6)
    slow = [row | {"time_s": 8e-3, "time_low_s": 8e-3} if row["m"] < 256 else row for row in rows]
    names = {value.name for value in values_from([source("gemm", slow, CPU)], LAPTOP)}
    assert "matmul_flop_per_s" in names
    assert "matmul_start_s" not in names
    jolted = [row | {"time_s": 8e-3} if row["m"] < 256 else row for row in rows]  # the quickest repeats were not
    assert value_of("matmul_start_s", values_from([source("gemm", jolted, CPU)], LAPTOP)) < 50e-6


def test_of_two_runs_of_one_benchmark_the_later_counts() -> None:
    both = [source("memory", memory_rows(rate), CPU) for rate in (8e9, 12e9)]
    assert value_of("memory_bytes_per_s", values_from(both, LAPTOP)) == pytest.approx(12e9, rel=0.01)


def language_steps(truth: Calibration, *, num: int = len(SHAPES), noise: float = 0.0) -> list[RealStep]:
    """Steps whose measured time is what the machine with the true residuals predicts."""
    machine = machine_from_calibration(CATALOG, truth)
    return [_step(_language(shape, batch), machine, shape, noise * (-1) ** i) for i, (shape, batch) in
            enumerate(SHAPES[:num])]  # fmt: skip


def _language(shape: str, batch: int) -> Callable[[Machine], float]:
    layout = Layout(dp=1, mbs=batch, gbs=batch)
    run = language_run.resolve(from_shape(shape), layout, precision="fp32", steps=10, device="cpu")
    return lambda machine: language_outlook(CATALOG, run, machine, start_s=0.0).step_s


def _step(predicted: Callable[[Machine], float], machine: Machine, label: str, noise: float) -> RealStep:
    time_s = predicted(machine) * (1.0 + noise)
    return RealStep(
        run=label, workload="language", label=label, num_ranks=1, num_steps=10, precision="fp32", size=256.0,
        measured_s=time_s, low_s=time_s, high_s=time_s, predicted_s=predicted,
    )  # fmt: skip


def residual(name: ResidualName, factor: float) -> dict[str, object]:
    return {"name": name, "factor": factor, "low": factor, "high": factor}


def test_residuals_that_made_the_steps_are_found_and_named() -> None:
    truth = calibration(*CPU_VALUES, residuals=[residual("products", 1.3), residual("host", 0.6)])
    fitted = fit_residuals(CATALOG, calibration(*CPU_VALUES), language_steps(truth))
    factors = {r.name: r.factor for r in fitted.residuals}
    assert set(factors) == {"products", "host"}
    assert factors["products"] == pytest.approx(1.3, rel=0.05)
    assert factors["host"] == pytest.approx(0.6, rel=0.1)
    assert all(abs(s.after_s / s.measured_s - 1.0) < abs(s.before_s / s.measured_s - 1.0) + 0.02 for s in fitted.steps)


def test_where_operators_explain_the_steps_nothing_is_fitted() -> None:
    plain = calibration(*CPU_VALUES)
    fitted = fit_residuals(CATALOG, plain, language_steps(plain, noise=0.01))
    assert fitted.residuals == ()
    assert fitted.language_interval is not None
    assert 0.9 < fitted.language_interval.low_frac < 1.0 < fitted.language_interval.high_frac < 1.1


def test_few_steps_leave_the_catalogues_interval() -> None:
    truth = calibration(*CPU_VALUES, residuals=[residual("products", 1.5)])
    fitted = fit_residuals(CATALOG, calibration(*CPU_VALUES), language_steps(truth, num=2))
    assert len(fitted.residuals) <= 1
    assert fitted.language_interval is None
    assert fit_residuals(CATALOG, truth, []).steps == ()


def test_steps_of_a_machine_that_others_used_leave_factors_within_bounds() -> None:
    """Such steps say nothing about a factor: its deviation alone would be a million."""
    plain = calibration(*CPU_VALUES)
    steps = language_steps(plain)
    slowed = [replace(step, measured_s=step.measured_s * 200.0 ** (i % 2)) for i, step in enumerate(steps)]
    for one in fit_residuals(CATALOG, plain, slowed).residuals:
        assert one.factor / 4.0 <= one.low * 1.001
        assert one.high <= 4.0 * one.factor * 1.001
    assert bounded_factor(0.0, 15.0, farthest=math.log(4.0)) == pytest.approx({"factor": 1.0, "low": 0.25, "high": 4.0})


@settings(max_examples=3, deadline=None)
@given(st.tuples(*(st.floats(0.5, 2.0) for _ in range(3))))
def test_never_more_than_three_residuals_and_never_worse_than_none(factors: tuple[float, float, float]) -> None:
    names: tuple[ResidualName, ...] = ("products", "elementwise", "host")
    truth = calibration(*CPU_VALUES, residuals=[residual(n, f) for n, f in zip(names, factors, strict=True)])
    fitted = fit_residuals(CATALOG, calibration(*CPU_VALUES), language_steps(truth))

    def error(key: str) -> float:
        return math.fsum(math.log(getattr(s, key) / s.measured_s) ** 2 for s in fitted.steps)

    assert len(fitted.residuals) <= 3
    assert error("after_s") <= error("before_s") + 1e-9


def test_vision_factors_touch_what_they_name_only() -> None:
    def step_s(precision: str, compiled: str, **factors: float) -> float:
        made = calibration(*GPU_VALUES, device="cuda", residuals=[residual(n, f) for n, f in factors.items()])  # type: ignore[arg-type]
        run = VisionRun(
            model_id="resnet-50", blocks=(3, 4, 6, 3), width=64, num_classes=1000, image_size=224, num_ranks=1,
            batch=256, epochs=1, steps_per_epoch=1, precision=precision, compile=compiled, device="cuda",  # type: ignore[arg-type]
            channels_last=precision != "fp32",
        )  # fmt: skip
        return vision_outlook(CATALOG, run, machine_from_calibration(CATALOG, made), start_s=0.0).step_s

    assert step_s("bf16", "off", norms=1.5) > step_s("bf16", "off")
    assert step_s("bf16", "graphs", norms=1.5) == step_s("bf16", "graphs")
    assert step_s("fp16", "off", norms=1.5) == step_s("fp16", "off")
    assert step_s("bf16", "graphs", convolutions=1.5) > step_s("bf16", "graphs")
    assert step_s("fp32", "off", convolutions=1.5) == step_s("fp32", "off")
