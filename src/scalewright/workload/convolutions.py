"""ResNets: parameters and multiply-accumulates, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

from scalewright.catalog.types import ConvShape

EXPANSION = {"bottleneck": 4, "basic": 1}
"""Output channels of a block over its width (He et al. 2015, arXiv:1512.03385, Table 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """One convolution: channels in and out, kernel size, and the sides of the squares it reads and writes."""

    part: str
    channels_in: int
    channels_out: int
    kernel: int
    in_size: int
    out_size: int
    place: Literal["stem", "inner", "end", "projection"] = "inner"
    """end: the last of a block, where the shortcut is added; projection: the shortcut's own."""

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


@lru_cache(maxsize=64)
def resnet_convs(shape: ConvShape) -> tuple[Conv, ...]:
    """Every convolution in order; the stride sits on the (first) 3x3 (the common "v1.5" variant).

    A block whose shape changes has a projection beside it, which comes last here.
    """
    return tuple(_resnet_convs(shape))


def _resnet_convs(shape: ConvShape) -> Iterator[Conv]:
    size = shape.image_size // 2
    yield Conv(
        part="stem", channels_in=3, channels_out=shape.width, kernel=7, in_size=shape.image_size, out_size=size,
        place="stem",
    )  # fmt: skip
    size, channels, expansion = size // 2, shape.width, EXPANSION[shape.block]
    for stage, num_blocks in enumerate(shape.blocks):
        width = shape.width * 2**stage
        for block in range(num_blocks):
            before, out = size, width * expansion
            if block == 0 and stage > 0:
                size //= 2
            conv = partial(Conv, part=f"stage_{stage + 1}")
            if shape.block == "basic":
                yield conv(channels_in=channels, channels_out=width, kernel=3, in_size=before, out_size=size)
                yield conv(channels_in=width, channels_out=out, kernel=3, in_size=size, out_size=size, place="end")
            else:
                yield conv(channels_in=channels, channels_out=width, kernel=1, in_size=before, out_size=before)
                yield conv(channels_in=width, channels_out=width, kernel=3, in_size=before, out_size=size)
                yield conv(channels_in=width, channels_out=out, kernel=1, in_size=size, out_size=size, place="end")
            if size != before or channels != out:
                yield conv(
                    channels_in=channels, channels_out=out, kernel=1, in_size=before, out_size=size, place="projection"
                )
            channels = out


def resnet_params(shape: ConvShape) -> dict[str, int]:
    """Parameters by part.

    Equation  sum over convolutions of k^2 c_in c_out + 2 c_out (batch norm); classifier (c + 1) classes
    Source    he2015 (arXiv:1512.03385), Table 1
    Assumes   no convolution biases; a projection where a block changes the shape
    Checked   ResNet-50: 25,557,032; ResNet-18: 11,689,512
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
    Checked   4.09e9 multiply-adds for ResNet-50 v1.5, 1.81e9 for ResNet-18
    """
    parts: dict[str, float] = {}
    for conv in resnet_convs(shape):
        parts[conv.part] = parts.get(conv.part, 0.0) + conv.forward_flop
    parts["classifier"] = 2.0 * _last_channels(shape) * shape.num_classes
    return parts


def _last_channels(shape: ConvShape) -> int:
    return int(shape.width * 2 ** (len(shape.blocks) - 1) * EXPANSION[shape.block])
