"""One training step of a ResNet on one device: convolutions, norms, layout changes and update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from scalewright.catalog.types import ConvShape
from scalewright.costs.breakdown import Breakdown, FloatLike
from scalewright.costs.interval import WIDENING
from scalewright.costs.machine import Machine
from scalewright.costs.measured_convolutions import folded_stem
from scalewright.costs.roofline import Kind, Operation, Phase, product_cache_bytes
from scalewright.workload.convolutions import Conv, resnet_convs, resnet_params
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
NUM_CONVOLUTION_KERNELS = {False: 42.0, True: 12.0}
"""Kernels of a step for each convolution, eager and compiled (2,485 of ResNet-50 in bf16 on an H200): between two of
them the device waits a little although its queue is full."""
NUM_UPDATE_PASSES = 5
"""SGD with momentum: weight, gradient and momentum read, weight and momentum written, in 32 bit."""
FP32_BYTES = 4.0
OWN_NORM_FACTOR = 1.8
"""Time of PyTorch's own bf16 norms with channels last, activations included, over their traffic: own_norm_factor."""
AUTOCAST_HOST_FRAC = 0.34
"""More host work of a step under autocast: every weight is cast, and every gradient back (28.8 ms in place of 21.5 for
ResNet-50 on the host of an H200)."""
NUM_PASSES = 2
"""Forward and backward: what the host issues for each convolution."""
NORM_BACKWARD_FRAC = {False: 8.0 / 13.0, True: 5.0 / 8.0}
"""Part of the norms' passes that the backward pass has, eager and compiled: what gradient exchange can hide behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSetting:
    """A ResNet on one device: `num_images` a step, in a precision, compiled or not, channels last or first."""

    shape: ConvShape
    machine: Machine
    recipe: Recipe
    num_images: int | FloatLike
    compiled: bool
    channels_last: bool
    is_graphed: bool = False
    """The whole step is replayed as one graph: its host issues nothing."""

    @property
    def folds(self) -> bool:
        """Stem and pooling are computed in the forms that matrix units and a compiler make fast (run/vision)."""
        on_gpu = self.machine.accelerator.kind != "cpu"
        return on_gpu and self.compiled and self.channels_last and not self.on_vector_units

    @property
    def on_vector_units(self) -> bool:
        """32-bit products without TF32 leave the matrix units."""
        return self.recipe.matmul == "fp32"


def conv_product_time_s(
    *, setting: VisionSetting, num_rows: FloatLike, num_columns: FloatLike, num_depth: FloatLike,
    num_elements: FloatLike,
) -> FloatLike:  # fmt: skip
    """One of a convolution's three products, as an implicit matrix product on a roofline.

    Equation  matrix units: t = max(t_work, w E / B) / s;  vector units: t = max(t_work / g, w E / B)
              t_work = min over tiles r x c of 2 ceil(m/r) r ceil(n/c) c (k + k0) / (F e);  g = 1 channels last
    Source    Chetlur et al. 2014 (cuDNN, arXiv:1410.0759) for the product; williams2009 for the roofline; lavin2016
              for fewer multiplications on vector units; s and g fitted (benchmarks/fit_vision.py)
    Assumes   patches are formed on chip, so that each activation crosses memory once: E elements of w bytes; tiles
              fill the device, by splitting the depth where there are few
    Checked   tests/costs/test_vision.py: never below the traffic; on matrix units never below the arithmetic
    """
    machine, constants, w = setting.machine, setting.machine.constants, setting.recipe.activation_bytes
    rate, k = machine.held_flop_per_s(setting.recipe.matmul), num_depth + constants.depth_overhead.value
    best: FloatLike | None = None
    for name, share in constants.tile_share.items():
        r, c = (float(side) for side in name.split("x"))
        padded = np.ceil(num_rows / r) * r * np.ceil(num_columns / c) * c
        time = 2.0 * padded * k / (rate * share.value)
        best = time if best is None else np.minimum(best, time)
    assert best is not None
    traffic = w * num_elements / machine.hbm_bytes_per_s
    known = machine.measured
    factor = 1.0 if known is None or known.convolutions is not None else known.convolution_factor
    if setting.on_vector_units:
        gain = 1.0 if setting.channels_last else constants.vector_convolution_gain.value
        return np.maximum(best / gain, traffic) * (factor if machine.accelerator.kind == "cpu" else 1.0)
    return np.maximum(best, traffic) * factor / constants.matrix_convolution_share.value


def conv_time_s(*, setting: VisionSetting, conv: Conv) -> tuple[FloatLike, FloatLike]:
    """A convolution forward; backward for the gradients of its input (not the first one's) and of its weights.

    Equation  forward [b s^2, c_out, k^2 c_in]; input [b i^2, c_in, k^2 c_out s^2/i^2]; weight [c_out, k^2 c_in, b s^2];
              as measured where this very shape was; else times what those with its kernel took over their model
    Source    Chetlur et al. 2014 (cuDNN, arXiv:1410.0759); `bench convolution`, by the calibration
    Assumes   a strided convolution's input gradient does the work of its output, not of its zeros; measured times
              grow with the batch
    Checked   tests/costs/test_vision.py: three times the forward work, twice for the first
    """
    known = None if setting.machine.measured is None else setting.machine.measured.convolutions
    if known is None:
        return _modelled_conv_s(setting=setting, conv=conv)
    asked = folded_stem(conv) if conv.place == "stem" and setting.folds else conv
    precision, last = setting.recipe.matmul, setting.channels_last
    factor = setting.machine.measured.convolution_factor if setting.machine.measured is not None else 1.0
    own = known.of(asked, precision=precision, channels_last=last)
    if own is not None:
        b = setting.num_images * factor
        return b * own.forward_s, b * ((own.input_s or 0.0) + own.weight_s)
    forward, backward = _modelled_conv_s(setting=setting, conv=conv)
    alike = known.alike(conv, precision=precision, channels_last=last)
    if not alike:
        return forward, backward
    same = replace(setting, num_images=known.batch)
    modelled = [_modelled_conv_s(setting=same, conv=other) for other, _ in alike]
    ahead = sum(known.batch * passes.forward_s for _, passes in alike) / float(sum(m[0] for m in modelled))
    back = sum(known.batch * ((p.input_s or 0.0) + p.weight_s) for _, p in alike) / float(sum(m[1] for m in modelled))
    return forward * ahead * factor, backward * back * factor


def _modelled_conv_s(*, setting: VisionSetting, conv: Conv) -> tuple[FloatLike, FloatLike]:
    b, s, i = setting.num_images, conv.out_size, conv.in_size
    kernel = float(conv.kernel**2)
    elements = num_conv_elements(setting=setting, conv=conv)
    forward = conv_product_time_s(
        setting=setting, num_rows=b * s**2, num_columns=conv.channels_out, num_depth=kernel * conv.channels_in,
        num_elements=elements,
    )  # fmt: skip
    backward = conv_product_time_s(
        setting=setting, num_rows=conv.channels_out, num_columns=kernel * conv.channels_in, num_depth=b * s**2,
        num_elements=elements,
    )  # fmt: skip
    if conv.place != "stem":
        backward = backward + conv_product_time_s(
            setting=setting, num_rows=b * i**2, num_columns=conv.channels_in,
            num_depth=kernel * conv.channels_out * (s / i) ** 2, num_elements=elements,
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
              of which those for channels last take 1.8 times as long; else 1
    Source    PyTorch's _select_batch_norm_backend: cuDNN takes no bf16; 1.23 and 2.61 TB/s forward and backward of 4.28
              that memory has on an H200 (benchmarks/results/h200_calibration.json), activations at 4.1 to 4.3
    Assumes   vendors' kernels move what is counted
    Checked   tests/observe/test_calibrate_fits.py: a fitted factor touches bf16 that is not compiled, and no other
    """
    known, on_cpu = setting.machine.measured, setting.machine.accelerator.kind == "cpu"
    is_own = not on_cpu and setting.recipe.matmul == "bf16" and not setting.compiled
    is_written = setting.compiled and known is not None and known.convolutions is not None
    fitted = 1.0 if known is None else known.norm_factor
    if is_own:
        return fitted * (OWN_NORM_FACTOR if setting.channels_last else 1.0)
    return fitted if on_cpu or is_written else 1.0


def norm_time_s(setting: VisionSetting) -> FloatLike:
    """Norms, activations and shortcuts of a step.

    Equation  sum of crossings / rate of each operator as measured; else all crossings at the rate of memory
    Source    `bench convolution`, by the calibration; norm_bytes_per_sample for what crosses
    Assumes   a compiled step has kernels of its own, which no operator measured alone stands for
    Checked   tests/costs/test_measured_convolutions.py: the measured rates' sum
    """
    shape, w, b = setting.shape, setting.recipe.activation_bytes, setting.num_images
    rates = None if setting.compiled else _operator_rates(setting)
    if rates is None:
        elements = norm_bytes_per_sample(shape=shape, compiled=setting.compiled, width_bytes=w) / w
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
    found = {kind: rate for kind in kinds if (rate := _operator_rate(setting, *kind)) is not None}
    return found if len(found) == len(kinds) else None


def _operator_rate(setting: VisionSetting, op: str, direction: str) -> float | None:
    known = None if setting.machine.measured is None else setting.machine.measured.convolutions
    if known is None:
        return None
    return known.bytes_per_s(op, direction, precision=setting.recipe.matmul, channels_last=setting.channels_last)


def pool_time_s(setting: VisionSetting) -> FloatLike:
    """Max pooling after the stem, forward and backward.

    Equation  c w E / r,  E its input's elements, c crossings, r the rate measured for it, else of memory
    Source    `bench convolution`, by the calibration
    Assumes   a folded stem pools in kernels of its own, at the rate of memory
    Checked   tests/costs/test_measured_convolutions.py
    """
    elements = setting.num_images * outputs(next(iter(resnet_convs(setting.shape))))
    rates = [None if setting.folds else _operator_rate(setting, "pool", d) for d in NUM_POOL_CROSSINGS]
    if any(rate is None for rate in rates):
        return move_time_s(setting=setting, num_elements=NUM_POOL_PASSES * elements)
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


def host_time_s(setting: VisionSetting) -> float:
    """Host work of a step: what a small batch waits for.

    Equation  2 c h,  c convolutions, h to issue one with its norm and activation
    Source    NVIDIA DeepLearningExamples, ResNet-50: a forward pass takes 10.2 ms for one image and for two
    Assumes   the backward pass asks as much of the host as the forward; compiled stacks the same, an upper bound; a
              graph asks nothing
    Checked   tests/costs/test_vision.py: binds for 8 images on an H200, not for 512
    """
    num_convs = 0 if setting.is_graphed else sum(1 for _ in resnet_convs(setting.shape))
    casts = setting.recipe.activation_bytes < FP32_BYTES and setting.machine.measured is not None
    return (
        NUM_PASSES
        * num_convs
        * setting.machine.constants.convolution_host_time.value
        * (1.0 + AUTOCAST_HOST_FRAC if casts else 1.0)
    )


def exposed_exchange_s(
    *, all_reduce_s: FloatLike, last_bucket_s: FloatLike, backward_s: FloatLike, machine: Machine
) -> FloatLike:  # fmt: skip
    """What the gradients' all-reduce adds to a step.

    Equation  max(t - o t_b, min(t, t_last)) + d min(t, o t_b)
    Source    li2020 (PyTorch Distributed, arXiv:2006.15704), section 3.2: buckets beside the backward pass
    Assumes   the last bucket has nothing left to hide behind; hidden exchange slows compute by d per second
    Checked   tests/costs/test_vision.py: all of it when there is nothing to hide behind; the last bucket when hidden
    """
    c = machine.constants
    cover = c.gradient_overlap.value * backward_s
    visible = np.maximum(all_reduce_s - cover, np.minimum(all_reduce_s, last_bucket_s))
    return visible + c.overlap_cost.value * np.minimum(all_reduce_s, cover)


def vision_step_time(
    setting: VisionSetting, *, all_reduce_s: FloatLike = 0.0, last_bucket_s: FloatLike = 0.0, num_nodes: FloatLike = 1.0
) -> Breakdown:
    """Seconds of one training step of one device's batch; over n devices, with the gradients' all-reduce given.

    Equation  t = (convolutions + norms + layout + pool + casts + update + exchange) (1 + g log2 nodes) + host wait
    Source    he2015 (arXiv:1512.03385), Table 1, for the convolutions
    Assumes   data waits in memory; the all-reduce runs beside the backward pass
    Checked   tests/golden/test_vision_rates.py: published rates of H200, A100 and V100
    """
    shape, machine, w = setting.shape, setting.machine, setting.recipe.activation_bytes
    convs = list(resnet_convs(shape))
    times = [conv_time_s(setting=setting, conv=conv) for conv in convs]
    forward, backward = (sum((t[i] for t in times), start=0.0) for i in range(2))
    b, speed = setting.num_images, machine.hbm_bytes_per_s
    turned = layout_bytes_per_sample(shape=shape, recipe=setting.recipe, channels_last=setting.channels_last) / w
    norms = norm_time_s(setting)
    update = NUM_UPDATE_PASSES * FP32_BYTES * sum(resnet_params(shape).values()) / speed
    exposed = exposed_exchange_s(
        all_reduce_s=all_reduce_s, last_bucket_s=last_bucket_s, machine=machine,
        backward_s=backward + NORM_BACKWARD_FRAC[setting.compiled] * norms,
    )  # fmt: skip

    def term(name: str, value: FloatLike, formula: str) -> Breakdown:
        return Breakdown(name=name, unit="s", value=value, formula=f"vision.{formula}")

    busy = (
        term("convolution_forward", forward, "conv_time_s"),
        term("convolution_backward", backward, "conv_time_s"),
        term("norm_and_activation", norms, "norm_bytes_per_sample"),
        term("layout_change", move_time_s(setting=setting, num_elements=b * turned), "layout_bytes_per_sample"),
        term("pool", pool_time_s(setting), "pool_time_s"),
        term("casts", cast_bytes(setting) / speed, "cast_bytes"),
        term("update", update, "vision_step_time"),
        term("gradient_exchange", exposed, "exposed_exchange_s"),
        *_gaps(setting, len(convs)),
    )
    device = sum((part.total for part in busy), start=0.0)
    slowest = machine.constants.straggler_growth.value * np.log2(np.maximum(num_nodes, 1.0))
    host: FloatLike = host_time_s(setting)
    if machine.measured is None or machine.accelerator.kind != "cpu":  # a CPU that was measured is its own host
        host = np.maximum(host - device, 0.0)
    waiting = (
        term("host", host, "host_time_s"),
        term("stragglers", device * slowest, "vision_step_time"),
    )
    return Breakdown(name="step", unit="s", formula="vision.vision_step_time", parts=(*busy, *waiting))


def _gaps(setting: VisionSetting, num_convs: int) -> tuple[Breakdown, ...]:
    """Pauses between kernels, where a calibration measured one."""
    known = setting.machine.measured
    if known is None or known.kernel_gap_s == 0.0:
        return ()
    gaps = num_convs * NUM_CONVOLUTION_KERNELS[setting.compiled] * known.kernel_gap_s
    return (Breakdown(name="gaps", unit="s", value=gaps, formula="vision.vision_step_time"),)


def vision_operations(setting: VisionSetting) -> list[Operation]:
    """What a device does in a step, each kind of convolution with its place: the points of a roofline."""
    found: list[Operation] = []
    for conv in resnet_convs(setting.shape):
        found += _conv_operations(setting, conv)
    shape, w, b = setting.shape, setting.recipe.activation_bytes, float(setting.num_images)
    norm = b * norm_bytes_per_sample(shape=shape, compiled=setting.compiled, width_bytes=w)
    turned = b * layout_bytes_per_sample(shape=shape, recipe=setting.recipe, channels_last=setting.channels_last)
    moved: tuple[tuple[str, Kind, float], ...] = (("norms", "elementwise", norm), ("layout change", "layout", turned))
    for name, kind, size in moved:
        if size > 0.0:
            is_norm = kind == "elementwise"
            time = float(norm_time_s(setting) if is_norm else move_time_s(setting=setting, num_elements=size / w))
            found.append(Operation(
                name=name, phase="forward", kind=kind, flop=size / w, traffic_bytes=size, cache_bytes=size,
                fresh_bytes=0.0, time_s=time, num_per_step=1.0,
            ))  # fmt: skip
    return found


def _conv_operations(setting: VisionSetting, conv: Conv) -> Iterator[Operation]:
    b, w = float(setting.num_images), setting.recipe.activation_bytes
    times = conv_time_s(setting=setting, conv=conv)
    once = w * float(num_conv_elements(setting=setting, conv=conv))
    through = product_cache_bytes(
        num_rows=b * conv.out_size**2, num_columns=conv.channels_out, num_depth=conv.kernel**2 * conv.channels_in,
        width_bytes=w,
    )  # fmt: skip
    kept = w * b * conv.in_size**2 * conv.channels_in
    passes: tuple[tuple[Phase, float, float], ...] = (
        ("forward", 1.0, w * conv.num_weights), ("backward", 1.0 if conv.place == "stem" else 2.0, kept),
    )  # fmt: skip
    for (phase, count, fresh), time in zip(passes, times, strict=True):
        yield Operation(
            name=f"{conv.kernel}x{conv.kernel} {conv.part}", phase=phase, kind="convolution",
            flop=count * b * conv.forward_flop, traffic_bytes=count * once, cache_bytes=count * max(through, once),
            fresh_bytes=fresh, time_s=float(time), num_per_step=1.0,
        )  # fmt: skip


def vision_interval_s(*, time_s: FloatLike, setting: VisionSetting, num_unseen: int) -> tuple[FloatLike, FloatLike]:
    """The 90 % interval of a predicted vision step.

    Equation  [q05, q95] x t, each quantile to the power 1 + u/2 for u things that no fitted run shares
    Source    published rates, each source left out of the fit in turn (benchmarks/fit_vision.py)
    Assumes   tomorrow's run is like one of a source drawn at random from those
    Checked   tests/golden/test_vision_rates.py: coverage; never narrower for the unseen
    """
    c, power = setting.machine.constants, 1.0 + WIDENING * num_unseen
    return time_s * c.vision_interval_low.value**power, time_s * c.vision_interval_high.value**power


def unseen_vision(setting: VisionSetting) -> list[str]:
    """What about a request lies outside the runs that the vision constants were fitted to."""
    c, accelerator = setting.machine.constants, setting.machine.accelerator.id
    found = []
    if accelerator not in c.vision_seen_accelerators:
        found.append(f"no fitted vision run used {accelerator}")
    if setting.recipe.name not in c.vision_seen_precisions:
        found.append(f"no fitted vision run trained in {setting.recipe.name}")
    return found


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


def outputs(conv: Conv) -> int:
    """Elements a convolution writes for one image."""
    return conv.channels_out * conv.out_size**2
