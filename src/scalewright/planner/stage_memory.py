"""Memory of a stage by the mode it trains in, and the fewest devices it fits on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from scalewright.catalog.types import Stack
from scalewright.costs import generation, hostmem, stage
from scalewright.costs.breakdown import Breakdown, FloatLike
from scalewright.costs.footprint import step_memory
from scalewright.costs.generation import Serving
from scalewright.costs.machine import Machine
from scalewright.costs.setting import Setting
from scalewright.costs.shards import busiest_shards, num_spread_params
from scalewright.costs.stage import MODE_TITLES, Mode
from scalewright.errors import ConfigError
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe

MAX_GPUS = 2**16
LOADERS_PER_DEVICE = 2
PREFETCHED = 2
LORA_RANK = 16
StageName = Literal["sft", "rl", "generate"]


def num_shared_params(setting: Setting) -> float:
    """Parameters of the worst device's share when everything is spread over all copies."""
    return float(num_spread_params(setting, busiest_shards(setting)))


def held_memory(setting: Setting, used: Breakdown, *, mode: Mode, reference: bool) -> Breakdown:
    """What stays on a device while it generates: the trainer's state and the reference model."""
    names = ("weights", "gradients", "optimizer")
    if mode == "full":
        parts = tuple(replace(used.part(n), name=f"trainer_{n}") for n in names)
    else:
        state = _state(setting, used, mode)
        parts = tuple(replace(state.part(n), name=f"trainer_{n}") for n in names)
        if mode == "offload":  # engines move weights and gradients too while the generator runs
            parts = tuple(replace(p, value=0.0) for p in parts)
    return Breakdown(name="held", unit="bytes", parts=(*parts, _reference(setting, mode=mode, reference=reference)))


def _reference(setting: Setting, *, mode: Mode, reference: bool) -> Breakdown:
    # with adapters the frozen weights are the reference; in offload mode it waits on the host
    on_device = reference and mode == "full"
    size = num_shared_params(setting) * setting.recipe.weight_bytes if on_device else 0.0
    return Breakdown(name="reference", unit="bytes", value=size, formula="stage.offloaded_bytes")


def _state(setting: Setting, used: Breakdown, mode: Mode) -> Breakdown:
    """Trained state in a mode, of as many parameters as the layout leaves on the worst device."""
    here = used.part("weights").total / setting.recipe.weight_bytes
    return stage.trained_state(num_params=here, num_adapter_params=_adapters(setting), recipe=setting.recipe, mode=mode)


def _adapters(setting: Setting, rank: int = LORA_RANK) -> FloatLike:
    return stage.num_lora_params(shape=setting.shape, rank=rank) / setting.layout.num_gpus


def update_memory(setting: Setting, used: Breakdown, *, mode: Mode, reference: bool) -> Breakdown:
    """The training step's memory with the state of a mode in place of Adam's, and the reference model; columns too."""
    names = ("weights", "gradients", "optimizer")
    if mode == "full":
        parts = used.parts
    else:
        state = _state(setting, used, mode)
        parts = (*state.parts, *(p for p in used.parts if p.name not in names))
    return replace(used, parts=(*parts, _reference(setting, mode=mode, reference=reference)))


def host_memory_of_node(setting: Setting, *, mode: Mode, num_weight_copies: int) -> Breakdown:
    each = stage.offloaded_bytes(
        num_params=num_shared_params(setting), recipe=setting.recipe, mode=mode, num_weight_copies=num_weight_copies
    )
    tokens = float(setting.shape.seq) * int(setting.layout.mbs)
    return hostmem.host_memory(
        num_devices=min(setting.machine.gpus_per_node, int(setting.layout.num_gpus)),
        offloaded_bytes_per_device=each,
        checkpoint_bytes_per_device=0.0,
        num_loaders=LOADERS_PER_DEVICE,
        batch_bytes=8.0 * tokens,
        num_prefetched=PREFETCHED,
        constants=setting.constants,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumGpus:
    """The fewest devices a stage fits on, in a mode that is named."""

    stage: StageName
    mode: Mode | Literal["serve"]
    num_gpus: int
    tp: int
    """Tensor parallelism of the generator; 1 for SFT."""
    memory: Breakdown
    host_memory: Breakdown | None
    fits_host: bool

    @property
    def assumption(self) -> str:
        return "weights and one sequence's cache" if self.mode == "serve" else MODE_TITLES[self.mode]


def minimum_gpus(
    *, spec: ModelSpec, machine: Machine, stack: Stack, recipe: Recipe, stage_name: StageName,
    seq: int, mode: Mode = "full", host_memory_bytes: float | None = None, max_gpus: int = MAX_GPUS,
) -> MinimumGpus:  # fmt: skip
    """The smallest power of two of devices on which the stage fits, weights sharded over all of them (ZeRO-3)."""
    num = 1
    while num <= max_gpus:
        found = _try(spec.with_seq(seq), machine, stack, recipe, stage_name, num, mode, host_memory_bytes)
        if found is not None:
            return found
        num *= 2
    raise ConfigError(f"{spec.id} does not fit {max_gpus} x {machine.accelerator.id} for {stage_name} in mode {mode}")


def _try(
    spec: ModelSpec, machine: Machine, stack: Stack, recipe: Recipe, name: StageName, num: int,
    mode: Mode, host_memory_bytes: float | None,
) -> MinimumGpus | None:  # fmt: skip
    shape = spec.transformer
    if name == "generate":
        copy = _smallest_copy(spec, machine, stack, recipe, num, 0.0)
        if copy is None:
            return None
        used = generation.serving_memory(copy, num_sequences=1, total_len=shape.seq)
        return MinimumGpus(
            stage=name, mode="serve", num_gpus=num, tp=copy.tp, memory=used, host_memory=None, fits_host=True
        )
    layout = Layout(dp=num, mbs=1, gbs=num, zero=3, recompute="full")
    setting = Setting(shape=shape, machine=machine, layout=layout, recipe=recipe, stack=stack)
    c, trained, reference = machine.constants, step_memory(setting), name == "rl"
    used = update_memory(setting, trained, mode=mode, reference=reference)
    if float(used.total) * (1.0 + c.allocator_overhead.value) + c.device_reserve.value > machine.memory_bytes:
        return None
    host = host_memory_of_node(setting, mode=mode, num_weight_copies=2 if reference else 0)
    on_host = host_memory_bytes is None or float(host.total) <= host_memory_bytes
    if not on_host:
        return None
    tp = 1
    if reference:
        held = held_memory(setting, trained, mode=mode, reference=True)
        copy = _smallest_copy(spec, machine, stack, recipe, num, float(held.total))
        if copy is None:
            return None
        tp = copy.tp
    return MinimumGpus(stage=name, mode=mode, num_gpus=num, tp=tp, memory=used, host_memory=host, fits_host=on_host)


def _smallest_copy(
    spec: ModelSpec, machine: Machine, stack: Stack, recipe: Recipe, num_gpus: int, taken_bytes: float
) -> Serving | None:
    """The generator split over the fewest devices that leave room for one sequence."""
    tp = 1
    while tp <= num_gpus and spec.transformer.heads % tp == 0:
        copy = Serving(
            shape=spec.transformer, machine=machine, stack=stack, recipe=recipe, tp=tp,
            weight_bytes=generation.STORED_BYTES[recipe.name], cache_bytes=recipe.activation_bytes,
        )  # fmt: skip
        if generation.num_sequences_that_fit(copy, total_len=spec.transformer.seq, taken_bytes=taken_bytes) >= 1:
            return copy
        tp *= 2
    return None
