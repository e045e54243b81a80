"""One training step of a bottleneck ResNet on one device: convolutions, norms, layout changes, update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scalewright.catalog.types import ConvShape
from scalewright.costs.breakdown import Breakdown, FloatLike
from scalewright.costs.machine import Machine
from scalewright.workload.precision import Recipe
from scalewright.workload.vision import Conv, resnet_convs, resnet_params

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
NUM_UPDATE_PASSES = 5
"""SGD with momentum: weight, gradient and momentum read, weight and momentum written, in 32 bit."""
FP32_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSetting:
    """A ResNet on one device: `num_images` a step, in a precision, compiled or not, channels last or first."""

    shape: ConvShape
    machine: Machine
    recipe: Recipe
    num_images: int | FloatLike
    compiled: bool
    channels_last: bool


@dataclass(frozen=True, slots=True)
class _Placed:
    """A convolution with the side of the square it reads and its place in the network."""

    conv: Conv
    in_size: int
    is_first: bool
    ends_block: bool


def conv_product_time_s(
    *, setting: VisionSetting, num_rows: FloatLike, num_columns: FloatLike, num_depth: FloatLike,
    num_elements: FloatLike,
) -> FloatLike:  # fmt: skip
    """One of a convolution's three products, as an implicit matrix product on a roofline.

    Equation  t = max(min over tiles r x c of 2 ceil(m/r) r ceil(n/c) c (k + k0) / (F e), w E / B)
    Source    Chetlur et al. 2014 (cuDNN, arXiv:1410.0759) for the product; williams2009 for the roofline
    Assumes   patches are formed on chip, so that each activation crosses memory once: E elements of w bytes; tiles
              fill the device, by splitting the depth where there are few
    Checked   tests/costs/test_vision.py: never below the arithmetic nor below the traffic
    """
    machine, constants, w = setting.machine, setting.machine.constants, setting.recipe.activation_bytes
    rate, k = machine.sustained_flop_per_s(setting.recipe.matmul), num_depth + constants.depth_overhead.value
    best: FloatLike | None = None
    for name, share in constants.tile_share.items():
        r, c = (float(side) for side in name.split("x"))
        padded = np.ceil(num_rows / r) * r * np.ceil(num_columns / c) * c
        time = 2.0 * padded * k / (rate * share.value)
        best = time if best is None else np.minimum(best, time)
    assert best is not None
    return np.maximum(best, w * num_elements / machine.hbm_bytes_per_s)


def conv_time_s(*, setting: VisionSetting, conv: Conv, in_size: int, is_first: bool) -> tuple[FloatLike, FloatLike]:
    """A convolution forward; backward for the gradients of its input (not the first one's) and of its weights.

    Equation  forward [b s^2, c_out, k^2 c_in]; input [b i^2, c_in, k^2 c_out s^2/i^2]; weight [c_out, k^2 c_in, b s^2]
    Source    Chetlur et al. 2014 (cuDNN, arXiv:1410.0759)
    Assumes   a strided convolution's input gradient does the work of its output, not of its zeros
    Checked   tests/costs/test_vision.py: three times the forward work, twice for the first
    """
    b, s, i = setting.num_images, conv.out_size, in_size
    kernel = float(conv.kernel**2)
    read, written = b * i**2 * conv.channels_in, b * s**2 * conv.channels_out
    elements = read + written + conv.num_weights
    forward = conv_product_time_s(
        setting=setting, num_rows=b * s**2, num_columns=conv.channels_out, num_depth=kernel * conv.channels_in,
        num_elements=elements,
    )  # fmt: skip
    backward = conv_product_time_s(
        setting=setting, num_rows=conv.channels_out, num_columns=kernel * conv.channels_in, num_depth=b * s**2,
        num_elements=elements,
    )  # fmt: skip
    if not is_first:
        backward = backward + conv_product_time_s(
            setting=setting, num_rows=b * i**2, num_columns=conv.channels_in,
            num_depth=kernel * conv.channels_out * (s / i) ** 2, num_elements=elements,
        )  # fmt: skip
    return forward, backward


def norm_bytes_per_sample(*, shape: ConvShape, compiled: bool, width_bytes: float) -> float:
    """Memory traffic of batch norm, ReLU and shortcuts for one image, forward and backward.

    Equation  w (c_n sum of outputs + c_a sum of block outputs)
    Source    Ioffe and Szegedy 2015 (Batch Normalization, arXiv:1502.03167), Algorithm 1, for what has to be read twice
    Assumes   nothing stays in cache between kernels; passes c as counted beside the constants
    Checked   tests/costs/test_vision.py: 11.1 M outputs per image of ResNet-50
    """
    norm = NUM_NORM_PASSES_COMPILED if compiled else NUM_NORM_PASSES_EAGER
    add = NUM_ADD_PASSES_COMPILED if compiled else NUM_ADD_PASSES_EAGER
    total = sum(_outputs(p.conv) * (norm + (add if p.ends_block else 0)) for p in _placed(shape))
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
    elements = sum(_outputs(p.conv) + p.conv.channels_in * p.in_size**2 for p in _placed(shape))
    return recipe.activation_bytes * NUM_LAYOUT_PASSES * elements / 2.0


def vision_step_time(setting: VisionSetting, *, all_reduce_s: FloatLike = 0.0) -> Breakdown:
    """Seconds of one training step of one device's batch; over n devices, with the gradients' all-reduce given.

    Equation  t = sum of convolutions + (norms + layout + pool) / B + update / B + max(t_dp - o t_backward, 0)
    Source    he2015 (arXiv:1512.03385), Table 1, for the convolutions
    Assumes   the host keeps up; data waits in memory; the all-reduce runs beside the backward convolutions
    Checked   tests/costs/test_vision.py: four rates measured on one H200; ours over measured 0.93 in 32 bit, 1.22 in
              16 bit compiled with channels last, 1.57 eager with channels first, where kernels do not stream
    """
    shape, machine, w = setting.shape, setting.machine, setting.recipe.activation_bytes
    placed = list(_placed(shape))
    times = [conv_time_s(setting=setting, conv=p.conv, in_size=p.in_size, is_first=p.is_first) for p in placed]
    forward, backward = (sum((t[i] for t in times), start=0.0) for i in range(2))
    norms = norm_bytes_per_sample(shape=shape, compiled=setting.compiled, width_bytes=w)
    turned = layout_bytes_per_sample(shape=shape, recipe=setting.recipe, channels_last=setting.channels_last)
    pool = NUM_POOL_PASSES * w * _outputs(placed[0].conv)
    update = NUM_UPDATE_PASSES * FP32_BYTES * sum(resnet_params(shape).values())
    exposed = np.maximum(all_reduce_s - machine.constants.gradient_overlap.value * backward, 0.0)

    def term(name: str, value: FloatLike, formula: str) -> Breakdown:
        return Breakdown(name=name, unit="s", value=value, formula=f"vision.{formula}")

    b, speed = setting.num_images, machine.hbm_bytes_per_s
    parts = (
        term("convolution_forward", forward, "conv_time_s"),
        term("convolution_backward", backward, "conv_time_s"),
        term("norm_and_activation", b * norms / speed, "norm_bytes_per_sample"),
        term("layout_change", b * turned / speed, "layout_bytes_per_sample"),
        term("pool", b * pool / speed, "vision_step_time"),
        term("update", update / speed, "vision_step_time"),
        term("gradient_exchange", exposed, "vision_step_time"),
    )
    return Breakdown(name="step", unit="s", formula="vision.vision_step_time", parts=parts)


def num_images_per_s(*, step: Breakdown, num_images: int | FloatLike, dp: int | FloatLike = 1) -> FloatLike:
    """Rate of a data-parallel job whose every device takes `num_images` a step.

    Equation  n b / t
    Source    Goyal et al. 2017 (Accurate, Large Minibatch SGD, arXiv:1706.02677), section 5
    Assumes   the step holds the exposed part of the all-reduce
    Checked   tests/costs/test_vision.py: n devices without exchange are n times one
    """
    return dp * num_images / step.total


def gradient_bytes(shape: ConvShape) -> float:
    """What each device contributes to the all-reduce of a step.

    Equation  4 N
    Source    Goyal et al. 2017 (Accurate, Large Minibatch SGD, arXiv:1706.02677), section 4
    Assumes   32-bit gradients, as DistributedDataParallel keeps them under autocast
    Checked   tests/costs/test_vision.py: 102 MB for ResNet-50
    """
    return FP32_BYTES * sum(resnet_params(shape).values())


def _outputs(conv: Conv) -> int:
    """Elements a convolution writes for one image."""
    return conv.channels_out * conv.out_size**2


def _placed(shape: ConvShape) -> Iterator[_Placed]:
    """Convolutions with what they read: the stem the image, a projection what its block's first one reads."""
    size, block_size, before = shape.image_size, 0, None
    for conv in resnet_convs(shape):
        ends_block = before is not None and before.kernel == 3
        if before is not None and before.kernel == conv.kernel == 1 and before.channels_out == conv.channels_out:
            yield _Placed(conv, block_size, is_first=False, ends_block=False)  # the projection, beside the block
            continue
        if conv.kernel == 1 and not ends_block:
            block_size = size
        yield _Placed(conv, size, is_first=before is None, ends_block=ends_block)
        size = conv.out_size // 2 if before is None else conv.out_size
        before = conv
