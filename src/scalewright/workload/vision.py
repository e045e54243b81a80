"""Bottleneck ResNets: parameters and multiply-accumulates, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scalewright.catalog.types import ConvShape

EXPANSION = 4
"""Output channels of a bottleneck over its width (He et al. 2015, arXiv:1512.03385, Table 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """One convolution: channels in and out, kernel size and the side of the square it writes."""

    part: str
    channels_in: int
    channels_out: int
    kernel: int
    out_size: int

    @property
    def num_weights(self) -> int:
        return self.channels_in * self.channels_out * self.kernel**2

    @property
    def num_norm_params(self) -> int:
        return 2 * self.channels_out

    @property
    def forward_flop(self) -> float:
        """Per image: one multiply and one add per weight and output position."""
        return 2.0 * self.num_weights * self.out_size**2


def resnet_convs(shape: ConvShape) -> Iterator[Conv]:
    """Every convolution in order; the stride sits on the 3x3 (the common "v1.5" variant)."""
    size = shape.image_size // 2
    yield Conv(part="stem", channels_in=3, channels_out=shape.width, kernel=7, out_size=size)
    size, channels = size // 2, shape.width
    for stage, num_blocks in enumerate(shape.blocks):
        width = shape.width * 2**stage
        for block in range(num_blocks):
            inner_size = size
            if block == 0 and stage > 0:
                size //= 2
            part = f"stage_{stage + 1}"
            yield Conv(part=part, channels_in=channels, channels_out=width, kernel=1, out_size=inner_size)
            yield Conv(part=part, channels_in=width, channels_out=width, kernel=3, out_size=size)
            yield Conv(part=part, channels_in=width, channels_out=width * EXPANSION, kernel=1, out_size=size)
            if block == 0:
                yield Conv(part=part, channels_in=channels, channels_out=width * EXPANSION, kernel=1, out_size=size)
            channels = width * EXPANSION


def resnet_params(shape: ConvShape) -> dict[str, int]:
    """Parameters by part.

    Equation  sum over convolutions of k^2 c_in c_out + 2 c_out (batch norm); classifier (c + 1) classes
    Source    he2015 (arXiv:1512.03385), Table 1
    Assumes   no convolution biases; projection shortcut in the first block of each stage
    Checked   ResNet-50: 25,557,032
    """
    parts: dict[str, int] = {}
    for conv in resnet_convs(shape):
        parts[conv.part] = parts.get(conv.part, 0) + conv.num_weights + conv.num_norm_params
    parts["classifier"] = (_last_channels(shape) + 1) * shape.num_classes
    return parts


def resnet_forward_flop(shape: ConvShape) -> dict[str, float]:
    """Forward work per image by part, two operations per multiply-accumulate.

    Equation  2 k^2 c_in c_out s^2 per convolution + 2 c classes
    Source    he2015 (arXiv:1512.03385), Table 1: 3.8 G multiply-adds for the variant with stride on the 1x1
    Assumes   stride on the 3x3, which adds about 8 % (4.09 G multiply-adds); norms and pooling not counted
    Checked   4.09e9 multiply-adds for ResNet-50 v1.5
    """
    parts: dict[str, float] = {}
    for conv in resnet_convs(shape):
        parts[conv.part] = parts.get(conv.part, 0.0) + conv.forward_flop
    parts["classifier"] = 2.0 * _last_channels(shape) * shape.num_classes
    return parts


def _last_channels(shape: ConvShape) -> int:
    return int(shape.width * 2 ** (len(shape.blocks) - 1) * EXPANSION)
