"""Predict one step of a convolutional network, data parallel."""

from __future__ import annotations

from dataclasses import replace

from scalewright.catalog.types import ConvShape
from scalewright.costs import collectives, storage
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.vision import (
    VisionSetting,
    gradient_bytes,
    unseen_vision,
    vision_interval_s,
    vision_step_time,
)
from scalewright.costs.vision_memory import vision_memory
from scalewright.planner.answer import Answer
from scalewright.planner.energy_use import Footprint, footprint
from scalewright.planner.figures import VisionFigures
from scalewright.planner.question import Question
from scalewright.workload.flop import training_flop_per_sample
from scalewright.workload.training import Feed

NUM_IMAGENET = 1_281_167
"""Training images of ImageNet-1k (russakovsky2015, arXiv:1409.0575)."""
GRAPHED = "scalewright"
"""Stack whose step on one device is replayed as one graph."""
STREAMING_TERMS = ("norm_and_activation", "layout_change", "pool")
"""Terms that move memory and do no products."""


def predict_vision(question: Question) -> Answer:
    """`layout.mbs` images a device on `layout.dp` devices."""
    setting, layout, machine = _setting(question), question.layout, question.machine
    num_gpus = int(layout.dp)
    on_one_node = min(num_gpus, machine.gpus_per_node)
    time = _with_data(setting, question.feed, _step(setting, num_gpus), num_gpus)
    one_node_s = float(_with_data(setting, question.feed, _step(setting, on_one_node), on_one_node).total)
    total, constants = float(time.total), machine.constants
    flop = training_flop_per_sample(question.spec) * int(layout.gbs)
    peak = num_gpus * machine.peak_flop_per_s(question.recipe.matmul)
    memory = vision_memory(setting, dp=num_gpus)
    reserved = float(memory.total) * (1.0 + constants.allocator_overhead.value) + constants.device_reserve.value
    unseen = unseen_vision(setting)
    low, high = vision_interval_s(time_s=total, setting=setting, num_unseen=len(unseen))
    images_per_s = int(layout.gbs) / total
    return Answer(
        question=question,
        time=time,
        memory=memory,
        reserved_bytes=reserved,
        host_memory=None,
        interval_s=(float(low), float(high)),
        bound_s=flop / peak,
        fits=reserved <= machine.memory_bytes,
        fits_host=True,
        num_units=int(layout.gbs),
        footprint=_footprint(question, time, flop),
        warnings=tuple(_warnings(question, time, images_per_s / num_gpus, unseen)),
        figures=VisionFigures(
            setting=setting,
            one_node_s=one_node_s,
            efficiency_frac=one_node_s / total,
            epoch_s=float(
                storage.epoch_time_s(num_samples=NUM_IMAGENET, num_per_batch=int(layout.gbs), step_s=total, fixed_s=0.0)
            ),
            data_wait_s=float(time.part("data").total),
            mfu_frac=flop / total / peak,
            model_flop=flop,
        ),
    )


def _setting(question: Question) -> VisionSetting:
    shape, stack = question.spec.shape, question.stack
    assert isinstance(shape, ConvShape)
    return VisionSetting(
        shape=shape, machine=question.machine, recipe=question.recipe, num_images=int(question.layout.mbs),
        compiled=stack.compiled, channels_last=question.channels_last, is_graphed=stack.id == GRAPHED,
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
    machine, images, wait_s = setting.machine, float(setting.num_images), 0.0
    if feed.storage is not None:
        c, nodes = machine.constants, machine.num_nodes_for(num_gpus)
        read = storage.job_bytes_per_s(storage=feed.storage, direction="read", num_nodes=nodes, constants=c)
        wait_s = float(
            storage.data_wait_s(
                step_s=step.total, step_bytes=images * num_gpus * c.image_bytes.value, read_bytes_per_s=read,
                loader_s_per_device=images * c.image_loader_time.value, num_loaders_per_device=feed.num_loaders,
                num_files=images * num_gpus if feed.one_file_each else 0.0,
                num_files_per_s=storage.num_job_files_per_s(storage=feed.storage, num_nodes=nodes, constants=c),
            )
        )  # fmt: skip
    data = Breakdown(name="data", unit="s", value=wait_s, formula="storage.data_wait_s")
    return replace(step, parts=(*step.parts, data))


def _footprint(question: Question, time: Breakdown, flop: float) -> Footprint | None:
    """Energy, money and carbon of a step; per image."""
    if question.facility is None:
        return None
    total = float(time.total)
    streaming_s = sum(float(time.part(name).total) for name in STREAMING_TERMS)
    return footprint(
        machine=question.machine, recipe=question.recipe, facility=question.facility, time_s=total,
        num_gpus=question.num_gpus, num_tokens=int(question.layout.gbs), hardware_flop=flop,
        memory_frac=streaming_s / total * question.machine.constants.memory_bandwidth_share.value,
    )  # fmt: skip


def _warnings(question: Question, time: Breakdown, images_per_s_per_gpu: float, unseen: list[str]) -> list[str]:
    machine, feed, warnings = question.machine, question.feed, []
    accelerator = machine.accelerator
    if not question.channels_last and (accelerator.num_compute_units is None or accelerator.clock_boost is None):
        warnings.append(f"{accelerator.id}: units or clock unknown, the limit of channels-first kernels is left out")
    workers = f"{feed.num_loaders} loader workers a device"
    loaded_per_s = feed.num_loaders / machine.constants.image_loader_time.value
    if float(time.part("data").total) > 0.0:
        warnings.append(f"the step waits for data: {workers} do not keep up; decode on the device")
    elif feed.storage is None and images_per_s_per_gpu > loaded_per_s:
        warnings.append(
            f"images are taken to be ready: {workers} would prepare {loaded_per_s:,.0f} a second; "
            "name a storage to count the wait"
        )
    warnings += [f"{reason}: the interval is wider" for reason in unseen]
    return [*warnings, *machine.assumptions, *(question.facility.notes if question.facility else ())]
