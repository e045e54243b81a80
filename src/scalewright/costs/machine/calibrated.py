"""A calibration as a Machine: its plain fields hold measured values in place of catalogued ones.

A calibration measures operators (products, memory, attention, launches) and then a few real steps. What the operators
do not explain of the steps is shared among at most three residual factors, each on one group of terms: `products` slows
the rates of products and attention, `elementwise` what crosses memory, `host` launches outside a graph, `convolutions`
and `norms` those of vision models. The factors are put in here, so that no formula asks whether a value was measured.
Stacks of training programs that were fitted here (`calibrate --engine`) have factors of their own beside these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from scalewright.catalog.calibration import Calibration, EngineFit, Value, ValueName
from scalewright.catalog.facts import Fact, FlopPerS
from scalewright.catalog.library import Catalog
from scalewright.catalog.stack import LaunchMode
from scalewright.catalog.types import Accelerator, Constants, Precision
from scalewright.costs.machine.collective_lines import lines_of
from scalewright.costs.machine.from_catalog import machine_from_system
from scalewright.costs.machine.generation_rates import GenerationRates, WeightRate
from scalewright.costs.machine.machine import CalibratedRange, Machine
from scalewright.costs.machine.measured_convolutions import convolutions_of
from scalewright.costs.machine.stack_costs import EngineStack, Launches, StackFactors

COOL = "cool"
WEIGHT: ValueName = "decode_weight_bytes_per_s"
CACHE: ValueName = "decode_cache_bytes_per_s"
"""Products between pauses, which no power limit slows."""
LAUNCH_MODES: tuple[LaunchMode, ...] = get_args(LaunchMode)


def machine_from_calibration(catalog: Catalog, calibration: Calibration, *, num_ranks: int = 1) -> Machine:
    """The calibrated machine. Ranks on a CPU share its cores: a device is then a rank among `num_ranks`."""
    base = machine_from_system(catalog, calibration.base, partition_name=calibration.partition)
    on_cpu = calibration.fingerprint.device == "cpu"
    ranks = num_ranks if on_cpu else 1
    memory = rank_value(calibration, "memory_bytes_per_s", num_ranks=ranks)
    link = calibration.value("host_link_bytes_per_s")
    launches = _launches(calibration, ranks, on_cpu=on_cpu)
    counted = base.constants
    machine = replace(
        base,
        name=f"{calibration.name}/{calibration.partition}",
        accelerator=_accelerator(calibration, base.accelerator, ranks),
        constants=_constants(calibration, base.constants, ranks, on_cpu=on_cpu),
        gpus_per_node=ranks if on_cpu else calibration.fingerprint.num_devices,
        hbm_bytes_per_s=base.hbm_bytes_per_s if memory is None else memory,
        host_link_bytes_per_s=base.host_link_bytes_per_s if link is None else link.value,
        confidence="calibrated",
        measured_collectives=lines_of(calibration.collectives),
        calibration_id=calibration.id,
        launches=launches,
        product_start_s=rank_value_s(calibration, "matmul_start_s", num_ranks=ranks) or 0.0,
        held_frac={} if on_cpu else _held_fracs(calibration),
        attention_rates_flop_per_s=_attention_rates(calibration, ranks),
        attention_backward_ratio=_backward_ratios(calibration),
        convolutions=convolutions_of(calibration.convolutions),
        convolution_factor=calibration.residual("convolutions"),
        norm_factor=calibration.residual("norms"),
        kernel_gap_s=launches.kernel_gap_s,
        autocast_host_frac=counted.autocast_host.value,
        is_own_host=on_cpu,
        num_update_passes=counted.update_passes_cpu.value if on_cpu else 1.0,
        num_copy_passes=counted.copy_passes_cpu.value if on_cpu else 0.0,
        checkpoint_copy_bytes_per_s=rank_value(calibration, "checkpoint_copy_bytes_per_s", num_ranks=ranks),
        calibrated_range=_calibrated_range(calibration),
        generation=generation_rates(calibration, num_ranks=ranks),
        engine_stacks={fit.engine: _engine_stack(fit) for fit in calibration.engines},
    )
    if not on_cpu:
        return machine
    # Ranks of a CPU exchange through its memory: one writes what the other reads, so each has half of its share.
    share = machine.hbm_bytes_per_s
    return replace(machine, memory_bytes=calibration.fingerprint.memory_bytes / ranks, scale_up_bytes_per_s=share / 2.0)


def _engine_stack(fit: EngineFit) -> EngineStack:
    factors = StackFactors(**{f"{factor.name}_factor": factor.factor for factor in fit.factors})
    return EngineStack(stack=fit.stack, release=fit.release, factors=factors)


def generation_rates(calibration: Calibration, *, num_ranks: int = 1) -> GenerationRates | None:
    """Rates of our engine's iterations; None where no step of it was measured.

    Ranks that share a CPU divide its rates; what a step takes on the host, each has alone.
    """
    keys = [(value.name, value.of) for value in calibration.values]
    if ("decode_step_s", "") not in keys or any(name == WEIGHT and " " not in of for name, of in keys):
        return None  # not measured, or by a version that did not tell widths apart

    def value_of(name: ValueName, of: str) -> float:
        is_rate = name.endswith("_per_s")
        value = (rank_value if is_rate else rank_value_s)(calibration, name, of, num_ranks=num_ranks)
        assert value is not None
        return value

    return generation_rates_of(value_of, list(dict.fromkeys(keys)))


def generation_rates_of(
    value_of: Callable[[ValueName, str], float], keys: Sequence[tuple[ValueName, str]]
) -> GenerationRates:
    """Rates from values by their names. A weight's is of "TOKENS WIDTH", a cache's of "WIDTH"."""
    measured = [(of, *of.split()) for name, of in keys if name == WEIGHT]
    weights = sorted(
        (WeightRate(width_bytes=float(width), num_tokens=float(tokens), bytes_per_s=value_of(WEIGHT, of))
         for of, tokens, width in measured),
        key=lambda rate: (rate.width_bytes, rate.num_tokens),
    )  # fmt: skip
    caches = {float(of): value_of(CACHE, of) for name, of in keys if name == CACHE}
    return GenerationRates(
        matmul_flop_per_s={of: value_of("prompt_flop_per_s", of) for name, of in keys if name == "prompt_flop_per_s"},
        weight_bytes_per_s=max(rate.bytes_per_s for rate in weights),
        weight_rates=tuple(weights),
        cache_bytes_per_s=max(caches.values()),
        cache_rates_bytes_per_s=caches,
        layer_s=value_of("decode_layer_s", ""),
        prompt_layer_s=value_of("prompt_layer_s", ""),
        step_s=value_of("decode_step_s", ""),
        sequence_s=value_of("decode_sequence_s", ""),
        blend=value_of("product_blend", ""),
    )


def rank_value(calibration: Calibration, name: ValueName, of: str = "", *, num_ranks: int = 1) -> float | None:
    """A rank's share of a rate.

    Equation  v(n) as measured with n ranks at once; else v(n0) n0 / n of the nearest fewer n0
    Source    the calibration's values
    Assumes   ranks that were not measured divide evenly what fewer ones had
    Checked   tests/costs/test_calibrated.py
    """
    measured = [v for v in calibration.values if v.name == name and v.of == of]
    fewer = [v for v in measured if v.num_ranks <= num_ranks]
    if not fewer:
        return None
    nearest: Value = max(fewer, key=lambda v: v.num_ranks)
    return nearest.value * nearest.num_ranks / num_ranks


def full_flop_per_s(calibration: Calibration, precision: str, *, num_ranks: int = 1) -> float | None:
    """Rate of products whose tiles fill the device: cool ones where they were measured, else held ones.

    Equation  F_cool, else F_held, else the held rate of the best product as it was measured
    Source    the calibration's values
    Assumes   a step's products are slowed by the power limit as costs.power says, not by what each was measured at
    Checked   tests/costs/test_calibrated.py
    """
    for name, of in (
        ("full_matmul_flop_per_s", f"{precision} {COOL}"), ("full_matmul_flop_per_s", precision),
        ("matmul_flop_per_s", precision),
    ):  # fmt: skip
        rate = rank_value(calibration, cast(ValueName, name), of, num_ranks=num_ranks)
        if rate is not None:
            return rate
    return None


def _held_fracs(calibration: Calibration) -> dict[str, float]:
    """Products without a pause over cool ones, where both were measured."""
    fracs: dict[str, float] = {}
    for of in calibration.kinds_of("matmul_flop_per_s"):
        held = calibration.value("full_matmul_flop_per_s", of)
        cool = calibration.value("full_matmul_flop_per_s", f"{of} {COOL}")
        if held is not None and cool is not None:
            fracs[of] = min(held.value / cool.value, 1.0)
    return fracs


def _set(fact: Fact, value: float) -> Fact:
    """The same fact with another value, written as a plain number of its SI unit."""
    return fact.model_copy(update={"value": value, "text": f"{value:.6g}"})


def _accelerator(calibration: Calibration, base: Accelerator, num_ranks: int) -> Accelerator:
    def rate(flop_per_s: float) -> FlopPerS:
        return FlopPerS.model_validate({"value": f"{flop_per_s:.6g} FLOP/s", "source": calibration.source})

    slower = calibration.residual("products")
    best, sustained = dict(base.best_matmul), dict(base.sustained_matmul)
    for of in calibration.kinds_of("best_matmul_flop_per_s"):
        best_flop_per_s = rank_value(calibration, "best_matmul_flop_per_s", of, num_ranks=num_ranks)
        if best_flop_per_s is not None:
            best[cast(Precision, of)] = rate(best_flop_per_s)
    for of in calibration.kinds_of("matmul_flop_per_s"):
        held_flop_per_s = full_flop_per_s(calibration, of, num_ranks=num_ranks)
        if held_flop_per_s is not None:
            sustained[cast(Precision, of)] = rate(held_flop_per_s / slower)
    for precision, fact in sustained.items():
        best[precision] = rate(max(fact.value, best[precision].value if precision in best else 0.0))
    update: dict[str, Any] = {"best_matmul": best, "sustained_matmul": sustained}
    if base.kind == "cpu":  # a CPU without a catalogued peak gets its best measured rate
        seen = {precision: rate(fact.value) for precision, fact in best.items() if precision in sustained}
        update["peak"] = seen or base.peak
        update["id"], update["name"] = calibration.name, calibration.fingerprint.name
    return base.model_copy(update=update)


def _constants(calibration: Calibration, base: Constants, num_ranks: int, *, on_cpu: bool) -> Constants:
    """Constants that a calibration measured, and the quantiles of its own residuals in the place of published ones."""
    elementwise = calibration.residual("elementwise")
    launch = rank_value_s(calibration, "dispatch_s", "eager", num_ranks=num_ranks)
    changed: dict[str, float] = {
        "logits_passes": base.logits_passes.value * elementwise,
    }
    ramp = calibration.value("attention_seq_ramp")
    if ramp is not None:
        changed["attention_seq_ramp"] = ramp.value
    if launch is not None:
        changed["convolution_host_time"] = base.convolution_launches.value * launch * calibration.residual("host")
    if on_cpu:  # the host is the device: nothing runs beside the exchange
        changed |= {"gradient_overlap": 0.0, "overlap_cost": 0.0}
    language, vision = calibration.language_interval, calibration.vision_interval
    if language is not None:
        changed |= {"interval_low": language.low_frac, "interval_high": language.high_frac}
    if vision is not None:
        changed |= {"vision_interval_low": vision.low_frac, "vision_interval_high": vision.high_frac}
    for words, measured_interval in (
        ("generation", calibration.generation_interval), ("first_token", calibration.first_token_interval),
    ):  # fmt: skip
        if measured_interval is not None:
            changed |= {f"{words}_interval_low": measured_interval.low_frac,
                        f"{words}_interval_high": measured_interval.high_frac}  # fmt: skip
    seen = tuple(dict.fromkeys(step.precision for step in calibration.steps if step.workload == "vision"))
    update: dict[str, Any] = {name: _set(getattr(base, name), value) for name, value in changed.items()}
    if vision is not None:
        update["vision_seen_precisions"] = seen
        update["vision_seen_accelerators"] = (*base.vision_seen_accelerators, calibration.name)
    return base.model_copy(update=update)


def rank_value_s(calibration: Calibration, name: ValueName, of: str = "", *, num_ranks: int = 1) -> float | None:
    """A time as measured with so many ranks.

    Equation  t(n), else t(n0) of the nearest fewer n0
    Source    the calibration's values
    Assumes   ranks do not share what a launch takes
    Checked   tests/costs/test_calibrated.py
    """
    fewer = [v for v in calibration.values if v.name == name and v.of == of and v.num_ranks <= num_ranks]
    return max(fewer, key=lambda v: v.num_ranks).value if fewer else None


def _launches(calibration: Calibration, num_ranks: int, *, on_cpu: bool) -> Launches:
    launch_s = {
        mode: time_s
        for mode in LAUNCH_MODES
        if (time_s := rank_value_s(calibration, "dispatch_s", mode, num_ranks=num_ranks)) is not None
    }
    return Launches(
        launch_s=launch_s,
        kernel_gap_s=0.0 if on_cpu else launch_s.get("graph", 0.0),
        host_factor=calibration.residual("host"),
        elementwise_factor=calibration.residual("elementwise"),
        on_cpu=on_cpu,
    )


def _attention_rates(calibration: Calibration, num_ranks: int) -> dict[str, float]:
    """Rates of fused attention by precision, with the residual factor of products."""
    rates = {
        of: rate / calibration.residual("products")
        for of in calibration.kinds_of("attention_flop_per_s")
        if (rate := rank_value(calibration, "attention_flop_per_s", of, num_ranks=num_ranks)) is not None
    }
    if "bf16" in rates:  # the same units and kernels
        rates.setdefault("fp16", rates["bf16"])
    return rates


def _calibrated_range(calibration: Calibration) -> CalibratedRange | None:
    """What the language steps covered; None without such steps."""
    steps = [step for step in calibration.steps if step.workload == "language"]
    if not steps:
        return None
    sizes = [int(step.size) for step in steps]
    return CalibratedRange(
        precisions=tuple(dict.fromkeys(step.precision for step in steps)),
        max_ranks=max(step.num_ranks for step in steps),
        hidden=(min(sizes), max(sizes)),
    )


def _backward_ratios(calibration: Calibration) -> dict[str, float]:
    """By precision; a ratio without a precision, of an older calibration, is that of all other precisions."""
    ratios = {v.of: v.value for v in calibration.values if v.name == "attention_backward_ratio" and v.of}
    if "bf16" in ratios:  # the same units and kernels
        ratios.setdefault("fp16", ratios["bf16"])
    whole = calibration.value("attention_backward_ratio")
    if whole is not None:
        ratios |= {name: whole.value for name in ("fp32", "tf32", "fp16", "bf16") if name not in ratios}
    return ratios
