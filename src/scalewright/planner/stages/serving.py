"""Predict generation: a batch of prompts over copies of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalewright.catalog.types import Stack
from scalewright.costs import generation
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.energy import Facility
from scalewright.costs.generation import Serving
from scalewright.costs.machine import Machine
from scalewright.costs.step import why_not_expressed
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.planner.answers import energy_keys, heading, timing
from scalewright.planner.energy_use import Footprint, footprint
from scalewright.records.documents import document
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPrediction:
    """What answering a batch of prompts costs, with everything that went in."""

    serving: Serving
    spec: ModelSpec
    num_gpus: int
    batch: int
    """Prompts in all, over all copies of the model."""
    prompt_len: int
    response_len: int
    longest_len: int
    num_alive: int
    """Sequences one copy works on at once."""
    num_fit: int
    """Sequences one copy has memory for."""
    time: Breakdown
    """Until the last answer."""
    memory: Breakdown
    """One device, with the sequences alive at their full length."""
    ttft_s: float
    """First token of a prompt that arrives alone."""
    itl_s: float
    """Between two tokens of a sequence, the batch half through."""
    num_running: float
    """Sequences of a copy that a decode step serves, on average."""
    num_steps: float
    """Decode steps until the last answer."""
    facility: Facility | None = None
    """Building, grid and price; without them there is no energy, money or carbon."""

    @property
    def mean_context(self) -> float:
        """Tokens a running sequence attends to, on average."""
        return self.prompt_len + self.response_len / 2.0

    @property
    def fits(self) -> bool:
        return self.num_fit >= 1

    @property
    def num_generated_per_s(self) -> float:
        """Generated tokens per second, over all devices."""
        return self.batch * self.response_len / float(self.time.total)

    @property
    def hardware_flop(self) -> float:
        """Work of all products, prompts and answers; attention to the context is not counted."""
        return 2.0 * self.spec.num_active_params * self.batch * (self.prompt_len + self.response_len)

    @property
    def memory_frac(self) -> float:
        """Share of the datasheet's memory bandwidth in use, as if weights and cache always bound their terms."""
        streaming = sum(float(self.time.part(n).total) for n in ("weights", "experts", "cache", "head"))
        share = self.serving.machine.constants.memory_bandwidth_share.value
        return streaming / float(self.time.total) * share

    def resolved_input(self) -> dict[str, Any]:
        serving = self.serving
        return {
            "stage": "generate",
            "model": self.spec.id,
            "shape": serving.shape.model_dump(mode="json", exclude={"source"}),
            "machine": serving.machine.as_input(),
            "precision": serving.recipe.name,
            "cache_bytes": serving.cache_bytes,
            "stack": serving.stack.id,
            "num_gpus": self.num_gpus,
            "tp": serving.tp,
            "batch": self.batch,
            "prompt_len": self.prompt_len,
            "response_len": self.response_len,
            "longest_len": self.longest_len,
        }

    def warnings(self) -> list[str]:
        machine, found = self.serving.machine, []
        copies = self.num_gpus // self.serving.tp
        if not self.fits:
            found.append(f"tp={self.serving.tp} leaves no room for one sequence: raise tp")
        elif self.num_alive * copies < self.batch:
            found.append(f"memory holds {self.num_alive} sequences a copy: {self.batch} prompts take turns")
        if self.serving.tp > machine.gpus_per_node:
            found.append(f"tp={self.serving.tp} spans nodes of {machine.gpus_per_node} devices")
        wider = [f"{reason}: the interval is wider" for reason in generation.unseen_generation(self.serving)]
        return [*found, *wider, *machine.assumptions, *(self.facility.notes if self.facility else ())]

    @property
    def interval_s(self) -> tuple[float, float]:
        """Of the time until the last answer."""
        return generation.generation_interval_s(time_s=float(self.time.total), serving=self.serving)

    @property
    def bound_s(self) -> float:
        """What no engine can beat."""
        copies = self.num_gpus // self.serving.tp
        return generation.least_time_s(
            serving=self.serving, num_active_params=self.spec.num_active_params, num_steps=self.num_steps,
            num_tokens=self.batch * (self.prompt_len + self.response_len), num_copies=copies,
        )  # fmt: skip

    @property
    def footprint(self) -> Footprint | None:
        """Energy, money and carbon of all answers; per generated token."""
        if self.facility is None:
            return None
        return footprint(
            machine=self.serving.machine, recipe=self.serving.recipe, facility=self.facility,
            time_s=float(self.time.total), num_gpus=self.num_gpus, num_tokens=self.batch * self.response_len,
            hardware_flop=self.hardware_flop, memory_frac=self.memory_frac,
        )  # fmt: skip

    def as_document(self) -> dict[str, Any]:
        machine, used, total = self.serving.machine, self.footprint, float(self.time.total)
        low, high = self.interval_s
        first = generation.generation_interval_s(time_s=self.ttft_s, serving=self.serving, is_first_token=True)
        body = {
            **heading(
                stage="generate",
                spec=self.spec,
                machine=machine,
                resolved_input=self.resolved_input(),
                num_gpus=self.num_gpus,
            ),
            **timing(machine=machine, step_s=total, interval_s=(low, high), bound_s=self.bound_s, used=used),
            "tokens_per_s": self.num_generated_per_s,
            "tokens_per_s_per_gpu": self.num_generated_per_s / self.num_gpus,
            "tokens_per_s_interval": [self.num_generated_per_s * total / end for end in (high, low)],
            "ttft_s": self.ttft_s,
            "ttft_interval_s": list(first),
            "itl_s": self.itl_s,
            "itl_interval_s": [self.itl_s * end / total for end in (low, high)],
            "num_alive_per_copy": self.num_alive,
            "num_fit_per_copy": self.num_fit,
            "memory_bytes": float(self.memory.total),
            "reserved_bytes": float(self.memory.total),
            "device_memory_bytes": machine.memory_bytes,
            "fits": self.fits,
            **energy_keys(used),
            "warnings": self.warnings(),
            "time": self.time.as_dict(),
            "memory": self.memory.as_dict(),
        }
        return document("prediction", body)


def predict_generation(
    *, spec: ModelSpec, machine: Machine, stack: Stack, recipe: Recipe, num_gpus: int, tp: int, batch: int,
    prompt_len: int, response_len: int, longest_len: int | None = None, cache_bytes: float | None = None,
    taken_bytes: float = 0.0, facility: Facility | None = None,
) -> GenerationPrediction:  # fmt: skip
    """Time, memory and rate of `batch` prompts over `num_gpus / tp` copies of the model.

    `cache_bytes` is the width of a cached element (default: the recipe's activations); `longest_len` the longest answer
    where `response_len` is the mean; `taken_bytes` what else lives on each device.
    """
    reason = why_not_expressed(spec)
    if reason is not None:
        raise NotExpressedError(f"{spec.id}: {reason}")
    check_writes_text(spec)
    _check_generation(spec, machine, num_gpus=num_gpus, tp=tp, batch=batch, lengths=(prompt_len, response_len))
    shape, longest = spec.transformer, response_len if longest_len is None else longest_len
    if longest < response_len:
        raise ConfigError(
            f"longest={longest} is shorter than the mean answer of {response_len}: give the longest answer"
        )
    width = recipe.activation_bytes if cache_bytes is None else cache_bytes
    serving = Serving(
        shape=shape, machine=machine, stack=stack, recipe=recipe, tp=tp,
        weight_bytes=generation.STORED_BYTES[recipe.name], cache_bytes=width,
    )  # fmt: skip
    per_copy = -(-batch * tp // num_gpus)
    fit = generation.num_sequences_that_fit(serving, total_len=prompt_len + longest, taken_bytes=taken_bytes)
    alive = max(min(per_copy, fit), 1)
    steps = generation.num_decode_steps(
        num_sequences=per_copy, num_alive=alive, num_mean=response_len, num_longest=longest
    )
    running = per_copy * response_len / steps
    step = generation.decode_step(serving, num_sequences=running, num_context=prompt_len + response_len / 2.0)
    reading = generation.prefill(serving, num_sequences=per_copy, prompt_len=prompt_len)
    alone = generation.prefill(serving, num_sequences=1, prompt_len=prompt_len)
    return GenerationPrediction(
        serving=serving,
        spec=spec,
        num_gpus=num_gpus,
        batch=batch,
        prompt_len=prompt_len,
        response_len=response_len,
        longest_len=longest,
        num_alive=alive,
        num_fit=fit,
        time=Breakdown(name="generation", unit="s", parts=(reading, generation.scaled(step, steps))),
        memory=generation.serving_memory(serving, num_sequences=alive, total_len=prompt_len + response_len),
        ttft_s=float(alone.total),
        itl_s=float(step.total),
        num_running=running,
        num_steps=steps,
        facility=facility,
    )


def check_writes_text(spec: ModelSpec) -> None:
    if not spec.transformer.causal:
        raise ConfigError(
            f"{spec.id} reads whole sequences and generates none: choose a causal model, such as llama3-8b"
        )


def _check_generation(
    spec: ModelSpec, machine: Machine, *, num_gpus: int, tp: int, batch: int, lengths: tuple[int, int]
) -> None:
    heads = spec.transformer.heads
    if tp < 1 or num_gpus % tp:
        raise ConfigError(f"{num_gpus} devices are not whole copies of tp={tp}: choose a multiple of tp")
    if heads % tp:
        raise ConfigError(f"tp={tp} does not divide {heads} attention heads: choose a divisor of {heads}")
    if batch < 1 or min(lengths) < 1:
        raise ConfigError(f"batch {batch} and lengths {lengths[0]} and {lengths[1]} must be 1 or more")
    if num_gpus > machine.gpus_per_node and machine.network_bytes_per_s_per_gpu is None:
        raise ConfigError(f"{num_gpus} devices were asked for, but {machine.name} is one node")
