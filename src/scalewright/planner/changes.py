"""What one change at a time would give: neighbouring questions, each answered as any other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Stack
from scalewright.costs.machine import Machine, machine_from_system, pick_partition
from scalewright.errors import ScalewrightError
from scalewright.planner.answer import Answer, Change, answer
from scalewright.planner.generation import Generation
from scalewright.planner.question import Question, TransformerStep, VisionModelStep
from scalewright.planner.stages.transformer_step import MIN_EFFICIENT_HEAD_DIM_MULTIPLE
from scalewright.workload.layout import Layout, Recompute
from scalewright.workload.precision import recipe
from scalewright.workload.rl import RlStep

RECOMPUTE_LEVELS: tuple[Recompute, ...] = ("none", "selective", "operators", "full")
"""From nothing to whole layers: each keeps less and computes more again."""
NARROWER = {"fp32": "bf16", "tf32": "bf16", "fp16": "fp8", "bf16": "fp8"}
"""The precision that a change tries, by the one in use."""
Neighbour = tuple[str, Question]


def changes(before: Answer, catalog: Catalog) -> list[Change]:
    """Single changes that are possible and change anything, the largest gain first."""
    offered = []
    # Energy of a neighbour is not shown, so it is not computed.
    for name, question in _neighbours(replace(before.question, facility=None), catalog):
        try:
            after = answer(question)
        except ScalewrightError:
            continue  # it does not divide, or the machine cannot do it: not an option
        saves_memory = isinstance(question.stage, TransformerStep) and after.memory_bytes != before.memory_bytes
        if after.rate_per_s != before.rate_per_s or saves_memory:
            offered.append(Change(name=name, before=before, after=after))
    return sorted(offered, key=lambda change: (-change.rate_ratio_frac, change.name))


def _neighbours(question: Question, catalog: Catalog) -> Iterator[Neighbour]:
    match question.stage:
        case TransformerStep():
            return _transformer_neighbours(question, catalog)
        case VisionModelStep() as vision:
            return _vision_neighbours(question, vision, catalog)
        case Generation() as generation:
            return _generation_neighbours(question, generation)
        case RlStep() as rl:
            return _rl_neighbours(question, rl)


def _transformer_neighbours(question: Question, catalog: Catalog) -> Iterator[Neighbour]:
    for name, layout in _other_layouts(question.layout):
        if has_layout(question.stack, layout):
            yield name, replace(question, layout=layout)
    yield from _aligned_heads(question)
    yield from _other_transports(question, catalog)
    for stack_id in catalog.ids("stacks"):
        stack = catalog.stack(stack_id)
        if stack_id != question.stack.id and has_layout(stack, question.layout):
            yield f"stack {stack_id}", replace(question, stack=stack)


def has_layout(stack: Stack, layout: Layout) -> bool:
    """Whether a stack splits a model in all the dimensions of a layout: what it lacks is no change to offer."""
    split = [name for name in ("tp", "pp", "cp", "ep") if int(getattr(layout, name)) > 1]
    return layout.zero <= stack.max_zero and all(name in stack.splits for name in split)


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


def _aligned_heads(question: Question) -> Iterator[Neighbour]:
    """The model with the nearest head size that kernels like and the same width: another model, so it says so."""
    shape, step, tp = question.spec.transformer, MIN_EFFICIENT_HEAD_DIM_MULTIPLE, int(question.layout.tp)
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
    yield f"{heads} heads of {size}", replace(question, spec=replace(question.spec, shape=aligned))


def _other_transports(question: Question, catalog: Catalog) -> Iterator[Neighbour]:
    for name, machine in other_machines(question.machine, catalog, num_nodes=question.num_nodes):
        yield f"transport {name}", replace(question, machine=machine)


def other_machines(machine: Machine, catalog: Catalog, *, num_nodes: int) -> Iterator[tuple[str, Machine]]:
    """The same machine with other transports over its fabric; one that is no catalogued system has none."""
    system_name, _, partition_name = machine.name.partition("/")
    if system_name not in catalog.ids("systems") or num_nodes == 1:
        return
    partition = pick_partition(catalog.system(system_name), partition_name)
    offered = catalog.fabric(partition.fabric).transports if partition.fabric is not None else ()
    for name in offered:
        if name != machine.transport:
            other = machine_from_system(catalog, system_name, partition_name=partition_name, transport_name=name)
            yield name, replace(other, network=machine.network)


def _vision_neighbours(question: Question, vision: VisionModelStep, catalog: Catalog) -> Iterator[Neighbour]:
    layout, feed, precision = question.layout, question.feed, question.recipe.name
    batch, n, last = int(layout.mbs), int(layout.dp), question.channels_last
    yield f"batch {2 * batch} a device", replace(question, layout=replace(layout, mbs=2 * batch, gbs=2 * batch * n))
    if batch % 2 == 0:
        half = replace(layout, mbs=batch // 2, gbs=batch // 2 * n)
        yield f"batch {batch // 2} a device", replace(question, layout=half)
    # The order of channels follows the stack unless it is set: keep it while the stack changes.
    question = replace(question, stage=replace(vision, channels_last=last))
    yield f"channels {'first' if last else 'last'}", replace(question, stage=replace(vision, channels_last=not last))
    other = "eager" if question.stack.compiled else "compiled"
    yield f"stack {other}", replace(question, stack=catalog.stack(other))
    if precision in NARROWER and NARROWER[precision] != "fp8":
        yield f"precision {NARROWER[precision]}", replace(question, recipe=recipe(NARROWER[precision]))
    loaders = 2 * feed.num_loaders
    yield f"{loaders} loader workers", replace(question, feed=replace(feed, num_loaders=loaders))
    yield from _other_transports(question, catalog)


def _generation_neighbours(question: Question, generation: Generation) -> Iterator[Neighbour]:
    layout, batch, n = question.layout, int(question.layout.gbs), question.num_gpus
    tp, pp = int(layout.tp), int(layout.pp)
    yield f"batch {2 * batch}", replace(question, layout=replace(layout, gbs=2 * batch))
    for other in (2 * tp, tp // 2):
        if other >= 1 and n % (other * pp) == 0:
            dp = n // (other * pp)
            yield f"tp={other}, dp={dp}", replace(question, layout=replace(layout, tp=other, dp=dp))
    if question.spec.transformer.moe is not None and int(layout.ep) == 1 and n // pp > 1:
        yield f"experts over ep={n // pp}", replace(question, layout=replace(layout, ep=n // pp))
    narrower = NARROWER.get(question.recipe.name)
    if narrower is not None and not generation.weights:
        yield f"precision {narrower}", replace(question, recipe=recipe(narrower))
        yield "4-bit weights", replace(question, stage=replace(generation, weights="int4"))
    width = question.recipe.activation_bytes if generation.cache_bytes is None else generation.cache_bytes
    if width > 1.0:
        yield "8-bit cache", replace(question, stage=replace(generation, cache_bytes=1.0))


def _rl_neighbours(question: Question, rl: RlStep) -> Iterator[Neighbour]:
    """Other generators, precisions and paces of an RL step on the same number of devices."""
    if rl.has_reference:
        yield "no reference model", replace(question, stage=replace(rl, has_reference=False))
    if rl.scores_old:
        yield "log-probabilities of the generator", replace(question, stage=replace(rl, scores_old=False))
    for tp in (2 * rl.rollout_tp, rl.rollout_tp // 2):
        if tp >= 1:
            yield f"generator tp={tp}", replace(question, stage=replace(rl, rollout_tp=tp))
    narrower = NARROWER.get((rl.rollout_recipe or question.recipe).name)
    if narrower is not None:
        yield f"generator in {narrower}", replace(question, stage=replace(rl, rollout_recipe=recipe(narrower)))
    if rl.sync != "peer_to_peer":
        yield "weight sync peer to peer", replace(question, stage=replace(rl, sync="peer_to_peer"))
    if not rl.packs:
        yield "packed sequences", replace(question, stage=replace(rl, packs=True))
    if rl.token_budget:
        yield "no token budget", replace(question, stage=replace(rl, token_budget=0))
        yield f"retention {2 * rl.retention}", replace(question, stage=replace(rl, retention=2 * rl.retention))
    elif rl.has_tail and not rl.staleness_frac:
        budget = rl.usual_budget
        yield f"token budget of {budget}", replace(question, stage=replace(rl, token_budget=budget))
    dp = int(question.layout.dp)
    if rl.is_split:
        yield f"{rl.lag + 1} steps off policy", replace(question, stage=replace(rl, lag=rl.lag + 1))
    elif dp % 2 == 0:
        apart = replace(rl, rollout_gpus=question.num_gpus // 2, lag=1)
        half = replace(question.layout, dp=dp // 2)
        yield "one step off policy, half of the devices generate", replace(question, layout=half, stage=apart)
