"""Predict generation: answers to a batch of prompts, or to prompts that keep arriving, over copies of a model."""

from __future__ import annotations

import math
from dataclasses import replace

from scalewright.costs import generation as costs
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.generation import Arrivals, Load, Phases, Serving
from scalewright.planner.answer import Answer
from scalewright.planner.context import context_notes, longest_context
from scalewright.planner.energy_use import footprint
from scalewright.planner.figures import GenerationFigures
from scalewright.planner.generation import Generation, no_room_words
from scalewright.planner.question import Question
from scalewright.records.types import WARNING

STREAMING_TERMS = ("weights", "experts", "cache", "head")
"""Terms that memory bandwidth bounds."""
HOST_TERMS = ("engine", "prompt_engine")
"""Terms in which the device waits for the host."""


def predict_generation(question: Question, generation: Generation) -> Answer:
    """Time, memory and rate of `gbs` answers over `dp` copies of the model."""
    question = replace(question, spec=question.spec.generating)
    serving, batch = serving_of(question, generation), int(question.layout.gbs)
    load, num_fit = load_of(question, generation, serving)
    time, plan = costs.load_time(serving, load)
    steady, arriving_s = None, 0.0
    if generation.requests_per_s is not None:
        rate = generation.requests_per_s / int(question.layout.dp)
        steady, arriving_s = costs.steady_state(serving, load, num_requests_per_s=rate), load.num_requests / rate
        if arriving_s > float(time.total):
            time, plan = _arriving(serving, load, steady, arriving_s)
    alive = min(load.num_at_once, load.num_requests) if steady is None else steady.num_running
    mean_len = plan.num_mean_context - load.prompts.mean * (1.0 - 1.0 / load.num_per_prompt)
    memory = costs.serving_memory(serving, num_sequences=max(alive, 1), total_len=_held(serving, load))
    figures = _figures(question, serving, load, plan, time, num_fit=num_fit, steady=steady, held_len=mean_len)
    bound_s = costs.least_time_s(
        serving=serving,
        num_active_params=question.spec.num_active_params,
        num_steps=costs.num_least_iterations(load),
        num_tokens=batch * (generation.prompt_len / generation.num_per_prompt + generation.response_len),
        num_copies=int(question.layout.dp),
    )
    return Answer(
        question=question,
        time=time,
        memory=memory,
        reserved_bytes=float(memory.total) - float(memory.part("reserve").total),
        device_bytes=float(memory.total),
        needed_bytes=float(memory.total),
        host_memory=None,
        interval_s=_interval_s(serving, float(time.total), steady, least_s=max(bound_s, arriving_s)),
        bound_s=bound_s,
        fits=num_fit >= 1,
        fits_host=True,
        num_units=batch * generation.response_len,
        footprint=None
        if question.facility is None
        else footprint(
            machine=question.machine, recipe=question.recipe, facility=question.facility, time_s=float(time.total),
            num_gpus=question.num_gpus, num_tokens=batch * generation.response_len,
            hardware_flop=hardware_flop(question, generation), memory_frac=figures.memory_frac,
        ),
        warnings=tuple(_warnings(question, generation, figures, memory_bytes=float(memory.total))),
        figures=figures,
    )  # fmt: skip


def _interval_s(
    serving: Serving, time_s: float, steady: Arrivals | None, *, least_s: float
) -> tuple[float, float]:  # fmt: skip
    """Of a batch, that of its time; requests that keep arriving take their own time unless the copies fall behind."""
    low, high = costs.generation_interval_s(time_s=time_s, serving=serving, least_s=least_s)
    return (low, high) if steady is None else (low, max(min(steady.load_frac, 1.0) * high, time_s))


def serving_of(question: Question, generation: Generation) -> Serving:
    """One copy of the model as the cost models of generation take it."""
    recipe, layout = question.recipe, question.layout
    return Serving(
        shape=question.spec.transformer, machine=question.machine, stack=question.stack, recipe=recipe,
        tp=int(layout.tp), pp=int(layout.pp), ep=int(layout.ep), weights=generation.weights,
        weight_bytes=costs.stored_bytes(generation.weights or recipe.name),
        cache_bytes=recipe.activation_bytes if generation.cache_bytes is None else generation.cache_bytes,
        engine=generation.engine, has_parallel_blocks=generation.has_parallel_blocks,
    )  # fmt: skip


def load_of(question: Question, generation: Generation, serving: Serving) -> tuple[Load, int]:
    """What the fullest copy answers, and the sequences that it has memory for."""
    batch, copies = int(question.layout.gbs), int(question.layout.dp)
    prompts, answers = generation.prompt_lengths, generation.answer_lengths(question.machine.constants)
    load = Load(
        num_requests=-(-batch // copies), prompts=prompts, answers=answers, num_at_once=1.0,
        num_per_prompt=float(generation.num_per_prompt),
    )  # fmt: skip
    room = costs.num_sequences_that_fit(serving, total_len=_held(serving, load), taken_bytes=generation.taken_bytes)
    most_asked = min(serving.num_max_sequences, float(generation.max_running or math.inf))
    most = max(min(room, most_asked), 1.0)
    again = costs.num_read_again(
        serving, num_at_once=most, answers=answers, full_frac=min(most_asked, load.num_requests) / max(room, 1.0)
    )
    return replace(load, num_at_once=most, num_read_again=again), math.ceil(room) if room >= 1.0 else 0


def _held(serving: Serving, load: Load) -> float:
    return costs.held_len(serving, prompts=load.prompts, answers=load.answers, per_prompt=load.num_per_prompt)


def _arriving(serving: Serving, load: Load, steady: Arrivals, total_s: float) -> tuple[Breakdown, Phases]:
    """The time in which the load's requests arrive, by the parts of the iterations in it, and what is idle."""
    busy, plan = costs.steady_time(serving, load, steady.num_running)
    idle = max(total_s - float(busy.total), 0.0)
    parts = (*busy.parts, Breakdown(name="waiting", unit="s", value=idle, formula="generation.steady_state"))
    return replace(busy, parts=parts), plan


def _figures(
    question: Question, serving: Serving, load: Load, plan: Phases, time: Breakdown, *, num_fit: int,
    steady: Arrivals | None, held_len: float,
) -> GenerationFigures:  # fmt: skip
    running, total_s = plan.num_mean_running, float(time.total)
    alone_s = float(costs.prefill(serving, num_sequences=1, prompt_len=load.prompts.mean).total)
    is_queued = steady is None or steady.load_frac >= 1.0  # these requests wait from the start
    step_s = costs.median_wait_s(serving, load) if is_queued or steady is None else steady.iteration_s
    host_s = sum(float(term.total) for _, term in time.walk() if term.name in HOST_TERMS or term.name == "waiting")
    peak = question.machine.peak_flop_per_s(serving.products) * question.num_gpus
    work = hardware_flop(question, question.stage) if isinstance(question.stage, Generation) else 0.0
    return GenerationFigures(
        serving=serving,
        num_alive=math.ceil(min(load.num_at_once, load.num_requests))
        if steady is None
        else math.ceil(steady.num_running),
        num_fit=num_fit,
        ttft_s=alone_s,
        loaded_ttft_s=None if steady is None else alone_s + steady.waiting_s,
        itl_s=step_s,
        num_running=running,
        num_steps=plan.num_all_steps,
        mean_context=plan.num_mean_context,
        memory_frac=_memory_frac(serving, time),
        busy_frac=1.0 - host_s / total_s,
        mfu_frac=work / (peak * total_s),
        cache_frac=min(running * held_len / max(num_fit * _held(serving, load), 1.0), 1.0),
        load_frac=None if steady is None else steady.load_frac,
        read_again_frac=load.num_read_again / (load.prompts.mean + load.answers.mean),
    )


def hardware_flop(question: Question, generation: Generation) -> float:
    """Work of all products, prompts and answers; attention to the context is not counted."""
    prompt = generation.prompt_len / generation.num_per_prompt
    return 2.0 * question.spec.num_active_params * int(question.layout.gbs) * (prompt + generation.response_len)


def _memory_frac(serving: Serving, time: Breakdown) -> float:
    names = (*STREAMING_TERMS, *(f"prompt_{name}" for name in ("cache", "head")))
    streaming_s = sum(float(term.total) for _, term in time.walk() if term.name in names)
    return streaming_s / float(time.total) * serving.machine.constants.memory_bandwidth_share.value


def _warnings(
    question: Question, generation: Generation, figures: GenerationFigures, *, memory_bytes: float
) -> list[str]:
    machine, layout, warnings = question.machine, question.layout, []
    tp, batch, copies = int(layout.tp), int(layout.gbs), int(layout.dp)
    if figures.num_fit < 1:
        warnings.append(no_room_words(figures.serving, generation, memory_bytes))
    elif figures.load_frac is None and figures.num_alive * copies < batch:
        limit = _limit_words(figures, generation)
        warnings.append(f"{limit} {figures.num_alive} sequences a copy: {batch} prompts take turns")
    if figures.load_frac is not None and figures.load_frac >= 1.0:
        warnings.append(
            f"requests arrive {figures.load_frac:.2g} times as fast as they are answered: the queue grows; add copies"
        )
    if tp > machine.gpus_per_node:
        warnings.append(f"tp={tp} spans nodes of {machine.gpus_per_node} devices")
    warnings += wider_words(figures.serving)
    warnings += context_notes(question.spec, longest_context(generation))
    if machine.confidence != machine.generation_confidence:
        name = machine.name.partition("/")[0]
        warnings.append(
            f"{WARNING}this prediction may be far off. Calibration {name} is a weak basis: no decode step was "
            "measured, and published rates of GPUs stand in for them. Calibrate again when this machine is quiet, "
            "or with a longer --budget."
        )
    return [*warnings, *machine.assumptions, *(question.facility.notes if question.facility else ())]


def wider_words(serving: Serving) -> list[str]:
    """Why the interval of generation is wider than usual."""
    engine = costs.unseen_engine(serving)
    reasons = [*costs.unseen_generation(serving), *(() if engine is None else (engine,))]
    return [f"{reason}: the interval is wider" for reason in reasons]


def _limit_words(figures: GenerationFigures, generation: Generation) -> str:
    if figures.num_alive >= figures.num_fit:
        return "memory holds"
    if generation.max_running is not None and figures.num_alive >= generation.max_running:
        return "the request allows"
    engine = figures.serving.engine
    return "the engine runs" if engine is None else f"{engine.id} runs at most"
