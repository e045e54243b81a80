"""Emit: a layout as the configuration that a training framework reads itself."""

from __future__ import annotations

from typing import Literal

from scalewright.planner.emit import deepspeed, fsdp, megatron, torchtitan
from scalewright.planner.emit.request import EmitRequest, Emitted
from scalewright.workload.layout import Layout, check_divides
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe
from scalewright.workload.training import FULL, TrainingMode

Framework = Literal["megatron", "torchtitan", "deepspeed", "fsdp"]

EMITTERS = {
    "megatron": megatron.emit,
    "torchtitan": torchtitan.emit,
    "deepspeed": deepspeed.emit,
    "fsdp": fsdp.emit,
}


def emit(
    *,
    framework: Framework,
    spec: ModelSpec,
    layout: Layout,
    recipe: Recipe,
    seq_len: int,
    gpus_per_node: int,
    num_gpus: int,
    mode: TrainingMode = FULL,
) -> Emitted:
    """The framework's file for this layout; what it cannot express is an error that says what to change."""
    shape = spec.transformer
    check_divides(
        layout,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        seq=seq_len,
        num_experts=shape.moe.num_experts if shape.moe else 0,
    )
    request = EmitRequest(
        spec=spec, layout=layout, recipe=recipe, seq_len=seq_len, gpus_per_node=gpus_per_node, num_gpus=num_gpus,
        mode=mode,
    )  # fmt: skip
    return EMITTERS[framework](request)
