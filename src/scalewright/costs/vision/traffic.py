"""What a ResNet's step moves outside its convolutions: norms, activations, pooling, layout changes, casts."""

from __future__ import annotations

import numpy as np

from scalewright.catalog.types import ConvShape
from scalewright.costs.breakdown import FloatLike
from scalewright.costs.machine.stack_costs import FP32_BYTES
from scalewright.costs.setting import VisionSetting
from scalewright.costs.vision.convolution import outputs
from scalewright.workload.convolutions import resnet_convs, resnet_params
from scalewright.workload.precision import Recipe

# How often a convolution's output crosses memory outside the convolution itself, counted from the kernels.
NUM_NORM_PASSES_EAGER = 13
"""Forward 5: the norm reads its input for the statistics and again to apply them, and writes (3); ReLU reads and writes
(2). Backward 8: ReLU reads gradient and output and writes (3); the norm reads input and gradient for its sums and again
for the result, and writes (5)."""
NUM_NORM_PASSES_COMPILED = 8
"""ReLU is in the norm's kernels: forward two reads, a write (3); backward input and gradient twice, one write (5)."""
NUM_ADD_PASSES_EAGER = 5
"""Shortcut, on a block's output: forward two reads and a write; backward the two gradients meet, a read and a write."""
NUM_ADD_PASSES_COMPILED = 3
"""Added inside the last norm's kernel: one more read forward; a read and a write where the two gradients meet."""
NUM_LAYOUT_PASSES = 12
"""Matrix units want channels last. From channels first, each of the three products has two activations turned: read
and write, 2 x 2 x 3."""
NUM_POOL_PASSES = 3
"""Max pooling after the stem, in units of its input: read, a quarter written; backward the reverse, with indices."""
NUM_NORM_CROSSINGS = {"forward": 3, "backward": 5}
NUM_RELU_CROSSINGS = {"forward": 2, "backward": 3}
NUM_POOL_CROSSINGS = {"forward": 1.25, "backward": 1.25}
"""The same by operator, as `bench convolution` counts them."""


def move_time_s(*, setting: VisionSetting, num_elements: FloatLike) -> FloatLike:
    """Time to pass elements through memory outside the convolutions: norms, activations, layout changes.

    Equation  t = max(w E / (B s), E / (u f r)),  the second where channels come first: u units, f cycles a second
    Source    s and r fitted to measured rates (benchmarks/fit_vision.py)
    Assumes   channels-first kernels take elements one at a time, so that 16-bit elements are no faster than 32-bit
              ones where memory is fast; no such limit where a device's clock or units are not catalogued
    Checked   tests/costs/test_vision.py: binds on an H200 in 16 bit, not on a V100
    """
    machine, c = setting.machine, setting.machine.constants
    time = setting.recipe.activation_bytes * num_elements / (machine.hbm_bytes_per_s * c.norm_bandwidth_share.value)
    units, clock = machine.accelerator.num_compute_units, machine.accelerator.clock_boost
    if setting.channels_last or units is None or clock is None:
        return time
    return np.maximum(time, num_elements / (units.value * clock.value * c.channels_first_rate.value))


def own_norm_factor(setting: VisionSetting) -> float:
    """What norms take over the traffic counted here, where no operator was measured.

    Equation  as a calibration fitted it: on a CPU, where a compiler writes the norms, and for PyTorch's own kernels,
              of which those for channels last take f times as long; c where a compiler writes them in 16
              bit; else 1
    Source    c fitted (benchmarks/fit_vision.py); PyTorch's _select_batch_norm_backend: cuDNN takes no bf16; f from
              1.18 and 2.47 TB/s forward and backward on an H200 (benchmarks/results/h200_calibration.json)
    Assumes   vendors' kernels move what is counted, and so do a compiler's in 32 bit, whose sums need no conversion
    Checked   tests/observe/test_calibrate_fits.py: a fitted factor touches bf16 that is not compiled, and no other
    """
    machine, on_cpu = setting.machine, setting.machine.accelerator.kind == "cpu"
    is_own = not on_cpu and setting.recipe.matmul == "bf16" and not setting.fuses_norms
    is_written = setting.stack.compiled and not setting.library_norms
    if is_written and not on_cpu and not machine.convolutions.are_measured:
        is_narrow = setting.recipe.activation_bytes < FP32_BYTES
        return setting.constants.compiled_norm_factor.value if is_narrow else 1.0
    if is_own:
        return machine.norm_factor * (setting.constants.own_norm_factor.value if setting.channels_last else 1.0)
    return machine.norm_factor if on_cpu or is_written else 1.0


def norm_time_s(setting: VisionSetting) -> FloatLike:
    """Norms, activations and shortcuts of a step.

    Equation  sum of crossings / rate of each operator as measured; else all crossings at the rate of memory
    Source    `bench convolution`, by the calibration; norm_bytes_per_sample for what crosses
    Assumes   a compiled step has kernels of its own, which single measured operators do not represent
    Checked   tests/costs/test_measured_convolutions.py: the measured rates' sum
    """
    shape, w, b = setting.shape, setting.recipe.activation_bytes, setting.num_images
    rates = None if setting.fuses_norms else _operator_rates(setting)
    if rates is None:
        elements = norm_bytes_per_sample(shape=shape, compiled=setting.fuses_norms, width_bytes=w) / w
        return move_time_s(setting=setting, num_elements=b * elements) * own_norm_factor(setting)
    every, added, active = 0, 0, 0
    for conv in resnet_convs(shape):
        every += outputs(conv)
        added += outputs(conv) if conv.place == "end" else 0
        active += 0 if conv.place == "projection" else outputs(conv)
    seconds = every * sum(NUM_NORM_CROSSINGS[d] / rates["norm", d] for d in NUM_NORM_CROSSINGS)
    seconds += active * sum(NUM_RELU_CROSSINGS[d] / rates["activation", d] for d in NUM_RELU_CROSSINGS)
    return b * w * (seconds + NUM_ADD_PASSES_EAGER * added / setting.machine.hbm_bytes_per_s)


def _operator_rates(setting: VisionSetting) -> dict[tuple[str, str], float] | None:
    """Rates of norms and activations in this precision and layout; None where one of them was not measured."""
    kinds = [(op, direction) for op in ("norm", "activation") for direction in ("forward", "backward")]
    rates = {kind: rate for kind in kinds if (rate := _operator_rate(setting, *kind)) is not None}
    return rates if len(rates) == len(kinds) else None


def _operator_rate(setting: VisionSetting, op: str, direction: str) -> float | None:
    measured = setting.machine.convolutions
    return measured.bytes_per_s(op, direction, precision=setting.recipe.matmul, channels_last=setting.channels_last)


def pool_time_s(setting: VisionSetting) -> FloatLike:
    """Max pooling after the stem, forward and backward.

    Equation  c w E / r,  E its input's elements, c crossings, r the rate measured for it, else of memory; PyTorch's own
              kernels with channels last: E / (u f p), u units, f cycles a second
    Source    `bench convolution`, by the calibration; p from the same on an H200
    Assumes   a folded stem pools in kernels of its own, at the rate of memory, as other libraries do
    Checked   tests/costs/test_measured_convolutions.py
    """
    elements = setting.num_images * outputs(next(iter(resnet_convs(setting.shape))))
    rates = [None if setting.folds else _operator_rate(setting, "pool", d) for d in NUM_POOL_CROSSINGS]
    if any(rate is None for rate in rates):
        moved_s = move_time_s(setting=setting, num_elements=NUM_POOL_PASSES * elements)
        units, clock = setting.machine.accelerator.num_compute_units, setting.machine.accelerator.clock_boost
        is_own = setting.channels_last and not setting.folds and not setting.library_norms
        if not is_own or units is None or clock is None:
            return moved_s
        return np.maximum(moved_s, elements / (units.value * clock.value * setting.constants.pool_rate.value))
    w = setting.recipe.activation_bytes
    crossings = zip(NUM_POOL_CROSSINGS.values(), rates, strict=True)
    return sum((num * w * elements / rate for num, rate in crossings if rate is not None), start=0.0)


def norm_bytes_per_sample(*, shape: ConvShape, compiled: bool, width_bytes: float) -> float:
    """Memory traffic of batch norm, ReLU and shortcuts for one image, forward and backward.

    Equation  w (c_n sum of outputs + c_a sum of block outputs)
    Source    Ioffe and Szegedy 2015 (Batch Normalization, arXiv:1502.03167), Algorithm 1, for what has to be read twice
    Assumes   nothing stays in cache between kernels; passes c as counted beside the constants
    Checked   tests/costs/test_vision.py: 11.1 M outputs per image of ResNet-50
    """
    norm = NUM_NORM_PASSES_COMPILED if compiled else NUM_NORM_PASSES_EAGER
    add = NUM_ADD_PASSES_COMPILED if compiled else NUM_ADD_PASSES_EAGER
    total = sum(outputs(conv) * (norm + (add if conv.place == "end" else 0)) for conv in resnet_convs(shape))
    return width_bytes * total


def layout_bytes_per_sample(*, shape: ConvShape, recipe: Recipe, channels_last: bool) -> float:
    """Memory traffic to turn activations for the matrix units and back, for one image.

    Equation  w c_l (in + out) / 2 summed over convolutions; nothing when channels come last, or on the vector units
    Source    NVIDIA (Convolutional Layers User's Guide), tensor layouts: NHWC needs no transposes
    Assumes   cuDNN turns both activations of each of the three products, every time
    Checked   tests/costs/test_vision.py: none for 32 bit on vector units, none with channels last
    """
    if channels_last or recipe.matmul == "fp32":
        return 0.0
    elements = sum(outputs(conv) + conv.channels_in * conv.in_size**2 for conv in resnet_convs(shape))
    return recipe.activation_bytes * NUM_LAYOUT_PASSES * elements / 2.0


def cast_bytes(setting: VisionSetting) -> FloatLike:
    """What automatic mixed precision moves to change widths: weights forward, their gradients backward, the images.

    Equation  (4 + w) (2 N + b 3 s^2) where w < 4, else nothing
    Source    micikevicius2017 (Mixed Precision Training, arXiv:1710.03740), section 3.1: 32-bit master weights
    Assumes   autocast keeps a cast weight until the step ends; activations are born in 16 bit
    Checked   tests/costs/test_vision.py: nothing in 32 bit; below 1 % of a step of 256 images
    """
    w = setting.recipe.activation_bytes
    if w >= FP32_BYTES:
        return 0.0
    pixels = setting.num_images * 3.0 * setting.shape.image_size**2
    return (FP32_BYTES + w) * (2.0 * sum(resnet_params(setting.shape).values()) + pixels)
