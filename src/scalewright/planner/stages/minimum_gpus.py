"""The fewest devices that a stage fits on, by the mode it trains in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from scalewright.catalog.types import Stack
from scalewright.costs import generation, hostmem
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.footprint import needed_bytes, step_memory
from scalewright.costs.generation import Serving
from scalewright.costs.machine import Machine
from scalewright.costs.room import comfortable_bytes
from scalewright.costs.setting import Setting
from scalewright.errors import ConfigError
from scalewright.planner.question import check_writes_text
from scalewright.planner.stages.rl_memory import held_memory, update_memory, waiting_host_memory, with_released
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
    weights: str = ""
    """Format of served weights that the model is published in; empty: the precision's."""

    @property
    def assumption(self) -> str:
        if isinstance(self.mode, TrainingMode):
            return self.mode.title
        native = f"{self.weights} weights as published" if self.weights else "weights"
        return f"{native} and one sequence's cache"

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
    seq: int, mode: TrainingMode | ModeName = "full", max_gpus: int = MAX_GPUS, serves_native: bool = False,
) -> MinimumGpus:  # fmt: skip
    """The smallest power of two of devices on which the stage fits, weights sharded over all of them (ZeRO-3) or, where
    the stack does not shard them, split by tensor and pipeline parallelism.

    Host memory counts where the machine says what a node has.
    """
    training = training_mode(mode) if isinstance(mode, str) else mode
    stage = _Stage(
        spec=spec.with_seq(seq), machine=machine, stack=stack, recipe=recipe, name=stage_name, mode=training,
        weights=native_weights(spec) if serves_native and stage_name == "generate" else "",
    )  # fmt: skip
    num_gpus, shortage = 1, "one device is enough"
    while num_gpus <= max_gpus:
        minimum = stage.on(num_gpus, limit=shortage)
        if isinstance(minimum, MinimumGpus):
            return minimum
        shortage, num_gpus = minimum, num_gpus * 2
    raise ConfigError(
        f"{spec.id} does not fit {max_gpus} x {machine.accelerator.id} for {stage_name} in mode {training.name}: "
        f"{shortage}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A stage whose devices are counted."""

    spec: ModelSpec
    machine: Machine
    stack: Stack
    recipe: Recipe
    name: StageName
    mode: TrainingMode
    weights: str = ""
    """Format in which a server holds the weights; empty: the recipe's."""

    def on(self, num_gpus: int, *, limit: str) -> MinimumGpus | str:
        """The stage on so many devices, or what they lack. `limit` is what half as many lacked."""
        if self.name == "generate":
            return self._served(num_gpus, limit)
        answers = [self._trained(layout, num_gpus, limit) for layout in self._lean(num_gpus)]
        fitting = [one for one in answers if isinstance(one, MinimumGpus)]
        return min(fitting, key=lambda one: float(one.memory.total)) if fitting else answers[0]

    def _trained(self, layout: Layout, num_gpus: int, limit: str) -> MinimumGpus | str:
        setting = Setting(
            shape=self.spec.transformer, machine=self.machine, layout=layout, recipe=self.recipe, stack=self.stack,
            mode=self.mode,
        )  # fmt: skip
        devices, _, lack = _words(num_gpus)
        trained, has_reference = step_memory(setting), self.name == "rl"
        kept = held_memory(setting, trained, reference=has_reference)
        host = hostmem.training_host_memory(setting, num_weight_copies=2 if has_reference else 0)
        if has_reference and not setting.mode.is_offload:  # the state waits on the hosts while answers are written
            waiting = waiting_host_memory(setting, host, trained, has_reference=True)
            if self.machine.host_memory_bytes is not None and float(waiting.total) <= self.machine.host_memory_bytes:
                host, kept = waiting, with_released(kept)
        is_kept = float(kept.total) > 0.0
        used = update_memory(setting, trained, reference=has_reference and is_kept)
        if float(needed_bytes(setting, used)) > comfortable_bytes(self.machine):
            largest = max(used.parts, key=lambda part: float(part.total))
            return f"{devices} {lack} memory, most of it for {largest.name.replace('_', ' ')}"
        if self.machine.host_memory_bytes is not None and float(host.total) > self.machine.host_memory_bytes:
            return f"{devices} {lack} host memory for the state moved there"
        tp = 1
        if has_reference:
            generator = self._smallest_copy(num_gpus, float(kept.total))
            if generator is None:
                return f"{devices} {_words(num_gpus)[1]} no room for the generator beside the trainer"
            tp = generator.tp
        return MinimumGpus(
            stage=self.name, model=self.spec.id, mode=self.mode, num_gpus=num_gpus, tp=tp, memory=used,
            host_memory=host, limit=limit,
        )  # fmt: skip

    def _lean(self, num_gpus: int) -> Iterator[Layout]:
        """Layouts that keep little on a device: the leanest without experts over devices, then with them."""
        first = self._leanest(num_gpus)
        yield first
        moe, ep = self.spec.transformer.moe, 1
        if moe is None or "ep" not in self.stack.splits:
            return
        while 2 * ep <= min(int(first.dp), moe.num_experts) and int(first.dp) % (2 * ep) == 0:
            ep *= 2
            if moe.num_experts % ep == 0:
                yield replace(first, ep=ep)

    def _leanest(self, num_gpus: int) -> Layout:
        """The layout that keeps least on a device: weights sharded, or split where the stack does not shard them."""
        if self.stack.max_zero == 3:
            return Layout(dp=num_gpus, mbs=1, gbs=num_gpus, zero=3, recompute="full")
        shape, tp = self.spec.transformer, 1
        while tp * 2 <= min(num_gpus, self.machine.gpus_per_node) and shape.heads % (tp * 2) == 0:
            tp *= 2
        pp = max(p for p in range(1, num_gpus // tp + 1) if num_gpus % (tp * p) == 0 and shape.layers % p == 0)
        dp = num_gpus // (tp * pp)
        return Layout(dp=dp, tp=tp, pp=pp, mbs=1, gbs=dp, zero=self.stack.max_zero, sp=tp > 1, recompute="full")

    def _served(self, num_gpus: int, limit: str) -> MinimumGpus | str:
        copy = self._smallest_copy(num_gpus, 0.0)
        if copy is None:
            devices, have, _ = _words(num_gpus)
            return f"{devices} {have} no room for weights and one sequence's cache"
        used = generation.serving_memory(copy, num_sequences=1, total_len=self.spec.transformer.seq)
        return MinimumGpus(
            stage=self.name, model=self.spec.id, mode="serve", num_gpus=num_gpus, tp=copy.tp, memory=used,
            host_memory=None, limit=limit, weights=self.weights,
        )  # fmt: skip

    def _smallest_copy(self, num_gpus: int, taken_bytes: float) -> Serving | None:
        """The generator split over the fewest devices that leave room for one sequence."""
        tp, shape = 1, self.spec.generating.transformer
        while tp <= num_gpus and shape.heads % tp == 0:
            copy = Serving(
                shape=shape, machine=self.machine, stack=self.stack, recipe=self.recipe, tp=tp,
                weight_bytes=generation.STORED_BYTES[self.weights or self.recipe.name], weights=self.weights,
                cache_bytes=self.recipe.activation_bytes,
            )  # fmt: skip
            if generation.num_sequences_that_fit(copy, total_len=shape.seq, taken_bytes=taken_bytes) >= 1:
                return copy
            tp *= 2
        return None


def native_weights(spec: ModelSpec) -> str:
    """Format in which a model is published, where that is narrower than 16 bit: what serves it without a conversion."""
    return "" if spec.details is None else spec.details.weights


def _words(num_gpus: int) -> tuple[str, str, str]:
    """Devices, have and lack in the right number."""
    return ("one device", "has", "lacks") if num_gpus == 1 else (f"{num_gpus} devices", "have", "lack")


def fewest_by_mode(
    *, spec: ModelSpec, machine: Machine, stack: Stack, recipe: Recipe, stage_name: str, seq: int,
    modes: tuple[TrainingMode, ...] = (), teacher: ModelSpec | None = None, max_gpus: int = MAX_GPUS,
    serves_native: bool = False,
) -> list[MinimumGpus]:  # fmt: skip
    """Fewest devices for a stage, in each mode; a mode that fits nowhere is left out.

    sft and rl: one row for each mode. generate: the model is served. distill: the teacher generates (served) and
    the student, `spec`, is trained on what it wrote.
    """
    if stage_name != "sft":
        check_writes_text(spec if teacher is None else teacher)
    fewest = partial(
        minimum_gpus, machine=machine, stack=stack, recipe=recipe, seq=seq, max_gpus=max_gpus,
        serves_native=serves_native,
    )  # fmt: skip
    if stage_name == "generate":
        return [fewest(spec=spec, stage_name="generate")]
    rows: list[MinimumGpus] = []
    if stage_name == "distill":
        if teacher is None:
            raise ConfigError("distillation needs a teacher: name the model that generates")
        rows.append(replace(fewest(spec=teacher, stage_name="generate"), stage="distill: teacher"))
    elif stage_name not in ("sft", "rl"):
        raise ConfigError(f"stage {stage_name!r} has no minimum: choose sft, rl, generate or distill")
    trains: StageName = "rl" if stage_name == "rl" else "sft"
    mode_names: tuple[ModeName, ...] = get_args(ModeName)
    shortage = ""
    for mode in modes or tuple(TrainingMode(name=name) for name in mode_names):
        try:
            row = fewest(spec=spec, stage_name=trains, mode=mode)
        except ConfigError as error:
            shortage = str(error)
            continue
        rows.append(replace(row, stage="distill: student") if stage_name == "distill" else row)
    if not any(isinstance(row.mode, TrainingMode) for row in rows):
        raise ConfigError(shortage)
    return rows
