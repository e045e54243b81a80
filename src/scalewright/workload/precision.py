"""Precision recipes: what the matrix products run in, and the bytes each parameter costs in training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from scalewright.catalog.types import Precision
from scalewright.errors import ConfigError, UnknownNameError

OptimizerName = Literal["adam", "sgd"]
NUM_MOMENTS: dict[OptimizerName, int] = {"adam": 2, "sgd": 1}
"""What an optimizer remembers of each parameter: Adam's two moments, SGD's momentum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A training recipe.

    Source  rajbhandari2020 (arXiv:1910.02054), section 3.1: 2 + 2 + 12 bytes per parameter in mixed precision
    """

    name: str
    matmul: Precision
    """Precision of the linear layers' products."""
    attention: Precision
    """Precision of the attention products."""
    head: Precision
    """Precision of the output layer, which 8-bit recipes keep higher."""
    weight_bytes: float
    gradient_bytes: float
    master_bytes: float
    """The fp32 copy of weights that are shorter; 0 where there is none."""
    moment_bytes: float
    """One moment of the optimizer."""
    activation_bytes: float
    communication_bytes: float
    """Width of a gradient element on the wire."""
    title: str
    optimizer: OptimizerName = "adam"

    @property
    def optimizer_bytes(self) -> float:
        """State per parameter: the moments, plus the master copy."""
        return self.master_bytes + NUM_MOMENTS[self.optimizer] * self.moment_bytes

    def with_optimizer(self, name: str) -> Recipe:
        if name not in get_args(OptimizerName):
            raise ConfigError(
                f"there is no optimizer {name!r}: choose {', '.join(get_args(OptimizerName))} (AdamW counts as adam)"
            )
        return replace(self, optimizer=cast(OptimizerName, name))

    @property
    def is_narrow(self) -> bool:
        """Linear layers multiply in 8 bit or fewer, so activations are cast first."""
        return self.matmul in ("fp8", "fp6", "fp4")

    @property
    def product_bytes(self) -> float:
        """Width of an element that linear layers multiply."""
        return {"fp8": 1.0, "fp6": 0.75, "fp4": 0.5}.get(self.matmul, self.activation_bytes)

    @property
    def is_block_scaled(self) -> bool:
        """Every block of a tensor has a scale of its own, so each expert's tokens are cast alone."""
        return self.name.startswith(("mx", "nv"))


def _mixed(
    name: str, matmul: Precision, wide: Precision, title: str, *, gradient_bytes: float = 4.0,
    master_bytes: float = 4.0, moment_bytes: float = 4.0,
) -> Recipe:  # fmt: skip
    return Recipe(
        name=name,
        matmul=matmul,
        attention=wide,
        head=wide,
        weight_bytes=2.0,
        gradient_bytes=gradient_bytes,
        master_bytes=master_bytes,
        moment_bytes=moment_bytes,
        activation_bytes=2.0,
        communication_bytes=2.0,
        title=title,
    )


def _full(name: Precision, title: str) -> Recipe:
    """Every tensor in 32 bit, so no master copy; products in `name`."""
    return Recipe(
        name=name,
        matmul=name,
        attention=name,
        head=name,
        weight_bytes=4.0,
        gradient_bytes=4.0,
        master_bytes=0.0,
        moment_bytes=4.0,
        activation_bytes=4.0,
        communication_bytes=4.0,
        title=title,
    )


RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        _full("fp32", "everything in 32 bit on the vector units"),
        _full("tf32", "32-bit tensors, products rounded to TF32"),
        _mixed("fp16", "fp16", "fp16", "fp16 weights and gradients, fp32 master copy and moments", gradient_bytes=2.0),
        _mixed("bf16", "bf16", "bf16", "bf16 weights, fp32 gradients, master copy and moments"),
        _mixed(
            "bf16-lean", "bf16", "bf16", "bf16 weights and gradients, fp32 master copy and moments", gradient_bytes=2.0
        ),
        _mixed(
            "bf16-pure",
            "bf16",
            "bf16",
            "bf16 weights, gradients and moments, no master copy",
            gradient_bytes=2.0,
            master_bytes=0.0,
            moment_bytes=2.0,
        ),
        _mixed("fp8", "fp8", "bf16", "linear layers in fp8, the rest as bf16"),
        _mixed("mxfp8", "fp8", "bf16", "linear layers in block-scaled fp8, the rest as bf16"),
        _mixed("nvfp4", "fp4", "bf16", "linear layers in block-scaled fp4, the rest as bf16"),
    )
}


def recipe(name: str) -> Recipe:
    try:
        return RECIPES[name]
    except KeyError as error:
        raise UnknownNameError("precision", name, RECIPES, hint=f"choose {', '.join(RECIPES)}") from error
