"""Predict generation: a batch of prompts over copies of a model."""

from __future__ import annotations

from scalewright.costs import generation as costs
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.generation import Serving
from scalewright.planner.answer import Answer
from scalewright.planner.energy_use import footprint
from scalewright.planner.figures import GenerationFigures
from scalewright.planner.question import Generation, Question

STREAMING_TERMS = ("weights", "experts", "cache", "head")
"""Terms that memory bandwidth bounds."""


def predict_generation(question: Question, generation: Generation) -> Answer:
    """Time, memory and rate of `gbs` prompts over `dp` copies of the model."""
    serving, batch = serving_of(question, generation), int(question.layout.gbs)
    prompt, response, longest = generation.prompt_len, generation.response_len, generation.longest
    per_copy = -(-batch * serving.tp // question.num_gpus)
    fit = costs.num_sequences_that_fit(serving, total_len=prompt + longest, taken_bytes=generation.taken_bytes)
    alive = max(min(per_copy, fit), 1)
    steps = costs.num_decode_steps(num_sequences=per_copy, num_alive=alive, num_mean=response, num_longest=longest)
    running, context = per_copy * response / steps, prompt + response / 2.0
    step = costs.decode_step(serving, num_sequences=running, num_context=context)
    prefill = costs.prefill(serving, num_sequences=per_copy, prompt_len=prompt)
    time = Breakdown(name="generation", unit="s", parts=(prefill, costs.scaled(step, steps)))
    memory = costs.serving_memory(serving, num_sequences=alive, total_len=prompt + response)
    figures = GenerationFigures(
        serving=serving,
        num_alive=alive,
        num_fit=fit,
        ttft_s=float(costs.prefill(serving, num_sequences=1, prompt_len=prompt).total),
        itl_s=float(step.total),
        num_running=running,
        num_steps=steps,
        mean_context=context,
        memory_frac=_memory_frac(serving, time),
    )
    flop = hardware_flop(question, generation)
    return Answer(
        question=question,
        time=time,
        memory=memory,
        reserved_bytes=float(memory.total) - float(memory.part("reserve").total),
        device_bytes=float(memory.total),
        needed_bytes=float(memory.total),
        host_memory=None,
        interval_s=costs.generation_interval_s(time_s=float(time.total), serving=serving),
        bound_s=costs.least_time_s(
            serving=serving, num_active_params=question.spec.num_active_params, num_steps=steps,
            num_tokens=batch * (prompt + response), num_copies=int(question.layout.dp),
        ),
        fits=fit >= 1,
        fits_host=True,
        num_units=batch * response,
        footprint=None
        if question.facility is None
        else footprint(
            machine=question.machine, recipe=question.recipe, facility=question.facility, time_s=float(time.total),
            num_gpus=question.num_gpus, num_tokens=batch * response, hardware_flop=flop,
            memory_frac=figures.memory_frac,
        ),
        warnings=tuple(_warnings(question, figures)),
        figures=figures,
    )  # fmt: skip


def serving_of(question: Question, generation: Generation) -> Serving:
    """One copy of the model as the cost models of generation take it."""
    recipe = question.recipe
    return Serving(
        shape=question.spec.transformer, machine=question.machine, stack=question.stack, recipe=recipe,
        tp=int(question.layout.tp), weight_bytes=costs.STORED_BYTES[recipe.name],
        cache_bytes=recipe.activation_bytes if generation.cache_bytes is None else generation.cache_bytes,
    )  # fmt: skip


def hardware_flop(question: Question, generation: Generation) -> float:
    """Work of all products, prompts and answers; attention to the context is not counted."""
    num_tokens = int(question.layout.gbs) * (generation.prompt_len + generation.response_len)
    return 2.0 * question.spec.num_active_params * num_tokens


def _memory_frac(serving: Serving, time: Breakdown) -> float:
    streaming_s = sum(float(time.part(name).total) for name in STREAMING_TERMS)
    return streaming_s / float(time.total) * serving.machine.constants.memory_bandwidth_share.value


def _warnings(question: Question, figures: GenerationFigures) -> list[str]:
    machine, tp, batch, warnings = question.machine, int(question.layout.tp), int(question.layout.gbs), []
    if figures.num_fit < 1:
        warnings.append(f"tp={tp} leaves no room for one sequence: raise tp")
    elif figures.num_alive * int(question.layout.dp) < batch:
        warnings.append(f"memory holds {figures.num_alive} sequences a copy: {batch} prompts take turns")
    if tp > machine.gpus_per_node:
        warnings.append(f"tp={tp} spans nodes of {machine.gpus_per_node} devices")
    warnings += [f"{reason}: the interval is wider" for reason in costs.unseen_generation(figures.serving)]
    return [*warnings, *machine.assumptions, *(question.facility.notes if question.facility else ())]
