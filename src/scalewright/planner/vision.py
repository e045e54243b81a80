"""Predict: one step of a convolutional network, data parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalewright import __version__
from scalewright.catalog.types import ConvShape, Stack
from scalewright.costs import collectives
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.machine import Machine
from scalewright.costs.vision import (
    VisionSetting,
    gradient_bytes,
    num_images_per_s,
    unseen_vision,
    vision_interval_s,
    vision_memory,
    vision_step_time,
)
from scalewright.errors import ConfigError
from scalewright.records.documents import digest, document
from scalewright.workload.flop import training_flop_per_sample
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe

NOT_SPLIT = ("tp", "pp", "vpp", "cp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionPrediction:
    """A step of `dp` devices with `mbs` images each."""

    spec: ModelSpec
    machine: Machine
    layout: Layout
    recipe: Recipe
    stack: Stack
    channels_last: bool
    time: Breakdown
    memory: Breakdown
    """Peak allocated on a device."""

    @property
    def setting(self) -> VisionSetting:
        assert isinstance(self.spec.shape, ConvShape)
        return VisionSetting(
            shape=self.spec.shape, machine=self.machine, recipe=self.recipe, num_images=int(self.layout.mbs),
            compiled=self.stack.compiled, channels_last=self.channels_last,
        )  # fmt: skip

    @property
    def reserved_bytes(self) -> float:
        """With the allocator's slack and what libraries hold."""
        c = self.machine.constants
        return float(self.memory.total) * (1.0 + c.allocator_overhead.value) + c.device_reserve.value

    @property
    def fits(self) -> bool:
        return self.reserved_bytes <= self.machine.memory_bytes

    @property
    def interval_s(self) -> tuple[float, float]:
        """Of the step's time."""
        total, strange = float(self.time.total), len(unseen_vision(self.setting))
        low, high = vision_interval_s(time_s=total, setting=self.setting, num_unseen=strange)
        return float(low), float(high)

    @property
    def num_images_per_s(self) -> float:
        images = int(self.layout.mbs)
        return float(num_images_per_s(step=self.time, num_images=images, dp=int(self.layout.dp)))

    @property
    def mfu_frac(self) -> float:
        peak = self.machine.peak_flop_per_s(self.recipe.matmul) * int(self.layout.dp)
        return training_flop_per_sample(self.spec) * self.num_images_per_s / peak

    def resolved_input(self) -> dict[str, Any]:
        return {
            "model": self.spec.id,
            "machine": self.machine.as_input(),
            "layout": self.layout.as_dict(),
            "precision": self.recipe.name,
            "stack": self.stack.id,
            "channels_last": self.channels_last,
        }

    def as_document(self) -> dict[str, Any]:
        body = {
            "id": digest(self.resolved_input()),
            "scalewright": __version__,
            "stage": "pretrain",
            "input": self.resolved_input(),
            "num_gpus": int(self.layout.dp),
            "step_time_s": float(self.time.total),
            "images_per_s": self.num_images_per_s,
            "mfu_frac": self.mfu_frac,
            "confidence": "model",
            "time": self.time.as_dict(),
        }
        return document("prediction", body)


def predict_vision(
    *,
    spec: ModelSpec,
    machine: Machine,
    layout: Layout,
    recipe: Recipe,
    stack: Stack,
    channels_last: bool | None = None,
) -> VisionPrediction:
    """`layout.mbs` images a device on `layout.dp` devices; `channels_last` None: as the stack has it."""
    assert isinstance(spec.shape, ConvShape)
    split = [name for name in NOT_SPLIT if int(getattr(layout, name)) > 1]
    if split or layout.gbs != layout.dp * layout.mbs:
        what = f"{split[0]} above 1" if split else f"gbs={layout.gbs}"
        raise ConfigError(
            f"{spec.id} is trained data parallel, one batch a step: {what} does not apply; set dp and mbs"
        )
    last = stack.compiled if channels_last is None else channels_last
    setting = VisionSetting(
        shape=spec.shape, machine=machine, recipe=recipe, num_images=int(layout.mbs), compiled=stack.compiled,
        channels_last=last,
    )  # fmt: skip
    path = collectives.group_path(machine, num_ranks=layout.dp, stride=1)
    size, bucket = gradient_bytes(spec.shape), machine.constants.gradient_bucket.value
    time = vision_step_time(
        setting,
        all_reduce_s=collectives.all_reduce_time_s(size_bytes=size, path=path),
        last_bucket_s=collectives.all_reduce_time_s(size_bytes=min(size, bucket), path=path),
        num_nodes=max(int(layout.dp) / machine.gpus_per_node, 1.0),
    )
    return VisionPrediction(
        spec=spec, machine=machine, layout=layout, recipe=recipe, stack=stack, channels_last=last, time=time,
        memory=vision_memory(setting, dp=int(layout.dp)),
    )  # fmt: skip
