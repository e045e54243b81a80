"""Catalogue entries for people and programs: stated facts with their sources, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from scalewright import units
from scalewright.catalog import derive
from scalewright.catalog.facts import Fact
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import (
    Accelerator,
    Entry,
    Fabric,
    Grid,
    Link,
    Model,
    Partition,
    Price,
    Storage,
    System,
    Transport,
)
from scalewright.workload.flop import forward_flop_by_part, training_flop_per_sample
from scalewright.workload.model import from_catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A figure computed from facts, with the arithmetic that made it."""

    name: str
    value: float
    unit: str
    shown: str
    arithmetic: str


def facts_of(entry: BaseModel, prefix: str = "") -> Iterator[tuple[str, Fact]]:
    """Every fact of an entry by dotted name, in the order of the file's type."""
    for name in type(entry).model_fields:
        yield from _walk(getattr(entry, name), f"{prefix}{name}")


def _walk(value: Any, name: str) -> Iterator[tuple[str, Fact]]:
    if isinstance(value, Fact):
        yield name, value
    elif isinstance(value, BaseModel):
        yield from facts_of(value, f"{name}.")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{name}.{key}")
    elif isinstance(value, tuple):
        for item in value:
            label = item.id if isinstance(item, Partition) else name
            yield from _walk(item, label)


def derived_of(catalog: Catalog, entry: Entry) -> list[Derived]:
    """What follows from an entry's facts and those it refers to."""
    if isinstance(entry, Accelerator):
        return list(_accelerator_figures(catalog, entry))
    if isinstance(entry, Link):
        return list(_link_figures(entry))
    if isinstance(entry, System):
        return list(_system_figures(catalog, entry))
    if isinstance(entry, Model):
        return list(_model_figures(entry))
    return []


def _accelerator_figures(catalog: Catalog, a: Accelerator) -> Iterator[Derived]:
    peak = derive.accelerator_vector_peak_flop_per_s(a)
    if peak is not None and a.num_cores and a.clock_boost and a.flop_per_core_cycle:
        arithmetic = f"{a.num_cores.value:,.0f} cores x {a.clock_boost} x {a.flop_per_core_cycle.value:.0f}"
        yield Derived(
            name="fp32_from_cores",
            value=peak,
            unit="flop_per_s",
            shown=units.format(peak, units.FLOP_PER_S),
            arithmetic=arithmetic,
        )
    usable = derive.usable_memory_bytes(a)
    if a.usable_memory is None and usable != a.memory.value:
        yield Derived(
            name="usable_memory", value=usable, unit="bytes", shown=units.format(usable, units.BYTES),
            arithmetic=f"makers count {a.memory.text} in GiB, and the driver keeps {derive.DRIVER_FRAC:.2%} "
            '(give usable_memory = "... GiB" if you know it)',
        )  # fmt: skip
    for precision in a.peak:
        ridge = derive.ridge_flop_per_byte(a, precision)
        yield Derived(
            name=f"ridge.{precision}",
            value=ridge,
            unit="flop_per_byte",
            shown=f"{ridge:,.1f} FLOP/B",
            arithmetic=f"{a.peak[precision]} / {a.memory_bandwidth}",
        )
    for precision in a.best_matmul:
        share = derive.matmul_frac(a, precision)
        if share is not None:
            yield Derived(
                name=f"matmul_share.{precision}",
                value=share,
                unit="frac",
                shown=f"{share:.1%}",
                arithmetic=f"{a.best_matmul[precision]} / {a.peak[precision]}",
            )
    for precision in a.peak:
        rate = derive.flop_per_s_per_w(a, precision)
        yield Derived(
            name=f"per_watt.{precision}",
            value=rate,
            unit="flop_per_s_per_w",
            shown=f"{rate / units.GIGA:,.1f} GFLOP/s/W",
            arithmetic=f"{a.peak[precision]} / {a.tdp}",
        )
    best = derive.training_precision(a)
    for price in catalog.prices(a.id):
        work = derive.flop_per_usd(a, price, best)
        arithmetic = f"{a.peak[best]} / {price.per_accelerator} ({price.id})"
        yield Derived(
            name=f"per_usd.{best}",
            value=work,
            unit="flop_per_usd",
            shown=f"{work / 1e18:,.2f} EFLOP/USD",
            arithmetic=arithmetic,
        )


def _link_figures(link: Link) -> Iterator[Derived]:
    rate = derive.link_bytes_per_s(link)
    arithmetic = "stated"
    if link.signalling is not None:
        s = link.signalling
        arithmetic = (
            f"{s.rate_per_lane.text} x {s.bits_per_transfer.value:.0f} bit x {s.payload_bits}/{s.line_bits}"
            f" x {s.num_lanes.value:.0f} lanes / 8"
        )
    yield Derived(
        name="bandwidth",
        value=rate,
        unit="bytes_per_s",
        shown=units.format(rate, units.BYTES_PER_S),
        arithmetic=arithmetic,
    )
    yield Derived(
        name="bandwidth_bidir",
        value=2 * rate,
        unit="bytes_per_s_bidir",
        shown=units.format(2 * rate, units.BYTES_PER_S),
        arithmetic="both directions",
    )


def _system_figures(catalog: Catalog, system: System) -> Iterator[Derived]:
    for p in system.partitions:
        a = catalog.accelerator(p.accelerator)
        count = p.num_nodes.value * p.accelerators_per_node.value
        best = derive.training_precision(a)
        if best is not None:
            peak = count * a.peak[best].value
            yield Derived(
                name=f"{p.id}.peak.{best}",
                value=peak,
                unit="flop_per_s",
                shown=units.format(peak, units.FLOP_PER_S),
                arithmetic=f"{count:,.0f} x {a.peak[best]}",
            )
        if p.fabric is None or p.nics_per_node is None:
            continue
        fabric = catalog.fabric(p.fabric)
        nic = catalog.link(p.nic_link or fabric.link)
        per_node = derive.injection_bytes_per_s_per_node(p, nic)
        yield Derived(
            name=f"{p.id}.injection",
            value=per_node,
            unit="bytes_per_s_per_node",
            shown=f"{units.format(per_node, units.BYTES_PER_S)} a node",
            arithmetic=f"{p.nics_per_node.value:.0f} x {nic.id}",
        )
        middle = derive.fabric_bisection_bytes_per_s(p, fabric, nic)
        share = p.bisection_share or fabric.bisection_share
        yield Derived(
            name=f"{p.id}.bisection",
            value=middle,
            unit="bytes_per_s",
            shown=units.format(middle, units.BYTES_PER_S),
            arithmetic=f"{p.num_nodes.value:,.0f} nodes / 2 x injection x {share}",
        )


def _model_figures(model: Model) -> Iterator[Derived]:
    spec = from_catalog(model)
    for part, count in spec.params_by_part().items():
        yield Derived(
            name=f"params.{part}",
            value=count,
            unit="",
            shown=f"{count:,}",
            arithmetic=f"{count / spec.num_params:.1%} of all",
        )
    yield Derived(
        name="params", value=spec.num_params, unit="", shown=f"{spec.num_params:,}", arithmetic="sum of the parts"
    )
    if spec.num_active_params != spec.num_params:
        yield Derived(
            name="active_params",
            value=spec.num_active_params,
            unit="",
            shown=f"{spec.num_active_params:,}",
            arithmetic="without the experts a token is not sent to",
        )
    weights = 2.0 * spec.num_params
    yield Derived(
        name="weights_bf16",
        value=weights,
        unit="bytes",
        shown=units.format(weights, units.BYTES),
        arithmetic="2 bytes each",
    )
    sample = "image" if model.conv else f"sequence of {spec.transformer.seq:,}"
    for part, work in forward_flop_by_part(spec).items():
        yield Derived(
            name=f"forward.{part}",
            value=work,
            unit="flop",
            shown=units.format(work, units.FLOP),
            arithmetic=f"one {sample}",
        )
    train = training_flop_per_sample(spec)
    yield Derived(
        name="training",
        value=train,
        unit="flop",
        shown=units.format(train, units.FLOP),
        arithmetic=f"3 x forward, one {sample}",
    )


def as_dict(catalog: Catalog, entry: Entry) -> dict[str, Any]:
    """An entry as JSON: plain fields, facts as SI values with units in their keys, derived figures."""
    plain = entry.model_dump(mode="json", by_alias=True, exclude={"sources"})
    body = {k: v for k, v in plain.items() if not _holds_facts(getattr(entry, k if k != "schema" else "schema_"))}
    body["facts"] = {
        f"{name}_{fact.dimension.suffix}".rstrip("_"): {
            "value": fact.value,
            "as_written": fact.text,
            "kind": fact.source.kind,
            "source": fact.source.text,
            "checked": fact.source.checked.isoformat(),
            "recalled": fact.source.recalled,
            **({"note": fact.note} if fact.note else {}),
        }
        for name, fact in facts_of(entry)
    }
    body["derived"] = {
        f"{d.name}_{d.unit}".rstrip("_"): {"value": d.value, "arithmetic": d.arithmetic}
        for d in derived_of(catalog, entry)
    }
    return body


def _holds_facts(value: Any) -> bool:
    return next(_walk(value, ""), None) is not None


def summary_columns(entry: Entry) -> dict[str, str]:
    """The few figures a listing shows, by kind."""
    if isinstance(entry, Accelerator):
        best = derive.training_precision(entry)
        return {
            "memory": entry.memory.text,
            "bandwidth": entry.memory_bandwidth.text,
            "dense peak": f"{entry.peak[best]} {best}",
            "TDP": str(entry.tdp),
        }
    if isinstance(entry, Link):
        return {"family": entry.family, "one way": units.format(derive.link_bytes_per_s(entry), units.BYTES_PER_S)}
    if isinstance(entry, Transport):
        return {"reaches": str(entry.achievable), "latency": str(entry.latency)}
    if isinstance(entry, Fabric):
        return {"topology": entry.topology, "link": entry.link, "bisection": str(entry.bisection_share)}
    if isinstance(entry, System):
        main = next(p for p in entry.partitions if p.default)
        return {
            "operator": entry.operator,
            "nodes": f"{main.num_nodes.value:,.0f}",
            "node": f"{main.accelerators_per_node.value:.0f} x {main.accelerator}",
        }
    if isinstance(entry, Model):
        spec = from_catalog(entry)
        return {"family": entry.family, "parameters": units.format(spec.num_params, units.COUNT)}
    if isinstance(entry, Storage):
        return {
            "technology": entry.technology,
            "read": str(entry.read_bandwidth or "-"),
            "write": str(entry.write_bandwidth or "-"),
        }
    if isinstance(entry, Price):
        return {
            "accelerator": entry.accelerator,
            "price": str(entry.per_accelerator),
            "basis": entry.basis,
            "on": entry.valid_on.isoformat(),
        }
    if isinstance(entry, Grid):
        return {"country": entry.country, "carbon": str(entry.carbon_intensity), "year": str(entry.year)}
    return {name: str(fact) for name, fact in list(facts_of(entry))[:3]}


def figures(catalog: Catalog, entry: Entry) -> dict[str, tuple[float, str]]:
    """Every number of an entry, stated or derived, as value and text; a system's main partition is called `main`."""
    numbers = {name: (fact.value, fact.text) for name, fact in facts_of(entry)}
    numbers |= {d.name: (d.value, d.shown) for d in derived_of(catalog, entry)}
    if not isinstance(entry, System):
        return numbers
    main = f"{next(p.id for p in entry.partitions if p.default)}."
    return {f"main.{n.removeprefix(main)}" if n.startswith(main) else n: v for n, v in numbers.items()}


def ratios(catalog: Catalog, first: Entry, second: Entry) -> dict[str, float]:
    """first / second for every number both have."""
    a, b = figures(catalog, first), figures(catalog, second)
    return {name: a[name][0] / b[name][0] for name in a if name in b and b[name][0]}
