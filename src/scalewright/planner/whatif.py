"""What limits a predicted step, and what one change at a time would give. Every change goes through `predict`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scalewright.catalog.types import Stack
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.machine import Machine, machine_from_system, pick_partition
from scalewright.errors import ConfigError
from scalewright.planner.predict import MIN_EFFICIENT_HEAD_DIM_MULTIPLE, Prediction, predict
from scalewright.workload.layout import Recompute

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog
    from scalewright.workload.layout import Layout

RECOMPUTE_LEVELS: tuple[Recompute, ...] = ("none", "selective", "operators", "full")
"""From nothing to whole layers: each keeps less and computes more again."""
PASSES = ("_forward", "_backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A term of the step, the passes of one kind together, and why it is there."""

    name: str
    time_s: float
    share_frac: float
    """Of the step."""
    reason: str
    """Why it takes time and what would reduce it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One knob turned, everything else as it was."""

    name: str
    prediction: Prediction
    """After the change."""
    ratio_frac: float
    """New step time over the old one: below 1 is faster."""

    @property
    def step_time_s(self) -> float:
        return float(self.prediction.cost.time.total)

    @property
    def memory_bytes(self) -> float:
        """Peak allocated on the worst rank."""
        return float(self.prediction.cost.memory.total)

    @property
    def gain_frac(self) -> float:
        """Part of the step time saved; negative where the change costs time."""
        return 1.0 - self.ratio_frac

    @property
    def fits(self) -> bool:
        return bool(self.prediction.cost.fits)


def term_times(time: Breakdown) -> list[tuple[str, float]]:
    """The terms of a time, largest first; forward and backward of one kind count as one."""
    times: dict[str, float] = {}
    for _, term in time.walk():
        if not term.parts:
            name = term.name
            for suffix in PASSES:
                name = name.removesuffix(suffix)
            times[name] = times.get(name, 0.0) + float(term.total)
    return sorted(((name, time) for name, time in times.items() if time > 0.0), key=lambda item: (-item[1], item[0]))


def limits(prediction: Prediction) -> list[Limit]:
    """The terms of the step, largest first, each with why it is there."""
    total = float(prediction.cost.time.total)
    return [
        Limit(name=name, time_s=time, share_frac=time / total, reason=reason(name, prediction))
        for name, time in term_times(prediction.cost.time)
    ]


def reason(name: str, prediction: Prediction) -> str:
    """Why a term takes time in this prediction and what would reduce it, in one sentence."""
    explain = REASONS.get(name)
    return "its equation below says what it depends on" if explain is None else explain(prediction)


def _matmul(p: Prediction) -> str:
    rate = p.machine.sustained_flop_per_s(p.recipe.matmul) / p.machine.peak_flop_per_s(p.recipe.matmul)
    return (
        f"useful work in {p.recipe.matmul}, at most {rate:.0%} of dense peak in a long run; larger products "
        "(micro-batch up, tp down) or fewer bits come closer to peak"
    )


def _attention(p: Prediction) -> str:
    shape = p.spec.transformer
    if not p.stack.fused_attention:
        return "scores are written to memory: a stack with fused attention avoids most of it"
    return f"grows with the square of {shape.seq} tokens: a shorter sequence or a stack with faster kernels"


def _elementwise(p: Prediction) -> str:
    split = "" if p.layout.sp or int(p.layout.tp) == 1 else "sequence parallel (sp=1) or "
    return f"norms, residuals and activations move memory: {split}a stack that fuses them"


def _recompute(p: Prediction) -> str:
    return f"recompute={p.layout.recompute} trades time for memory: store more where memory is left"


def _head(p: Prediction) -> str:
    last = f", and only the last of {p.layout.pp} stages has it" if int(p.layout.pp) > 1 else ""
    return f"{p.spec.transformer.vocab:,} output scores per token{last}: fewer layers on that stage or a fused loss"


def _tensor(p: Prediction) -> str:
    overlap = "" if p.stack.overlaps_tensor else ", or a stack that overlaps them with products"
    across = " that leave the node" if int(p.layout.tp) > p.machine.gpus_per_node else ""
    return f"four sums per layer over tp={p.layout.tp} devices{across}: smaller tp{overlap}"


def _context(p: Prediction) -> str:
    return f"keys and values go round cp={p.layout.cp} devices faster than attention hides: smaller cp or more tokens"


def _expert(p: Prediction) -> str:
    inside = "keep ep inside a node" if int(p.layout.ep) > p.machine.gpus_per_node else "smaller ep"
    return f"tokens travel to the experts of ep={p.layout.ep} devices and back: {inside} or a faster network"


def _transfer(p: Prediction) -> str:
    lower = "smaller pp or vpp" if int(p.layout.vpp) > 1 else "smaller pp"
    return f"activations pass between {p.layout.pp} stages: {lower}, or a faster network"


def _data(p: Prediction) -> str:
    if p.layout.zero >= 3:
        return "weights are gathered for each micro-batch: larger micro-batch or a lower ZeRO stage"
    return "gradients take longer than the backward pass hides: more work per step, smaller dp or faster network"


def _host(p: Prediction) -> str:
    return (
        f"the host issues kernels slower than the device runs them ({p.stack.id}): larger micro-batch, compiled stack"
    )


def _bubble(p: Prediction) -> str:
    m = p.layout.num_micro_batches
    return (
        f"{p.layout.pp} stages wait while {m} micro-batches fill and drain the pipeline: "
        "more micro-batches (larger gbs, smaller mbs or dp), larger vpp or smaller pp"
    )


def _stragglers(p: Prediction) -> str:
    return f"the slowest of {p.num_nodes} nodes sets the pace: fewer nodes, or find and drain slow ones"


def _optimizer(p: Prediction) -> str:
    if p.mode.is_offload:
        return "the optimizer runs at the host's memory rate: more devices share it, or keep the state on the devices"
    if p.layout.zero == 0 and int(p.layout.dp) > 1:
        return "each copy updates all of its parameters: zero=1 shares the update over dp"
    return "one pass over the optimizer state: more devices per parameter, or a larger batch per step"


def _data_wait(p: Prediction) -> str:
    place = "" if p.feed.storage is None else f" than {p.feed.storage.id}"
    workers = f"more than {p.feed.num_loaders} loader workers a device"
    return f"samples arrive slower than steps use them: {workers}, or faster storage{place}"


def _offload(_: Prediction) -> str:
    return "gradients go to the host and weights come back: more devices share it, or keep the state on the devices"


def _host_per_step(_: Prediction) -> str:
    return "fixed work once per step (data, clipping, logging): a larger batch per step spreads it"


REASONS: dict[str, Callable[[Prediction], str]] = {
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
    "pipeline_bubble": _bubble,
    "stragglers": _stragglers,
    "optimizer": _optimizer,
    "host_per_step": _host_per_step,
    "data": _data_wait,
    "offload_transfer": _offload,
}


def changes(prediction: Prediction, catalog: Catalog) -> list[Change]:
    """Every single change that divides the model and changes anything, the largest gain first."""
    before = float(prediction.cost.time.total)
    found = []
    for name, ask in _candidates(prediction, catalog):
        try:
            after = ask()
        except ConfigError:
            continue  # it does not divide, or the machine cannot do it: not an option
        same_time = float(after.cost.time.total) == before
        if same_time and float(after.cost.memory.total) == float(prediction.cost.memory.total):
            continue
        found.append(Change(name=name, prediction=after, ratio_frac=float(after.cost.time.total) / before))
    return sorted(found, key=lambda change: (change.ratio_frac, change.name))


Candidate = tuple[str, Callable[[], Prediction]]


def _candidates(prediction: Prediction, catalog: Catalog) -> Iterator[Candidate]:
    for name, layout in _other_layouts(prediction.layout):
        if has_layout(prediction.stack, layout):
            yield name, _asking(prediction, layout=layout)
    yield from _aligned_heads(prediction)
    yield from _other_transports(prediction, catalog)
    for stack_id in catalog.ids("stacks"):
        stack = catalog.stack(stack_id)
        if stack_id != prediction.stack.id and has_layout(stack, prediction.layout):
            yield f"stack {stack_id}", _asking(prediction, stack=stack)


def has_layout(stack: Stack, layout: Layout) -> bool:
    """Whether a stack splits a model in all the ways of a layout: what it lacks is no change to offer."""
    split = [name for name in ("tp", "pp", "cp", "ep") if int(getattr(layout, name)) > 1]
    return layout.zero <= stack.max_zero and all(name in stack.splits for name in split)


def _asking(prediction: Prediction, **changed: object) -> Callable[[], Prediction]:
    """The same question with some of its parts replaced."""
    p = prediction
    question = {"spec": p.spec, "machine": p.machine, "layout": p.layout, "recipe": p.recipe, "stack": p.stack}
    question |= {"mode": p.mode, "feed": p.feed}
    return lambda: predict(**(question | changed))  # type: ignore[arg-type]


def _other_layouts(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Neighbours of a layout on the same devices with the same batch; some may not divide the model."""
    tp, dp, mbs, vpp = int(layout.tp), int(layout.dp), int(layout.mbs), int(layout.vpp)
    yield f"micro-batch mbs={2 * mbs}", replace(layout, mbs=2 * mbs)
    if mbs % 2 == 0:
        yield f"micro-batch mbs={mbs // 2}", replace(layout, mbs=mbs // 2)
    level = RECOMPUTE_LEVELS.index("selective" if layout.recompute == "modules" else layout.recompute)
    for other in (level - 1, level + 1):
        if 0 <= other < len(RECOMPUTE_LEVELS):
            yield f"recompute={RECOMPUTE_LEVELS[other]}", replace(layout, recompute=RECOMPUTE_LEVELS[other])
    yield f"interleave vpp={2 * vpp}", replace(layout, vpp=2 * vpp)
    if tp % 2 == 0:
        half = replace(layout, tp=tp // 2, dp=2 * dp, sp=layout.sp and tp > 2)
        yield f"tp={tp // 2}, dp={2 * dp}", half
    if dp % 2 == 0:
        yield f"tp={2 * tp}, dp={dp // 2}", replace(layout, tp=2 * tp, dp=dp // 2)
    if layout.zero < 3:
        yield f"zero={layout.zero + 1}", replace(layout, zero=layout.zero + 1)
    if layout.zero < 2:
        yield "zero=3", replace(layout, zero=3)
    if level < RECOMPUTE_LEVELS.index("full") - 1:
        yield "recompute=full", replace(layout, recompute="full")
    if tp > 1 and not layout.sp:
        yield "sequence parallel sp=1", replace(layout, sp=True)


def _aligned_heads(prediction: Prediction) -> Iterator[Candidate]:
    """The model with the nearest head size that kernels like and the same width: another model, so it says so."""
    shape, step, tp = prediction.spec.transformer, MIN_EFFICIENT_HEAD_DIM_MULTIPLE, int(prediction.layout.tp)
    if shape.head_dim % step == 0 or shape.mla is not None:
        return
    width, grouped = shape.heads * shape.head_dim, shape.kv_heads != shape.heads
    unit = math.lcm(tp, shape.kv_heads) if grouped else tp
    sizes = [d for d in range(step, width + 1, step) if width % (d * unit) == 0]
    if not sizes:
        return
    size = min(sizes, key=lambda d: abs(d - shape.head_dim))
    heads = width // size
    kv_heads = shape.kv_heads if grouped else heads
    aligned = shape.model_copy(update={"head_dim": size, "heads": heads, "kv_heads": kv_heads})
    yield f"{heads} heads of {size}", _asking(prediction, spec=replace(prediction.spec, shape=aligned))


def _other_transports(prediction: Prediction, catalog: Catalog) -> Iterator[Candidate]:
    for name, machine in other_machines(prediction.machine, catalog, num_nodes=prediction.num_nodes):
        yield f"transport {name}", _asking(prediction, machine=machine)


def other_machines(machine: Machine, catalog: Catalog, *, num_nodes: int) -> Iterator[tuple[str, Machine]]:
    """The same machine by other ways over its fabric; one that is no catalogued system has none."""
    system_name, _, partition_name = machine.name.partition("/")
    if system_name not in catalog.ids("systems") or num_nodes == 1:
        return
    partition = pick_partition(catalog.system(system_name), partition_name)
    offered = catalog.fabric(partition.fabric).transports if partition.fabric is not None else ()
    for name in offered:
        if name != machine.transport:
            yield name, machine_from_system(catalog, system_name, partition_name=partition_name, transport_name=name)
