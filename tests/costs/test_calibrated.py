"""A calibrated machine: measured rates take the catalogue's places, and what depends on them follows."""

from __future__ import annotations

import math
from typing import Any

import pytest

from calibration_cases import CPU_VALUES, GPU_VALUES, calibration, value
from scalewright.catalog.calibration import Interval
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.launch.prepare.outlook import Outlook, language_outlook
from scalewright.planner.answer import Answer, answer
from scalewright.planner.figures import GenerationFigures
from scalewright.planner.question import ask, resolve_stack
from scalewright.workload import language_run
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_shape

CATALOG = Catalog((packaged_data(),))
SMALL = "layers=4,hidden=256,heads=4,vocab=4096,seq=128"


def on_cpu(*values: Any, ranks: int = 1, **more: Any) -> Outlook:
    machine = machine_from_calibration(CATALOG, calibration(*values, **more), num_ranks=ranks)
    layout = Layout(dp=ranks, mbs=2, gbs=2 * ranks)
    run = language_run.resolve(from_shape(SMALL), layout, precision="fp32", steps=5, device="cpu")
    return language_outlook(CATALOG, run, machine, start_s=0.0)


def on_gpu(*values: Any, compiled: str = "off", precision: str = "bf16", **more: Any) -> Outlook:
    machine = machine_from_calibration(CATALOG, calibration(*values, device="cuda", **more))
    run = language_run.resolve(
        from_shape("layers=12,hidden=512,heads=8,vocab=8192,seq=256"), Layout(dp=1, mbs=1, gbs=1), precision=precision,
        steps=5, device="cuda", compile=compiled,
    )  # fmt: skip
    return language_outlook(CATALOG, run, machine, start_s=0.0)


def test_measured_rates_take_the_places_of_catalogued_ones() -> None:
    machine = machine_from_calibration(CATALOG, calibration(*GPU_VALUES, device="cuda"))
    base = machine_from_system(CATALOG, "generic-h200")
    assert machine.confidence == "calibrated"
    assert machine.sustained_flop_per_s("bf16") == pytest.approx(640e12)
    assert machine.matmul_flop_per_s("bf16") == pytest.approx(740e12)
    assert machine.hbm_bytes_per_s == pytest.approx(4.3e12)
    assert machine.gpus_per_node == 1
    assert machine.peak_flop_per_s("bf16") == base.peak_flop_per_s("bf16")
    assert machine.sustained_flop_per_s("fp8") == pytest.approx(base.sustained_flop_per_s("fp8"))


def test_a_cpu_whose_products_were_not_measured_has_the_catalogues() -> None:
    rest = [v for v in CPU_VALUES if v.name != "matmul_flop_per_s"]
    base, calibrated = (machine_from_system(CATALOG, "laptop"), machine_from_calibration(CATALOG, calibration(*rest)))
    assert calibrated.peak_flop_per_s("fp32") == base.peak_flop_per_s("fp32")
    assert calibrated.sustained_flop_per_s("fp32") == base.sustained_flop_per_s("fp32")


def test_ranks_of_a_cpu_share_what_was_measured_together() -> None:
    made = calibration(*CPU_VALUES)
    alone, two, four = (machine_from_calibration(CATALOG, made, num_ranks=n) for n in (1, 2, 4))
    assert alone.sustained_flop_per_s("fp32") == pytest.approx(300e9)
    assert two.sustained_flop_per_s("fp32") == pytest.approx(150e9)
    assert four.sustained_flop_per_s("fp32") == pytest.approx(75e9)
    assert two.hbm_bytes_per_s == pytest.approx(11e9)
    assert two.gpus_per_node == 2
    assert two.memory_bytes == pytest.approx(alone.memory_bytes / 2)


def test_a_cpu_adds_its_host_work_and_hides_no_exchange() -> None:
    slow = [v for v in CPU_VALUES if v.name != "dispatch_s"]
    one, ten = (on_cpu(*slow, value("dispatch_s", s, of="eager")).step_s for s in (2e-6, 20e-6))
    layers, tensors = 4, 4 * 12 + 4
    assert ten - one == pytest.approx(18e-6 * (layers * 150 * 2.5 + tensors * 23 + 60), rel=0.02)
    line = {"op": "all-reduce", "dtype": "fp32", "num_ranks": 2, "num_nodes": 1, "from_bytes": 1024, "alpha_s": 1e-4,
            "bytes_per_s": 1e9}  # fmt: skip
    exchanged = on_cpu(*CPU_VALUES, ranks=2, collectives=[line])
    size = 4.0 * exchanged.prediction.question.spec.num_params
    term = exchanged.prediction.time.part("data_parallel").total
    assert float(term) == pytest.approx(1e-4 + size / 1e9, rel=0.05)


def test_a_product_waits_for_its_start_on_a_cpu() -> None:
    with_start, without = (
        on_cpu(*(v for v in CPU_VALUES if v.name != "matmul_start_s" or keeps)).step_s for keeps in (True, False)
    )
    products = 4 * 4 * 3 + 3
    assert with_start - without == pytest.approx(products * 3e-6, rel=0.01)


def test_launches_of_a_graph_are_gaps_and_those_of_an_eager_step_hide_behind_the_device() -> None:
    graph = [
        on_gpu(*GPU_VALUES[:6], value("dispatch_s", s, of="graph"), compiled="graphs").step_s for s in (1e-6, 2e-6)
    ]
    assert graph[1] - graph[0] == pytest.approx(1e-6 * (12 * 14 * 2.5 + 12 * 12 + 4), rel=0.02)
    eager = on_gpu(*GPU_VALUES)
    assert float(eager.prediction.time.part("host").total) > 0.5 * eager.step_s


def test_products_run_at_their_cool_rate_and_the_power_limit_is_a_term_of_its_own() -> None:
    cool, held = (
        value("full_matmul_flop_per_s", rate, of=of) for rate, of in ((900e12, "bf16 cool"), (700e12, "bf16"))
    )
    machine = machine_from_calibration(CATALOG, calibration(*GPU_VALUES, cool, held, device="cuda"))
    assert machine.sustained_flop_per_s("bf16") == pytest.approx(900e12)
    assert machine.held_frac == {"bf16": pytest.approx(7 / 9)}
    assert machine.held_flop_per_s("bf16") == pytest.approx(700e12)
    shape = from_shape("layers=24,hidden=4096,heads=32,vocab=32000,seq=4096")
    run = language_run.resolve(shape, Layout(dp=1, mbs=2, gbs=2), precision="bf16", steps=5, device="cuda",
                               compile="graphs")  # fmt: skip
    both = language_outlook(CATALOG, run, machine, start_s=0.0).prediction.time
    assert 0.05 < float(both.part("power_limit").total) / float(both.total) < 2 / 9  # mostly products, not all
    without = on_gpu(*GPU_VALUES).prediction.time
    with pytest.raises(KeyError):
        without.part("power_limit")


def test_backward_attention_is_known_by_precision() -> None:
    ratios = [value("attention_backward_ratio", ratio, of=of) for ratio, of in ((2.8, "bf16"), (2.2, "tf32"))]
    machine = machine_from_calibration(CATALOG, calibration(*GPU_VALUES, *ratios, device="cuda"))
    assert machine.attention_backward_ratio["tf32"] == pytest.approx(2.2)
    assert machine.attention_backward_ratio["fp16"] == pytest.approx(2.8)


def test_kernels_of_a_full_queue_have_pauses_between_them() -> None:
    big = [v for v in GPU_VALUES if v.name != "dispatch_s"]
    few_kernels, many = (
        on_gpu(*big, value("dispatch_s", 1e-9, of="eager"), value("dispatch_s", pause_s, of="graph"))
        for pause_s in (1e-6, 2e-6)
    )
    assert many.step_s - few_kernels.step_s == pytest.approx(12 * 110 * 1e-6, rel=0.05)


def test_a_host_that_is_ahead_updates_unseen_in_fp16_too() -> None:
    big = [v for v in GPU_VALUES if v.name != "dispatch_s"] + [
        value("dispatch_s", 1e-9, of="eager"), value("dispatch_s", 1e-3, of="compiled")
    ]  # fmt: skip
    assert on_gpu(*big, precision="fp16").step_s == pytest.approx(on_gpu(*big, precision="bf16").step_s, rel=0.05)


def test_the_interval_is_the_calibrations_own_and_wider_for_what_it_has_not_seen() -> None:
    step = {"run": "r", "workload": "language", "label": "l", "num_ranks": 1, "num_steps": 10, "precision": "fp32",
            "size": 256.0, "measured_s": 1.0, "low_s": 1.0, "high_s": 1.0, "before_s": 1.0, "after_s": 1.0,
            "left_out_s": 1.0}  # fmt: skip
    own = Interval(low_frac=0.95, high_frac=1.06, num_steps=5)
    seen = on_cpu(*CPU_VALUES, steps=[step], language_interval=own)
    low, high = (float(end) for end in seen.prediction.interval_s)
    assert (low / seen.step_s, high / seen.step_s) == (pytest.approx(0.95), pytest.approx(1.06))
    unseen = on_cpu(*CPU_VALUES, steps=[step], language_interval=own, ranks=2)
    assert float(unseen.prediction.interval_s[1]) / unseen.step_s > 1.065
    assert any("measured 1 rank only" in warning for warning in unseen.prediction.warnings)


def test_a_new_calibration_makes_earlier_predictions_stale() -> None:
    first, same, other = (
        on_cpu(*CPU_VALUES, value("host_link_bytes_per_s", rate)).prediction.id for rate in (1e9, 1e9, 2e9)
    )
    assert first == same != other


def test_what_runs_here_is_what_is_predicted_by_default() -> None:
    gpu = machine_from_calibration(CATALOG, calibration(*GPU_VALUES, device="cuda"))
    cpu = machine_from_calibration(CATALOG, calibration(*CPU_VALUES))
    assert resolve_stack("auto", CATALOG, Layout(), gpu).id == "scalewright"
    assert resolve_stack("auto", CATALOG, Layout(), cpu).id == "eager"
    assert resolve_stack("compiled", CATALOG, Layout(), gpu).id == "compiled"


def test_a_stack_without_counts_stays_as_fitted_but_for_the_factor_on_what_it_moves() -> None:
    residual = {"name": "elementwise", "factor": 0.8, "low": 0.7, "high": 0.9}
    made = calibration(*GPU_VALUES, device="cuda", residuals=[residual])
    machine, stack = machine_from_calibration(CATALOG, made), CATALOG.stack("megatron-core")
    costs = machine.stack_costs(stack)
    assert (costs.layer_host_s, costs.adds_host_time) == (stack.host_time.value, False)
    assert costs.gap_s == machine.constants.layer_kernels.value * machine.constants.kernel_gap.value
    assert costs.num_layer_passes(2.0) == pytest.approx(0.8 * stack.elementwise_passes.value)
    assert costs.num_score_passes(2.0) == pytest.approx(machine.constants.logits_passes.value)


def test_a_catalogued_machine_is_untouched() -> None:
    base = machine_from_system(CATALOG, "generic-h200")
    stack = CATALOG.stack("eager")
    costs = base.stack_costs(stack)
    assert costs.layer_host_s == stack.host_time.value
    assert costs.update_host_s(num_tensors=100.0, visible_frac=1.0) == base.constants.step_overhead.value
    assert costs.host_blend == math.inf
    assert base.attention_flop_per_s("bf16", stack) == pytest.approx(
        base.matmul_flop_per_s("bf16") * stack.attention_share.value
    )


GENERATION_VALUES = (
    value("decode_weight_bytes_per_s", 2.0e12, of="1 2"), value("decode_weight_bytes_per_s", 4.0e12, of="8 2"),
    value("decode_cache_bytes_per_s", 3.0e12, of="2"),
    value("decode_layer_s", 10e-6), value("decode_step_s", 200e-6), value("decode_sequence_s", 1e-6),
    value("prompt_layer_s", 60e-6), value("prompt_flop_per_s", 5e14, of="bf16"), value("product_blend", 2.5),
)  # fmt: skip


def generated(*values: Any, **more: Any) -> Answer:
    machine = machine_from_calibration(CATALOG, calibration(*GPU_VALUES, *values, device="cuda", **more))
    question = ask(
        CATALOG, model="layers=24,hidden=2048,heads=16,vocab=50304,seq=2048", system=machine, layout="gbs=8",
        precision="bf16", generate="prompt=512,response=64",
    )  # fmt: skip
    return answer(question)


def test_measured_steps_of_the_engine_take_the_places_of_fitted_rates() -> None:
    usual, measured = generated(), generated(*GENERATION_VALUES)
    assert isinstance(measured.figures, GenerationFigures)
    rates = measured.figures.serving.rates
    assert rates.weight_rate_bytes_per_s(1.0, width_bytes=2.0) == pytest.approx(2.0e12)
    assert rates.weight_rate_bytes_per_s(8.0**0.5, width_bytes=2.0) == pytest.approx((2.0e12 * 4.0e12) ** 0.5)
    assert rates.weight_rate_bytes_per_s(64.0, width_bytes=2.0) == pytest.approx(4.0e12)
    assert rates.step_s == pytest.approx(200e-6)
    assert rates.matmul_flop_per_s["bf16"] == pytest.approx(5e14)
    slower = [v.model_copy(update={"value": 1.0e12, "low": 1.0e12, "high": 1.0e12})
              if v.name == "decode_weight_bytes_per_s" else v for v in GENERATION_VALUES]  # fmt: skip
    assert generated(*slower).time_s > measured.time_s
    assert usual.id != measured.id


def test_the_interval_of_generation_is_that_of_its_own_steps() -> None:
    narrow = Interval(low_frac=0.95, high_frac=1.05, num_steps=20)
    measured = generated(*GENERATION_VALUES, generation_interval=narrow, first_token_interval=narrow)
    low, high = (end / measured.time_s for end in measured.interval_s)
    assert (low, high) == pytest.approx((0.95, 1.05))


def test_ranks_of_a_cpu_share_the_rates_of_generation() -> None:
    on_one, on_two = (
        machine_from_calibration(CATALOG, calibration(*CPU_VALUES, *GENERATION_VALUES), num_ranks=num).generation
        for num in (1, 2)
    )
    assert on_one is not None
    assert on_two is not None
    assert on_two.weight_bytes_per_s == pytest.approx(on_one.weight_bytes_per_s / 2.0)
    assert on_two.step_s == on_one.step_s
    assert machine_from_calibration(CATALOG, calibration(*CPU_VALUES)).generation is None
