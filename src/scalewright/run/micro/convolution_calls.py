"""Calls of the convolution benchmark: the operators behind PyTorch's layers and their gradients, without autograd.

Autograd would launch its own bookkeeping too, and cannot compute a single gradient of a recorded call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from scalewright.run.micro.timing import Work
from scalewright.run.vision.model import pointwise_product
from scalewright.run.vision.session import multiplies_pointwise
from scalewright.workload.convolution_run import ConvolutionCase, ConvolutionLayout
from scalewright.workload.vision_run import VisionPrecision

Method = Literal["library", "product"]
METHODS: tuple[Method, ...] = get_args(Method)
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FORMATS = {"last": torch.channels_last, "first": torch.contiguous_format}
NORM_PASSES = {"forward": 3, "backward": 5}
"""How often the tensor is read or written. Forward: read for its moments, read again and written. Backward: it and its
gradient are each read twice, and a gradient is written."""
ACTIVATION_PASSES = {"forward": 2, "backward": 3}
POOL_PASSES = {"forward": 1.25, "backward": 1.25}
"""Its input is read and a quarter written; backward the reverse. Positions, in 8 bytes each, are not counted: they are
a detail of the kernel."""
MOMENTUM, EPSILON = 0.1, 1e-5
"""PyTorch's defaults for batch norm; neither changes the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSetting:
    """Precision, memory layout, batch and device of the tensors in a series."""

    precision: VisionPrecision
    layout: ConvolutionLayout
    batch: int
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of activations and of what convolutions read, as in automatic mixed precision."""
        return DTYPES[self.precision]

    def random_tensor(self, *shape: int) -> Tensor:
        """Random numbers: zeros use less power and run faster."""
        drawn = torch.randn(*shape, device=self.device, dtype=self.dtype)
        return drawn.contiguous(memory_format=FORMATS[self.layout])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionOperands:
    """Tensors that one convolution reads in its three directions."""

    case: ConvolutionCase
    x_BIHW: Tensor
    weight_OIKK: Tensor
    grad_BOHW: Tensor


def operands_of(case: ConvolutionCase, setting: TensorSetting) -> ConvolutionOperands:
    return ConvolutionOperands(
        case=case,
        x_BIHW=setting.random_tensor(setting.batch, case.channels_in, case.in_size, case.in_size),
        weight_OIKK=setting.random_tensor(case.channels_out, case.channels_in, case.kernel, case.kernel),
        grad_BOHW=setting.random_tensor(setting.batch, case.channels_out, case.out_size, case.out_size),
    )


def operand_bytes(case: ConvolutionCase, setting: TensorSetting) -> float:
    """Input and output, each with its gradient; weights are small beside them."""
    read = case.channels_in * case.in_size**2
    written = case.channels_out * case.out_size**2
    return 2.0 * setting.batch * (read + written) * setting.dtype.itemsize


def method_of(case: ConvolutionCase, setting: TensorSetting) -> Method:
    """How the vision benchmark computes this convolution."""
    is_product = (
        case.kernel == 1
        and case.padding == 0
        and multiplies_pointwise(setting.precision, setting.device, channels_last=setting.layout == "last")
    )
    return "product" if is_product else "library"


def convolution_calls(operands: ConvolutionOperands, method: Method) -> dict[str, Work]:
    """A call of each direction: forward, gradient of the input, gradient of the weights."""
    calls = _products(operands) if method == "product" else _library(operands)
    return {name: call for name, call in calls.items() if name != "input" or operands.case.has_input_gradient}


def _library(operands: ConvolutionOperands) -> dict[str, Work]:
    x, weight, grad = operands.x_BIHW, operands.weight_OIKK, operands.grad_BOHW
    stride, padding, once = [operands.case.stride] * 2, [operands.case.padding] * 2, [1, 1]

    def backward(mask: list[bool]) -> Work:
        return lambda: torch.ops.aten.convolution_backward(
            grad, x, weight, None, stride, padding, once, False, [0, 0], 1, mask
        )

    return {
        "forward": lambda: torch.ops.aten.convolution(x, weight, None, stride, padding, once, False, [0, 0], 1),
        "input": backward([True, False, False]),
        "weight": backward([False, True, False]),
    }


def _products(operands: ConvolutionOperands) -> dict[str, Work]:
    """Calls of a 1x1 convolution with channels last: every pixel is a row of a matrix."""
    x, weight, stride = operands.x_BIHW, operands.weight_OIKK, operands.case.stride
    batch, channels_out, out_size, _ = operands.grad_BOHW.shape
    grad_PO = operands.grad_BOHW.permute(0, 2, 3, 1).reshape(-1, channels_out)
    kept_PI = x[:, :, ::stride, ::stride].permute(0, 2, 3, 1).reshape(-1, x.shape[1])  # the forward pass keeps it

    def input_gradient() -> Tensor:
        product = torch.mm(grad_PO, weight.flatten(1)).view(batch, out_size, out_size, -1).permute(0, 3, 1, 2)
        if stride == 1:
            return product
        spread = torch.zeros_like(x)
        spread[:, :, ::stride, ::stride] = product
        return spread

    return {
        "forward": lambda: pointwise_product(x, weight, stride),
        "input": input_gradient,
        "weight": lambda: torch.mm(grad_PO.t(), kept_PI),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """Size of a convolution's output, on which a norm and an activation then work."""

    channels_out: int
    out_size: int
    num_norms: int = field(compare=False)
    num_activations: int = field(compare=False)

    def tensor_bytes(self, setting: TensorSetting) -> float:
        return float(setting.batch * self.channels_out * self.out_size**2 * setting.dtype.itemsize)


def pixels_of(cases: tuple[ConvolutionCase, ...]) -> list[Pixels]:
    """Every distinct output size, with the number of its norms and activations."""
    norms: dict[tuple[int, int], int] = {}
    activations: dict[tuple[int, int], int] = {}
    for case in cases:
        key = (case.channels_out, case.out_size)
        norms[key] = norms.get(key, 0) + case.count
        activations[key] = activations.get(key, 0) + case.count - case.num_unactivated
    return [
        Pixels(channels_out=key[0], out_size=key[1], num_norms=num, num_activations=activations[key])
        for key, num in norms.items()
    ]


def norm_calls(pixels: Pixels, setting: TensorSetting) -> dict[str, Work]:
    """Batch norm in training, as torch.nn.BatchNorm2d calls it: parameters and moments in 32 bit."""
    shape = (setting.batch, pixels.channels_out, pixels.out_size, pixels.out_size)
    x, grad = setting.random_tensor(*shape), setting.random_tensor(*shape)
    weight, bias, mean = (torch.full((pixels.channels_out,), v, device=setting.device) for v in (1.0, 0.0, 0.0))
    variance = torch.ones_like(weight)
    aten = torch.ops.aten

    def forward() -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        outputs: tuple[Tensor, Tensor, Tensor, Tensor, int] = aten._batch_norm_impl_index(
            x, weight, bias, mean, variance, True, MOMENTUM, EPSILON, torch.backends.cudnn.enabled
        )
        return outputs

    _, saved_mean, saved_scale, reserve, kernel = forward()

    def backward() -> object:
        return aten._batch_norm_impl_index_backward(
            kernel, x, grad, weight, mean, variance, saved_mean, saved_scale, True, EPSILON, [True] * 3, reserve
        )

    return {"forward": forward, "backward": backward}


def activation_calls(pixels: Pixels, setting: TensorSetting) -> dict[str, Work]:
    """ReLU in place, and its gradient."""
    shape = (setting.batch, pixels.channels_out, pixels.out_size, pixels.out_size)
    x, grad = setting.random_tensor(*shape), setting.random_tensor(*shape)
    return {
        "forward": lambda: torch.relu_(x),
        "backward": lambda: torch.ops.aten.threshold_backward(grad, x, 0),
    }


def pool_calls(pixels: Pixels, setting: TensorSetting) -> dict[str, Work]:
    """Max pooling of 3x3 with stride 2, as it follows a residual network's first convolution, and its gradient."""
    x = setting.random_tensor(setting.batch, pixels.channels_out, pixels.out_size, pixels.out_size)
    window, stride, padding, once = [3, 3], [2, 2], [1, 1], [1, 1]
    aten = torch.ops.aten
    out, positions = aten.max_pool2d_with_indices(x, window, stride, padding, once, False)
    grad = torch.randn_like(out)
    return {
        "forward": lambda: aten.max_pool2d_with_indices(x, window, stride, padding, once, False),
        "backward": lambda: aten.max_pool2d_with_indices_backward(
            grad, x, window, stride, padding, once, False, positions
        ),
    }
