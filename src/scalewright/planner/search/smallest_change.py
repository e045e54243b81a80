"""What would make a plan fit: one change at a time, the cheapest first, each with its predicted numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from scalewright import units
from scalewright.planner.answer import Answer
from scalewright.planner.search.pareto import counts_around
from scalewright.planner.search.search import Objective, SearchResult, search, search_each
from scalewright.planner.search.space import Fixed, Space
from scalewright.workload.precision import Recipe, recipe
from scalewright.workload.training import TrainingMode

MAX_DOUBLINGS = 10
NARROWER = ("bf16", "fp16")
"""Recipes that keep fewer bytes for each parameter than fp32 and tf32 do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One change after which something fits, and the best layout then."""

    change: str
    prediction: Answer
    same_training: bool
    """False where other weights are trained (LoRA)."""

    @property
    def gpu_s_per_step(self) -> float:
        return self.prediction.time_s * self.prediction.question.num_gpus

    @property
    def sentence(self) -> str:
        time = units.format(self.prediction.time_s, units.SECONDS)
        memory = units.format(self.prediction.memory_bytes, units.BYTES)
        return f"{self.change}: {time} a step, {memory}, {self.prediction.question.layout.brief}"

    def as_dict(self) -> dict[str, Any]:
        best = self.prediction
        return {
            "change": self.change,
            "sentence": self.sentence,
            "same_training": self.same_training,
            "layout": best.question.layout.brief,
            "num_gpus": best.question.num_gpus,
            "step_time_s": best.time_s,
            "step_time_interval_s": list(best.interval_s),
            "memory_bytes": best.memory_bytes,
            "gpu_time_per_step_s": self.gpu_s_per_step,
        }


def fixes(space: Space, *, objective: Objective = "time") -> list[Fix]:
    """Single changes that fit: those that train the same come first, the cheapest in GPU time before the others."""
    offered = [*_released(space, objective), *_narrower(space, objective), *_more_devices(space, objective)]
    offered += _other_modes(space, objective)
    return sorted(offered, key=lambda fix: (not fix.same_training, fix.gpu_s_per_step))


def _best(result: SearchResult, objective: Objective) -> Answer | None:
    best = result.best(1, "time" if objective == "money" else objective) if result.feasible else []
    return best[0] if best else None


def _fixes_of(named: Iterator[tuple[str, Space, bool]], objective: Objective) -> Iterator[Fix]:
    for change, space, same in named:
        best = _best(search(space), objective)
        if best is not None:
            yield Fix(change=change, prediction=best, same_training=same)


def _released(space: Space, objective: Objective) -> Iterator[Fix]:
    """Each knob that was fixed, left to the search."""
    for knob, value in space.fixed.values.items():
        values = {k: v for k, v in space.fixed.values.items() if k != knob}
        best = _best(search(replace(space, fixed=Fixed(values=values))), objective)
        if best is not None:
            chosen = getattr(best.question.layout, knob)
            shown = int(chosen) if isinstance(chosen, bool) else chosen
            yield Fix(change=f"{knob}={shown} instead of {value}", prediction=best, same_training=True)


def _narrower(space: Space, objective: Objective) -> Iterator[Fix]:
    peaks, least = space.machine.accelerator.peak, min(_state_bytes(r) for r in space.recipes)
    others = [recipe(n) for n in NARROWER if n in peaks and _state_bytes(recipe(n)) < least]
    return _fixes_of(
        ((f"precision {r.name}", replace(space, recipes=(r,)), True) for r in others),
        objective,
    )


def _state_bytes(used: Recipe) -> float:
    return used.weight_bytes + used.gradient_bytes + used.optimizer_bytes + 1e-3 * used.activation_bytes


def _more_devices(space: Space, objective: Objective) -> Iterator[Fix]:
    """The first doubling of the devices on which something fits."""
    machine, count, fixed = space.machine, space.num_gpus, space.fixed
    free = {k: v for k, v in fixed.values.items() if k != "dp"}
    for _ in range(MAX_DOUBLINGS):
        count *= 2
        wider = replace(space, num_gpus=count, fixed=Fixed(values=free))
        if count not in counts_around(wider):
            return
        best = _best(search_each([wider], only_best=True)[0], objective)
        if best is not None:
            nodes = machine.num_nodes_for(count)
            what = f"{nodes} nodes" if count >= machine.gpus_per_node else f"{count} devices"
            yield Fix(change=f"{what} instead of {space.num_nodes}", prediction=best, same_training=True)
            return


def _other_modes(space: Space, objective: Objective) -> Iterator[Fix]:
    modes = (("optimizer state on the hosts (mode offload)", "offload", True),
             ("adapters only (mode lora)", "lora", False))  # fmt: skip
    return _fixes_of(
        (
            (change, replace(space, mode=TrainingMode(name=name)), same)  # type: ignore[arg-type]
            for change, name, same in modes
            if name != space.mode.name
        ),
        objective,
    )
