"""Memory of one training step of a ResNet on one device."""

from __future__ import annotations

import numpy as np

from scalewright.catalog.types import ConvShape
from scalewright.costs.breakdown import Breakdown, FloatLike
from scalewright.costs.machine.stack_costs import FP32_BYTES
from scalewright.costs.setting import VisionSetting
from scalewright.costs.vision.convolution import outputs
from scalewright.workload.convolutions import Conv, resnet_convs, resnet_params
from scalewright.workload.precision import Recipe

INDEX_BYTES = 8.0
"""Of a position that max pooling keeps for the backward pass."""


def activation_bytes_per_sample(*, shape: ConvShape, recipe: Recipe) -> float:
    """What the forward pass keeps of one image until the backward pass.

    Equation  w (2 sum of outputs - outputs of projections + p) + 8 p,  p elements after pooling
    Source    he2015 (arXiv:1512.03385), Table 1, for the tensors; PyTorch's autograd for which of them are kept
    Assumes   a norm keeps its input, a convolution its input; ReLU and the shortcut's sum work in place, so a
              projection's norm keeps no output; pooling keeps 8-byte positions
    Checked   tests/costs/test_vision.py: PyTorch's own memory tracker, 85.3 MB in 32 bit, 43.5 MB under autocast
    """
    convs = list(resnet_convs(shape))
    kept = sum(outputs(conv) * (1 if conv.place == "projection" else 2) for conv in convs)
    pooled = outputs(convs[0]) // 4
    return recipe.activation_bytes * (kept + pooled) + INDEX_BYTES * pooled


def _last(shape: ConvShape) -> Conv:
    """The last convolution of the last block."""
    return [conv for conv in resnet_convs(shape) if conv.place == "end"][-1]


def search_workspace_bytes(setting: VisionSetting) -> FloatLike:
    """What cuDNN's search for kernels holds in the first step beyond the peak of later ones.

    Equation  t (c k + b (c + k)) - 2 w b o,  t bytes of a transformed tile, c and k channels of the last convolution;
              2 w b o, the working set of the peak, does not exist yet
    Source    cuDNN, algorithm FFT_TILING: transforms in tiles of 32 x 32; measured as
              benchmarks/results/h200_memory.jsonl says
    Assumes   a transform among the candidates: 32-bit products without TF32 on NVIDIA; an image of one tile
    Checked   tests/costs/test_vision_memory.py: the first step of ResNet-50 with 128 to 1024 images within 3 %;
              of ResNet-18, whose last kernel is 3 x 3, 13 % low
    """
    if not setting.on_vector_units or setting.machine.accelerator.vendor != "NVIDIA":
        return 0.0
    conv, b = _last(setting.shape), setting.num_images
    c, k = conv.channels_in, conv.channels_out
    transformed = setting.constants.transformed_tile.value * (c * k + b * (c + k))
    return np.maximum(transformed - 2.0 * b * setting.recipe.activation_bytes * outputs(conv), 0.0)


def reserved_bytes(setting: VisionSetting, used: Breakdown) -> FloatLike:
    """What the framework's allocator takes for a step whose tensors peak as `used` says.

    Equation  max(M (1 + f), M + s),  f fragments of convolutional networks, s workspaces of the search for kernels
    Source    engine constant convolution_allocator_overhead, with its source; search_workspace_bytes
    Assumes   the search has what it wants: candidates for which a device has no room are passed over
    Checked   tests/costs/test_vision_memory.py: ResNet-50 on an H200 within 5 %, 32 and 16 bit; ResNet-18 up to
              27 % low
    """
    overhead = setting.constants.convolution_allocator_overhead.value
    searching = used.total + search_workspace_bytes(setting)
    return np.maximum(used.total * (1.0 + overhead), searching)


def step_memory(setting: VisionSetting) -> Breakdown:
    """Peak allocated bytes of a device, at the turn from forward to backward.

    Equation  8 N + [4 N buckets when dp > 1] + b activations + images + [w N cast weights under autocast] + 2 w b o,
              o elements of the last block's output: its gradient on the branch and on the shortcut
    Source    PyTorch's memory tracker on the network itself (benchmarks/vision_memory.py); li2020 for the buckets
    Assumes   SGD with momentum in 32 bit, gradients freed after the update; workspaces of the convolution library
              count to the reserve
    Checked   tests/costs/test_vision.py: 256 images of ResNet-50 22.4 and 11.7 GB, of ResNet-18 5.8 and 3.3 GB,
              within 1 %
    """
    shape, recipe, b = setting.shape, setting.recipe, setting.num_images
    params, w = float(sum(resnet_params(shape).values())), recipe.activation_bytes
    casts = w < FP32_BYTES
    is_exchanged = np.asarray(np.asarray(setting.layout.dp) > 1, dtype=np.float64)[()]
    pixels = 3.0 * shape.image_size**2

    def term(name: str, value: FloatLike, formula: str = "step_memory") -> Breakdown:
        return Breakdown(name=name, unit="bytes", value=value, formula=f"vision.{formula}")

    last = outputs(_last(shape))
    return Breakdown(
        name="peak_allocated",
        unit="bytes",
        formula="vision.step_memory",
        parts=(
            term("weights", FP32_BYTES * params),
            term("optimizer", FP32_BYTES * params),
            term("gradient_buckets", FP32_BYTES * params * is_exchanged),
            term("activations", b * activation_bytes_per_sample(shape=shape, recipe=recipe),
                 "activation_bytes_per_sample"),
            term("images", b * pixels * (FP32_BYTES + (w if casts else 0.0))),
            term("cast_weights", w * params if casts else 0.0),
            term("working_set", 2.0 * b * w * last),
        ),
    )  # fmt: skip
