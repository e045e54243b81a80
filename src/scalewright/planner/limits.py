"""What limits a predicted stage: the terms of its time, largest first, each with why it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scalewright.costs.breakdown import Breakdown
from scalewright.planner.question import Question, TransformerStep

PASSES = ("_forward", "_backward")
EXCHANGE_TERMS = (
    "tensor_parallel", "prompt_tensor_parallel", "pipeline", "prompt_pipeline", "expert_exchange",
    "prompt_expert_exchange",
)  # fmt: skip
"""Terms of generation in which devices exchange data."""
IDLE_TERMS = (*EXCHANGE_TERMS, "kernels", "prompt_kernels", "engine", "prompt_engine")
"""Terms of generation in which a device neither reads nor computes: it exchanges, or waits for a launch."""


def used_frac(time: Breakdown) -> float:
    """The share of a generation in which a device reads or computes: it neither exchanges nor waits for a launch."""
    terms = terms_s(time)
    return 1.0 - sum(terms.get(name, 0.0) for name in IDLE_TERMS) / float(time.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A term of the time, the passes of one kind together, and why it is there."""

    name: str
    time_s: float
    share_frac: float
    """Of the whole time."""
    reason: str
    """Why it takes time and what would reduce it."""


def terms_s(time: Breakdown) -> dict[str, float]:
    """Leaves of a time in their own order; forward and backward of one kind count as one."""
    times: dict[str, float] = {}
    for _, term in time.walk():
        if not term.parts:
            name = term.name
            for suffix in PASSES:
                name = name.removesuffix(suffix)
            times[name] = times.get(name, 0.0) + float(term.total)
    return times


def term_times(time: Breakdown) -> list[tuple[str, float]]:
    """The terms of a time that are above zero, largest first."""
    positive = [(name, seconds) for name, seconds in terms_s(time).items() if seconds > 0.0]
    return sorted(positive, key=lambda item: (-item[1], item[0]))


def differences(before: Breakdown, after: Breakdown) -> list[tuple[str, float]]:
    """Seconds that `after` spends more on each term, the largest difference first."""
    first, second = terms_s(before), terms_s(after)
    names = dict.fromkeys((*first, *second))
    deltas = [(name, second.get(name, 0.0) - first.get(name, 0.0)) for name in names]
    return sorted((delta for delta in deltas if delta[1] != 0.0), key=lambda delta: -abs(delta[1]))


def limits(question: Question, time: Breakdown) -> list[Limit]:
    """The terms of the time, largest first, each with why it is there."""
    total = float(time.total)
    return [
        Limit(name=name, time_s=seconds, share_frac=seconds / total, reason=reason(name, question))
        for name, seconds in term_times(time)
    ]


def reason(name: str, question: Question) -> str:
    """Why a term takes time in this stage and what would reduce it, in one sentence."""
    if not isinstance(question.stage, TransformerStep):
        return STAGE_REASONS.get(name, OF_THE_UPDATE)
    explain = REASONS.get(name)
    return "its equation below says what it depends on" if explain is None else explain(question)


def _matmul(q: Question) -> str:
    rate = q.machine.sustained_flop_per_s(q.recipe.matmul) / q.machine.peak_flop_per_s(q.recipe.matmul)
    return (
        f"useful work in {q.recipe.matmul}, at most {rate:.0%} of dense peak in a long run; larger products "
        "(micro-batch up, tp down) or fewer bits come closer to peak"
    )


def _attention(q: Question) -> str:
    shape = q.spec.transformer
    if not q.stack.fused_attention:
        return "scores are written to memory: a stack with fused attention avoids most of it"
    return f"grows with the square of {shape.seq} tokens: a shorter sequence or a stack with faster kernels"


def _elementwise(q: Question) -> str:
    split = "" if q.layout.sp or int(q.layout.tp) == 1 else "sequence parallel (sp=1) or "
    return f"norms, residuals and activations move memory: {split}a stack that fuses them"


def _recompute(q: Question) -> str:
    return f"recompute={q.layout.recompute} trades time for memory: store more where memory is left"


def _head(q: Question) -> str:
    last = f", and only the last of {q.layout.pp} pipeline ranks has it" if int(q.layout.pp) > 1 else ""
    return f"{q.spec.transformer.vocab:,} output scores per token{last}: fewer layers on that rank or a fused loss"


def _tensor(q: Question) -> str:
    overlap = "" if q.stack.overlaps_tensor else ", or a stack that overlaps them with products"
    across = " that leave the node" if int(q.layout.tp) > q.machine.gpus_per_node else ""
    return f"four sums per layer over tp={q.layout.tp} devices{across}: smaller tp{overlap}"


def _context(q: Question) -> str:
    return f"keys and values go round cp={q.layout.cp} devices, which slows attention down: smaller cp or more tokens"


def _expert(q: Question) -> str:
    inside = "keep ep inside a node" if int(q.layout.ep) > q.machine.gpus_per_node else "smaller ep"
    return f"tokens travel to the experts of ep={q.layout.ep} devices and back: {inside} or a faster network"


def _transfer(q: Question) -> str:
    lower = "smaller pp or vpp" if int(q.layout.vpp) > 1 else "smaller pp"
    return f"activations pass between {q.layout.pp} pipeline ranks: {lower}, or a faster network"


def _data(q: Question) -> str:
    if q.layout.zero >= 3:
        return "weights are gathered for each micro-batch: larger micro-batch or a lower ZeRO stage"
    return "gradients take longer than the backward pass hides: more work per step, smaller dp or faster network"


def _host(q: Question) -> str:
    return (
        f"the host issues kernels slower than the device runs them ({q.stack.id}): larger micro-batch, compiled stack"
    )


def _kernel_gaps(_: Question) -> str:
    return (
        "each kernel takes its time to start and to drain, for any amount of work: larger micro-batch, smaller tp or cp"
    )


def _gradient_sums(_: Question) -> str:
    return "gradients of each micro-batch are added to those before: larger micro-batch, fewer of them"


def _bubble(q: Question) -> str:
    m = q.layout.num_micro_batches
    return (
        f"{q.layout.pp} pipeline ranks wait while {m} micro-batches fill and drain the pipeline: "
        "more micro-batches (larger gbs, smaller mbs or dp), larger vpp or smaller pp"
    )


def _stragglers(q: Question) -> str:
    return f"the slowest of {q.num_nodes} nodes sets the pace: fewer nodes, or find and drain slow ones"


def _optimizer(q: Question) -> str:
    if q.mode.is_offload:
        return "the optimizer runs at the host's memory rate: more devices share it, or keep the state on the devices"
    if q.layout.zero == 0 and int(q.layout.dp) > 1:
        return "each copy updates all of its parameters: zero=1 shares the update over dp"
    return "one pass over the optimizer state: more devices per parameter, or a larger batch per step"


def _data_wait(q: Question) -> str:
    place = "" if q.feed.storage is None else f" than {q.feed.storage.id}"
    workers = f"more than {q.feed.num_loaders} loader workers a device"
    return f"samples arrive slower than steps use them: {workers}, or faster storage{place}"


def _offload(_: Question) -> str:
    return "gradients go to the host and weights come back: more devices share it, or keep the state on the devices"


def _host_per_step(_: Question) -> str:
    return "fixed work once per step (data, clipping, logging): a larger batch per step spreads it"


REASONS: dict[str, Callable[[Question], str]] = {
    "matmul": _matmul,
    "attention": _attention,
    "elementwise": _elementwise,
    "recompute": _recompute,
    "head_and_loss": _head,
    "tensor_parallel": _tensor,
    "context_parallel": _context,
    "expert_parallel": _expert,
    "pipeline_transfer": _transfer,
    "data_parallel": _data,
    "host": _host,
    "kernel_gaps": _kernel_gaps,
    "pipeline_bubble": _bubble,
    "stragglers": _stragglers,
    "optimizer": _optimizer,
    "host_per_step": _host_per_step,
    "gradient_sums": _gradient_sums,
    "data": _data_wait,
    "offload_transfer": _offload,
}
STAGE_REASONS = {
    "weights": "every weight crosses memory once a step: more sequences at once, fewer bits or a larger tp",
    "experts": "each expert that a token asks for crosses memory: more sequences at once, fewer bits or a larger tp",
    "cache": "keys and values of all sequences cross memory each step: fewer bits in the cache or shorter contexts",
    "head": "one score per word and sequence: fewer bits or a larger tp",
    "tensor_parallel": "two sums a layer and token that nothing hides: a smaller tp where memory allows",
    "kernels": "the start and end of each kernel, for any amount of work: fewer, larger layers; more sequences at once",
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
