"""Predict generation: a batch of prompts over copies of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalewright import __version__
from scalewright.catalog.types import Stack
from scalewright.costs import generation
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.generation import Serving
from scalewright.costs.machine import Machine
from scalewright.costs.step import why_not_expressed
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.records.documents import digest, document
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
        found.append("of 23 published rates the prediction is 0.83 to 1.75 times; there is no interval")
        return [*found, *machine.assumptions]

    def as_document(self) -> dict[str, Any]:
        body = {
            "id": digest(self.resolved_input()),
            "scalewright": __version__,
            "stage": "generate",
            "input": self.resolved_input(),
            "num_gpus": self.num_gpus,
            "num_nodes": -(-self.num_gpus // self.serving.machine.gpus_per_node),
            "step_time_s": float(self.time.total),
            "tokens_per_s": self.num_generated_per_s,
            "tokens_per_s_per_gpu": self.num_generated_per_s / self.num_gpus,
            "ttft_s": self.ttft_s,
            "itl_s": self.itl_s,
            "num_alive_per_copy": self.num_alive,
            "num_fit_per_copy": self.num_fit,
            "memory_bytes": float(self.memory.total),
            "device_memory_bytes": self.serving.machine.memory_bytes,
            "fits": self.fits,
            "confidence": "model",
            "warnings": self.warnings(),
            "time": self.time.as_dict(),
            "memory": self.memory.as_dict(),
        }
        return document("prediction", body)


def predict_generation(
    *, spec: ModelSpec, machine: Machine, stack: Stack, recipe: Recipe, num_gpus: int, tp: int, batch: int,
    prompt_len: int, response_len: int, longest_len: int | None = None, cache_bytes: float | None = None,
    taken_bytes: float = 0.0,
) -> GenerationPrediction:  # fmt: skip
    """Time, memory and rate of `batch` prompts over `num_gpus / tp` copies of the model.

    `cache_bytes` is the width of a cached element (default: the recipe's activations); `longest_len` the longest answer
    where `response_len` is the mean; `taken_bytes` what else lives on each device.
    """
    reason = why_not_expressed(spec)
    if reason is not None:
        raise NotExpressedError(f"{spec.id}: {reason}")
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
