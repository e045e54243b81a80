"""What limits generation, an RL step or a vision step, and what one change at a time would give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scalewright.costs.breakdown import Breakdown
from scalewright.errors import ScalewrightError
from scalewright.planner.stages.generation_rl import RlPrediction
from scalewright.planner.stages.serving import GenerationPrediction, predict_generation
from scalewright.planner.stages.vision_step import VisionPrediction, predict_vision
from scalewright.planner.whatif import Limit, other_machines, term_times
from scalewright.workload.precision import RECIPES, recipe

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog

StagePrediction = GenerationPrediction | RlPrediction | VisionPrediction
NARROWER = {"fp32": "bf16", "tf32": "bf16", "fp16": "fp8", "bf16": "fp8"}
"""What a change of precision asks for."""
REASONS = {
    "weights": "every weight crosses memory once a step: more sequences at once, fewer bits or a larger tp",
    "experts": "each expert that a token asks for crosses memory: more sequences at once, fewer bits or a larger tp",
    "cache": "keys and values of all sequences cross memory each step: fewer bits in the cache or shorter contexts",
    "head": "one score per word and sequence: fewer bits or a larger tp",
    "tensor_parallel": "two sums a layer and token that nothing hides: a smaller tp where memory allows",
    "kernels": "starting and ending kernels, whatever their work: fewer, larger layers; more sequences at once",
    "engine": "the engine's host work in each step: more sequences at once, or several tokens a step",
    "prompt_products": "arithmetic of the prompts: fewer bits, shorter or shared prompts",
    "prompt_attention": "grows with the square of a prompt: shorter or shared prompts",
    "prompt_elementwise": "norms and activations of the prompts move memory: shorter or shared prompts",
    "prompt_tensor_sums": "sums over tp for each prompt: a smaller tp",
    "prompt_engine": "the engine's host work for each batch of prompts",
    "reward": "the reward's own time, as stated",
    "old_log_probs": "a forward pass over all answers: take the generator's own log-probabilities where they agree",
    "reference_log_probs": "a forward pass of the reference model: train without it where the objective allows",
    "weight_sync": "new weights reach the generator: send them peer to peer, or in fewer bits",
    "convolution": "arithmetic and traffic of the convolutions: fewer bits; channels last on matrix units",
    "norm_and_activation": "norms and activations move memory: a compiled stack fuses them, channels last streams",
    "layout_change": "activations are turned for the matrix units each time: channels last avoids it",
    "pool": "pooling moves memory",
    "casts": "mixed precision changes widths of weights, gradients and images",
    "update": "one pass over weights, gradients and momentum: a larger batch spreads it",
    "gradient_exchange": "gradients that the backward pass does not hide: a larger batch or a faster network",
    "host": "the host issues kernels slower than the device runs them: a larger batch or captured graphs",
    "stragglers": "the slowest node sets the pace: fewer nodes, or find and drain slow ones",
    "data": "images are decoded slower than the device trains: more workers, or decode on the device",
}
OF_THE_UPDATE = "part of the update: ask for the training step alone to see why"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChange:
    """One knob turned, everything else as it was."""

    name: str
    rate_ratio_frac: float
    """Images, tokens or steps per second after over before: above 1 is faster."""
    memory_bytes: float
    fits: bool


def stage_limits(prediction: StagePrediction) -> list[Limit]:
    """Terms of the time, largest first, each with why it is there."""
    time: Breakdown = prediction.time
    total = float(time.total)
    return [
        Limit(name=name, time_s=seconds, share_frac=seconds / total, reason=REASONS.get(name, OF_THE_UPDATE))
        for name, seconds in term_times(time)
    ]


def stage_changes(prediction: StagePrediction, catalog: Catalog) -> list[StageChange]:
    """Single changes that are possible and change anything, the largest gain first."""
    if isinstance(prediction, RlPrediction):
        candidates = _rl_candidates(prediction)
    elif isinstance(prediction, VisionPrediction):
        candidates = _vision_candidates(prediction, catalog)
    else:
        candidates = _generation_candidates(prediction)
    found = []
    for name, ask in candidates:
        try:
            change = ask()
        except ScalewrightError:
            continue  # it does not divide, or the machine cannot do it: not an option
        if change[0] != 1.0:
            found.append(StageChange(name=name, rate_ratio_frac=change[0], memory_bytes=change[1], fits=change[2]))
    return sorted(found, key=lambda change: (-change.rate_ratio_frac, change.name))


Candidate = tuple[str, Callable[[], tuple[float, float, bool]]]


def _vision_candidates(p: VisionPrediction, catalog: Catalog) -> Iterator[Candidate]:
    def asking(**changed: object) -> Callable[[], tuple[float, float, bool]]:
        question: dict[str, object] = {
            "spec": p.spec, "machine": p.machine, "layout": p.layout, "recipe": p.recipe, "stack": p.stack,
            "channels_last": p.channels_last, "feed": p.feed,
        }  # fmt: skip

        def ask() -> tuple[float, float, bool]:
            after = predict_vision(**(question | changed))  # type: ignore[arg-type]
            return after.num_images_per_s / p.num_images_per_s, float(after.memory.total), after.fits

        return ask

    batch, n = int(p.layout.mbs), int(p.layout.dp)
    yield f"batch {2 * batch} a device", asking(layout=replace(p.layout, mbs=2 * batch, gbs=2 * batch * n))
    if batch % 2 == 0:
        yield f"batch {batch // 2} a device", asking(layout=replace(p.layout, mbs=batch // 2, gbs=batch // 2 * n))
    order = "first" if p.channels_last else "last"
    yield f"channels {order}", asking(channels_last=not p.channels_last)
    other = "eager" if p.stack.compiled else "compiled"
    yield f"stack {other}", asking(stack=catalog.stack(other))
    if p.recipe.name in NARROWER and NARROWER[p.recipe.name] != "fp8":
        yield f"precision {NARROWER[p.recipe.name]}", asking(recipe=recipe(NARROWER[p.recipe.name]))
    yield f"{2 * p.feed.num_loaders} loader workers", asking(feed=replace(p.feed, num_loaders=2 * p.feed.num_loaders))
    for name, machine in other_machines(p.machine, catalog, num_nodes=p.machine.num_nodes_for(n)):
        yield f"transport {name}", asking(machine=machine)


def _generation_candidates(p: GenerationPrediction) -> Iterator[Candidate]:
    serving = p.serving

    def asking(**changed: object) -> Callable[[], tuple[float, float, bool]]:
        question: dict[str, object] = {
            "spec": p.spec, "machine": serving.machine, "stack": serving.stack, "recipe": serving.recipe,
            "num_gpus": p.num_gpus, "tp": serving.tp, "batch": p.batch, "prompt_len": p.prompt_len,
            "response_len": p.response_len, "longest_len": p.longest_len,
        }  # fmt: skip

        def ask() -> tuple[float, float, bool]:
            after = predict_generation(**(question | changed))  # type: ignore[arg-type]
            ratio = after.num_generated_per_s / p.num_generated_per_s
            return ratio, float(after.memory.total), after.fits

        return ask

    yield f"batch {2 * p.batch}", asking(batch=2 * p.batch)
    for tp in (2 * serving.tp, serving.tp // 2):
        if tp >= 1:
            yield f"tp={tp}, dp={p.num_gpus // tp}", asking(tp=tp)
    narrower = NARROWER.get(serving.recipe.name)
    if narrower is not None:
        yield f"precision {narrower}", asking(recipe=RECIPES[narrower])
    if serving.cache_bytes > 1.0:
        yield "8-bit cache", asking(cache_bytes=1.0)


def _rl_candidates(p: RlPrediction) -> Iterator[Candidate]:
    """Stages taken away or shortened as far as their own breakdown says; nothing is predicted anew."""
    total = float(p.time.total)
    for name, part in (
        ("no reference model", "reference_log_probs"),
        ("log-probabilities of the generator", "old_log_probs"),
    ):
        saved = float(p.time.part(part).total)
        memory = float(p.memory_update.total)
        yield name, lambda saved=saved, memory=memory: (total / (total - saved), memory, p.fits)  # type: ignore[misc]
