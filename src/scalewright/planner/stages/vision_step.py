"""Predict: one step of a convolutional network, data parallel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from scalewright.catalog.types import ConvShape, Stack
from scalewright.costs import collectives, storage
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.energy import Facility
from scalewright.costs.machine import Machine
from scalewright.costs.vision import (
    VisionSetting,
    gradient_bytes,
    num_images_per_s,
    unseen_vision,
    vision_interval_s,
    vision_step_time,
)
from scalewright.costs.vision_memory import vision_memory
from scalewright.errors import ConfigError
from scalewright.planner.answers import energy_keys, heading, timing
from scalewright.planner.energy_use import Footprint, footprint
from scalewright.records.documents import document
from scalewright.workload.flop import training_flop_per_sample
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe
from scalewright.workload.training import TEXT, Feed

NUM_IMAGENET = 1_281_167
"""Training images of ImageNet-1k (russakovsky2015, arXiv:1409.0575)."""
GRAPHED = "scalewright"
"""Stack whose step on one device is replayed as one graph."""
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
    one_node_s: float
    """The same step on one node: what efficiency per batch is counted against."""
    feed: Feed = TEXT
    facility: Facility | None = None
    """Building, grid and price; without them there is no energy, money or carbon."""

    @property
    def setting(self) -> VisionSetting:
        assert isinstance(self.spec.shape, ConvShape)
        return VisionSetting(
            shape=self.spec.shape, machine=self.machine, recipe=self.recipe, num_images=int(self.layout.mbs),
            compiled=self.stack.compiled, channels_last=self.channels_last, is_graphed=self.stack.id == GRAPHED,
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
    def efficiency_frac(self) -> float:
        """Per batch: the step on one node over this one, the batch per device the same."""
        return self.one_node_s / float(self.time.total)

    @property
    def epoch_s(self) -> float:
        """One pass over ImageNet's training images, without what an epoch's start and end cost."""
        step, batch = float(self.time.total), int(self.layout.gbs)
        return float(storage.epoch_time_s(num_samples=NUM_IMAGENET, num_per_batch=batch, step_s=step, fixed_s=0.0))

    @property
    def num_loaded_per_s(self) -> float:
        """Images that a device's loader workers decode per second."""
        return self.feed.num_loaders / self.machine.constants.image_loader_time.value

    @property
    def hardware_flop(self) -> float:
        """Of one step, all devices."""
        return training_flop_per_sample(self.spec) * int(self.layout.gbs)

    @property
    def bound_s(self) -> float:
        """The arithmetic at peak, nothing else."""
        return self.hardware_flop / (int(self.layout.dp) * self.machine.peak_flop_per_s(self.recipe.matmul))

    @property
    def footprint(self) -> Footprint | None:
        """Energy, money and carbon of a step; per image."""
        if self.facility is None:
            return None
        total = float(self.time.total)
        streaming = sum(float(self.time.part(n).total) for n in ("norm_and_activation", "layout_change", "pool"))
        return footprint(
            machine=self.machine, recipe=self.recipe, facility=self.facility, time_s=total,
            num_gpus=int(self.layout.dp), num_tokens=int(self.layout.gbs), hardware_flop=self.hardware_flop,
            memory_frac=streaming / total * self.machine.constants.memory_bandwidth_share.value,
        )  # fmt: skip

    def warnings(self) -> list[str]:
        """What a user should know before trusting the number."""
        accelerator, found = self.machine.accelerator, []
        if not self.channels_last and (accelerator.num_compute_units is None or accelerator.clock_boost is None):
            found.append(f"{accelerator.id}: units or clock unknown, the limit of channels-first kernels is left out")
        workers = f"{self.feed.num_loaders} loader workers a device"
        if float(self.time.part("data").total) > 0.0:
            found.append(f"the step waits for data: {workers} do not keep up; decode on the device")
        elif self.feed.storage is None and self.num_images_per_s / int(self.layout.dp) > self.num_loaded_per_s:
            found.append(
                f"images are taken to be ready: {workers} would prepare {self.num_loaded_per_s:,.0f} a second; "
                "name a --storage to count the wait"
            )
        wider = [f"{reason}: the interval is wider" for reason in unseen_vision(self.setting)]
        return [*found, *wider, *self.machine.assumptions, *(self.facility.notes if self.facility else ())]

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
            "num_loaders": self.feed.num_loaders,
            "storage": None if self.feed.storage is None else self.feed.storage.id,
        }

    def as_document(self) -> dict[str, Any]:
        used, total, asked = self.footprint, float(self.time.total), self.resolved_input()
        n, bounds = int(self.layout.dp), (self.interval_s, self.bound_s)
        body = {
            **heading(stage="vision", spec=self.spec, machine=self.machine, resolved_input=asked, num_gpus=n),
            **timing(machine=self.machine, step_s=total, interval_s=bounds[0], bound_s=bounds[1], used=used),
            "images_per_s": self.num_images_per_s,
            "efficiency_frac": self.efficiency_frac,
            "epoch_time_s": self.epoch_s,
            "data_wait_s": float(self.time.part("data").total),
            "mfu_frac": self.mfu_frac,
            "model_flop": self.hardware_flop,
            "memory_bytes": float(self.memory.total),
            "reserved_bytes": self.reserved_bytes,
            "device_memory_bytes": self.machine.memory_bytes,
            "fits": self.fits,
            **energy_keys(used, per="image"),
            "warnings": self.warnings(),
            "time": self.time.as_dict(),
            "memory": self.memory.as_dict(),
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
    feed: Feed = TEXT,
    facility: Facility | None = None,
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
        channels_last=last, is_graphed=stack.id == GRAPHED,
    )  # fmt: skip
    num_gpus = int(layout.dp)
    here = min(num_gpus, machine.gpus_per_node)
    return VisionPrediction(
        spec=spec, machine=machine, layout=layout, recipe=recipe, stack=stack, channels_last=last, feed=feed,
        time=_with_data(setting, feed, _step(setting, num_gpus), num_gpus), memory=vision_memory(setting, dp=num_gpus),
        one_node_s=float(_with_data(setting, feed, _step(setting, here), here).total), facility=facility,
    )  # fmt: skip


def _step(setting: VisionSetting, num_gpus: int) -> Breakdown:
    machine, size = setting.machine, gradient_bytes(setting.shape)
    path = collectives.group_path(machine, num_ranks=num_gpus, stride=1)
    bucket = min(size, machine.constants.gradient_bucket.value)
    return vision_step_time(
        setting,
        all_reduce_s=collectives.all_reduce_time_s(size_bytes=size, path=path),
        last_bucket_s=collectives.all_reduce_time_s(size_bytes=bucket, path=path),
        num_nodes=max(num_gpus / machine.gpus_per_node, 1.0),
    )


def _with_data(setting: VisionSetting, feed: Feed, step: Breakdown, num_gpus: int) -> Breakdown:
    """The step, and what it waits for images; nothing where no storage is named (synthetic images)."""
    machine, images, wait = setting.machine, float(setting.num_images), 0.0
    if feed.storage is not None:
        c, nodes = machine.constants, machine.num_nodes_for(num_gpus)
        read = storage.job_bytes_per_s(storage=feed.storage, direction="read", num_nodes=nodes, constants=c)
        found = storage.data_wait_s(
            step_s=step.total, step_bytes=images * num_gpus * c.image_bytes.value, read_bytes_per_s=read,
            loader_s_per_device=images * c.image_loader_time.value, num_loaders_per_device=feed.num_loaders,
            num_files=images * num_gpus if feed.one_file_each else 0.0,
            num_files_per_s=storage.num_job_files_per_s(storage=feed.storage, num_nodes=nodes, constants=c),
        )  # fmt: skip
        wait = float(found)
    data = Breakdown(name="data", unit="s", value=wait, formula="storage.data_wait_s")
    return replace(step, parts=(*step.parts, data))
