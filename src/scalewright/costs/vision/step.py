"""One training step of a ResNet, data parallel: what each device computes, exchanges and waits for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.catalog.types import ConvShape
from scalewright.costs import collectives
from scalewright.costs.breakdown import Breakdown, FloatLike
from scalewright.costs.machine import Machine
from scalewright.costs.machine.stack_costs import FP32_BYTES
from scalewright.costs.setting import VisionSetting
from scalewright.costs.vision.convolution import conv_time_s
from scalewright.costs.vision.supply import image_wait_s
from scalewright.costs.vision.traffic import (
    NUM_NORM_CROSSINGS,
    NUM_NORM_PASSES_COMPILED,
    NUM_NORM_PASSES_EAGER,
    NUM_RELU_CROSSINGS,
    cast_bytes,
    layout_bytes_per_sample,
    move_time_s,
    norm_time_s,
    pool_time_s,
)
from scalewright.workload.convolutions import resnet_convs, resnet_params

NUM_UPDATE_PASSES = 5
"""SGD with momentum: weight, gradient and momentum read, weight and momentum written, in 32 bit."""
NUM_PASSES = 2
"""Forward and backward: what the host issues for each convolution."""


def host_time_s(setting: VisionSetting) -> float:
    """Host work of a step: what a small batch waits for.

    Equation  2 c h,  c convolutions, h to issue one with its norm and activation
    Source    NVIDIA DeepLearningExamples, ResNet-50: a forward pass takes 10.2 ms for one image and for two
    Assumes   the backward pass asks as much of the host as the forward; compiled stacks the same, an upper bound; a
              graph asks nothing
    Checked   tests/costs/test_vision.py: binds for 8 images on an H200, not for 512
    """
    num_convs = 0 if setting.stack.graphed else sum(1 for _ in resnet_convs(setting.shape))
    casts = setting.machine.autocast_host_frac if setting.recipe.activation_bytes < FP32_BYTES else 0.0
    return NUM_PASSES * num_convs * setting.constants.convolution_host_time.value * (1.0 + casts)


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


def step_time(setting: VisionSetting) -> Breakdown:
    """Seconds of one training step, one batch on each device.

    Equation  t = (convolutions + norms + layout + pool + casts + update + exchange + gaps) (1 + g log2 nodes)
              + host wait + data wait
    Source    he2015 (arXiv:1512.03385), Table 1, for the convolutions
    Assumes   the all-reduce runs beside the backward pass; without a named storage images wait in memory
    Checked   tests/golden/test_vision_rates.py: published rates of H200, A100 and V100
    """
    shape, machine, w = setting.shape, setting.machine, setting.recipe.activation_bytes
    convs = resnet_convs(shape)
    time_of = {conv: conv_time_s(setting=setting, conv=conv) for conv in dict.fromkeys(convs)}  # blocks repeat
    times = [time_of[conv] for conv in convs]
    forward, backward = (sum((t[i] for t in times), start=0.0) for i in range(2))
    b, speed = setting.num_images, machine.hbm_bytes_per_s
    turned = layout_bytes_per_sample(shape=shape, recipe=setting.recipe, channels_last=setting.channels_last) / w
    norms = norm_time_s(setting)
    update = NUM_UPDATE_PASSES * FP32_BYTES * sum(resnet_params(shape).values()) / speed
    exposed = _exposed_exchange(setting, backward_s=backward + norm_backward_frac(setting) * norms)

    def term(name: str, value: FloatLike, formula: str) -> Breakdown:
        return Breakdown(name=name, unit="s", value=value, formula=f"vision.{formula}")

    busy = (
        term("convolution_forward", forward, "conv_time_s"),
        term("convolution_backward", backward, "conv_time_s"),
        term("norm_and_activation", norms, "norm_bytes_per_sample"),
        term("layout_change", move_time_s(setting=setting, num_elements=b * turned), "layout_bytes_per_sample"),
        term("pool", pool_time_s(setting), "pool_time_s"),
        term("casts", cast_bytes(setting) / speed, "cast_bytes"),
        term("update", update, "step_time"),
        term("gradient_exchange", exposed, "exposed_exchange_s"),
        *_gaps(setting, len(convs)),
    )
    device = sum((part.total for part in busy), start=0.0)
    slowest = machine.constants.straggler_growth.value * np.log2(setting.num_nodes)
    host: FloatLike = host_time_s(setting)
    if not machine.is_own_host:
        host = np.maximum(host - device, 0.0)
    waiting = (
        term("host", host, "host_time_s"),
        term("stragglers", device * slowest, "step_time"),
    )
    step = Breakdown(name="step", unit="s", formula="vision.step_time", parts=(*busy, *waiting))
    return replace(step, parts=(*step.parts, _data_wait(setting, step.total)))


def validation_time_s(*, step: Breakdown, setting: VisionSetting, num_images: float) -> float:
    """Scoring of held-out images after an epoch: forward passes in batches as large as those of training.

    Equation  max(V / (n b), 1) (t_conv forward + (1 - f) t_norms + t_pool / 2),  V images, n devices with b each,
              f the norms' backward part
    Source    goyal2017 (arXiv:1706.02677), section 5.1, for what a validation pass is
    Assumes   images wait in memory; no exchange; half of the pooling is forward; the last batch takes its share
    Checked   tests/study/test_study_vision_epoch.py: half on twice the devices; under a third of training an image
    """
    forward_s = float(
        step.part("convolution_forward").total
        + (1.0 - norm_backward_frac(setting)) * step.part("norm_and_activation").total
        + step.part("pool").total / NUM_PASSES
    )
    return max(num_images / float(setting.layout.gbs), 1.0) * forward_s


def norm_backward_frac(setting: VisionSetting) -> float:
    """Part of the norms' crossings that the backward pass has: what gradient exchange can hide behind.

    Equation  backward crossings of norm and activation over all; a compiler fuses the activation into the norm
    Source    the crossings counted in `vision.traffic`
    Assumes   every crossing takes as long
    Checked   tests/costs/test_vision.py: 8 of 13 eager, 5 of 8 compiled
    """
    backward = NUM_NORM_CROSSINGS["backward"]
    if setting.fuses_norms:
        return backward / NUM_NORM_PASSES_COMPILED
    return (backward + NUM_RELU_CROSSINGS["backward"]) / NUM_NORM_PASSES_EAGER


def _exposed_exchange(setting: VisionSetting, *, backward_s: FloatLike) -> FloatLike:
    machine, size = setting.machine, gradient_bytes(setting.shape)
    path = collectives.group_path(machine, num_ranks=setting.layout.dp, stride=1)
    bucket = min(size, machine.constants.gradient_bucket.value)
    return exposed_exchange_s(
        all_reduce_s=collectives.all_reduce_time_s(size_bytes=size, path=path),
        last_bucket_s=collectives.all_reduce_time_s(size_bytes=bucket, path=path),
        backward_s=backward_s, machine=machine,
    )  # fmt: skip


def _data_wait(setting: VisionSetting, step_s: FloatLike) -> Breakdown:
    """What the step waits for images; nothing where no storage is named (synthetic images)."""
    source = setting.feed.storage
    wait = 0.0 if source is None else image_wait_s(setting=setting, step_s=step_s, source=source)
    return Breakdown(name="data", unit="s", value=wait, formula="vision.image_wait_s")


def _gaps(setting: VisionSetting, num_convs: int) -> tuple[Breakdown, ...]:
    """Starts and ends of kernels, as a calibration measured the pause between two of them; else as fitted."""
    c, machine = setting.constants, setting.machine
    kernels = c.convolution_kernels_compiled if setting.fuses_norms else c.convolution_kernels_eager
    gap_s = kernels.value * machine.kernel_gap_s
    if machine.kernel_gap_s == 0.0:
        gap_s = 0.0 if machine.accelerator.kind == "cpu" else c.convolution_gap.value
    if gap_s == 0.0:
        return ()
    return (Breakdown(name="gaps", unit="s", value=num_convs * gap_s, formula="vision.step_time"),)


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
