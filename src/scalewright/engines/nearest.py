"""The nearest layout that an engine can express, on the same devices and with the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from scalewright.engines.registry import adapter_of
from scalewright.engines.types import EngineJob, EngineRefusedError, EngineRequest, Refusal
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.workload.layout import Layout, Recompute, check_divides

SHARDINGS = (1, 2, 3, 0)
RECOMPUTES: tuple[Recompute, ...] = ("full", "selective", "operators", "modules", "none")
COSTS = {"sp": 1, "recompute": 2, "zero": 3, "vpp": 4, "ep": 8, "cp": 9, "pp": 10, "tp": 12}
"""How much a change of a knob alters what was planned; the sum of the changed ones is the distance."""


def rendered(engine: str, request: EngineRequest) -> EngineJob:
    """The job of a request; a request that the engine cannot express is refused with the nearest layout that it can."""
    adapter = adapter_of(engine)
    try:
        divides(request)
        adapter.refuse_what_it_lacks(request)
    except NotExpressedError as error:
        nearest = nearest_layout(engine, request)
        reason = str(error).replace("--emit ", "--engine ")  # files of layouts have their own refusals
        raise EngineRefusedError(Refusal(engine=engine, reason=reason, nearest=nearest)) from error
    return adapter.render(request)


def divides(request: EngineRequest) -> None:
    shape = request.shape
    check_divides(
        request.layout, layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads, seq=request.seq_len,
        num_experts=shape.moe.num_experts if shape.moe else 0,
    )  # fmt: skip


def nearest_layout(engine: str, request: EngineRequest) -> Layout | None:
    """None where no layout helps: the model, the precision or the task is what the engine lacks."""
    adapter = adapter_of(engine)
    for layout in candidates(request.layout, num_gpus=request.num_gpus):
        try:
            changed = replace(request, layout=layout)
            divides(changed)
            adapter.refuse_what_it_lacks(changed)
        except ConfigError:
            continue
        return layout
    return None


def candidates(layout: Layout, *, num_gpus: int) -> Iterator[Layout]:
    """Layouts that keep each knob or turn it off, the nearest first. Devices that become free copy the model."""
    distances: dict[Layout, int] = {}
    splits = [sorted({int(getattr(layout, knob)), 1}, reverse=True) for knob in ("tp", "pp", "vpp", "cp", "ep")]
    for tp, pp, vpp, cp, ep in product(*splits):
        if num_gpus % (tp * pp * cp) or (vpp > 1 and pp == 1):
            continue
        dp = num_gpus // (tp * pp * cp)
        mbs = next((m for m in (int(layout.mbs), 1) if int(layout.gbs) % (dp * m) == 0), 0)
        if not mbs or dp * cp * tp % ep:
            continue
        for zero, sp, recompute in product(SHARDINGS, (True, False), RECOMPUTES):
            if sp and tp == 1:
                continue
            one = Layout(
                tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, dp=dp, mbs=mbs, gbs=layout.gbs, zero=zero, sp=sp,
                recompute=recompute,
            )  # fmt: skip
            distances[one] = distance(layout, one)
    yield from sorted(
        distances, key=lambda one: (distances[one], -one.zero, str(one))
    )  # among equals, the one that shards more


def distance(first: Layout, second: Layout) -> int:
    return sum(cost for knob, cost in COSTS.items() if getattr(first, knob) != getattr(second, knob))
