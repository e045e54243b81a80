"""A calibration as a Machine: measured rates in the places of catalogued ones, fitted residuals on top."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from scalewright.catalog.calibration import Calibration, Value, ValueName
from scalewright.catalog.facts import Fact, FlopPerS
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Accelerator, Constants, Precision
from scalewright.costs.collective_lines import lines_of
from scalewright.costs.machine import Machine, Measured, machine_from_system
from scalewright.costs.measured_convolutions import convolutions_of

NUM_LAYER_LAUNCHES = {
    "cpu": {"eager": 150.0, "compiled": 8.0},
    "gpu": {"eager": 105.0, "compiled": 8.0, "scalewright": 14.0},
}
"""Launches whose host time a layer's forward pass takes, by stack, each in units of its mode below. Eager: a layer
forward and backward takes as long as 380 plain additions on a CPU and 260 on the host of an H200, whose additions are
launches (run/language/model.py); costs counts 2/5 as forward. Compiled and in a graph: kernels that are left."""
NUM_LAYER_KERNELS = {"eager": 110.0, "compiled": 40.0}
"""Kernels of a layer, forward and backward, of the same models (benchmarks/results/h200_kernels.jsonl): between two of
them the device pauses as it does between those of a graph. Of a graph they are its launches, above."""
ELEMENTWISE_PASSES = {
    ("eager", True): 44.0, ("eager", False): 35.0,
    ("compiled", True): 36.0, ("compiled", False): 30.0, ("scalewright", True): 36.0, ("scalewright", False): 30.0,
}  # fmt: skip
LOSS_PASSES = {("eager", True): 25.0, ("eager", False): 6.0}
"""Crossings at the rate of memory that the kernels of run/language took on an H200, by stack and whether in 16 bit
(benchmarks/results/h200_kernels.jsonl): all that is neither product nor attention, in a layer and in the loss. The
catalogue's, which are fitted to whole steps of many stacks together with products that run hot, stand for others."""
NUM_TENSOR_LAUNCHES = {"cpu": 23.0, "gpu": 1.0}
"""The same for the update of one tensor: step by step on a CPU, one compiled kernel on a GPU
(run/language/optimizer.py)."""
NUM_STEP_LAUNCHES = {"eager": 60.0, "compiled": 60.0, "scalewright": 12.0}
"""Plain launches once per step: norms of the gradients, scalars, the batch, reading the loss."""
VECTOR_CONVOLUTION_GAIN = 0.90
"""Rate of 32-bit convolutions over products as they are measured: the catalogue's gain stands over a rate that it
assumes, 1.19 x 38.2 TFLOP/s on an H200, where products were measured at 50.5."""
LAUNCH_MODES = {"eager": "eager", "compiled": "compiled", "scalewright": "graph"}
"""Mode of `bench dispatch` that issues the kernels of each stack."""
NUM_CONVOLUTION_LAUNCHES = 18.0
"""The same for a convolution with its norm and activation, forward: three modules of six additions each."""
COOL = "cool"
"""Products between pauses, which no power limit slows."""
NUM_UPDATE_PASSES_CPU = 29.0 / 6.0
"""AdamW step by step crosses memory 29 times (run/language/optimizer.py, the norm for clipping included), one fused
pass 6 times: gradient, weight, and two moments read and written."""
NUM_COPY_PASSES_CPU = 6.0
"""Gradients are copied together, divided and copied back: three reads and writes (run/language/gradients.py)."""


def machine_from_calibration(catalog: Catalog, calibration: Calibration, *, num_ranks: int = 1) -> Machine:
    """The calibrated machine. Ranks on a CPU share its cores: a device is then a rank among `num_ranks`."""
    base = machine_from_system(catalog, calibration.base, partition_name=calibration.partition)
    on_cpu = calibration.fingerprint.device == "cpu"
    ranks = num_ranks if on_cpu else 1
    accelerator = _accelerator(calibration, base.accelerator, ranks)
    constants = _constants(calibration, base.constants, ranks, on_cpu=on_cpu)
    memory = rank_value(calibration, "memory_bytes_per_s", num_ranks=ranks)
    link = calibration.value("host_link_bytes_per_s")
    machine = replace(
        base,
        name=f"{calibration.name}/{calibration.partition}",
        accelerator=accelerator,
        constants=constants,
        gpus_per_node=ranks if on_cpu else calibration.fingerprint.num_devices,
        hbm_bytes_per_s=base.hbm_bytes_per_s if memory is None else memory,
        host_link_bytes_per_s=base.host_link_bytes_per_s if link is None else link.value,
        confidence="calibrated",
        measured=_measured(calibration, base.accelerator, ranks),
        measured_collectives=lines_of(calibration.collectives),
    )
    if not on_cpu:
        return machine
    share = machine.hbm_bytes_per_s
    return replace(machine, memory_bytes=calibration.fingerprint.memory_bytes / ranks, scale_up_bytes_per_s=share / 2.0)


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
        found = rank_value(calibration, cast(ValueName, name), of, num_ranks=num_ranks)
        if found is not None:
            return found
    return None


def _held_fracs(calibration: Calibration) -> dict[str, float]:
    """Products without a pause over cool ones, where both were measured."""
    found: dict[str, float] = {}
    for of in calibration.kinds_of("matmul_flop_per_s"):
        held = calibration.value("full_matmul_flop_per_s", of)
        cool = calibration.value("full_matmul_flop_per_s", f"{of} {COOL}")
        if held is not None and cool is not None:
            found[of] = min(held.value / cool.value, 1.0)
    return found


def _source(calibration: Calibration) -> dict[str, Any]:
    day = calibration.created.date()
    return {"kind": "measured", "text": f"calibration {calibration.name} of this machine", "checked": day}


def _set(fact: Fact, value: float) -> Fact:
    """The same fact with another value, written as a plain number of its SI unit."""
    return fact.model_copy(update={"value": value, "text": f"{value:.6g}"})


def _accelerator(calibration: Calibration, base: Accelerator, num_ranks: int) -> Accelerator:
    source = _source(calibration)

    def rate(flop_per_s: float) -> FlopPerS:
        return FlopPerS.model_validate({"value": f"{flop_per_s:.6g} FLOP/s", "source": source})

    slower = calibration.residual("products")
    best, sustained = dict(base.best_matmul), dict(base.sustained_matmul)
    for of in calibration.kinds_of("best_matmul_flop_per_s"):
        found = rank_value(calibration, "best_matmul_flop_per_s", of, num_ranks=num_ranks)
        if found is not None:
            best[cast(Precision, of)] = rate(found)
    for of in calibration.kinds_of("matmul_flop_per_s"):
        found = full_flop_per_s(calibration, of, num_ranks=num_ranks)
        if found is not None:
            sustained[cast(Precision, of)] = rate(found / slower)
    for precision, fact in sustained.items():
        best[precision] = rate(max(fact.value, best[precision].value if precision in best else 0.0))
    update: dict[str, Any] = {"best_matmul": best, "sustained_matmul": sustained}
    if base.kind == "cpu":  # the peak of a CPU that nobody catalogued is the best it was seen to do
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
    if calibration.value("matmul_flop_per_s", "fp32") is not None:
        changed["vector_convolution_gain"] = VECTOR_CONVOLUTION_GAIN
    ramp = calibration.value("attention_seq_ramp")
    if ramp is not None:
        changed["attention_seq_ramp"] = ramp.value
    if launch is not None:
        changed["convolution_host_time"] = NUM_CONVOLUTION_LAUNCHES * launch * calibration.residual("host")
    if on_cpu:  # the host is the device: nothing runs beside the exchange
        changed |= {"gradient_overlap": 0.0, "shard_overlap": 0.0, "overlap_cost": 0.0}
    language, vision = calibration.language_interval, calibration.vision_interval
    if language is not None:
        changed |= {"interval_low": language.low_frac, "interval_high": language.high_frac}
    if vision is not None:
        changed |= {"vision_interval_low": vision.low_frac, "vision_interval_high": vision.high_frac}
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


def _measured(calibration: Calibration, base: Accelerator, num_ranks: int) -> Measured:
    host, on_cpu = calibration.residual("host"), base.kind == "cpu"
    launches = {
        stack: found
        for stack, mode in LAUNCH_MODES.items()
        if (found := rank_value_s(calibration, "dispatch_s", mode, num_ranks=num_ranks)) is not None
    }
    num = NUM_LAYER_LAUNCHES["cpu" if on_cpu else "gpu"]
    # in a graph the host does nothing, so that what it lacks elsewhere says nothing about it
    factor = {stack: 1.0 if LAUNCH_MODES[stack] == "graph" else host for stack in launches}
    one_by_one = launches.get("eager") if on_cpu else launches.get("compiled", launches.get("eager"))
    per_tensor = NUM_TENSOR_LAUNCHES["cpu" if on_cpu else "gpu"] * host * (one_by_one or 0.0)
    attention = {
        of: found / calibration.residual("products")
        for of in calibration.kinds_of("attention_flop_per_s")
        if (found := rank_value(calibration, "attention_flop_per_s", of, num_ranks=num_ranks)) is not None
    }
    if "bf16" in attention:  # the same units and kernels
        attention.setdefault("fp16", attention["bf16"])
    language = [step for step in calibration.steps if step.workload == "language"]
    gap = 0.0 if on_cpu else launches.get("scalewright", 0.0)
    sizes = [int(step.size) for step in language] or [0]
    return Measured(
        id=calibration.id,
        product_start_s=rank_value_s(calibration, "matmul_start_s", num_ranks=num_ranks) or 0.0,
        attention_flop_per_s=attention,
        attention_backward_ratio=_backward_ratios(calibration),
        layer_host_s={stack: num[stack] * s * factor[stack] for stack, s in launches.items() if stack in num},
        tensor_host_s={s: t if LAUNCH_MODES[s] == "graph" else per_tensor for s, t in launches.items()},
        adding_stacks=frozenset(s for s in LAUNCH_MODES if on_cpu or LAUNCH_MODES[s] == "graph"),
        step_host_s={stack: many * host * launches["eager"] for stack, many in NUM_STEP_LAUNCHES.items()}
        if "eager" in launches
        else {},
        held_frac={} if on_cpu else _held_fracs(calibration),
        kernel_gap_s=gap,
        gap_s={stack: num_kernels * gap for stack, num_kernels in NUM_LAYER_KERNELS.items()},
        elementwise_passes={} if on_cpu else ELEMENTWISE_PASSES,
        loss_passes={} if on_cpu else LOSS_PASSES,
        convolutions=convolutions_of(calibration.convolutions),
        convolution_factor=calibration.residual("convolutions"),
        norm_factor=calibration.residual("norms"),
        elementwise_factor=calibration.residual("elementwise"),
        num_update_passes=NUM_UPDATE_PASSES_CPU if on_cpu else 1.0,
        num_copy_passes=NUM_COPY_PASSES_CPU if on_cpu else 0.0,
        precisions=tuple(dict.fromkeys(step.precision for step in language)),
        max_ranks=max((step.num_ranks for step in language), default=1),
        hidden=(min(sizes), max(sizes)),
        checkpoint_copy_bytes_per_s=rank_value(calibration, "checkpoint_copy_bytes_per_s", num_ranks=num_ranks),
    )


def _backward_ratios(calibration: Calibration) -> dict[str, float]:
    """By precision; one without a precision, of an older calibration, stands for all that have none."""
    found = {v.of: v.value for v in calibration.values if v.name == "attention_backward_ratio" and v.of}
    if "bf16" in found:  # the same units and kernels
        found.setdefault("fp16", found["bf16"])
    whole = calibration.value("attention_backward_ratio")
    if whole is not None:
        found |= {name: whole.value for name in ("fp32", "tf32", "fp16", "bf16") if name not in found}
    return found
