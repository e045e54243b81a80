"""Convolutions of a ResNet on one device: as a model has them, or as they were measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.costs.breakdown import FloatLike
from scalewright.costs.compute import least_time_s, num_tile_sides, num_whole
from scalewright.costs.machine.measured_convolutions import folded_stem
from scalewright.costs.setting import VisionSetting
from scalewright.workload.convolutions import Conv


def conv_product_time_s(
    *, setting: VisionSetting, num_rows: FloatLike, num_columns: FloatLike, num_depth: FloatLike,
    num_elements: FloatLike, kernel: int,
) -> FloatLike:  # fmt: skip
    """One of a convolution's three products, as an implicit matrix product on a roofline.

    Equation  matrix units: t = max(t_work, w E / B) / s;  vector units: t = max(t_work / g, w E / B)
              t_work = min over tiles r x c of 2 ceil(m/r) r ceil(n/c) c (k + k0) / (F e)
    Source    Chetlur et al. 2014 (cuDNN, arXiv:1410.0759) for the product; williams2009 for the roofline; lavin2016
              for fewer multiplications on vector units; s and g fitted (benchmarks/fit_vision.py)
    Assumes   patches are formed on chip, so that each activation crosses memory once: E elements of w bytes; tiles
              fill the device, by splitting the depth where there are few; g as `vector_gain` has it
    Checked   tests/costs/test_vision.py: never below the traffic; on matrix units never below the arithmetic
    """
    machine, constants, w = setting.machine, setting.machine.constants, setting.recipe.activation_bytes
    rate, k = machine.held_flop_per_s(setting.recipe.matmul), num_depth + constants.depth_overhead.value
    times = [
        2.0 * (num_whole(num_rows / r) * r * num_whole(num_columns / c) * c) * k / (rate * share.value)
        for (r, c), share in ((num_tile_sides(name), share) for name, share in constants.tile_share.items())
    ]
    best = least_time_s(times)
    traffic = w * num_elements / machine.hbm_bytes_per_s
    factor = 1.0 if machine.convolutions.are_measured else machine.convolution_factor  # else it is on the measured ones
    if setting.on_vector_units:
        gain = vector_gain(setting, kernel=kernel)
        return np.maximum(best / gain, traffic) * (factor if machine.accelerator.kind == "cpu" else 1.0)
    return np.maximum(best, traffic) * factor / constants.matrix_convolution_share.value


def vector_gain(setting: VisionSetting, *, kernel: int) -> float:
    """Rate of 32-bit convolutions on vector units over that of products.

    Equation  channels last: g_l;  channels first: g, on units of 128 lanes g s, with one s for 1x1 and one for others
    Source    g and g_l fitted (benchmarks/fit_vision.py); s from benchmarks/results/h200_operators.jsonl: 27 TFLOP/s
              for 1x1 and 44 for the others. The kernels there are those of the generation before, with 64 lanes
    Assumes   with channels last 1x1 convolutions are computed as products, as run/vision does; 1 on a CPU
    Checked   tests/costs/test_vision.py: slower for 1x1 on an H200, not on a V100
    """
    c = setting.constants
    if setting.machine.accelerator.kind == "cpu":
        return 1.0
    if setting.channels_last:
        return c.channels_last_vector_gain.value
    if not setting.has_wide_units:
        return c.vector_convolution_gain.value
    share = c.wide_unit_pointwise_share if kernel == 1 else c.wide_unit_convolution_share
    return c.vector_convolution_gain.value * share.value


def conv_time_s(*, setting: VisionSetting, conv: Conv) -> tuple[FloatLike, FloatLike]:
    """A convolution forward; backward for the gradients of its input (not the first one's) and of its weights.

    Equation  forward [b s^2, c_out, k^2 c_in]; input [b i^2, c_in, k^2 c_out s^2/i^2]; weight [c_out, k^2 c_in, b s^2];
              as measured where this very shape was; else times what those with its kernel took over their model
    Source    Chetlur et al. 2014 (cuDNN, arXiv:1410.0759); `bench convolution`, by the calibration
    Assumes   a strided convolution's input gradient does the work of its output, not of its zeros; measured times
              grow with the batch
    Checked   tests/costs/test_vision.py: three times the forward work, twice for the first
    """
    measured, factor = setting.machine.convolutions, setting.machine.convolution_factor
    as_run = folded_stem(conv) if conv.place == "stem" and setting.folds else conv
    own = measured.of(as_run, precision=setting.recipe.matmul, channels_last=setting.channels_last)
    if own is not None:
        b = setting.num_images * factor
        return b * own.forward_s, b * ((own.input_s or 0.0) + own.weight_s)
    forward, backward = _modelled_conv_s(setting=setting, conv=conv)
    ratios = _measured_over_modelled(setting=setting, conv=conv)
    if ratios is None:
        return forward, backward
    return forward * ratios[0] * factor, backward * ratios[1] * factor


def _measured_over_modelled(*, setting: VisionSetting, conv: Conv) -> tuple[float, float] | None:
    """How far convolutions with the same kernel are from their model, forward and backward; None without any."""
    measured = setting.machine.convolutions
    alike = measured.alike(conv, precision=setting.recipe.matmul, channels_last=setting.channels_last)
    if not alike:
        return None
    num_images = measured.batch
    layout = replace(setting.layout, mbs=num_images, gbs=num_images * setting.layout.dp)
    same = replace(setting, layout=layout)
    modelled = [_modelled_conv_s(setting=same, conv=other) for other, _ in alike]
    forward_s = sum(num_images * passes.forward_s for _, passes in alike)
    backward_s = sum(num_images * ((passes.input_s or 0.0) + passes.weight_s) for _, passes in alike)
    return forward_s / float(sum(m[0] for m in modelled)), backward_s / float(sum(m[1] for m in modelled))


def _modelled_conv_s(*, setting: VisionSetting, conv: Conv) -> tuple[FloatLike, FloatLike]:
    b, s, i = setting.num_images, conv.out_size, conv.in_size
    kernel = float(conv.kernel**2)
    elements = num_conv_elements(setting=setting, conv=conv)
    forward = conv_product_time_s(
        setting=setting, num_rows=b * s**2, num_columns=conv.channels_out, num_depth=kernel * conv.channels_in,
        num_elements=elements, kernel=conv.kernel,
    )  # fmt: skip
    backward = conv_product_time_s(
        setting=setting, num_rows=conv.channels_out, num_columns=kernel * conv.channels_in, num_depth=b * s**2,
        num_elements=elements, kernel=conv.kernel,
    )  # fmt: skip
    if conv.place != "stem":
        backward = backward + conv_product_time_s(
            setting=setting, num_rows=b * i**2, num_columns=conv.channels_in,
            num_depth=kernel * conv.channels_out * (s / i) ** 2, num_elements=elements, kernel=conv.kernel,
        )  # fmt: skip
    return forward, backward


def num_conv_elements(*, setting: VisionSetting, conv: Conv) -> FloatLike:
    """What one of a convolution's products reads and writes.

    Equation  E = b i^2 c_in + b s^2 c_out + k^2 c_in c_out elements
    Source    Chetlur et al. 2014 (cuDNN, arXiv:1410.0759), section 2
    Assumes   each element once, whichever of the three is written
    Checked   tests/costs/test_vision.py: bounds a thin convolution's time
    """
    b = setting.num_images
    return b * conv.in_size**2 * conv.channels_in + b * conv.out_size**2 * conv.channels_out + conv.num_weights


def outputs(conv: Conv) -> int:
    """Elements a convolution writes for one image."""
    return conv.channels_out * conv.out_size**2
