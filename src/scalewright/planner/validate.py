"""Validate: predict published runs from their own model, hardware and layout, and say how far off we are.

Nothing here looks at a row's source except to group the errors; prediction sees shape, hardware, layout and dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from scalewright.catalog.facts import Source
from scalewright.catalog.library import Catalog
from scalewright.catalog.published import PublishedRun
from scalewright.catalog.types import TransformerShape
from scalewright.costs.machine import Machine, machine_from_hardware
from scalewright.costs.step import StepCost, recompute_flop_per_sample, step_cost, why_not_expressed
from scalewright.errors import ScalewrightError
from scalewright.units import BYTES, BYTES_PER_S, FLOP_PER_S, parse
from scalewright.workload.flop import training_flop_per_sample
from scalewright.workload.layout import Layout, Recompute
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import RECIPES, Recipe

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
    measured_memory_bytes: float | None = None
    fits: bool | None = None

    @property
    def group(self) -> tuple[str, str, str]:
        return self.run.document, self.run.hardware.gpu, self.run.dtype

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
            "fits": self.fits,
            "rule_step_s": self.rule_step_s,
        }
        return body | ({"assumed": list(self.assumed)} if self.assumed else {})


class _NotExpressedError(Exception):
    """A row we cannot predict; the message is the reason."""


def validate_run(catalog: Catalog, run: PublishedRun) -> ValidatedRow:
    try:
        return _validate(catalog, run)
    except _NotExpressedError as reason:
        return ValidatedRow(run=run, reason=str(reason))
    except ScalewrightError as error:
        return ValidatedRow(run=run, reason=str(error))


def _validate(catalog: Catalog, run: PublishedRun) -> ValidatedRow:
    spec = _spec(run)
    recipe = RECIPES.get(run.dtype)
    if recipe is None:
        raise _NotExpressedError(f"dtype {run.dtype!r} is not one of {', '.join(RECIPES)}")
    layout, assumed = _layout(run)
    reason = why_not_expressed(spec, layout)
    if reason is not None:
        raise _NotExpressedError(reason)
    machine = _machine(catalog, run)
    layout, cost, more = _with_recompute(run, spec, machine, layout, recipe)
    measured = measured_step_s(run, spec, layout)
    memory_gib = run.measured.memory_gib
    work = (training_flop_per_sample(spec) + recompute_flop_per_sample(spec.transformer, layout)) * int(layout.gbs)
    rule = work / (RULE_HFU_FRAC * machine.peak_flop_per_s(recipe.matmul) * int(layout.num_gpus))
    return ValidatedRow(
        run=run,
        assumed=(*assumed, *more, *machine.assumptions),
        predicted_step_s=float(cost.time.total),
        interval_s=(float(cost.interval_s[0]), float(cost.interval_s[1])),
        measured_step_s=measured,
        rule_step_s=rule,
        predicted_memory_bytes=float(cost.memory.total),
        measured_memory_bytes=None if memory_gib is None else parse(f"{memory_gib} GiB", BYTES),
        fits=bool(cost.fits),
    )


def _spec(run: PublishedRun) -> ModelSpec:
    m = run.model
    needed = {"layers": m.layers, "hidden": m.hidden, "heads": m.heads, "ffn_hidden": m.ffn_hidden, "vocab": m.vocab}
    missing = [name for name, value in needed.items() if value is None]
    if m.moe is not None:
        raise _NotExpressedError("mixture-of-experts models are not covered yet")
    if m.mla:
        raise _NotExpressedError("multi-head latent attention is not covered yet")
    if missing:
        raise _NotExpressedError(f"the row gives no {', '.join(missing)}")
    assert m.layers
    assert m.hidden
    assert m.heads
    assert m.ffn_hidden
    assert m.vocab
    if m.head_dim is None and m.hidden % m.heads:
        raise _NotExpressedError(f"hidden {m.hidden} does not divide by {m.heads} heads")
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
        gated=m.gated,
        positions="rotary" if m.gated else "learned",
        num_positions=0 if m.gated else m.seq,
        norm="rmsnorm" if m.gated else "layernorm",
        norm_bias=not m.gated,
        qkv_bias=not m.gated,
        out_bias=not m.gated,
        ffn_bias=not m.gated,
        tied_embeddings=not m.gated,
    )
    return ModelSpec(id=m.name, name=m.name, shape=shape)


def _layout(run: PublishedRun) -> tuple[Layout, list[str]]:
    """The row's layout; what the row leaves open is chosen the common way and listed."""
    given, assumed = run.layout, []
    missing = [k for k in ("dp", "tp", "pp", "global_batch") if getattr(given, k) is None]
    if run.hardware.gpus is None:
        missing.append("gpus")
    if missing:
        raise _NotExpressedError(f"the row gives no {', '.join(missing)}")
    assert given.dp
    assert given.tp
    assert given.pp
    assert given.global_batch
    if given.micro_batch is None:
        assumed.append("micro-batch 1")
    if given.vpp is None:
        assumed.append("no interleaving")
    if given.sp is None and given.tp > 1:
        assumed.append("sequence parallel")
    if given.recompute == "selective-op":
        assumed.append("operator-level selective recompute as attention-only")
    recompute: Recompute = "selective" if given.recompute == "selective-op" else "none"
    if given.recompute in ("none", "selective", "full"):
        recompute = given.recompute
    layout = Layout(
        tp=given.tp,
        pp=given.pp,
        vpp=given.vpp or 1,
        cp=given.cp,
        ep=given.ep,
        dp=given.dp,
        mbs=given.micro_batch or 1,
        gbs=given.global_batch,
        zero=given.zero,
        sp=given.tp > 1 if given.sp is None else given.sp,
        recompute=recompute,
    )
    if layout.num_gpus != run.hardware.gpus:
        raise _NotExpressedError(f"dp x tp x pp x cp = {layout.num_gpus}, but the row says {run.hardware.gpus} GPUs")
    if int(layout.gbs) % (int(layout.dp) * int(layout.mbs)):
        raise _NotExpressedError(
            f"batch {layout.gbs} is not a multiple of dp x micro-batch = {layout.dp} x {layout.mbs}"
        )
    return layout, assumed


def _machine(catalog: Catalog, run: PublishedRun) -> Machine:
    h = run.hardware
    intra, inter = h.intra_bw_gb_per_s, h.inter_bw_gb_per_s_per_gpu
    return machine_from_hardware(
        catalog,
        gpu=h.gpu,
        gpus_per_node=h.gpus_per_node,
        scale_up_bytes_per_s=None if intra is None else parse(f"{intra} GB/s", BYTES_PER_S),
        network_bytes_per_s_per_gpu=None if inter is None else parse(f"{inter} GB/s", BYTES_PER_S),
    )


def _with_recompute(
    run: PublishedRun, spec: ModelSpec, machine: Machine, layout: Layout, recipe: Recipe
) -> tuple[Layout, StepCost, list[str]]:
    """Cost with the recompute the row states; where it states none, the least that fits."""
    cost = step_cost(spec=spec, machine=machine, layout=layout, recipe=recipe)
    if run.layout.recompute != "unstated":
        return layout, cost, []
    for recompute in ("none", "selective", "full"):
        layout = replace(layout, recompute=recompute)
        cost = step_cost(spec=spec, machine=machine, layout=layout, recipe=recipe)
        if cost.fits:
            break
    return layout, cost, [f"recompute {layout.recompute}, the least that fits"]


def measured_step_s(run: PublishedRun, spec: ModelSpec, layout: Layout) -> float | None:
    """The step time the source printed, or what its printed rate says: tokens first, then FLOP/s."""
    if run.measured.oom:
        return None
    stated = run.measured.step_time_s or run.derived.step_time_s
    if stated is not None:
        return stated
    gpus, batch = int(layout.num_gpus), int(layout.gbs)
    if run.measured.tokens_per_s_per_gpu is not None:
        return batch * run.model.seq / (run.measured.tokens_per_s_per_gpu * gpus)
    if run.measured.tflops_per_gpu is not None:
        rate = parse(f"{run.measured.tflops_per_gpu} TFLOP/s", FLOP_PER_S)
        return training_flop_per_sample(spec) * batch / (rate * gpus)
    return None
