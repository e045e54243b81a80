"""Machine: the numbers a cost model needs of a system, resolved from the catalogue into floats."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scalewright.catalog.derive import link_bytes_per_s, usable_memory_bytes
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Accelerator, Constants, Link, Partition, Precision, System, Transport
from scalewright.errors import ConfigError, NotExpressedError, UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Devices, nodes and network. Bandwidths are one direction."""

    name: str
    accelerator: Accelerator
    constants: Constants
    gpus_per_node: int
    num_nodes: int | None
    """Nodes that exist; None where unbounded."""
    memory_bytes: float
    hbm_bytes_per_s: float
    """Reachable: datasheet x share."""
    scale_up_bytes_per_s: float
    """Reachable per device inside a node."""
    scale_up_latency_s: float
    network_bytes_per_s_per_gpu: float | None
    """Reachable per device between nodes; None where the machine is one node."""
    network_latency_s: float
    transport: str
    assumptions: tuple[str, ...] = ()

    def as_input(self) -> dict[str, str | int | float | None]:
        """What of the machine a prediction depends on; part of its id."""
        return {
            "name": self.name,
            "accelerator": self.accelerator.id,
            "gpus_per_node": self.gpus_per_node,
            "scale_up_bytes_per_s": self.scale_up_bytes_per_s,
            "network_bytes_per_s_per_gpu": self.network_bytes_per_s_per_gpu,
            "transport": self.transport,
        }

    def peak_flop_per_s(self, precision: Precision) -> float:
        fact = self.accelerator.peak.get(precision)
        if fact is None:
            has = ", ".join(self.accelerator.peak)
            raise NotExpressedError(f"{self.accelerator.id} has no {precision} units: choose a precision among {has}")
        return fact.value

    def matmul_flop_per_s(self, precision: Precision) -> float:
        """Best matrix-product rate: published for this device, else peak x the share assumed where nobody did."""
        peak = self.peak_flop_per_s(precision)
        best = self.accelerator.best_matmul.get(precision)
        if best is None and precision == "fp16":
            best = self.accelerator.best_matmul.get("bf16")  # same units, same rate on every device catalogued
        return best.value if best is not None else peak * self.constants.unpublished_matmul_share.value

    def sustained_flop_per_s(self, precision: Precision) -> float:
        """Rate of large products while a job runs.

        Equation  F = best x s x min(1, (x / x0)^-g) [x gain in 8 bit], x = 16-bit peak / board power; never above best
        Source    fitted to the published training runs (benchmarks/fit.py)
        Assumes   devices with more peak per watt run further below their short-burst rate, which power limits
        Checked   `scalewright validate`, A100 400 W to B200 1000 W, and the 500 W H100
        """
        c, best = self.constants, self.matmul_flop_per_s(precision)
        wide = self.accelerator.peak.get("bf16") or self.accelerator.peak.get("fp16")
        throttle = 1.0
        if wide is not None:
            per_watt = wide.value / self.accelerator.tdp.value
            throttle = min(1.0, (per_watt / c.throttle_reference.value) ** -c.throttle_exponent.value)
        gain = c.narrow_matmul_gain.value if precision in ("fp8", "fp6", "fp4", "int8") else 1.0
        return min(best, best * c.sustained_matmul_share.value * throttle * gain)

    def matmul_is_published(self, precision: Precision) -> bool:
        keys = ("bf16", "fp16") if precision == "fp16" else (precision,)
        return any(k in self.accelerator.best_matmul for k in keys)


def pick_partition(system: System, name: str | None) -> Partition:
    if name is None:
        return next(p for p in system.partitions if p.default)
    for partition in system.partitions:
        if partition.id == name:
            return partition
    known = [p.id for p in system.partitions]
    raise UnknownNameError(f"partition of {system.id}", name, known, hint=f"choose {', '.join(known)}")


def machine_from_system(
    catalog: Catalog, system_name: str, *, partition_name: str | None = None, transport_name: str | None = None
) -> Machine:
    system = catalog.system(system_name)
    partition = pick_partition(system, partition_name)
    accelerator = catalog.accelerator(partition.accelerator)
    constants = catalog.constants()
    per_node = int(partition.accelerators_per_node.value)
    scale_up, latency = _scale_up(catalog, accelerator, partition, per_node)
    machine = Machine(
        name=f"{system.id}/{partition.id}",
        accelerator=accelerator,
        constants=constants,
        gpus_per_node=per_node,
        num_nodes=int(partition.num_nodes.value),
        memory_bytes=usable_memory_bytes(accelerator),
        hbm_bytes_per_s=accelerator.memory_bandwidth.value * constants.memory_bandwidth_share.value,
        scale_up_bytes_per_s=scale_up * constants.scale_up_share.value,
        scale_up_latency_s=latency,
        network_bytes_per_s_per_gpu=None,
        network_latency_s=0.0,
        transport="none",
    )
    if partition.fabric is None or partition.nics_per_node is None:
        return machine
    fabric = catalog.fabric(partition.fabric)
    transport = _pick_transport(catalog, fabric.transports, transport_name)
    nic = link_bytes_per_s(catalog.link(partition.nic_link or fabric.link))
    per_gpu = nic * partition.nics_per_node.value / per_node
    return replace(
        machine,
        network_bytes_per_s_per_gpu=per_gpu * transport.achievable.value,
        network_latency_s=transport.latency.value + fabric.hop_latency.value * fabric.max_hops.value,
        transport=transport.id,
    )


def _pick_transport(catalog: Catalog, offered: tuple[str, ...], wanted: str | None) -> Transport:
    if wanted is None:
        return catalog.transport(offered[0])
    transport = catalog.transport(wanted)
    if transport.id not in offered:
        raise ConfigError(f"transport {transport.id!r} does not run on this fabric: choose {', '.join(offered)}")
    return transport


def _scale_up(catalog: Catalog, accelerator: Accelerator, partition: Partition, per_node: int) -> tuple[float, float]:
    """Bandwidth one direction per device and latency between devices of a node."""
    name = accelerator.scale_up_link or accelerator.host_link
    link = catalog.link(name) if name is not None else None
    latency = 0.0 if link is None else _latency_s(link)
    if partition.scale_up_bandwidth is not None:
        return partition.scale_up_bandwidth.value, latency
    if per_node == 1:
        return accelerator.memory_bandwidth.value, latency
    if accelerator.kind == "cpu":  # processes of a node exchange through memory: one writes what the other reads
        return accelerator.memory_bandwidth.value / 2.0, _latency_s(catalog.link("loopback"))
    if link is None:
        raise NotExpressedError(
            f"{accelerator.id} has no link between devices: give the partition a scale_up_bandwidth"
        )
    num_links = (
        accelerator.num_scale_up_links.value if accelerator.scale_up_link and accelerator.num_scale_up_links else 1
    )
    return link_bytes_per_s(link) * num_links, latency


def _latency_s(link: Link) -> float:
    return 0.0 if link.latency is None else link.latency.value


def machine_from_hardware(
    catalog: Catalog,
    *,
    gpu: str,
    gpus_per_node: int,
    scale_up_bytes_per_s: float | None,
    network_bytes_per_s_per_gpu: float | None,
    transport_name: str = "rdma",
    memory_bytes: float | None = None,
) -> Machine:
    """A machine described by a device name and two line rates, as published runs give it."""
    accelerator = catalog.accelerator(gpu)
    constants = catalog.constants()
    transport = catalog.transport(transport_name)
    link = catalog.link(accelerator.scale_up_link) if accelerator.scale_up_link else None
    assumptions = []
    if scale_up_bytes_per_s is None:
        if link is None or accelerator.num_scale_up_links is None:
            raise NotExpressedError(f"{accelerator.id}: neither the row nor the catalogue gives its scale-up bandwidth")
        scale_up_bytes_per_s = link_bytes_per_s(link) * accelerator.num_scale_up_links.value
        assumptions.append("scale-up bandwidth from the catalogue")
    reachable = network_bytes_per_s_per_gpu
    return Machine(
        name=f"{accelerator.id} x {gpus_per_node}",
        accelerator=accelerator,
        constants=constants,
        gpus_per_node=gpus_per_node,
        num_nodes=None,
        memory_bytes=memory_bytes or usable_memory_bytes(accelerator),
        hbm_bytes_per_s=accelerator.memory_bandwidth.value * constants.memory_bandwidth_share.value,
        scale_up_bytes_per_s=scale_up_bytes_per_s * constants.scale_up_share.value,
        scale_up_latency_s=link.latency.value if link is not None and link.latency is not None else 0.0,
        network_bytes_per_s_per_gpu=None if reachable is None else reachable * transport.achievable.value,
        network_latency_s=transport.latency.value,
        transport=transport.id,
        assumptions=tuple(assumptions),
    )
