"""Predict one step of a convolutional network, data parallel."""

from __future__ import annotations

from dataclasses import replace

from scalewright import units
from scalewright.catalog.types import ConvShape
from scalewright.costs import room, storage, vision
from scalewright.costs.breakdown import Breakdown, FloatLike
from scalewright.costs.interval import other_jobs_note, own_flows_note, shared_interval_s
from scalewright.costs.setting import VisionSetting
from scalewright.planner.answer import Answer, tight_memory
from scalewright.planner.energy_use import Footprint, footprint
from scalewright.planner.figures import VisionFigures
from scalewright.planner.question import Question
from scalewright.workload.flop import training_flop_per_sample

NUM_IMAGENET = 1_281_167
"""Training images of ImageNet-1k (russakovsky2015, arXiv:1409.0575)."""
NUM_IMAGENET_VALIDATION = 50_000
"""Its validation images."""
STREAMING_TERMS = ("norm_and_activation", "layout_change", "pool")
"""Terms that move memory and do no products."""


def predict_vision(question: Question) -> Answer:
    """`layout.mbs` images a device on `layout.dp` devices."""
    setting, layout, machine = vision_setting(question), question.layout, question.machine
    num_gpus = int(layout.dp)
    on_one_node = min(num_gpus, machine.gpus_per_node)
    time = vision.step_time(setting)
    total = float(time.total)
    one_node = replace(layout, dp=on_one_node, gbs=on_one_node * layout.mbs)
    one_node_s = total if one_node == layout else float(vision.step_time(replace(setting, layout=one_node)).total)
    flop = training_flop_per_sample(question.spec) * int(layout.gbs)
    peak = num_gpus * machine.peak_flop_per_s(question.recipe.matmul)
    memory = vision.step_memory(setting)
    reserved = float(vision.reserved_bytes(setting, memory))
    least = room.least_reserved_bytes(machine=machine, allocated_bytes=memory.total, num_gpus=num_gpus)
    needed, shown = (
        float(room.device_bytes(machine=machine, reserved_bytes=size, num_communicators=float(num_gpus > 1)))
        for size in (least, reserved)
    )
    low, high = _interval_s(setting, total)
    images_per_s = int(layout.gbs) / total
    loader = vision.slowest_supply(setting, question.feed.epoch_storage)
    loaded_s = max(total, int(layout.gbs) / float(loader.num_images_per_s))
    return Answer(
        question=question,
        time=time,
        memory=memory,
        reserved_bytes=reserved,
        device_bytes=max(needed, min(shown, machine.memory_bytes)),
        needed_bytes=needed,
        host_memory=None,
        interval_s=(max(float(low), flop / peak), float(high)),
        bound_s=flop / peak,
        fits=bool(room.holds(machine, needed)),
        fits_host=True,
        num_units=int(layout.gbs),
        footprint=_footprint(question, time, flop),
        warnings=(
            *tight_memory(question, needed),
            *_search_note(setting, memory, reserved),
            *_warnings(question, setting, time, images_per_s, loader),
        ),
        figures=VisionFigures(
            setting=setting,
            one_node_s=one_node_s,
            efficiency_frac=one_node_s / total,
            epoch_s=float(
                storage.epoch_time_s(
                    num_samples=NUM_IMAGENET, num_per_batch=int(layout.gbs), step_s=loaded_s, fixed_s=0.0
                )
            ),
            loader=loader,
            epoch_images_per_s=int(layout.gbs) / loaded_s,
            data_wait_s=float(time.part("data").total),
            mfu_frac=flop / total / peak,
            model_flop=flop,
        ),
    )


def _search_note(setting: VisionSetting, memory: Breakdown, reserved: float) -> tuple[str, ...]:
    """Where the first step decides what the device shows."""
    searching = float(memory.total) + float(vision.search_workspace_bytes(setting))
    if searching < reserved:
        return ()
    peak, later = (units.format(size, units.BYTES) for size in (searching, float(memory.total)))
    return (
        f"the first step peaks at {peak}, later ones at {later}: cuDNN's search for 32-bit kernels tries one that "
        "transforms its tensors; it is passed over where memory is short",
    )


def vision_setting(question: Question) -> VisionSetting:
    assert isinstance(question.spec.shape, ConvShape)
    return VisionSetting(
        shape=question.spec.shape, machine=question.machine, layout=question.layout, recipe=question.recipe,
        stack=question.stack, channels_last=question.channels_last, library_norms=question.library_norms,
        feed=question.feed,
    )  # fmt: skip


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


def _interval_s(setting: VisionSetting, time_s: float) -> tuple[FloatLike, FloatLike]:
    return shared_interval_s(
        vision.interval_s(time_s=time_s, setting=setting), time_s=time_s, setting=setting,
        time_on=lambda machine: vision.step_time(replace(setting, machine=machine)).total,
    )  # fmt: skip


REMEDIES: dict[str, str] = {
    "workers": "decode on the device (DALI), store smaller images, or take more cores",
    "storage": "copy the shards to node-local storage, or store smaller images",
    "files": "pack the images into shards",
}
"""What makes a limit of the loader go away."""


def loader_words(question: Question, loader: vision.Supply) -> str:
    """What limits the loader, in words."""
    feed = question.feed
    place = feed.epoch_storage.id if feed.epoch_storage is not None else "the storage"
    return {
        "workers": f"{feed.num_loaders} loader workers a device",
        "storage": f"reading from {place}",
        "files": f"opening files of {place}",
    }[loader.name]


def _warnings(
    question: Question, setting: VisionSetting, time: Breakdown, images_per_s: float, loader: vision.Supply
) -> list[str]:
    machine, warnings = question.machine, []
    accelerator = machine.accelerator
    if not question.channels_last and (accelerator.num_compute_units is None or accelerator.clock_boost is None):
        warnings.append(f"{accelerator.id}: units or clock unknown, the limit of channels-first kernels is left out")
    rate, remedy = float(loader.num_images_per_s), REMEDIES[loader.name]
    limit = f"{loader_words(question, loader)}: {rate:,.0f} images/s"
    if float(time.part("data").total) > 0.0:
        warnings.append(f"the step waits for data, {limit}; {remedy}")
    elif images_per_s > rate:
        warnings.append(
            f"the step has its images ready; an epoch waits for its loader, {limit} where the devices take "
            f"{images_per_s:,.0f}: {remedy}"
        )
    warnings += [f"{reason}: the interval is wider" for reason in vision.unseen(setting)]
    warnings += filter(None, [other_jobs_note(setting), own_flows_note(setting)])
    return [*warnings, *machine.assumptions, *(question.facility.notes if question.facility else ())]
