"""Predict: one model, one machine, one layout -> one `prediction/1` document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalewright.catalog.derive import training_precision
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Stack
from scalewright.costs.energy import Facility
from scalewright.costs.footprint import stage_memory
from scalewright.costs.interval import widened_by
from scalewright.costs.machine import Machine
from scalewright.costs.setting import Setting
from scalewright.costs.shards import trained_shards
from scalewright.costs.step import StepCost, step_cost
from scalewright.costs.storage import checkpoint_bytes
from scalewright.errors import ConfigError, LayoutError
from scalewright.planner.answers import energy_keys, heading, timing
from scalewright.planner.energy_use import Footprint, footprint
from scalewright.records.documents import digest, document
from scalewright.records.types import Confidence
from scalewright.workload.layout import Layout, check_divides
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe, recipe
from scalewright.workload.training import FULL, TEXT, Feed, TrainingMode

MIN_EFFICIENT_HEAD_DIM_MULTIPLE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A step's cost with everything that went in."""

    spec: ModelSpec
    machine: Machine
    layout: Layout
    recipe: Recipe
    stack: Stack
    cost: StepCost
    facility: Facility | None = None
    """Building, grid and price; without them there is no energy, money or carbon."""
    mode: TrainingMode = FULL
    feed: Feed = TEXT

    @property
    def footprint(self) -> Footprint | None:
        """Energy, money and carbon of one step."""
        if self.facility is None:
            return None
        return footprint(
            machine=self.machine,
            recipe=self.recipe,
            facility=self.facility,
            time_s=float(self.cost.time.total),
            num_gpus=int(self.layout.num_gpus),
            num_tokens=self.num_tokens_per_step,
            hardware_flop=float(self.cost.hardware_flop),
        )

    @property
    def id(self) -> str:
        return digest(self.resolved_input())

    @property
    def setting(self) -> Setting:
        return Setting(
            shape=self.spec.transformer, machine=self.machine, layout=self.layout, recipe=self.recipe, stack=self.stack,
            mode=self.mode, feed=self.feed,
        )  # fmt: skip

    @property
    def memory_bytes_per_stage(self) -> list[float]:
        """Peak allocated on a device of each pipeline stage, first to last."""
        stages = np.arange(int(self.layout.pp))
        sizes: list[float] = np.broadcast_to(stage_memory(self.setting, stages).total, stages.shape).tolist()
        return sizes

    @property
    def checkpoint_bytes(self) -> float:
        """What training can go on from: weights and optimizer state, or those of the adapters."""
        params = float(self.spec.num_params)
        alone = replace(self.setting, layout=replace(self.layout, tp=1, pp=1))
        trained = float(trained_shards(alone, 0).num_params) if self.mode.is_lora else params
        return checkpoint_bytes(
            num_params=params, num_trained=trained, weight_bytes=self.recipe.weight_bytes,
            optimizer_bytes=self.recipe.optimizer_bytes,
        )  # fmt: skip

    @property
    def confidence(self) -> Confidence:
        """Of the step's time: what is known of the machine's rates."""
        return self.machine.confidence

    @property
    def bound_s(self) -> float:
        """The arithmetic of a step at peak on all devices, nothing else."""
        return float(self.cost.bound_s)

    @property
    def num_tokens_per_step(self) -> int:
        return int(self.layout.gbs) * self.spec.transformer.seq

    def resolved_input(self) -> dict[str, Any]:
        shape = self.spec.transformer.model_dump(mode="json", exclude={"source"})
        return {
            "model": self.spec.id,
            "shape": shape,
            "machine": self.machine.as_input(),
            "layout": self.layout.as_dict(),
            "precision": self.recipe.name,
            "stack": self.stack.id,
            "optimizer": self.recipe.optimizer,
            "mode": str(self.mode),
            "storage": None if self.feed.storage is None else self.feed.storage.id,
            "samples": "files" if self.feed.one_file_each else "shards",
            "checkpoint": "async" if self.feed.async_checkpoint else "sync",
        }

    def warnings(self) -> list[str]:
        """What a user should know before trusting the number."""
        shape, machine, found = self.spec.transformer, self.machine, []
        if not machine.matmul_is_published(self.recipe.matmul):
            share = machine.constants.unpublished_matmul_share
            found.append(
                f"nobody published a best {self.recipe.matmul} matmul for {machine.accelerator.id}: "
                f"{share.value:.0%} of peak is assumed"
            )
        if shape.head_dim % MIN_EFFICIENT_HEAD_DIM_MULTIPLE:
            found.append(f"head size {shape.head_dim} is not a multiple of 8: it leaves the matrix units or is padded")
        if int(self.layout.tp) > machine.gpus_per_node:
            found.append(f"tp={self.layout.tp} spans nodes of {machine.gpus_per_node} devices")
        found += self._host_warnings()
        wider = [f"{reason}: the interval is wider" for reason in widened_by(self.setting)]
        return [*found, *wider, *machine.assumptions, *(self.facility.notes if self.facility else ())]

    def _host_warnings(self) -> list[str]:
        machine, cost, found = self.machine, self.cost, []
        if self.mode.name != "full":
            found.append(f"mode {self.mode}: {self.mode.title}")
        if self.mode.is_offload and machine.host_link_bytes_per_s is None:
            found.append(f"{machine.name}: link to the host unknown, moving state is not timed")
        if self.mode.is_offload and machine.host_memory_bytes_per_s is None:
            found.append(f"{machine.name}: memory rate of the hosts unknown, the optimizer there is not timed")
        if not cost.fits_host and machine.host_memory_bytes is not None:
            largest = max(cost.host_memory.parts, key=lambda part: float(part.total)).name.replace("_", " ")
            found.append(f"host memory of a node is too small: most of it goes to {largest}; use more nodes")
        return found

    @property
    def num_nodes(self) -> int:
        return self.machine.num_nodes_for(int(self.layout.num_gpus))

    def as_document(self) -> dict[str, Any]:
        cost, used, asked, n = self.cost, self.footprint, self.resolved_input(), int(self.layout.num_gpus)
        total, ends = float(cost.time.total), (float(cost.interval_s[0]), float(cost.interval_s[1]))
        return document(
            "prediction",
            {
                **heading(stage="pretrain", spec=self.spec, machine=self.machine, resolved_input=asked, num_gpus=n),
                **timing(machine=self.machine, step_s=total, interval_s=ends, bound_s=self.bound_s, used=used),
                "tokens_per_s_per_gpu": self.num_tokens_per_step / float(cost.time.total) / int(self.layout.num_gpus),
                "mfu_frac": float(cost.mfu_frac),
                "hfu_frac": float(cost.hfu_frac),
                "model_flop": float(cost.model_flop),
                "hardware_flop": float(cost.hardware_flop),
                "memory_bytes": float(cost.memory.total),
                "reserved_bytes": float(cost.reserved_bytes),
                "device_memory_bytes": self.machine.memory_bytes,
                "memory_bytes_per_stage": self.memory_bytes_per_stage,
                "host_memory_bytes_per_node": float(cost.host_memory.total),
                "host_memory_available_bytes_per_node": self.machine.host_memory_bytes,
                "fits": bool(cost.fits),
                "fits_host": bool(cost.fits_host),
                "checkpoint_bytes": self.checkpoint_bytes,
                "data_wait_s": float(cost.time.part("data").total),
                **energy_keys(used),
                "warnings": self.warnings(),
                "time": cost.time.as_dict(),
                "memory": cost.memory.as_dict(),
                "host_memory": cost.host_memory.as_dict(),
            },
        )


def predict(
    *,
    spec: ModelSpec,
    machine: Machine,
    layout: Layout,
    recipe: Recipe,
    stack: Stack,
    facility: Facility | None = None,
    mode: TrainingMode = FULL,
    feed: Feed = TEXT,
) -> Prediction:
    """Check that the layout divides the model, then cost it."""
    shape = spec.transformer
    check_divides(
        layout,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        seq=shape.seq,
        num_experts=shape.moe.num_experts if shape.moe else 0,
    )
    needs_network = int(layout.num_gpus) > machine.gpus_per_node
    if needs_network and machine.network_bytes_per_s_per_gpu is None:
        raise ConfigError(
            f"layout {layout.brief} needs {layout.num_gpus} devices, "
            f"but {machine.name} is one node of {machine.gpus_per_node}"
        )
    setting = Setting(shape=shape, machine=machine, layout=layout, recipe=recipe, stack=stack, mode=mode, feed=feed)
    num_nodes = machine.num_nodes_for(int(layout.num_gpus))
    if machine.num_nodes is not None and num_nodes > machine.num_nodes:
        raise LayoutError(
            f"layout {layout.brief} needs {num_nodes} nodes: {machine.name} has {machine.num_nodes}, use fewer devices"
        )
    cost = step_cost(spec=spec, setting=setting)
    return Prediction(
        spec=spec, machine=machine, layout=layout, recipe=recipe, stack=stack, cost=cost, facility=facility,
        mode=mode, feed=feed,
    )  # fmt: skip


def resolve_recipe(name: str, machine: Machine) -> Recipe:
    """The recipe of that name; `auto` takes bf16 where the device has it, else fp16, else fp32."""
    if name != "auto":
        return recipe(name)
    return recipe(training_precision(machine.accelerator))


def resolve_stack(
    name: str, catalog: Catalog, layout: Layout, machine: Machine | None = None, *, is_vision: bool = False
) -> Stack:
    """The stack of that name; `auto`: compiled for vision, eager for ZeRO-3 and on CPUs, else Megatron-Core; on a
    calibrated machine the stack of `bench language`."""
    if name != "auto":
        return catalog.stack(name)
    if is_vision:
        return catalog.stack("compiled")
    if machine is not None and machine.measured is not None:  # what runs here is what was measured here
        alone = int(layout.num_gpus) == 1 and machine.accelerator.kind != "cpu" and layout.recompute == "none"
        return catalog.stack("scalewright" if alone else "eager")
    on_cpu = machine is not None and machine.accelerator.kind == "cpu"
    return catalog.stack("eager" if layout.zero >= 3 or on_cpu else "megatron-core")
