"""The fewest devices that a stage fits on, by the mode it trains in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from scalewright.catalog.types import Stack
from scalewright.costs import generation, hostmem
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.footprint import reserved_bytes, step_memory
from scalewright.costs.generation import Serving
from scalewright.costs.machine import Machine
from scalewright.costs.setting import Setting
from scalewright.errors import ConfigError
from scalewright.planner.question import check_writes_text
from scalewright.planner.stages.rl_memory import held_memory, update_memory
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe
from scalewright.workload.training import ModeName, TrainingMode, training_mode

MAX_GPUS = 2**16
StageName = Literal["sft", "rl", "generate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumGpus:
    """The fewest devices a stage fits on, in a mode that is named."""

    stage: str
    model: str
    mode: TrainingMode | Literal["serve"]
    num_gpus: int
    tp: int
    """Tensor parallelism of the generator; 1 for SFT."""
    memory: Breakdown
    host_memory: Breakdown | None
    limit: str
    """What half as many devices lack."""

    @property
    def assumption(self) -> str:
        if isinstance(self.mode, TrainingMode):
            return self.mode.title
        return "weights and one sequence's cache"

    @property
    def mode_name(self) -> str:
        return self.mode if isinstance(self.mode, str) else self.mode.name

    def as_dict(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "model": self.model,
            "mode": self.mode_name,
            "assumption": self.assumption,
            "num_gpus": self.num_gpus,
            "tp": self.tp,
            "memory_bytes": float(self.memory.total),
            **({} if self.host_memory is None else {"host_memory_bytes_per_node": float(self.host_memory.total)}),
            "limit": self.limit,
        }


def minimum_gpus(
    *, spec: ModelSpec, machine: Machine, stack: Stack, recipe: Recipe, stage_name: StageName,
    seq: int, mode: TrainingMode | ModeName = "full", max_gpus: int = MAX_GPUS,
) -> MinimumGpus:  # fmt: skip
    """The smallest power of two of devices on which the stage fits, weights sharded over all of them (ZeRO-3).

    Host memory counts where the machine says what a node has.
    """
    how = training_mode(mode) if isinstance(mode, str) else mode
    asked = _Asked(spec=spec.with_seq(seq), machine=machine, stack=stack, recipe=recipe, stage=stage_name, mode=how)
    num, lacking = 1, "one device is enough"
    while num <= max_gpus:
        found = _try(asked, num, lacking)
        if isinstance(found, MinimumGpus):
            return found
        lacking, num = found, num * 2
    raise ConfigError(
        f"{spec.id} does not fit {max_gpus} x {machine.accelerator.id} for {stage_name} in mode {how.name}: {lacking}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    spec: ModelSpec
    machine: Machine
    stack: Stack
    recipe: Recipe
    stage: StageName
    mode: TrainingMode


def _try(asked: _Asked, num: int, limit: str) -> MinimumGpus | str:
    """The answer on so many devices, or what they lack."""
    spec, machine, shape = asked.spec, asked.machine, asked.spec.transformer
    they, have = ("one device", "has") if num == 1 else (f"{num} devices", "have")
    lack = "lacks" if num == 1 else "lack"
    if asked.stage == "generate":
        copy = _smallest_copy(asked, num, 0.0)
        if copy is None:
            return f"{they} {have} no room for weights and one sequence's cache"
        used = generation.serving_memory(copy, num_sequences=1, total_len=shape.seq)
        return MinimumGpus(
            stage=asked.stage, model=spec.id, mode="serve", num_gpus=num, tp=copy.tp, memory=used, host_memory=None,
            limit=limit,
        )  # fmt: skip
    layout = Layout(dp=num, mbs=1, gbs=num, zero=3, recompute="full")
    setting = Setting(
        shape=shape, machine=machine, layout=layout, recipe=asked.recipe, stack=asked.stack, mode=asked.mode
    )
    trained, reference = step_memory(setting), asked.stage == "rl"
    used = update_memory(setting, trained, reference=reference)
    if float(reserved_bytes(setting, used.total)) > machine.memory_bytes:
        largest = max(used.parts, key=lambda part: float(part.total))
        return f"{they} {lack} memory, most of it for {largest.name.replace('_', ' ')}"
    host = hostmem.training_host_memory(setting, num_weight_copies=2 if reference else 0)
    if machine.host_memory_bytes is not None and float(host.total) > machine.host_memory_bytes:
        return f"{they} {lack} host memory for the state moved there"
    tp = 1
    if reference:
        held = held_memory(setting, trained, reference=True)
        copy = _smallest_copy(asked, num, float(held.total))
        if copy is None:
            return f"{they} {have} no room for the generator beside the trainer"
        tp = copy.tp
    return MinimumGpus(
        stage=asked.stage, model=spec.id, mode=asked.mode, num_gpus=num, tp=tp, memory=used, host_memory=host,
        limit=limit,
    )  # fmt: skip


def _smallest_copy(asked: _Asked, num_gpus: int, taken_bytes: float) -> Serving | None:
    """The generator split over the fewest devices that leave room for one sequence."""
    tp, shape = 1, asked.spec.transformer
    while tp <= num_gpus and shape.heads % tp == 0:
        copy = Serving(
            shape=shape, machine=asked.machine, stack=asked.stack, recipe=asked.recipe, tp=tp,
            weight_bytes=generation.STORED_BYTES[asked.recipe.name], cache_bytes=asked.recipe.activation_bytes,
        )  # fmt: skip
        if generation.num_sequences_that_fit(copy, total_len=shape.seq, taken_bytes=taken_bytes) >= 1:
            return copy
        tp *= 2
    return None


def stage_answers(
    *, spec: ModelSpec, machine: Machine, stack: Stack, recipe: Recipe, stage_name: str, seq: int,
    modes: tuple[TrainingMode, ...] = (), teacher: ModelSpec | None = None, max_gpus: int = MAX_GPUS,
) -> list[MinimumGpus]:  # fmt: skip
    """Fewest devices for a stage, in each mode that can be named; a mode that fits nowhere is left out.

    sft and rl: one answer for each mode. generate: the model is served. distill: the teacher generates (served) and
    the student, `spec`, is trained on what it wrote.
    """
    asked: dict[str, Any] = {
        "machine": machine, "stack": stack, "recipe": recipe, "seq": seq, "max_gpus": max_gpus,
    }  # fmt: skip
    if stage_name != "sft":
        check_writes_text(spec if teacher is None else teacher)
    names: tuple[ModeName, ...] = get_args(ModeName)
    wanted = modes or tuple(TrainingMode(name=name) for name in names)
    found: list[MinimumGpus] = []
    if stage_name == "generate":
        return [minimum_gpus(spec=spec, stage_name="generate", **asked)]
    if stage_name == "distill":
        if teacher is None:
            raise ConfigError("distillation needs a teacher: name the model that generates with --teacher")
        found.append(replace(minimum_gpus(spec=teacher, stage_name="generate", **asked), stage="distill: teacher"))
    elif stage_name not in ("sft", "rl"):
        raise ConfigError(f"stage {stage_name!r} has no minimum: choose sft, rl, generate or distill")
    trains: StageName = "rl" if stage_name == "rl" else "sft"
    lacking = ""
    for mode in wanted:
        try:
            one = minimum_gpus(spec=spec, stage_name=trains, mode=mode, **asked)
        except ConfigError as error:
            lacking = str(error)
            continue
        found.append(replace(one, stage="distill: student") if stage_name == "distill" else one)
    if not any(isinstance(f.mode, TrainingMode) for f in found):
        raise ConfigError(lacking)
    return found
