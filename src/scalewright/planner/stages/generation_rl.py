"""Predict one step of reinforcement learning: rollout, reward, scoring, update, weight sync."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from scalewright.catalog.types import Stack
from scalewright.costs import compute, generation, hostmem, stage
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.energy import Facility
from scalewright.costs.layer import layer_times
from scalewright.costs.machine import Machine
from scalewright.costs.setting import Setting
from scalewright.costs.stage import Sync
from scalewright.costs.step import StepCost, step_cost
from scalewright.errors import ConfigError
from scalewright.planner.answers import energy_keys, heading, timing
from scalewright.planner.energy_use import Footprint, footprint
from scalewright.planner.stages.memory import held_memory, update_memory
from scalewright.planner.stages.serving import GenerationPrediction, predict_generation
from scalewright.records.documents import document
from scalewright.workload.layout import Layout, check_divides
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe
from scalewright.workload.training import ModeName, TrainingMode, training_mode

__all__ = ["GenerationPrediction", "RlPrediction", "predict_generation", "predict_rl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPrediction:
    """What one GRPO step costs, with everything that went in."""

    spec: ModelSpec
    machine: Machine
    layout: Layout
    recipe: Recipe
    stack: Stack
    mode: TrainingMode
    sync: Sync
    rollout: GenerationPrediction
    update: StepCost
    num_prompts: int
    num_responses: int
    """Answers per prompt."""
    time: Breakdown
    memory_rollout: Breakdown
    memory_update: Breakdown
    host_memory: Breakdown
    """One node."""
    facility: Facility | None = None
    """Building, grid and price; without them there is no energy, money or carbon."""

    @property
    def num_gpus(self) -> int:
        return int(self.layout.num_gpus)

    @property
    def num_tokens(self) -> int:
        """Of a step: prompts and answers."""
        return self.num_prompts * self.num_responses * (self.rollout.prompt_len + self.rollout.response_len)

    @property
    def unseen(self) -> list[str]:
        return stage.unseen_rl(machine=self.machine, precision=self.recipe.name)

    @property
    def interval_s(self) -> tuple[float, float]:
        return stage.rl_interval_s(
            time_s=float(self.time.total), machine=self.machine, num_unseen=len(self.unseen)
        )  # fmt: skip

    @property
    def num_updates(self) -> int:
        return self.num_prompts * self.num_responses // int(self.layout.gbs)

    @property
    def hardware_flop(self) -> float:
        """Rollout, two scoring passes and the updates."""
        scored = 2.0 * 2.0 * self.spec.num_active_params * self.num_tokens
        return self.rollout.hardware_flop + scored + float(self.update.hardware_flop) * self.num_updates

    @property
    def bound_s(self) -> float:
        """The rollout's own bound, and the updates' arithmetic at peak."""
        return self.rollout.bound_s + float(self.update.bound_s) * self.num_updates

    @property
    def footprint(self) -> Footprint | None:
        """Energy, money and carbon of a step; per token of prompts and answers."""
        if self.facility is None:
            return None
        total = float(self.time.total)
        streaming = self.rollout.memory_frac * float(self.rollout.time.total) / total
        return footprint(
            machine=self.machine, recipe=self.recipe, facility=self.facility, time_s=total, num_gpus=self.num_gpus,
            num_tokens=self.num_tokens, hardware_flop=self.hardware_flop, memory_frac=streaming,
        )  # fmt: skip

    @property
    def reserved_bytes(self) -> float:
        """Of the fuller of the two phases, with the allocator's slack and what libraries hold."""
        c = self.machine.constants
        updating = float(self.memory_update.total) * (1.0 + c.allocator_overhead.value) + c.device_reserve.value
        return max(float(self.memory_rollout.total), updating)

    @property
    def fits(self) -> bool:
        c, room = self.machine.constants, self.machine.memory_bytes
        updating = float(self.memory_update.total) * (1.0 + c.allocator_overhead.value) + c.device_reserve.value
        return self.rollout.fits and updating <= room and self.fits_host

    @property
    def fits_host(self) -> bool:
        room = self.machine.host_memory_bytes
        return room is None or float(self.host_memory.total) <= room

    def resolved_input(self) -> dict[str, Any]:
        return {
            "stage": "rl",
            "model": self.spec.id,
            "machine": self.machine.as_input(),
            "layout": self.layout.as_dict(),
            "precision": self.recipe.name,
            "stack": self.stack.id,
            "mode": str(self.mode),
            "sync": self.sync,
            "num_prompts": self.num_prompts,
            "num_responses": self.num_responses,
            "rollout": self.rollout.resolved_input(),
        }

    def warnings(self) -> list[str]:
        found = [f"mode {self.mode}: {self.mode.title}", *self.rollout.warnings()]
        if self.mode.is_offload:
            found.append("moving the trainer's weights to the host for the rollout takes time that is not counted")
            if self.machine.host_memory_bytes_per_s is None:
                found.append(f"{self.machine.name}: memory rate of the hosts unknown, the optimizer there is not timed")
        if not self.fits_host:
            found.append("a node's host memory is too small for what is moved off its devices")
        found += [f"{reason}: the interval is wider" for reason in self.unseen]
        return list(dict.fromkeys([*found, *(self.facility.notes if self.facility else ())]))

    def as_document(self) -> dict[str, Any]:
        total, used, asked, n = float(self.time.total), self.footprint, self.resolved_input(), self.num_gpus
        bounds = self.interval_s, self.bound_s
        body = {
            **heading(stage="rl", spec=self.spec, machine=self.machine, resolved_input=asked, num_gpus=n),
            **timing(machine=self.machine, step_s=total, interval_s=bounds[0], bound_s=bounds[1], used=used),
            "tokens_per_s_per_gpu": self.num_tokens / total / n,
            "memory_bytes": max(float(self.memory_rollout.total), float(self.memory_update.total)),
            "reserved_bytes": self.reserved_bytes,
            "device_memory_bytes": self.machine.memory_bytes,
            "host_memory_bytes_per_node": float(self.host_memory.total),
            "host_memory_available_bytes_per_node": self.machine.host_memory_bytes,
            "fits": self.fits,
            "fits_host": self.fits_host,
            **energy_keys(used),
            "warnings": self.warnings(),
            "time": self.time.as_dict(),
            "memory": self.memory_update.as_dict(),
            "memory_rollout": self.memory_rollout.as_dict(),
            "host_memory": self.host_memory.as_dict(),
        }
        return document("prediction", body)


def predict_rl(
    *, spec: ModelSpec, machine: Machine, stack: Stack, recipe: Recipe, layout: Layout, rollout_recipe: Recipe,
    rollout_tp: int, num_prompts: int, num_responses: int, prompt_len: int, response_len: int,
    longest_len: int | None = None, reward_s: float = 0.0, reference: bool = True,
    mode: TrainingMode | ModeName = "full", sync: Sync = "gather_broadcast", facility: Facility | None = None,
) -> RlPrediction:  # fmt: skip
    """One on-policy GRPO step: trainer and generator take turns on the same devices.

    `layout` is the trainer's; its gbs is the mini-batch, so there are num_prompts x num_responses / gbs updates.
    """
    spec = spec.with_seq(prompt_len + response_len)
    shape, num_sequences = spec.transformer, num_prompts * num_responses
    check_divides(
        layout,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        seq=shape.seq,
        num_experts=shape.moe.num_experts if shape.moe else 0,
    )
    if num_sequences % int(layout.gbs):
        raise ConfigError(f"{num_sequences} answers are not whole mini-batches of gbs={layout.gbs}")
    how = training_mode(mode) if isinstance(mode, str) else mode
    setting = Setting(shape=shape, machine=machine, layout=layout, recipe=recipe, stack=stack, mode=how)
    update = step_cost(spec=spec, setting=setting)
    held = held_memory(setting, update.memory, reference=reference)
    rollout = predict_generation(
        spec=spec, machine=machine, stack=stack, recipe=rollout_recipe, num_gpus=int(layout.num_gpus), tp=rollout_tp,
        batch=num_sequences, prompt_len=prompt_len, response_len=response_len, longest_len=longest_len,
        taken_bytes=float(held.total),
    )  # fmt: skip
    scoring = _scoring_s(replace(setting, layout=replace(layout, gbs=num_sequences, recompute="none")))
    num_updates = num_sequences // int(layout.gbs)
    parts = (
        replace(rollout.time, name="rollout"),
        _leaf("reward", reward_s, "", stated_s=reward_s),
        _leaf("old_log_probs", scoring, "stage.scoring_time_s"),
        _leaf("reference_log_probs", scoring if reference else 0.0, "stage.scoring_time_s"),
        replace(generation.scaled(update.time, num_updates), name="update"),
        _leaf("weight_sync", _sync_s(spec, rollout, sync), f"stage.{sync}_time_s", sync=sync),
    )
    memory_update = update_memory(setting, update.memory, reference=reference)
    return RlPrediction(
        spec=spec, machine=machine, layout=layout, recipe=recipe, stack=stack, mode=how, sync=sync, rollout=rollout,
        update=update, num_prompts=num_prompts, num_responses=num_responses,
        time=Breakdown(name="rl_step", unit="s", parts=parts),
        memory_rollout=replace(rollout.memory, name="rollout", parts=(*rollout.memory.parts, held)),
        memory_update=memory_update,
        host_memory=hostmem.training_host_memory(setting, num_weight_copies=2 if reference else 1),
        facility=facility,
    )  # fmt: skip


def _leaf(name: str, value: float, formula: str, **inputs: object) -> Breakdown:
    return Breakdown(name=name, unit="s", value=value, formula=formula, inputs=inputs)


def _scoring_s(setting: Setting) -> float:
    layer, layout = layer_times(setting), setting.layout
    return stage.scoring_time_s(
        layer_forward_s=float(layer.passes.forward_s),
        head_forward_s=float(compute.head_times(setting).forward_s),
        num_layers=float(setting.num_layers),
        num_micro_batches=float(setting.num_micro_batches),
        pp=int(layout.pp),
    )


def _sync_s(spec: ModelSpec, rollout: GenerationPrediction, sync: Sync) -> float:
    serving = rollout.serving
    weights, tensors = spec.num_params * serving.weight_bytes, stage.num_synced_tensors(serving.shape)
    if sync == "peer_to_peer":
        return stage.peer_to_peer_time_s(
            weights_bytes=weights, num_tensors=tensors, num_trainers=rollout.num_gpus,
            num_generators=rollout.num_gpus, tp=serving.tp, machine=serving.machine,
        )  # fmt: skip
    return stage.gather_broadcast_time_s(
        weights_bytes=weights, num_tensors=tensors, num_devices=rollout.num_gpus, machine=serving.machine
    )
