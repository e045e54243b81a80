"""A Machine from the catalogue: a system's partition, or a device and two line rates."""

from __future__ import annotations

import math
from dataclasses import replace

from scalewright.catalog.derive import link_bytes_per_s, usable_memory_bytes
from scalewright.catalog.library import Catalog
from scalewright.catalog.network import NETWORKS
from scalewright.catalog.types import Accelerator, Fabric, Link, Partition, System, Transport
from scalewright.costs.machine.machine import Machine
from scalewright.costs.machine.network import HOPS_IN_GROUP, Network, exit_frac
from scalewright.errors import ConfigError, NotExpressedError, UnknownNameError


def pick_partition(system: System, name: str | None) -> Partition:
    if name is None:
        return next(p for p in system.partitions if p.default)
    for partition in system.partitions:
        if partition.id == name:
            return partition
    names = [p.id for p in system.partitions]
    raise UnknownNameError(f"partition of {system.id}", name, names, hint=f"choose {', '.join(names)}")


def machine_from_system(
    catalog: Catalog, system_name: str, *, partition_name: str | None = None, transport_name: str | None = None
) -> Machine:
    """The partition of a system. Whether other jobs share its network, the system's entry says."""
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
        host_gpus=None if partition.accelerators_per_host is None else int(partition.accelerators_per_host.value),
        num_nodes=int(partition.num_nodes.value),
        memory_bytes=usable_memory_bytes(accelerator),
        hbm_bytes_per_s=accelerator.memory_bandwidth.value * constants.memory_bandwidth_share.value,
        scale_up_bytes_per_s=scale_up * constants.scale_up_share.value,
        scale_up_latency_s=latency,
        network_bytes_per_s_per_gpu=None,
        network_latency_s=0.0,
        transport="none",
        library=_library(accelerator),
        in_switch_bytes_per_s=None if partition.in_switch_reduction is None else partition.in_switch_reduction.value,
    )
    machine = _with_host(machine, catalog, partition)
    if partition.fabric is None or partition.nics_per_node is None:
        return machine
    fabric = catalog.fabric(partition.fabric)
    transport = _pick_transport(catalog, fabric.transports, transport_name)
    nic = link_bytes_per_s(catalog.link(partition.nic_link or fabric.link))
    per_gpu = nic * partition.nics_per_node.value / per_node
    return replace(
        machine,
        network_bytes_per_s_per_gpu=per_gpu * transport.achievable.value,
        network_latency_s=transport.latency.value,
        transport=transport.id,
        network=_network(
            fabric, partition, is_shared=system.network == "shared", usual_frac=constants.congestion_share.value
        ),
    )


def with_network(machine: Machine, name: str | None) -> Machine:
    """The machine with other jobs on its network (`shared`) or without (`quiet`); None: as its entry says."""
    if name is None:
        return machine
    if name not in NETWORKS:
        raise UnknownNameError("network", name, NETWORKS, hint=f"choose {' or '.join(NETWORKS)}")
    if machine.network is None:
        if name == "quiet":
            return machine
        raise ConfigError(
            f"network shared: {machine.name} has no catalogued fabric that jobs could share; leave it out"
        )
    return replace(machine, network=replace(machine.network, is_shared=name == "shared"))


def _network(fabric: Fabric, partition: Partition, *, is_shared: bool, usual_frac: float) -> Network:
    """The fabric with what the partition says of its own part of it."""
    nodes = partition.num_nodes.value
    congestion = partition.congestion or fabric.congestion
    seen_nodes = partition.congestion_nodes
    leaf, whole = partition.nodes_per_leaf or fabric.nodes_per_leaf, fabric.max_hops.value
    group = partition.nodes_per_group
    share = (partition.bisection_share or fabric.bisection_share).value
    return Network(
        fabric=fabric.id,
        hop_latency_s=fabric.hop_latency.value,
        num_hops=(1.0, min(whole, HOPS_IN_GROUP[fabric.topology]), whole),
        num_leaf_nodes=math.inf if leaf is None else leaf.value,
        num_group_nodes=math.inf if group is None else group.value,
        num_nodes=nodes,
        exit_frac=exit_frac(topology=fabric.topology, bisection_frac=share),
        collisions=(partition.collisions or fabric.collisions).value,
        congestion=congestion.value,
        congestion_high=max(congestion.value, (partition.congestion_high or fabric.congestion_high).value),
        congestion_frac=usual_frac if seen_nodes is None else seen_nodes.value / nodes,
        congestion_basis=(
            "a general value: no figure of this machine is published"
            if seen_nodes is None
            else f"by published runs on {seen_nodes.value:.0f} of its nodes"
        ),
        is_shared=is_shared,
        is_compact=partition.placement == "compact",
        is_rail_optimised=fabric.rail_optimised,
        reduces=partition.in_network_reduction,
    )


def _library(accelerator: Accelerator) -> str:
    """NCCL's place is taken by RCCL on AMD's devices and by Gloo on processors."""
    if accelerator.kind == "cpu":
        return "gloo"
    return "rccl" if accelerator.vendor.upper().startswith("AMD") else "nccl"


def _pick_transport(catalog: Catalog, offered: tuple[str, ...], requested_name: str | None) -> Transport:
    if requested_name is None:
        return catalog.transport(offered[0])
    transport = catalog.transport(requested_name)
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


def _with_host(machine: Machine, catalog: Catalog, partition: Partition | None) -> Machine:
    """The machine with its hosts' memory and the ways to it, as far as known; a processor is its own host."""
    accelerator, constants = machine.accelerator, machine.constants
    if accelerator.kind in ("cpu", "apu"):
        return machine
    if accelerator.host_link is not None:
        rate = link_bytes_per_s(catalog.link(accelerator.host_link)) * constants.host_link_share.value
        machine = replace(machine, host_link_bytes_per_s=rate)
    if partition is None:
        return machine
    if partition.cpu is not None and partition.cpu_sockets_per_node is not None:
        sockets = partition.cpu_sockets_per_node.value / machine.gpus_per_node
        rate = catalog.accelerator(partition.cpu).memory_bandwidth.value * sockets * constants.host_memory_share.value
        machine = replace(machine, host_memory_bytes_per_s=rate)
    return replace(machine, host_memory_bytes=partition.host_memory.value)


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
    machine = Machine(
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
        library=_library(accelerator),
    )
    return _with_host(machine, catalog, None)
