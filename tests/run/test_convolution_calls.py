"""Calls of the convolution benchmark compute what the layers of a network and autograd compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.run.micro.convolution_calls import (
    Method,
    Pixels,
    TensorSetting,
    activation_calls,
    convolution_calls,
    method_of,
    norm_calls,
    operand_bytes,
    operands_of,
    pixels_of,
)
from scalewright.workload.convolution_run import ConvolutionCase, ConvolutionLayout, cases_of
from scalewright.workload.vision_run import VisionPrecision

CATALOG = Catalog((packaged_data(),))
POINTWISE = ConvolutionCase(channels_in=6, channels_out=10, kernel=1, in_size=8, out_size=8)
STRIDED = ConvolutionCase(channels_in=6, channels_out=10, kernel=1, in_size=7, out_size=4)
WIDE = ConvolutionCase(channels_in=6, channels_out=10, kernel=3, in_size=8, out_size=4)


def setting_of(
    layout: ConvolutionLayout = "last", precision: VisionPrecision = "fp32", device: str = "cpu"
) -> TensorSetting:
    return TensorSetting(precision=precision, layout=layout, batch=3, device=torch.device(device))


@pytest.mark.parametrize("layout", ["last", "first"])
@pytest.mark.parametrize(
    ("case", "way"),
    [(POINTWISE, "library"), (POINTWISE, "product"), (STRIDED, "library"), (STRIDED, "product"), (WIDE, "library")],
    ids=lambda value: value if isinstance(value, str) else f"{value.kernel}x{value.kernel}/{value.stride}",
)
def test_three_directions_are_those_of_autograd(case: ConvolutionCase, way: Method, layout: ConvolutionLayout) -> None:
    torch.manual_seed(0)
    operands = operands_of(case, setting_of(layout))
    results_of: dict[str, Any] = {name: call() for name, call in convolution_calls(operands, way).items()}
    if way == "library":
        results_of |= {"input": results_of["input"][0], "weight": results_of["weight"][1]}
    x, weight = operands.x_BIHW.clone().requires_grad_(), operands.weight_OIKK.clone().requires_grad_()
    y = functional.conv2d(x, weight, stride=case.stride, padding=case.padding)
    grad_x, grad_weight = torch.autograd.grad(y, (x, weight), operands.grad_BOHW)
    torch.testing.assert_close(results_of["forward"], y.detach())
    torch.testing.assert_close(results_of["input"], grad_x)
    torch.testing.assert_close(results_of["weight"].reshape(grad_weight.shape), grad_weight)


def test_first_convolution_has_no_gradient_of_its_input() -> None:
    stem = ConvolutionCase(channels_in=3, channels_out=8, kernel=7, in_size=32, out_size=16, has_input_gradient=False)
    assert list(convolution_calls(operands_of(stem, setting_of()), "library")) == ["forward", "weight"]


@pytest.mark.parametrize("name", ["resnet-18", "resnet-50"])
@pytest.mark.parametrize("image_size", [32, 34, 96, 224, 290])
def test_every_convolution_of_a_network_writes_the_size_it_says(name: str, image_size: int) -> None:
    shape = CATALOG.model(name).conv
    assert shape is not None
    for case in cases_of(shape.model_copy(update={"image_size": image_size})):
        operands = operands_of(case, setting_of(device="meta"))
        written = convolution_calls(operands, "library")["forward"]()
        assert isinstance(written, Tensor)
        assert written.shape == operands.grad_BOHW.shape


def test_operands_lie_as_asked_and_are_counted() -> None:
    for layout, format_of in (("last", torch.channels_last), ("first", torch.contiguous_format)):
        operands = operands_of(WIDE, setting_of(layout, "bf16"))  # type: ignore[arg-type]
        assert all(
            t.is_contiguous(memory_format=format_of)
            for t in (operands.x_BIHW, operands.weight_OIKK, operands.grad_BOHW)
        )
        both = operands.x_BIHW.nbytes + operands.grad_BOHW.nbytes
        assert operand_bytes(WIDE, setting_of(layout, "bf16")) == 2 * both  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("precision", "layout", "device", "case", "way"),
    [
        ("fp32", "last", "cuda", POINTWISE, "product"),
        ("fp32", "last", "cuda", STRIDED, "product"),
        ("fp32", "last", "cuda", WIDE, "library"),
        ("fp32", "first", "cuda", POINTWISE, "library"),
        ("bf16", "last", "cuda", POINTWISE, "library"),
        ("tf32", "last", "cuda", POINTWISE, "library"),
        ("fp32", "last", "cpu", POINTWISE, "library"),
    ],
)
def test_convolutions_that_training_computes_as_products(
    precision: VisionPrecision, layout: ConvolutionLayout, device: str, case: ConvolutionCase, way: str
) -> None:
    assert method_of(case, setting_of(layout, precision, device)) == way


def test_norm_and_activation_are_the_layers_own() -> None:
    torch.manual_seed(0)
    pixels, setting = Pixels(channels_out=5, out_size=4, num_norms=1, num_activations=1), setting_of()
    torch.manual_seed(1)
    calls = norm_calls(pixels, setting)
    torch.manual_seed(1)
    x, grad = setting.random_tensor(3, 5, 4, 4).requires_grad_(), setting.random_tensor(3, 5, 4, 4)
    layer = nn.BatchNorm2d(5)
    y = layer(x)
    expected = torch.autograd.grad(y, (x, layer.weight, layer.bias), grad)
    forward: Any = calls["forward"]()
    torch.testing.assert_close(forward[0], y.detach())
    torch.testing.assert_close(calls["backward"](), expected)

    torch.manual_seed(1)
    calls = activation_calls(pixels, setting)
    y = functional.relu(x)
    torch.testing.assert_close(calls["forward"](), y.detach())
    torch.testing.assert_close(calls["backward"](), torch.autograd.grad(y, x, grad)[0])


def test_sizes_that_norms_work_on_add_up_to_the_networks() -> None:
    """ResNet-50: a norm after each of 53 convolutions, an activation after all but the four projections."""
    shape = CATALOG.model("resnet-50").conv
    assert shape is not None
    pixels_by_size = {(p.channels_out, p.out_size): p for p in pixels_of(cases_of(shape))}
    assert (
        sum(p.num_norms for p in pixels_by_size.values()),
        sum(p.num_activations for p in pixels_by_size.values()),
    ) == (53, 49)
    assert (pixels_by_size[256, 56].num_norms, pixels_by_size[256, 56].num_activations) == (4, 3)
    assert pixels_by_size[64, 112].tensor_bytes(setting_of(precision="bf16")) == 3 * 64 * 112**2 * 2
