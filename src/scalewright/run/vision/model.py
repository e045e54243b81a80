"""Residual networks, plain PyTorch, with parameters named as torchvision names them.

The 3x3 convolution of a bottleneck has the stride ("v1.5"). Images arrive as bytes and are normalised here, on
the device: that costs a fraction of moving 32-bit images to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewright.catalog.types import ConvShape
from scalewright.run.vision.pool import folded_pool
from scalewright.workload.convolutions import EXPANSION

MEAN_RGB = (0.485 * 255.0, 0.456 * 255.0, 0.406 * 255.0)
DEVIATION_RGB = (0.229 * 255.0, 0.224 * 255.0, 0.225 * 255.0)
"""Of ImageNet's training images, in bytes (the values every ResNet of torchvision is trained with)."""
FOLD = 2
FOLDED_CHANNELS = 16
"""Channels of a folded image, 3 x 2 x 2, filled up to what matrix units take."""
CLASSIFIER_DEVIATION = 0.01


class Pointwise(nn.Conv2d):
    """A 1x1 convolution: the product of every pixel's channels with the weights. `multiplies` computes it as one.

    In 32 bit without TF32 an H200's convolution library reaches 9 to 42 TFLOP/s on these, its products 27 to 53
    (benchmarks/results/h200_operators.jsonl); on matrix units the library is as fast.
    """

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__(channels, out, 1, stride, bias=False)
        self.multiplies = False

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return pointwise_product(x_BCHW, self.weight, self.stride[0]) if self.multiplies else super().forward(x_BCHW)


def pointwise_product(x_BCHW: Tensor, weight_OI11: Tensor, stride: int) -> Tensor:
    """A 1x1 convolution as a matrix product. Channels are last in memory, in the input and in the output."""
    kept = x_BCHW if stride == 1 else x_BCHW[:, :, ::stride, ::stride]
    return functional.linear(kept.permute(0, 2, 3, 1), weight_OI11.flatten(1)).permute(0, 3, 1, 2)


class Basic(nn.Module):
    """Two 3x3, each with its norm, and a shortcut around them."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(channels, width, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn2

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x_BCHW)))
        y = self.bn2(self.conv2(y))
        y += x_BCHW if self.downsample is None else self.downsample(x_BCHW)
        out: Tensor = self.relu(y)
        return out


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1, each with its norm, and a shortcut around them."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION["bottleneck"] * width
        self.conv1, self.bn1 = Pointwise(channels, width), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = Pointwise(width, out), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(channels, out, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn3

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x_BCHW)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x_BCHW if self.downsample is None else self.downsample(x_BCHW)
        out: Tensor = self.relu(y)
        return out


def projection(channels: int, out: int, stride: int) -> nn.Sequential | None:
    """The shortcut of a block that changes the shape; None where the input can be added unchanged."""
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(Pointwise(channels, out, stride), nn.BatchNorm2d(out))


BLOCKS: dict[str, type[Basic | Bottleneck]] = {"basic": Basic, "bottleneck": Bottleneck}


class Stem(nn.Conv2d):
    """The first convolution, 7x7 with stride 2 over three channels.

    Matrix units are made for many channels. Folding each square of 2x2 pixels into channels turns it into a 4x4
    convolution with stride 1 over twelve: the same sums in another order (the trick of MLPerf's submissions).
    """

    def __init__(self, width: int, *, folds: bool) -> None:
        super().__init__(3, width, 7, 2, 3, bias=False)
        self.folds = folds

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if not self.folds:
            return super().forward(x_BCHW)
        return functional.conv2d(folded_images(x_BCHW), folded_weight(self.weight))


def folded_images(x_BCHW: Tensor) -> Tensor:
    """Squares of 2x2 pixels as channels, padded as the three border pixels of a 7x7 kernel need it."""
    batch, channels, height, width = x_BCHW.shape
    split = x_BCHW.reshape(batch, channels, height // FOLD, FOLD, width // FOLD, FOLD)
    folded = split.permute(0, 1, 3, 5, 2, 4).reshape(batch, channels * FOLD * FOLD, height // FOLD, width // FOLD)
    spare = FOLDED_CHANNELS - channels * FOLD * FOLD
    return functional.pad(folded, (2, 1, 2, 1, 0, spare)).contiguous(memory_format=torch.channels_last)


def folded_weight(weight_OI77: Tensor) -> Tensor:
    out, channels = weight_OI77.shape[:2]
    whole = functional.pad(weight_OI77, (1, 0, 1, 0)).reshape(out, channels, 4, FOLD, 4, FOLD)
    folded = whole.permute(0, 1, 3, 5, 2, 4).reshape(out, channels * FOLD * FOLD, 4, 4)
    spare = FOLDED_CHANNELS - channels * FOLD * FOLD
    return functional.pad(folded, (0, 0, 0, 0, 0, spare)).contiguous(memory_format=torch.channels_last)


class ResNet(nn.Module):
    """Takes images as bytes [batch, height, width, 3] and returns scores of the classes."""

    mean: Tensor
    scale: Tensor

    def __init__(self, shape: ConvShape, *, channels_last: bool, folds: bool = False, multiplies: bool = False) -> None:
        """`folds`: the first convolution and the pooling in forms that matrix units and a compiler make fast;
        `multiplies`: 1x1 convolutions as matrix products."""
        super().__init__()
        self.conv1, self.bn1 = Stem(shape.width, folds=folds), nn.BatchNorm2d(shape.width)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        channels = shape.width
        self.block_groups: list[nn.Sequential] = []
        for group, num_blocks in enumerate(shape.blocks):
            width, blocks = shape.width * 2**group, []
            for block in range(num_blocks):
                blocks.append(BLOCKS[shape.block](channels, width, 2 if block == 0 and group > 0 else 1))
                channels = EXPANSION[shape.block] * width
            self.block_groups.append(nn.Sequential(*blocks))
            self.add_module(f"layer{group + 1}", self.block_groups[-1])
        self.fc = nn.Linear(channels, shape.num_classes)
        self.channels_last, self.folds_pool = channels_last, folds
        self.register_buffer("mean", torch.tensor(MEAN_RGB), persistent=False)
        self.register_buffer("scale", 1.0 / torch.tensor(DEVIATION_RGB), persistent=False)
        for module in self.modules():
            if isinstance(module, Pointwise):
                module.multiplies = multiplies
        initialise(self)

    def forward(self, images_BHWC: Tensor) -> Tensor:
        x = ((images_BHWC.float() - self.mean) * self.scale).permute(0, 3, 1, 2)  # a view: channels stay last
        if not self.channels_last:
            x = x.contiguous()
        x = self.relu(self.bn1(self.conv1(x)))
        x = folded_pool(x) if self.folds_pool else self.maxpool(x)
        for blocks in self.block_groups:
            x = blocks(x)
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


@torch.no_grad()
def initialise(model: ResNet) -> None:
    """Weights as the large-batch recipe starts: the last norm of every block at zero, so that each begins as identity.

    Source    goyal2017 (arXiv:1706.02677), section 5.1: He's initialisation, zero for the last norm of a block, and a
              standard deviation of 0.01 for the classifier
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, Basic | Bottleneck):
            nn.init.zeros_(module.last_norm.weight)
    nn.init.normal_(model.fc.weight, std=CLASSIFIER_DEVIATION)
    nn.init.zeros_(model.fc.bias)


def build(
    shape: ConvShape, *, channels_last: bool, folds: bool, device: torch.device, seed: int, multiplies: bool = False
) -> ResNet:
    """The same weights on every device and rank: they are drawn on the CPU from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResNet(shape, channels_last=channels_last, folds=folds, multiplies=multiplies)
    options: dict[str, Any] = {"memory_format": torch.channels_last} if channels_last else {}
    return model.to(device, **options)
