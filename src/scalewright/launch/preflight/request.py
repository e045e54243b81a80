"""The request of a pre-flight check: the network rates and all-reduce times that the catalogue predicts for nodes."""

from __future__ import annotations

from dataclasses import replace

from scalewright.catalog.derive import link_bytes_per_s
from scalewright.catalog.library import Catalog
from scalewright.costs.collectives import all_reduce_time_s, group_path
from scalewright.costs.machine import Machine, machine_from_system, pick_partition
from scalewright.errors import ConfigError
from scalewright.launch.script.request import JobRequest
from scalewright.records.preflight import PAYLOAD_BYTES, PreflightRequest
from scalewright.sites.types import Site


def with_nominal(
    request: PreflightRequest,
    catalog: Catalog,
    *,
    system: str,
    partition: str | None = None,
    transport: str | None = None,
    num_nodes: int,
    ranks_per_node: int,
) -> PreflightRequest:
    """The request with the nominal values of a catalogued system, for a job of this shape."""
    machine = machine_from_system(catalog, system, partition_name=partition, transport_name=transport)
    if ranks_per_node > machine.gpus_per_node and machine.accelerator.kind != "cpu":
        raise ConfigError(
            f"{ranks_per_node} ranks per node, but a node of {machine.name} has {machine.gpus_per_node} devices: "
            "use one rank per device"
        )
    nic_bytes_per_s, num_nics = _ports(catalog, system, partition)
    size = PAYLOAD_BYTES["cpu" if machine.accelerator.kind == "cpu" else "cuda"]
    has_network = machine.network_bytes_per_s_per_gpu is not None
    return replace(
        request,
        system=machine.name,
        transport=transport or "",
        nic_bytes_per_s=nic_bytes_per_s,
        num_nics=num_nics,
        node_s=_warm_up_s(machine, ranks_per_node, ranks_per_node, size),
        pair_s=_warm_up_s(machine, 2 * ranks_per_node, ranks_per_node, size) if has_network else None,
        world_s=_warm_up_s(machine, num_nodes * ranks_per_node, ranks_per_node, size)
        if has_network or num_nodes == 1
        else None,
    )


def request_of_job(job: JobRequest, site: Site, catalog: Catalog, *, device: str = "auto") -> PreflightRequest:
    """The pre-flight request of a job: its folder, the transport it forces, and the nominal values of its system.

    Without a matching system in the catalogue, nodes are only compared with each other.
    """
    forced = "" if job.transport == "auto" else job.transport
    plain = PreflightRequest(device=device, folders=(str(job.run_dir),), transport=forced)
    per_node = job.gpus_per_node or site.num_gpus_per_node
    if site.system is None or not per_node or device == "cpu":
        return plain
    try:
        return with_nominal(
            plain, catalog, system=site.system, transport=forced or None, num_nodes=job.all_nodes,
            ranks_per_node=per_node,
        )  # fmt: skip
    except ConfigError:
        return plain


def _warm_up_s(machine: Machine, num_ranks: int, ranks_per_node: int, size_bytes: float) -> float | None:
    """Predicted time of the all-reduce of the payload; None for a single rank."""
    if num_ranks < 2:
        return None
    per_node = replace(machine, gpus_per_node=ranks_per_node)
    path = group_path(per_node, num_ranks=num_ranks, stride=1)
    return float(all_reduce_time_s(size_bytes=size_bytes, path=path))


def _ports(catalog: Catalog, system: str, partition: str | None) -> tuple[float | None, int | None]:
    """Bytes per second of a network port, and ports per node; None where the catalogue has no value."""
    network = pick_partition(catalog.system(system), partition)
    if network.fabric is None or network.nics_per_node is None:
        return None, None
    link = catalog.link(network.nic_link or catalog.fabric(network.fabric).link)
    return link_bytes_per_s(link), int(network.nics_per_node.value)
