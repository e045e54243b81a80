"""Generation as a question: lengths, arrivals and precisions as people write them, resolved and checked.

prompt=2048,response=lognormal:mean=512,cv=0.8,max=4096,rate=8,cache=fp8,weights=int4,engine=vllm
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Constants, ServingEngine
from scalewright.costs.generation import Serving, cached_bytes, stored_bytes
from scalewright.errors import ConfigError
from scalewright.workload.grammar import assignments, whole_number
from scalewright.workload.layout import Layout
from scalewright.workload.lengths import PART_NAMES, LengthDistribution, fixed, lengths_with_limit, parse_lengths
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe

NOT_SPLIT = ("vpp", "cp")
CHANGED = ("prompt", "response", "answers", "rate", "running", "cache", "weights", "engine")
"""Parts of a request that a what-if may write otherwise."""
USUAL_ENGINE = "vllm"
"""Serving engine of a request that names none."""


NARROWER_BYTES = 2.0
"""Width of a weight in the narrowest precision of CPUs."""
NEEDED = ("prompt", "response")
KEYS = (*NEEDED, "longest", "answers", "rate", "running", "cache", "weights", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """What is generated."""

    prompt: LengthDistribution
    response: LengthDistribution
    longest: int | None = None
    """Longest answer, where only its mean is known otherwise."""
    answers: int = 1
    """For each prompt."""
    rate: float | None = None
    """Requests that arrive in a second, over all copies; None: all wait from the start."""
    running: int | None = None
    """Sequences that a copy runs at once at most; None: as the engine and memory allow."""
    cache: str | None = None
    """Precision of cached keys and values; None: that of the activations."""
    weights: str | None = None
    """Format of the weights; None: the precision's own."""
    engine: str | None = None
    """Serving engine whose limits hold; None: the usual one."""


def parse_generate(text: str) -> GenerateRequest:
    written = assignments(joined_parts(text), allowed=KEYS, what="generate", value_separator=";")
    missing = [key for key in NEEDED if key not in written]
    if missing:
        raise ConfigError(f"generate {text!r} lacks {', '.join(missing)}: write prompt=N,response=N")
    prompt, response = (parse_lengths(written[key].replace(";", ","), what=key) for key in NEEDED)
    whole = {
        key: whole_number(written[key], key=key, what="generate")
        for key in ("longest", "answers", "running")
        if key in written
    }
    named = {key: written[key] for key in ("cache", "weights", "engine") if key in written}
    if "longest" in whole and not response.is_fixed:
        raise ConfigError(f"generate {text!r} gives longest beside a distribution: write max= in the distribution")
    rate = parse_rate(written["rate"], text) if "rate" in written else None
    return GenerateRequest(
        prompt=prompt, response=response, rate=rate, longest=whole.get("longest"), answers=whole.get("answers", 1),
        running=whole.get("running"), **named,
    )  # fmt: skip


def joined_parts(text: str) -> str:
    """The text with semicolons in place of the commas inside distributions, whose parts belong together."""
    parts: list[str] = []
    for part in text.split(","):
        name = part.partition("=")[0].strip()
        if name in PART_NAMES and parts and ":" in parts[-1]:
            parts[-1] += f";{part.strip()}"
        else:
            parts.append(part)
    return ",".join(parts)


def parse_rate(written: str, text: str) -> float:
    try:
        rate = float(written)
    except ValueError as error:
        raise ConfigError(f"generate {text!r} has rate={written}, which is not a number: write rate=4") from error
    if not 0.0 < rate < 1e6:
        raise ConfigError(f"generate {text!r} has rate={written}: requests a second are above 0 and below a million")
    return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A batch of `gbs` answers over `dp` copies of the model, each split over `tp` x `pp` devices."""

    prompt_len: int
    """Mean length of the prompts."""
    response_len: int
    """Mean length of the answers."""
    longest_len: int | None = None
    """Longest answer, where `answers` does not say it; None: all answers have the mean length."""
    prompts: LengthDistribution | None = None
    """Lengths of the prompts; None: all have the mean length."""
    answers: LengthDistribution | None = None
    """Lengths of the answers; None: by mean and longest."""
    num_per_prompt: int = 1
    """Answers to each prompt, which is read once for all of them."""
    requests_per_s: float | None = None
    """Arrivals over all copies; None: all requests wait from the start."""
    max_running: int | None = None
    """Sequences that a copy runs at once at most; None: as engine and memory allow."""
    weights: str = ""
    """Format of the weights; empty: the recipe's own."""
    cache_bytes: float | None = None
    """Width of a cached element; None: that of the recipe's activations."""
    taken_bytes: float = 0.0
    """Memory of each device that something else holds."""
    engine: ServingEngine | None = None
    """Serving engine whose limits hold; None: memory alone limits."""
    has_parallel_blocks: bool = False
    """Attention and feed-forward of a layer are added up in one sum over tensor parallelism."""

    @property
    def prompt_lengths(self) -> LengthDistribution:
        return fixed(self.prompt_len) if self.prompts is None else self.prompts

    def answer_lengths(self, constants: Constants) -> LengthDistribution:
        """Lengths of the answers; where only their mean and the longest are given, spread as usual."""
        if self.answers is not None:
            return self.answers
        return lengths_with_limit(
            self.response_len, self.longest_len or 0, least_cv=constants.answer_spread.value,
            limit_frac=constants.answers_at_limit.value,
        )  # fmt: skip

    @property
    def longest(self) -> int:
        """Longest answer; of answers without a limit, what one of a thousand exceeds."""
        if self.answers is not None:
            return round(min(self.answers.longest, self.answers.quantile(0.999)))
        return self.response_len if self.longest_len is None else self.longest_len


def generation_of(catalog: Catalog, request: GenerateRequest) -> Generation:
    """What a request says, with every name resolved."""
    prompt, response = request.prompt, request.response
    if request.weights is not None:
        stored_bytes(request.weights)  # an unknown format is refused here
    return Generation(
        prompt_len=max(round(prompt.mean), 1), response_len=max(round(response.mean), 1), longest_len=request.longest,
        prompts=None if prompt.is_fixed else prompt, answers=None if response.is_fixed else response,
        num_per_prompt=request.answers, requests_per_s=request.rate, max_running=request.running,
        weights=request.weights or "", cache_bytes=None if request.cache is None else cached_bytes(request.cache),
        engine=catalog.engine(request.engine or USUAL_ENGINE),
    )  # fmt: skip


def changed_generation(generation: Generation, written: Mapping[str, str], catalog: Catalog | None) -> Generation:
    """The same generation with some parts of the request written otherwise."""
    changes: dict[str, Any] = {}
    for key, value in written.items():
        if key in ("prompt", "response"):
            lengths = parse_lengths(value.replace(";", ","), what=key)
            names = ("prompt_len", "prompts") if key == "prompt" else ("response_len", "answers")
            changes |= {names[0]: max(round(lengths.mean), 1), names[1]: None if lengths.is_fixed else lengths}
            if key == "response":
                changes["longest_len"] = None
        elif key in ("answers", "running"):
            name = "num_per_prompt" if key == "answers" else "max_running"
            changes[name] = whole_number(value, key=key, what="what-if")
        elif key == "rate":
            changes["requests_per_s"] = parse_rate(value, f"rate={value}")
        elif key == "cache":
            changes["cache_bytes"] = cached_bytes(value)
        elif key == "weights":
            stored_bytes(value)
            changes["weights"] = value
        elif key == "engine":
            if catalog is None:
                raise ConfigError(f"what-if engine={value}: this question has no catalogue to look it up in")
            changes["engine"] = catalog.engine(value)
    return replace(generation, **changes)


def generation_input(generation: Generation, layout: Layout, recipe: Recipe) -> dict[str, Any]:
    """What a prediction of generation depends on beside model and machine; what is usual is left out."""
    width = recipe.activation_bytes if generation.cache_bytes is None else generation.cache_bytes
    unusual = {
        "pp": int(layout.pp) if int(layout.pp) > 1 else None,
        "ep": int(layout.ep) if int(layout.ep) > 1 else None,
        "prompts": None if generation.prompts is None else generation.prompts.text,
        "answers": None if generation.answers is None else generation.answers.text,
        "num_per_prompt": generation.num_per_prompt if generation.num_per_prompt > 1 else None,
        "requests_per_s": generation.requests_per_s,
        "max_running": generation.max_running,
        "weights": generation.weights or None,
        "engine": None if generation.engine is None else generation.engine.id,
        "has_parallel_blocks": generation.has_parallel_blocks or None,
    }
    return {
        "cache_bytes": width,
        "tp": int(layout.tp),
        "batch": int(layout.gbs),
        "prompt_len": generation.prompt_len,
        "response_len": generation.response_len,
        "longest_len": generation.longest,
        **{key: value for key, value in unusual.items() if value is not None},
    }


def no_room_words(serving: Serving, generation: Generation, memory_bytes: float) -> str:
    """Why a device has no room for one sequence, and what helps on such a device."""
    machine, engine = serving.machine, serving.engine
    share = machine.constants.serving_memory_share.value if engine is None else engine.memory_share.value
    usable_bytes = machine.memory_bytes * (1.0 if engine is not None and engine.shares_free_memory else share)
    needed, usable, whole = (
        units.format(size, units.BYTES)
        for size in (memory_bytes + generation.taken_bytes, usable_bytes, machine.memory_bytes)
    )
    if machine.accelerator.kind == "cpu":
        narrower = " or --precision bf16" if serving.weight_bytes > NARROWER_BYTES else ""
        step = f"choose a smaller model{narrower}"
    else:
        step = "raise tp, or choose a smaller model or narrower weights"
    return f"one sequence with the weights needs {needed}, and a device gives an engine {usable} of {whole}: {step}"


def check_not_split(layout: Layout) -> None:
    split = [name for name in NOT_SPLIT if int(getattr(layout, name)) > 1]
    if split:
        raise ConfigError(f"generation is split by tp, pp, ep and dp: {split[0]} above 1 is not covered, set it to 1")


def check_generation(spec: ModelSpec, layout: Layout, generation: Generation) -> None:
    """Refuse splits that do not divide the model, and lengths and batches that cannot be."""
    heads, tp, batch = spec.transformer.heads, int(layout.tp), int(layout.gbs)
    lengths = generation.prompt_len, generation.response_len
    check_not_split(layout)
    if heads % tp:
        raise ConfigError(f"tp={tp} does not divide {heads} attention heads: choose a divisor of {heads}")
    _check_spread(spec, layout)
    if batch < 1 or min(lengths) < 1:
        raise ConfigError(f"batch {batch} and lengths {lengths[0]} and {lengths[1]} must be 1 or more")
    if batch % generation.num_per_prompt:
        raise ConfigError(f"gbs={batch} answers are not whole groups of {generation.num_per_prompt}: choose a multiple")
    if generation.answers is None and generation.longest < generation.response_len:
        raise ConfigError(
            f"longest={generation.longest} is shorter than the mean answer of {generation.response_len}: "
            "give the longest answer"
        )


def _check_spread(spec: ModelSpec, layout: Layout) -> None:
    """Refuse pipelines longer than the model and experts that do not divide."""
    shape, tp = spec.transformer, int(layout.tp)
    pp, ep, devices = int(layout.pp), int(layout.ep), tp * int(layout.dp)
    if pp > shape.layers:
        raise ConfigError(f"pp={pp} is more pipeline ranks than {shape.layers} layers: choose at most {shape.layers}")
    if ep == 1:
        return
    if shape.moe is None:
        raise ConfigError(f"ep={ep} needs a mixture of experts: {spec.id} has none, set ep=1")
    if shape.moe.num_experts % ep or devices % ep or (ep % tp and tp % ep):
        raise ConfigError(
            f"ep={ep} does not divide {shape.moe.num_experts} experts and dp x tp = {devices} devices: choose a divisor"
        )
