"""ModelDetails: what of a published model is no size, and a training engine still has to be told."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scalewright.catalog.facts import Source, Strict

Activation = Literal["silu", "gelu", "gelu-tanh", "relu", "squared-relu"]


class RopeScaling(Strict):
    """How rotary frequencies are stretched beyond the context of pretraining."""

    kind: Literal["llama3", "yarn", "linear", "dynamic"]
    factor: float = Field(gt=0)
    low_freq_factor: float = Field(default=1.0, gt=0)
    high_freq_factor: float = Field(default=4.0, gt=0)
    original_positions: int = Field(default=8192, gt=0)
    """Longest sequence before the stretch."""
    beta_fast: float = Field(default=32.0, gt=0)
    beta_slow: float = Field(default=1.0, gt=0)
    mscale: float = Field(default=1.0, ge=0)
    mscale_all_dim: float = Field(default=0.0, ge=0)


class RouterDetails(Strict):
    """How a router of experts scores and chooses."""

    score: Literal["softmax", "sigmoid"] = "softmax"
    normalises_top_k: bool = True
    """The weights of the chosen experts sum to one."""
    scaling: float = Field(default=1.0, gt=0)
    """Factor on the weights of the routed experts."""
    num_groups: int = Field(default=1, gt=0)
    """Groups of experts; a token goes to experts of the best `top_groups` only."""
    top_groups: int = Field(default=1, gt=0)
    aux_loss: float = Field(default=0.0, ge=0)
    """Coefficient of the load-balancing loss."""


class ModelDetails(Strict):
    """Values of a config.json that neither parameters nor FLOP depend on."""

    source: Source
    model_type: str = ""
    """Name of the architecture in Hugging Face's library; empty: chosen by the shape."""
    norm_epsilon: float | None = Field(default=None, gt=0)
    activation: Activation | None = None
    rope_theta: float | None = Field(default=None, gt=0)
    """Base of the rotary frequencies."""
    rotary_frac: float = Field(default=1.0, gt=0, le=1)
    """Share of a head's width that is rotated."""
    rope_scaling: RopeScaling | None = None
    sliding_window: int = Field(default=0, ge=0)
    """Keys that a token of a windowed layer attends to; 0: all."""
    router: RouterDetails | None = None
    init_std: float | None = Field(default=None, gt=0)
    weights: Literal["", "fp8", "mxfp4"] = ""
    """Format in which the weights are published, where it is narrower than 16 bit."""
    max_positions: int = Field(default=0, ge=0)
    """`max_position_embeddings` of the published configuration; 0: not known."""
