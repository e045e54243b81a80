"""Emit: a layout as the configuration that a training framework reads itself."""

from __future__ import annotations

from typing import Literal, cast

from scalewright.engines.files import deepspeed, fsdp, megatron, torchtitan
from scalewright.engines.info import all_engines
from scalewright.engines.types import Emitted, EngineRequest
from scalewright.errors import UnknownNameError
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


def framework_named(name: str) -> Framework:
    """A framework by its name, or by that of the engine which reads its file."""
    if name in EMITTERS:
        return cast(Framework, name)
    for info in all_engines().values():
        if name in (info.id, *info.aliases) and info.frameworks:
            return cast(Framework, info.frameworks[0])
    raise UnknownNameError("framework", name, EMITTERS, hint=f"choose {', '.join(EMITTERS)}")


def engine_reading(framework: Framework) -> str:
    """The engine that reads a framework's file."""
    return next(info.id for info in all_engines().values() if framework in info.frameworks)


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
    request = EngineRequest(
        spec=spec, layout=layout, recipe=recipe, seq_len=seq_len, gpus_per_node=gpus_per_node, num_gpus=num_gpus,
        mode=mode,
    )  # fmt: skip
    return EMITTERS[framework](request)
