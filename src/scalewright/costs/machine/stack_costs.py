"""StackCosts: what a software stack costs on a machine, as fitted to published runs or as a calibration measured it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from scalewright.catalog.constant_types import Constants
from scalewright.catalog.facts import Count
from scalewright.catalog.stack import EngineFactors, KernelCounts, LaunchMode, Stack
from scalewright.costs.breakdown import FloatLike

FP32_BYTES = 4.0
"""Width of an element in 32 bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Times of launches that a calibration measured on a machine, with the residual factors of its real steps."""

    launch_s: Mapping[LaunchMode, float]
    """One launch, by how it is issued; a mode that was not measured is absent."""
    kernel_gap_s: float
    """Between two kernels of a full queue."""
    host_factor: float
    """On all host work outside a graph."""
    elementwise_factor: float
    """On the traffic of everything that is not a product."""
    on_cpu: bool
    """The host is the device: its launches add to the device's time, and kernel counts of a GPU do not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCosts:
    """Host work and crossings of memory of one stack on one machine."""

    layer_host_s: float
    """Host work to issue one layer's forward pass."""
    gap_s: float
    """What the kernels of one layer take to start and to drain, forward and backward, although the queue is full."""
    kernel_gap_s: float
    """The same of one kernel; 0 on a CPU."""
    step_host_s: float
    """Host work once per step: data, clipping, reading the loss."""
    tensor_host_s: float
    """Host work to update one tensor of weights; 0 where it is part of the work per step."""
    adds_host_time: bool
    """Launches add to the device's time: on a CPU, and in a graph, where they are pauses between kernels."""
    host_blend: float
    """Exponent with which host and device take turns; 1 where launches add, infinite where the slower one counts."""
    num_elementwise_passes: tuple[float, float]
    """Crossings of all in a layer that is not a product, forward: in 16 bit and in 32 bit."""
    num_loss_passes: tuple[float, float]
    """Crossings of the scores for the loss, forward and backward: in 16 bit and in 32 bit."""

    def num_layer_passes(self, width_bytes: float) -> float:
        """Crossings of a layer's activations of this width, forward."""
        return self.num_elementwise_passes[int(width_bytes >= FP32_BYTES)]

    def num_score_passes(self, width_bytes: float) -> float:
        """Crossings of the scores of this width, forward and backward."""
        return self.num_loss_passes[int(width_bytes >= FP32_BYTES)]

    def update_host_s(self, *, num_tensors: FloatLike, visible_frac: FloatLike) -> FloatLike:
        """Host work of one optimizer step.

        Equation  h + n u v,  n tensors, v the share that the device waits for, 1 where launches add to its time;
                  without a calibration u = 0
        Source    `bench dispatch`, by the calibration; else benchmarks/fit.py
        Assumes   tensors are updated one by one, as run/language/optimizer.py does
        Checked   tests/costs/test_calibrated.py
        """
        visible = 1.0 if self.adds_host_time else visible_frac
        return self.step_host_s + num_tensors * self.tensor_host_s * visible


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFactors:
    """What a stack takes over what its entry and this machine's calibration say: 1 where nothing was fitted."""

    host_factor: float = 1.0
    """On all host work."""
    elementwise_factor: float = 1.0
    """On the crossings of memory outside products, attention and update."""
    attention_factor: float = 1.0
    """On the time of fused attention."""
    update_factor: float = 1.0
    """On the crossings of memory by the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStack:
    """A stack with the factors that runs of one training program showed on this machine."""

    stack: str
    """Catalogued stack that the factors multiply."""
    release: str
    """Of the program."""
    factors: StackFactors


def shipped_factors(factors: EngineFactors) -> StackFactors:
    """A program's factors as the catalogue has them."""
    return StackFactors(
        host_factor=factors.host.value, elementwise_factor=factors.elementwise.value,
        update_factor=1.0 if factors.update is None else factors.update.value,
    )  # fmt: skip


def with_factors(costs: StackCosts, factors: StackFactors) -> StackCosts:
    """The costs of a stack times the factors of a program that runs it.

    Equation  host: f_h (layer, step, tensor);  crossings: f_e (layer, loss)
    Source    `calibrate --engine`: fitted to short runs of the program on this machine
    Assumes   pauses between kernels are the device's, not the program's
    Checked   tests/costs/test_engine_factors.py
    """
    return replace(
        costs,
        layer_host_s=factors.host_factor * costs.layer_host_s,
        step_host_s=factors.host_factor * costs.step_host_s,
        tensor_host_s=factors.host_factor * costs.tensor_host_s,
        num_elementwise_passes=_times(costs.num_elementwise_passes, factors.elementwise_factor),
        num_loss_passes=_times(costs.num_loss_passes, factors.elementwise_factor),
    )


def fitted_stack_costs(stack: Stack, constants: Constants, *, on_cpu: bool) -> StackCosts:
    """The factors that were fitted to published runs: every width crosses memory as often."""
    gap_s = 0.0 if on_cpu else constants.kernel_gap.value
    # Kernels of eager steps were counted under autocast, which casts before each product; most programs do not.
    is_counted = stack.counts is not None and stack.counts.launch_mode != "eager"
    counted = stack.counts.layer_kernels if stack.counts is not None and is_counted else None
    num_kernels = (constants.layer_kernels if counted is None else counted).value
    is_fused = stack.compiled or stack.logits_bytes.value <= constants.fused_loss_width.value
    num_loss = constants.logits_passes.value * (constants.fused_logits_share.value if is_fused else 1.0)
    num_elementwise = stack.elementwise_passes.value
    return StackCosts(
        layer_host_s=stack.host_time.value, gap_s=num_kernels * gap_s, kernel_gap_s=gap_s,
        step_host_s=constants.step_overhead.value, tensor_host_s=0.0,
        adds_host_time=False, host_blend=math.inf,
        num_elementwise_passes=(num_elementwise, num_elementwise), num_loss_passes=(num_loss, num_loss),
    )  # fmt: skip


def measured_stack_costs(stack: Stack, constants: Constants, launches: Launches) -> StackCosts:
    """Counted launches and kernels times measured times; what a stack has no counts of stays as fitted.

    Equation  layer: n t_mode f;  pauses: k g;  step: n_s t_eager f;  tensor: n_t t f;  crossings: c e
    Source    the counts: the stack's entry and the engine constants; t, g, f and e: the calibration
    Assumes   all operations of a layer cost the host what additions cost it; a queue that is never empty has the pauses
              of a graph; in a graph the host does nothing, so that its factor f does not apply; every stack has the
              factor e on what it moves
    Checked   tests/costs/test_calibrated.py
    """
    fitted = fitted_stack_costs(stack, constants, on_cpu=launches.on_cpu)
    counts, factor = stack.counts, launches.elementwise_factor
    if counts is None:
        return replace(fitted, num_elementwise_passes=_times(fitted.num_elementwise_passes, factor))
    is_graph = counts.launch_mode == "graph"
    adds = launches.on_cpu or is_graph
    eager_s = launches.launch_s.get("eager")
    step_s = None if eager_s is None else counts.step_launches.value * launches.host_factor * eager_s
    return StackCosts(
        layer_host_s=_layer_host_s(counts, launches, fitted.layer_host_s),
        kernel_gap_s=0.0 if launches.on_cpu else launches.kernel_gap_s,
        gap_s=0.0 if counts.layer_kernels is None or is_graph else counts.layer_kernels.value * launches.kernel_gap_s,
        step_host_s=fitted.step_host_s if step_s is None else step_s,
        tensor_host_s=_tensor_host_s(counts, launches, constants),
        adds_host_time=adds,
        host_blend=1.0 if adds else constants.host_blend.value,
        num_elementwise_passes=_times(_elementwise(counts, launches, fitted), factor),
        num_loss_passes=_loss(counts, launches, fitted),
    )


def _times(pair: tuple[float, float], factor: float) -> tuple[float, float]:
    return pair[0] * factor, pair[1] * factor


def _layer_host_s(counts: KernelCounts, launches: Launches, fitted_s: float) -> float:
    num_launches = counts.layer_launches_cpu if launches.on_cpu else counts.layer_launches_gpu
    launch_s = launches.launch_s.get(counts.launch_mode)
    if num_launches is None or launch_s is None:
        return fitted_s
    factor = 1.0 if counts.launch_mode == "graph" else launches.host_factor
    return num_launches.value * launch_s * factor


def _tensor_host_s(counts: KernelCounts, launches: Launches, constants: Constants) -> float:
    """One launch in a graph; else one compiled kernel on a GPU, and the optimizer step by step on a CPU."""
    own_s = launches.launch_s.get(counts.launch_mode)
    if own_s is None:
        return 0.0
    if counts.launch_mode == "graph":
        return own_s
    eager_s = launches.launch_s.get("eager", 0.0)
    if launches.on_cpu:
        return constants.tensor_launches_cpu.value * launches.host_factor * eager_s
    return constants.tensor_launches_gpu.value * launches.host_factor * launches.launch_s.get("compiled", eager_s)


def _elementwise(counts: KernelCounts, launches: Launches, fitted: StackCosts) -> tuple[float, float]:
    if launches.on_cpu:
        return fitted.num_elementwise_passes
    return counts.elementwise_passes_16bit.value, counts.elementwise_passes_32bit.value


def _loss(counts: KernelCounts, launches: Launches, fitted: StackCosts) -> tuple[float, float]:
    """The fitted crossings already hold the factor: a calibration puts it into the constant."""

    def of_width(counted: Count | None, fitted_passes: float) -> float:
        if counted is None or launches.on_cpu:
            return fitted_passes
        return counted.value * launches.elementwise_factor

    narrow, wide = fitted.num_loss_passes
    return of_width(counts.loss_passes_16bit, narrow), of_width(counts.loss_passes_32bit, wide)
