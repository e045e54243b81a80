"""What decides a run of the convolution benchmark, resolved: the operators of a residual network's training step."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from scalewright.catalog.types import ConvShape
from scalewright.errors import ConfigError
from scalewright.records.documents import document
from scalewright.records.loader import stored
from scalewright.workload.convolutions import Conv, resnet_convs
from scalewright.workload.micro_run import check_choices, check_common
from scalewright.workload.run_options import DeviceKind
from scalewright.workload.vision_run import SMALLEST_IMAGE, VisionPrecision

ConvolutionLayout = Literal["last", "first"]
"""Where the channels of an image lie: last, next to each other for every pixel; or first, each a picture of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCase:
    """One square convolution over square images, and how often a network has it."""

    channels_in: int
    channels_out: int
    kernel: int
    in_size: int
    out_size: int
    count: int = 1
    has_input_gradient: bool = True
    """False for a network's first one: the gradient of images is not needed."""
    num_unactivated: int = 0
    """Of all, those that no activation follows: the projections of shortcuts."""

    def __post_init__(self) -> None:
        sizes = (self.channels_in, self.channels_out, self.kernel, self.in_size, self.out_size, self.count)
        if min(sizes) < 1:
            raise ConfigError(
                f"a convolution of {self.channels_in} to {self.channels_out} channels, kernel {self.kernel}, "
                f"{self.in_size} to {self.out_size} pixels, {self.count} times: give 1 or more of each"
            )
        if not 0 <= self.num_unactivated <= self.count:
            raise ConfigError(f"{self.num_unactivated} of {self.count} convolutions without activation: give a part")
        spare = self.in_size + 2 * self.padding - self.kernel
        if spare < 0 or spare // self.stride + 1 != self.out_size:
            raise ConfigError(
                f"no stride and padding take a {self.kernel}x{self.kernel} convolution from {self.in_size} to "
                f"{self.out_size} pixels: choose other sizes"
            )

    @property
    def stride(self) -> int:
        return max(1, round(self.in_size / self.out_size))

    @property
    def padding(self) -> int:
        """Pixels of border on every side."""
        return max(0, math.ceil(((self.out_size - 1) * self.stride + self.kernel - self.in_size) / 2))

    @property
    def flop_per_sample(self) -> float:
        """Of one call and one image: a multiply and an add per weight and output position, in every direction."""
        return 2.0 * self.channels_in * self.channels_out * self.kernel**2 * self.out_size**2

    @property
    def num_directions(self) -> int:
        return 3 if self.has_input_gradient else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionRun:
    """Convolutions forward and backward, and the norms and activations between them."""

    KIND: ClassVar[str] = "convolution-run"
    precisions: tuple[VisionPrecision, ...]
    layouts: tuple[ConvolutionLayout, ...] = ("last",)
    batch: int
    cases: tuple[ConvolutionCase, ...]
    measures_norms: bool = True
    """Also batch norm and ReLU, for every size that a convolution writes."""
    skips_missing: bool = False
    """Precisions that the device lacks are noted and left out; otherwise they are refused."""
    device: DeviceKind = "auto"
    budget_s: float

    def __post_init__(self) -> None:
        check_choices("precision", self.precisions, VisionPrecision)
        check_choices("layout", self.layouts, ConvolutionLayout)
        check_common(self.device, self.budget_s)
        for what, values in (("precision", self.precisions), ("layout", self.layouts)):
            if len(set(values)) < len(values):
                raise ConfigError(f"{what} {','.join(values)}: give each once")
        if self.device == "cpu" and "tf32" in self.precisions:
            raise ConfigError("precision tf32 needs a GPU that has it: choose fp32 or bf16 for the CPU")
        if self.batch < 1:
            raise ConfigError(f"--batch {self.batch} must be 1 or more")
        if not self.cases:
            raise ConfigError("no convolution to measure: name a residual network with --model")

    def document(self) -> dict[str, Any]:
        return document(self.KIND, stored(self))


def cases_of(shape: ConvShape) -> tuple[ConvolutionCase, ...]:
    """The distinct convolutions of a residual network in the order of its layers, with how often each occurs."""
    if shape.image_size < SMALLEST_IMAGE or shape.image_size % 2:
        raise ConfigError(f"image size {shape.image_size}: give an even number of {SMALLEST_IMAGE} or more")
    counts: Counter[tuple[int, int, int, int, int, bool]] = Counter()
    projections: Counter[tuple[int, int, int, int, int, bool]] = Counter()
    for conv in resnet_convs(shape):
        counts[_key(conv)] += 1
        projections[_key(conv)] += conv.place == "projection"
    return tuple(
        ConvolutionCase(
            channels_in=key[0], channels_out=key[1], kernel=key[2], in_size=key[3], out_size=key[4],
            count=count, has_input_gradient=key[5], num_unactivated=projections[key],
        )
        for key, count in counts.items()
    )  # fmt: skip


def _key(conv: Conv) -> tuple[int, int, int, int, int, bool]:
    return conv.channels_in, conv.channels_out, conv.kernel, conv.in_size, conv.out_size, conv.place != "stem"
