"""What the cost models are asked about in these tests: a few models of every kind, machines, and layouts at random."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.costs.setting import Setting
from scalewright.costs.step import StepCost, step_cost
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec, from_catalog
from scalewright.workload.precision import RECIPES

CATALOG = Catalog((packaged_data(),))
DENSE = ("gpt2-xl", "gpt3-6.7b", "llama3-8b")
EXPERTS = ("mixtral-8x7b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite", "deepseek-v3")
MODELS: dict[str, ModelSpec] = {name: from_catalog(CATALOG.model(name)) for name in (*DENSE, *EXPERTS)}
MACHINES: dict[str, Machine] = {
    name: machine_from_system(CATALOG, name)
    for name in ("selene", "generic-h100", "lumi", "generic-b200", "generic-v100")
}
STACKS = {name: CATALOG.stack(name) for name in CATALOG.ids("stacks")}
RECOMPUTE = ("none", "selective", "operators", "full")
SMALL = st.sampled_from([1, 2, 4, 8])


def recipes_of(machine: Machine) -> list[str]:
    """Recipes whose every product the device has units for."""
    has = set(machine.accelerator.peak)
    return [r.name for r in RECIPES.values() if {r.matmul, r.attention, r.head} <= has]


def setting(
    *,
    model: str = "gpt3-6.7b",
    machine: Machine | str = "selene",
    precision: str = "fp16",
    stack: str = "megatron-core",
    **layout: Any,
) -> Setting:
    return Setting(
        shape=MODELS[model].transformer,
        machine=MACHINES[machine] if isinstance(machine, str) else machine,
        layout=Layout(**layout),
        recipe=RECIPES[precision],
        stack=STACKS[stack],
    )


def cost_of(given: Setting) -> StepCost:
    return step_cost(spec=ModelSpec(id="test", name="test", shape=given.shape), setting=given)


def changed(given: Setting, **layout: Any) -> Setting:
    return replace(given, layout=replace(given.layout, **layout))


def experts_divide(ep: int, *, num_experts: int, num_devices: int) -> int:
    """The largest number of devices up to `ep` that the experts and the devices can both be split over."""
    while num_experts % ep or num_devices % ep:
        ep //= 2
    return ep


@st.composite
def degrees(draw: st.DrawFn, model: str) -> dict[str, int]:
    """The whole-number knobs of a layout that divides the batch and the experts."""
    shape = MODELS[model].transformer
    tp, cp, dp, mbs = (draw(SMALL) for _ in range(4))
    pp = draw(st.sampled_from([p for p in (1, 2, 3, 4, 8, 16) if p <= shape.layers]))
    vpp = draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1
    experts = 1 if shape.moe is None else shape.moe.num_experts
    ep = experts_divide(draw(SMALL), num_experts=experts, num_devices=dp * cp * tp)
    gbs = dp * mbs * draw(st.integers(1, 24))
    return {"tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "ep": ep, "dp": dp, "mbs": mbs, "gbs": gbs}


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    """The knobs that are choices."""
    return {
        "zero": draw(st.integers(0, 3)),
        "sp": draw(st.booleans()),
        "recompute": draw(st.sampled_from(RECOMPUTE)),
    }


@st.composite
def surroundings(draw: st.DrawFn, models: tuple[str, ...] = (*DENSE, *EXPERTS)) -> dict[str, str]:
    """Everything but the layout, as arguments of `setting`."""
    machine = draw(st.sampled_from(sorted(MACHINES)))
    return {
        "model": draw(st.sampled_from(models)),
        "machine": machine,
        "precision": draw(st.sampled_from(recipes_of(MACHINES[machine]))),
        "stack": draw(st.sampled_from(sorted(STACKS))),
    }


@st.composite
def settings_of(draw: st.DrawFn, models: tuple[str, ...] = (*DENSE, *EXPERTS)) -> Setting:
    where = draw(surroundings(models))
    return setting(**where, **draw(degrees(where["model"])), **draw(policies()))
