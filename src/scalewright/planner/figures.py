"""What a prediction says beyond time, memory and energy: the figures that only one kind of stage has."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from scalewright.costs.breakdown import Breakdown
from scalewright.costs.footprint import memory_on
from scalewright.costs.generation import Serving, generation_interval_s, scaled
from scalewright.costs.setting import Setting, VisionSetting
from scalewright.costs.shards import trained_shards
from scalewright.costs.step import StepCost
from scalewright.costs.storage import checkpoint_bytes
from scalewright.costs.vision import Supply
from scalewright.workload.model import ModelSpec

if TYPE_CHECKING:
    from scalewright.planner.answer import Answer
    from scalewright.planner.stages.rl_budget import BudgetFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerFigures:
    """Of one training step of a transformer."""

    stage_name = "pretrain"
    unit = "token"
    spec: ModelSpec
    setting: Setting
    cost: StepCost

    @property
    def mfu_frac(self) -> float:
        return float(self.cost.mfu_frac)

    @property
    def hfu_frac(self) -> float:
        """With what is computed again."""
        return float(self.cost.hfu_frac)

    @property
    def model_flop(self) -> float:
        return float(self.cost.model_flop)

    @property
    def data_wait_s(self) -> float:
        return float(self.cost.time.part("data").total)

    @property
    def memory_bytes_per_pipeline_rank(self) -> list[float]:
        """Peak allocated on a device of each pipeline rank, first to last."""
        ranks = np.arange(int(self.setting.layout.pp))
        sizes: list[float] = np.broadcast_to(memory_on(self.setting, ranks).total, ranks.shape).tolist()
        return sizes

    @property
    def checkpoint_bytes(self) -> float:
        """State to resume from: weights and optimizer state, or those of the adapters."""
        params, recipe = float(self.spec.num_params), self.setting.recipe
        undivided = replace(self.setting, layout=replace(self.setting.layout, tp=1, pp=1))
        is_lora = self.setting.mode.is_lora
        return checkpoint_bytes(
            num_params=params, num_trained=float(trained_shards(undivided, 0).num_params) if is_lora else params,
            weight_bytes=recipe.weight_bytes, optimizer_bytes=recipe.optimizer_bytes,
        )  # fmt: skip

    def document_keys(self, answer: Answer) -> dict[str, Any]:
        return {
            "tokens_per_s_per_gpu": answer.rate_per_s / answer.question.num_gpus,
            "mfu_frac": self.mfu_frac,
            "hfu_frac": self.hfu_frac,
            "model_flop": self.model_flop,
            "hardware_flop": float(self.cost.hardware_flop),
            "memory_bytes_per_stage": self.memory_bytes_per_pipeline_rank,
            "checkpoint_bytes": self.checkpoint_bytes,
            "data_wait_s": self.data_wait_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionFigures:
    """Of one training step of a vision model."""

    stage_name = "vision"
    unit = "image"
    setting: VisionSetting
    one_node_s: float
    """The same step on one node: what efficiency per batch is counted against."""
    efficiency_frac: float
    """Per batch: the step on one node over this one, the batch per device the same."""
    epoch_s: float
    """One pass over ImageNet's training images, loaded and decoded, without what an epoch's start and end cost."""
    loader: Supply
    """What limits the images that reach the devices, and its rate."""
    epoch_images_per_s: float
    """The slower of devices and loader."""
    data_wait_s: float
    mfu_frac: float
    model_flop: float

    def document_keys(self, answer: Answer) -> dict[str, Any]:
        return {
            "images_per_s": answer.rate_per_s,
            "efficiency_frac": self.efficiency_frac,
            "epoch_time_s": self.epoch_s,
            "epoch_images_per_s": self.epoch_images_per_s,
            "loader_images_per_s": float(self.loader.num_images_per_s),
            "loader_limit": self.loader.name,
            "data_wait_s": self.data_wait_s,
            "mfu_frac": self.mfu_frac,
            "model_flop": self.model_flop,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFigures:
    """Of answering a batch of prompts, or prompts that keep arriving."""

    stage_name = "generate"
    unit = "token"
    serving: Serving
    num_alive: int
    """Sequences one copy works on at once."""
    num_fit: int
    """Sequences one copy has memory for."""
    ttft_s: float
    """First token of a prompt that arrives alone."""
    itl_s: float
    """Between two tokens of a running sequence, on average."""
    num_running: float
    """Sequences of a copy that an iteration serves, on average."""
    num_steps: float
    """Iterations until the last answer."""
    mean_context: float
    """Tokens a running sequence attends to, on average."""
    memory_frac: float
    """Share of the datasheet's memory bandwidth in use, as if weights and cache always bound their terms."""
    busy_frac: float
    """Share of the time in which the device does not wait for the host."""
    mfu_frac: float
    """Arithmetic of the products over the peak."""
    cache_frac: float
    """Share of the cache's room that holds tokens, on average."""
    loaded_ttft_s: float | None = None
    """First token of a prompt among the others that arrive; None where all wait from the start."""
    load_frac: float | None = None
    """Arrivals over what the copies can answer; None where all wait from the start."""
    read_again_frac: float = 0.0
    """Tokens of a request that are computed again after it was put aside, over all of its tokens."""

    @property
    def ttft_interval_s(self) -> tuple[float, float]:
        return generation_interval_s(time_s=self.ttft_s, serving=self.serving, is_first_token=True)

    @property
    def itl_interval_s(self) -> tuple[float, float]:
        return generation_interval_s(time_s=self.itl_s, serving=self.serving)

    def document_keys(self, answer: Answer) -> dict[str, Any]:
        rate, total, (low, high) = answer.rate_per_s, answer.time_s, answer.interval_s
        arriving = {} if self.load_frac is None else {
            "loaded_ttft_s": self.loaded_ttft_s if math.isfinite(self.loaded_ttft_s or math.inf) else None,
            "load_frac": self.load_frac,
        }  # fmt: skip
        return {
            "tokens_per_s": rate,
            "tokens_per_s_per_gpu": rate / answer.question.num_gpus,
            "tokens_per_s_interval": [rate * total / end for end in (high, low)],
            "ttft_s": self.ttft_s,
            "ttft_interval_s": list(self.ttft_interval_s),
            "itl_s": self.itl_s,
            "itl_interval_s": list(self.itl_interval_s),
            "num_alive_per_copy": self.num_alive,
            "num_fit_per_copy": self.num_fit,
            "num_running_per_copy": self.num_running,
            "busy_frac": self.busy_frac,
            "mfu_frac": self.mfu_frac,
            "memory_bandwidth_frac": self.memory_frac,
            "cache_frac": self.cache_frac,
            "read_again_frac": self.read_again_frac,
            **arriving,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPart:
    """A part of an RL step, and how much of it another part hides."""

    whole: Breakdown
    hidden_frac: float = 0.0
    behind: str = ""
    """What hides it."""

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def whole_s(self) -> float:
        return float(self.whole.total)

    @property
    def hidden_s(self) -> float:
        return self.whole_s * self.hidden_frac

    @property
    def visible(self) -> Breakdown:
        """What the step waits for."""
        if self.hidden_frac <= 0.0:
            return self.whole
        note = f"{self.hidden_s:.4g} s more are hidden behind {self.behind}"
        return replace(scaled(self.whole, 1.0 - self.hidden_frac), note=note)

    def as_dict(self) -> dict[str, Any]:
        body = {"name": self.name, "whole_s": self.whole_s, "hidden_s": self.hidden_s}
        return body | ({"behind": self.behind} if self.hidden_s > 0.0 else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RlFigures:
    """Of one step of reinforcement learning."""

    stage_name = "rl"
    unit = "token"
    rollout: Answer
    """The generation inside the step."""
    update: StepCost
    """One update of the weights."""
    num_updates: int
    memory_rollout: Breakdown
    memory_update: Breakdown
    parts: tuple[RlPart, ...]
    """In the order in which they run."""
    budget: BudgetFigures | None = None
    """Of the iteration, where tokens bound it."""
    step_gain: float | None = None
    """Trained tokens per second over those of a step that waits for all answers, where there is a budget."""

    @property
    def lost_and_biased(self) -> tuple[bool, float]:
        """Whether a token budget loses long answers, and how much of their mean length."""
        if self.budget is None or not self.budget.bias_words:
            return False, 0.0
        return True, -self.budget.bias_frac

    def part(self, name: str) -> RlPart:
        return next(part for part in self.parts if part.name == name)

    def document_keys(self, answer: Answer) -> dict[str, Any]:
        return {
            "tokens_per_s_per_gpu": answer.rate_per_s / answer.question.num_gpus,
            "parts": [part.as_dict() for part in self.parts],
            "memory_bytes": max(float(self.memory_rollout.total), float(self.memory_update.total)),
            "memory_rollout": self.memory_rollout.as_dict(),
            **({} if self.budget is None else {"token_budget": {"step_gain": self.step_gain, **self.budget.as_dict()}}),
        }


Figures = TransformerFigures | VisionFigures | GenerationFigures | RlFigures
