"""Adapters of low rank on the linear layers of a model: the base is frozen, and engines get the merged weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewright.errors import ConfigError
from scalewright.run.language.model import LinearClass
from scalewright.run.language.parallel import ADAPTERS
from scalewright.workload.reasoning.lora_settings import LoraSettings

(LORA_A, LORA_B), WEIGHT = ADAPTERS, ".weight"


class LoraLinear(nn.Linear):
    """`nn.Linear` with an adapter. `lora_class` makes the one of some settings."""

    rank, scale = 1, 1.0

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.lora_a = nn.Parameter(torch.empty(self.rank, in_features))
        self.lora_b = nn.Parameter(torch.empty(out_features, self.rank))

    def forward(self, x: Tensor) -> Tensor:
        narrow = functional.linear(x, self.lora_a)
        return functional.linear(x, self.weight, self.bias) + functional.linear(narrow, self.lora_b) * self.scale


def lora_class(settings: LoraSettings) -> LinearClass:
    """A class of linear layers that has these adapters."""
    return type("LoraLinear", (LoraLinear,), {"rank": settings.rank, "scale": settings.scale})


def is_adapter(name: str) -> bool:
    return name.endswith(ADAPTERS)


def merged(weight: Tensor, a: Tensor, b: Tensor, settings: LoraSettings) -> Tensor:
    """Equation  W + (alpha / rank) B A, summed in fp32."""
    return (weight.float() + settings.scale * (b.float() @ a.float())).to(weight.dtype)


def merged_weights(
    base: Iterable[tuple[str, Tensor]], adapters: Iterable[tuple[str, Tensor]], settings: LoraSettings, *, where: str
) -> Iterator[tuple[str, Tensor]]:
    """Whole weights of a model from those of its base and the adapters that a checkpoint holds."""
    by_name = dict(adapters)
    for name, weight in base:
        stem = name.removesuffix(WEIGHT)
        a, b = by_name.pop(stem + LORA_A, None), by_name.pop(stem + LORA_B, None)
        if a is None or b is None:
            yield name, weight
        elif (b.shape[0], a.shape[1]) != tuple(weight.shape) or a.shape[0] != settings.rank:
            raise ConfigError(f"{where}: the adapter of {name} does not fit it; give the base that it was trained on")
        else:
            yield name, merged(weight, a.to(weight.device), b.to(weight.device), settings)
    if by_name:
        raise ConfigError(f"{where}: has {min(by_name)}, which no weight of the base has; give its own base")
