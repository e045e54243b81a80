"""Validate: predict published runs from their own model, hardware and layout, and say how far off we are.

Nothing here looks at a row's source except to group the errors; prediction sees shape, hardware, layout and dtype.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from scalewright.catalog.facts import Source
from scalewright.catalog.library import Catalog
from scalewright.catalog.published import PublishedRun, RunModel
from scalewright.catalog.types import MlaShape, MoeShape, Stack, TransformerShape
from scalewright.costs.breakdown import FloatLike
from scalewright.costs.machine import Machine, machine_from_hardware, machine_from_system
from scalewright.costs.room import MemoryKind, Room, room
from scalewright.costs.setting import Setting
from scalewright.costs.step import StepCost, recompute_flop_per_sample, step_cost
from scalewright.errors import ScalewrightError
from scalewright.units import BYTES, BYTES_PER_S, FLOP_PER_S, parse
from scalewright.workload.flop import training_flop_per_sample
from scalewright.workload.layout import Layout, Recompute
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import RECIPES
from scalewright.workload.training import FULL, TrainingMode

RULE_HFU_FRAC = 0.5
"""The rule of thumb everybody can beat us with: every job runs at half of the dense peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedRow:
    """One published run beside our prediction, or the reason there is none."""

    run: PublishedRun
    reason: str | None = None
    assumed: tuple[str, ...] = ()
    predicted_step_s: float | None = None
    interval_s: tuple[float, float] | None = None
    measured_step_s: float | None = None
    rule_step_s: float | None = None
    predicted_memory_bytes: float | None = None
    """Of the kind that the row states."""
    measured_memory_bytes: float | None = None
    needed_frac: float | None = None
    """What a device must have, over its memory: above 1 the run is called impossible."""
    fits: bool | None = None
    room: Room | None = None

    @property
    def group(self) -> tuple[str, str, str]:
        return self.run.document, self.run.hardware.gpu, self.run.dtype or "not given"

    @property
    def is_timed(self) -> bool:
        return self.predicted_step_s is not None and self.measured_step_s is not None

    def as_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"id": self.run.id}
        if self.reason is not None:
            return {**body, "reason": self.reason}
        body |= {
            "predicted_step_s": self.predicted_step_s,
            "interval_s": None if self.interval_s is None else list(self.interval_s),
            "measured_step_s": self.measured_step_s,
            "predicted_memory_bytes": self.predicted_memory_bytes,
            "measured_memory_bytes": self.measured_memory_bytes,
            "memory_kind": self.run.measured.memory_kind,
            "needed_frac": self.needed_frac,
            "fits": self.fits,
            "room": self.room,
            "rule_step_s": self.rule_step_s,
        }
        return body | ({"assumed": list(self.assumed)} if self.assumed else {})


class NotInScopeError(Exception):
    """A row we cannot predict; the message is the reason."""


def validate_run(catalog: Catalog, run: PublishedRun) -> ValidatedRow:
    try:
        return _validate(catalog, run)
    except NotInScopeError as reason:
        return ValidatedRow(run=run, reason=str(reason))
    except ScalewrightError as error:
        return ValidatedRow(run=run, reason=str(error))


def _validate(catalog: Catalog, run: PublishedRun) -> ValidatedRow:
    case = express(catalog, run)
    parts, setting, spec = with_recompute(run, case), case.setting, case.spec
    layout, machine = setting.layout, setting.machine

    def mean(figure: Callable[[Part], FloatLike]) -> float:
        return sum(part.share_frac * float(figure(part)) for part in parts)

    memory_gib = run.measured.memory_gib
    forward_and_back = training_flop_per_sample(spec, frozen=setting.mode.is_lora)
    again = mean(lambda part: recompute_flop_per_sample(part.setting.shape, part.setting.layout))
    work = (forward_and_back + again) * int(layout.gbs)
    rule = work / (RULE_HFU_FRAC * machine.peak_flop_per_s(setting.recipe.matmul) * int(layout.num_gpus))
    assumed = [*case.assumed, *machine.assumptions]
    if is_torchtitan_default(run):
        assumed.append("recompute of every second product, torchtitan's default")
    elif run.layout.recompute == "unstated":
        levels = " and ".join(f"{p.setting.layout.recompute} in {p.share_frac:.0%} of the layers" for p in parts)
        assumed.append(f"recompute {levels}, the least that fits")
    return ValidatedRow(
        run=run,
        assumed=tuple(assumed),
        predicted_step_s=mean(lambda part: part.cost.time.total),
        interval_s=(mean(lambda part: part.cost.interval_s[0]), mean(lambda part: part.cost.interval_s[1])),
        measured_step_s=measured_step_s(run, spec, layout),
        rule_step_s=rule,
        predicted_memory_bytes=mean(MEMORY_OF_KIND[run.measured.memory_kind]),
        measured_memory_bytes=None if memory_gib is None else parse(f"{memory_gib} GiB", BYTES),
        needed_frac=mean(lambda part: part.cost.needed_bytes) / machine.memory_bytes,
        fits=bool(parts[-1].cost.fits),
        room=room(machine, mean(lambda part: part.cost.needed_bytes)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A published run as our own nouns, and what had to be assumed to get there."""

    spec: ModelSpec
    setting: Setting
    assumed: tuple[str, ...]


def express(catalog: Catalog, run: PublishedRun) -> Case:
    """A published run in our terms, from its model, hardware, layout, dtype and software fields alone."""
    if run.conditions is not None:
        raise NotInScopeError(f"it is not comparable: {run.conditions}")
    spec = published_spec(run.model)
    if run.dtype is None:
        raise NotInScopeError("the row gives no dtype")
    recipe = RECIPES.get(run.dtype)
    if recipe is None:
        raise NotInScopeError(f"dtype {run.dtype!r} is not one of {', '.join(RECIPES)}")
    if run.task not in (None, "pretrain", "sft", "lora"):
        raise NotInScopeError(f"{run.task} is not covered yet")
    layout, assumed = _layout(run, spec)
    setting = Setting(
        shape=spec.transformer,
        machine=_machine(catalog, run),
        layout=layout,
        recipe=recipe,
        stack=_stack(catalog, run),
        mode=_mode(run),
    )
    return Case(spec=spec, setting=setting, assumed=tuple(assumed))


def _mode(run: PublishedRun) -> TrainingMode:
    """LoRA as the row says; Megatron Bridge's performance recipes put adapters beside attention's projections alone."""
    if run.task != "lora":
        return FULL
    lora = run.model.lora
    if lora is None:
        return TrainingMode(name="lora", adapts_feed_forward=run.release is None)
    return TrainingMode(name="lora", lora_rank=lora.rank, adapts_feed_forward=lora.targets == "all")


LAST_YEAR_UNFUSED = 2022
LAST_YEAR_OF_EAGER_LOSS = 2024
"""torchtitan compiled its models before it compiled its loss: published peaks of 2024 hold fp32 scores, later ones
do not."""

LAST_YEAR_OF_AMPERE_ATTENTION = 2025
"""Until then, scaled-dot-product attention in PyTorch was FlashAttention-2 by default."""


def with_attention_of(stack: Stack, year: int | None) -> Stack:
    """A stack of PyTorch with the attention that its year had."""
    is_old = year is not None and year <= LAST_YEAR_OF_AMPERE_ATTENTION
    return stack.model_copy(update={"has_ampere_attention": True}) if is_old else stack


def _stack(catalog: Catalog, run: PublishedRun) -> Stack:
    """The catalogued stack, with the loss and the attention of its time and the options that the row names.

    MLPerf's LoRA submissions keep inputs of the activation function in 8 bit wherever memory is short: FP8_ACT=1, or
    FP8_ACTIVATION=True, is in every one of their configurations without tensor and context parallelism for devices
    below 256 GB (training_results v5.0 and v5.1).
    """
    stack = catalog.stack(stack_of(run))
    if run.layout.compile is not None:
        stack = with_attention_of(stack, run.year)
    is_old = stack.compiled and run.year is not None and run.year <= LAST_YEAR_OF_EAGER_LOSS
    options: dict[str, Any] = {"loss_memory": None} if is_old or run.layout.fused_loss else {}
    narrow_gates = run.layout.narrow_gates
    if narrow_gates is None:
        narrow_gates = run.framework == "MLPerf" and run.task == "lora"
    options |= {"narrow_gates": narrow_gates, "fused_dispatch": stack.fused_dispatch or run.layout.fused_dispatch}
    return stack.model_copy(update=options)


STACK_OF_FRAMEWORK = {
    "torchtitan": "compiled",
    "Megatron-DeepSpeed": "eager-unfused",
    "GPT-NeoX": "eager-unfused",
    "BigCode Megatron-LM": "eager-unfused",
    "MLPerf": "megatron-bridge",
}
"""Stacks of rows that name their software and nothing more. Megatron-DeepSpeed, GPT-NeoX and BigCode's Megatron-LM had
no fused attention on the devices of their rows (AMD MI250X, 2023); MLPerf's submissions are tuned as Megatron Bridge's
published figures are."""


def stack_of(run: PublishedRun) -> str:
    """The software a row describes, from the fields that say so; fp16 runs are taken as from before fused attention.

    Fused attention was published in May 2022 (arXiv:2205.14135) and reached Megatron-LM after that year.
    """
    if run.year is not None and run.year <= LAST_YEAR_UNFUSED:
        return "eager-unfused"
    if run.layout.compile:
        return "compiled-async" if run.layout.async_tp else "compiled"
    if run.layout.compile is not None:
        return "eager"
    if isinstance(run.layout.fsdp, str):
        return "eager-fused-loss"
    if run.release is not None:
        return "megatron-bridge"
    if run.framework is not None and run.framework in STACK_OF_FRAMEWORK:
        return STACK_OF_FRAMEWORK[run.framework]
    return "eager-unfused" if run.dtype == "fp16" else "megatron-core"


def published_spec(m: RunModel) -> ModelSpec:
    """The model that a row describes by its shape."""
    needed = {"layers": m.layers, "hidden": m.hidden, "heads": m.heads, "ffn_hidden": m.ffn_hidden, "vocab": m.vocab}
    missing = [name for name, value in needed.items() if value is None]
    missing += [name for name, value in {"seq": m.seq, "gated": m.gated}.items() if value is None]
    if m.moe is not None and not (m.moe.experts and m.moe.top_k and m.moe.expert_ffn):
        missing.append("experts")
    if missing:
        raise NotInScopeError(f"the row gives no {', '.join(missing)}")
    assert m.layers
    assert m.hidden
    assert m.heads
    assert m.ffn_hidden
    assert m.vocab
    assert m.seq
    gated = bool(m.gated)
    if m.head_dim is None and m.hidden % m.heads:
        raise NotInScopeError(f"hidden {m.hidden} does not divide by {m.heads} heads")
    shape = TransformerShape(
        source=Source(kind="measured", text="shape printed with the published run", checked=date.today()),
        layers=m.layers,
        hidden=m.hidden,
        heads=m.heads,
        kv_heads=m.kv_heads or m.heads,
        head_dim=m.head_dim or m.hidden // m.heads,
        ffn_hidden=m.ffn_hidden,
        vocab=m.vocab,
        seq=m.seq,
        gated=gated,
        positions="rotary" if gated else "learned",
        num_positions=0 if gated else m.seq,
        norm="rmsnorm" if gated else "layernorm",
        norm_bias=not gated,
        qkv_bias=not gated,
        out_bias=not gated,
        ffn_bias=not gated,
        tied_embeddings=not gated,
        moe=_moe(m),
        mla=_mla(m),
        qk_norm=m.qk_norm,
    )
    return ModelSpec(id=m.name, name=m.name, shape=shape)


DEEPSEEK_MLA = MlaShape(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
"""Rows say only that attention is latent, and at most the rank of queries, which V2-Lite does not compress; other sizes
are DeepSeek-V2's and V3's in every published row (arXiv:2405.04434)."""


def _mla(model: RunModel) -> MlaShape | None:
    if not model.mla:
        return None
    rank = model.q_lora_rank
    return DEEPSEEK_MLA if rank is None else DEEPSEEK_MLA.model_copy(update={"q_lora_rank": rank})


MAX_ASSUMED_VPP = 8


def is_truncated(model: RunModel) -> bool:
    """A proxy cut to a few layers (`DeepSeek-V3-4L`) keeps one dense layer, even if the whole model has more."""
    return re.search(r"-\d+L$", model.name) is not None


def _moe(model: RunModel) -> MoeShape | None:
    moe = model.moe
    if moe is None:
        return None
    assert moe.experts
    assert moe.top_k
    assert moe.expert_ffn
    return MoeShape(
        num_experts=moe.experts,
        top_k=moe.top_k,
        num_shared=moe.shared,
        expert_ffn=moe.expert_ffn,
        num_dense_layers=min(moe.dense_layers, 1) if is_truncated(model) else moe.dense_layers,
    )


def _assumed_vpp(run: PublishedRun, *, layers: int) -> int:
    """Interleaving where a row does not say: what its authors would gain most from, up to eight chunks a stage."""
    given = run.layout
    assert given.pp
    assert given.dp
    assert given.global_batch
    num_micro_batches = given.global_batch // (given.dp * (given.micro_batch or 1))
    if given.pp == 1 or num_micro_batches % given.pp:
        return 1
    per_stage = -(-layers // given.pp)
    return max(v for v in range(1, MAX_ASSUMED_VPP + 1) if per_stage % v == 0)


def _as_printed(run: PublishedRun) -> tuple[PublishedRun, list[str]]:
    """A row whose batch does not reach its data parallelism: the one its source prints, the rest splits sequences."""
    given = run.layout
    if not (given.dp and given.global_batch and given.dp_as_printed):
        return run, []
    per_copy, printed = given.micro_batch or 1, given.dp_as_printed
    if given.global_batch >= given.dp * per_copy or given.dp % printed:
        return run, []
    cp = (given.cp or 1) * given.dp // printed
    layout = given.model_copy(update={"dp": printed, "cp": cp})
    assumption = (
        f"dp={printed} as printed and cp={cp}, since a batch of {given.global_batch} does not reach dp={given.dp}"
    )
    return run.model_copy(update={"layout": layout}), [assumption]


def _layout(run: PublishedRun, spec: ModelSpec) -> tuple[Layout, list[str]]:
    """The row's layout. What the row leaves open has its most common value, and is listed."""
    run, assumed = _as_printed(run)
    given = run.layout
    missing = [k for k in ("dp", "tp", "pp", "global_batch") if getattr(given, k) is None]
    if run.hardware.gpus is None:
        missing.append("gpus")
    if missing:
        raise NotInScopeError(f"the row gives no {', '.join(missing)}")
    assert given.dp
    assert given.tp
    assert given.pp
    assert given.global_batch
    if given.micro_batch is None:
        assumed.append("micro-batch 1")
    vpp = given.vpp
    if vpp is None:
        vpp = _assumed_vpp(run, layers=spec.transformer.layers)
        assumed.append(f"vpp={vpp}")
    if given.sp is None and given.tp > 1:
        assumed.append("sequence parallel")
    zero = given.zero
    if zero == 0 and given.dp > 1 and run.framework == "Megatron-DeepSpeed" and run.dtype == "bf16":
        zero = 1
        assumed.append("zero=1: DeepSpeed's bf16 optimizer shards its state at stage 0, too")
    elif zero is None:
        zero = 1 if given.dp > 1 else 0
        assumed.append(f"zero={zero}, the distributed optimizer" if zero else "zero=0")
    recompute: Recompute = "operators" if given.recompute == "selective-op" or is_torchtitan_default(run) else "none"
    if given.recompute in ("none", "selective", "full"):
        recompute = given.recompute
    layout = Layout(
        tp=given.tp,
        pp=given.pp,
        vpp=vpp,
        cp=given.cp or 1,
        ep=given.ep or 1,
        dp=given.dp,
        mbs=given.micro_batch or 1,
        gbs=given.global_batch,
        zero=zero,
        sp=given.tp > 1 if given.sp is None else given.sp,
        recompute=recompute,
    )
    if layout.num_gpus != run.hardware.gpus:
        raise NotInScopeError(f"dp x tp x pp x cp = {layout.num_gpus}, but the row says {run.hardware.gpus} GPUs")
    if given.pp > spec.transformer.layers:
        raise NotInScopeError(f"pp={given.pp} is more stages than {spec.transformer.layers} layers")
    if int(layout.gbs) % (int(layout.dp) * int(layout.mbs)):
        raise NotInScopeError(f"batch {layout.gbs} is not a multiple of dp x micro-batch = {layout.dp} x {layout.mbs}")
    return layout, assumed


def _machine(catalog: Catalog, run: PublishedRun) -> Machine:
    h = run.hardware
    intra, inter = h.intra_bw_gb_per_s, h.inter_bw_gb_per_s_per_gpu
    if inter is None and h.gpus is not None and h.gpus > h.gpus_per_node:
        return _usual_machine(catalog, run)
    return machine_from_hardware(
        catalog,
        gpu=h.gpu,
        gpus_per_node=h.gpus_per_node,
        scale_up_bytes_per_s=None if intra is None else parse(f"{intra} GB/s", BYTES_PER_S),
        network_bytes_per_s_per_gpu=None if inter is None else parse(f"{inter} GB/s", BYTES_PER_S),
    )


def _usual_machine(catalog: Catalog, run: PublishedRun) -> Machine:
    """A catalogued system's nodes of the row's device, generic ones first, where the row gives no network."""
    device = catalog.accelerator(run.hardware.gpu).id
    for name in sorted(catalog.ids("systems"), key=lambda name: (not name.startswith("generic-"), name)):
        machine = machine_from_system(catalog, name)
        is_rack = machine.gpus_per_node > run.hardware.gpus_per_node  # hosts of one rack share a scale-up network
        if machine.accelerator.id == device and (is_rack or machine.gpus_per_node == run.hardware.gpus_per_node):
            return replace(machine, assumptions=(f"network of {name}",))
    raise NotInScopeError(f"the row gives no network between nodes of {run.hardware.gpu}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A setting, and the share of the layers that it holds for."""

    setting: Setting
    cost: StepCost
    share_frac: float


def with_recompute(run: PublishedRun, case: Case) -> tuple[Part, ...]:
    """Cost with the recompute the row states, in as many layers as it states; without it, the least that fits."""
    if run.layout.recompute == "unstated" and not is_torchtitan_default(run):
        return least_recompute(case.spec, case.setting)
    stated = Part(setting=case.setting, cost=step_cost(spec=case.spec, setting=case.setting), share_frac=1.0)
    num_layers, total = run.layout.recompute_layers, case.spec.transformer.layers
    if run.layout.recompute != "full" or num_layers is None or num_layers >= total:
        return (stated,)
    without = replace(case.setting, layout=replace(case.setting.layout, recompute="none"))
    share = num_layers / total
    others = Part(setting=without, cost=step_cost(spec=case.spec, setting=without), share_frac=1.0 - share)
    return others, replace(stated, share_frac=share)


MEMORY_OF_KIND: dict[MemoryKind, Callable[[Part], FloatLike]] = {
    "allocated": lambda part: part.cost.memory.total,
    "reserved": lambda part: part.cost.reserved_bytes,
    "device": lambda part: part.cost.device_bytes,
}


def is_torchtitan_default(run: PublishedRun) -> bool:
    """torchtitan recomputes every second product (its `activation_checkpoint` is `selective`, `op`) by default."""
    return run.layout.recompute == "unstated" and run.layout.compile is not None


def least_recompute(spec: ModelSpec, setting: Setting) -> tuple[Part, ...]:
    """The least recomputation that fits: none, the cheapest part of a layer, or as many whole layers as it takes, which
    frameworks let one count. The cheapest part is the attention scores where a stack keeps them, else norms and
    activation functions."""

    def whole(recompute: Recompute) -> Part:
        changed = replace(setting, layout=replace(setting.layout, recompute=recompute))
        return Part(setting=changed, cost=step_cost(spec=spec, setting=changed), share_frac=1.0)

    none, partly = whole("none"), whole("modules" if setting.stack.fused_attention else "selective")
    if none.cost.fits or partly.cost.fits:
        return (none if none.cost.fits else partly,)
    full = whole("full")
    if not full.cost.fits:
        return (full,)
    most, least = float(partly.cost.needed_bytes), float(full.cost.needed_bytes)
    share = (most - setting.machine.memory_bytes) / (most - least)
    return replace(partly, share_frac=1.0 - share), replace(full, share_frac=share)


def measured_step_s(run: PublishedRun, spec: ModelSpec, layout: Layout) -> float | None:
    """The step time the source printed, or what its printed rate says: tokens first, then FLOP/s."""
    if run.measured.oom:
        return None
    stated = run.measured.step_time_s or run.derived.step_time_s
    if stated is not None:
        return stated
    gpus, batch = int(layout.num_gpus), int(layout.gbs)
    if run.measured.tokens_per_s_per_gpu is not None and run.model.seq is not None:
        return batch * run.model.seq / (run.measured.tokens_per_s_per_gpu * gpus)
    if run.measured.tflop_per_s_per_gpu is not None:
        rate = parse(f"{run.measured.tflop_per_s_per_gpu} TFLOP/s", FLOP_PER_S)
        return training_flop_per_sample(spec) * batch / (rate * gpus)
    return None
