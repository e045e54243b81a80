"""Time a rank's device and links with PyTorch: a product, a copy, and all-reduces in small groups as warm-up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from scalewright import units
from scalewright.records.preflight import PAYLOAD_BYTES
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import EnvName
from scalewright.run.preflight.facts import RankGpu, RankTransport, Timings
from scalewright.run.preflight.gather import own_tcp_addresses
from scalewright.run.preflight.interfaces import interfaces_of
from scalewright.run.preflight.library_log import read_log
from scalewright.run.preflight.phases import IN_NODE, IN_PAIR, IN_WORLD, JOIN
from scalewright.run.preflight.slow_nodes import rounds
from scalewright.run.world import World

PRODUCT_SIZE = {"cpu": 512, "cuda": 8192}
COPY_BYTES = 128 * units.MIB
MEASURE_S = 0.05
MAX_REPEATS = 4
REPEAT_BUDGET_S = 1.0
"""A collective that takes longer is not repeated: one call is enough to see that a link is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLocation:
    """The device that this rank uses."""

    device: torch.device
    gpu: RankGpu | None
    num_visible: int


def rank_location(device_kind: str, world: World) -> RankLocation:
    """The device of this local rank. A rank without a GPU gets the CPU and no `gpu`, which is a finding."""
    num_visible = 0 if device_kind == "cpu" or not torch.cuda.is_available() else torch.cuda.device_count()
    index = int(os.environ.get(EnvName.DEVICE, world.local_rank))
    if index >= num_visible:
        return RankLocation(device=torch.device("cpu"), gpu=None, num_visible=num_visible)
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    pci = [getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    bus = "" if None in pci else f"{pci[0]:04x}:{pci[1]:02x}:{pci[2]:02x}.0"
    gpu = RankGpu(uuid=str(getattr(properties, "uuid", "")), bus=bus, name=properties.name)
    return RankLocation(device=torch.device("cuda", index), gpu=gpu, num_visible=num_visible)


def log_library(directory: RunDirectory, world: World) -> None:
    """Let NCCL or RCCL write a log. It reads these variables when it creates its first communicator."""
    directory.preflight.mkdir(parents=True, exist_ok=True)
    directory.preflight_library_log(world.rank).unlink(missing_ok=True)
    os.environ |= {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
        "NCCL_DEBUG_FILE": str(directory.preflight_library_log(world.rank)),
    }


def time_device(location: RankLocation, rank: int) -> Timings:
    """Time a product and, on a GPU, a copy from pinned memory, without other ranks."""
    kind = location.device.type
    size = PRODUCT_SIZE[kind]
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    left = torch.ones(size, size, device=location.device, dtype=dtype)
    product_s = _best_s(lambda: torch.mm(left, left), location.device)
    if kind == "cpu":
        return Timings(rank=rank, product_s=product_s)
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=location.device)
    copy_s = _best_s(lambda: target.copy_(source, non_blocking=True), location.device)
    return Timings(rank=rank, product_s=product_s, copy_bytes_per_s=COPY_BYTES / copy_s)


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    """Shortest time of repeated runs: other users of the machine only make it slower."""
    work()
    _synchronise(device)
    best, until_s = float("inf"), time.monotonic() + MEASURE_S
    while time.monotonic() < until_s or best == float("inf"):
        started_s = time.perf_counter()
        work()
        _synchronise(device)
        best = min(best, time.perf_counter() - started_s)
    return best


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def join(world: World, store: Store, location: RankLocation, *, timeout_s: float) -> None:
    """Join the process group of all ranks. Communicators are created later, group by group."""
    backend = "cpu:gloo,cuda:nccl" if location.device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=store, rank=world.rank, world_size=world.world_size, timeout=timedelta(seconds=timeout_s)
    )


def time_collectives(
    world: World,
    hosts: Sequence[str],
    location: RankLocation,
    alone: Timings,
    *,
    timeout_s: float,
    report_phase: Callable[[str], None],
) -> Timings:
    """All-reduce inside the node, with two neighbouring nodes, and over all ranks; `hosts` has each rank's host."""
    nodes = list(dict.fromkeys(hosts))
    ranks_of = {name: [rank for rank, host in enumerate(hosts) if host == name] for name in nodes}
    timeout = timedelta(seconds=timeout_s)

    def group_s(ranks: list[int]) -> tuple[float, bool]:
        group = dist.new_group(ranks, timeout=timeout, use_local_synchronization=True)
        try:
            return _all_reduce_s(group, ranks, location.device)
        finally:
            dist.destroy_process_group(group)

    report_phase(JOIN)
    dist.barrier()
    timings = replace(alone, clock_s=time.time())
    all_right = True
    if len(ranks_of[world.host]) > 1:
        report_phase(IN_NODE)
        node_s, all_right = group_s(ranks_of[world.host])
        timings = replace(timings, node_s=node_s)
    pairs: dict[str, float] = {}
    for number, pairs_of_round in enumerate(rounds(len(nodes)), start=1):
        for first, second in pairs_of_round:
            if world.host in (nodes[first], nodes[second]):
                report_phase(f"{IN_PAIR} {number}")
                other = nodes[second] if world.host == nodes[first] else nodes[first]
                pairs[other], is_right = group_s(sorted(ranks_of[nodes[first]] + ranks_of[nodes[second]]))
                all_right = all_right and is_right
    world_s = None
    if world.world_size > 1:
        report_phase(IN_WORLD)
        world_s, is_right = _all_reduce_s(dist.group.WORLD, list(range(world.world_size)), location.device)
        all_right = all_right and is_right
    return replace(timings, pairs_s=pairs, world_s=world_s, is_sum_right=all_right)


def _all_reduce_s(group: dist.ProcessGroup | None, ranks: list[int], device: torch.device) -> tuple[float, bool]:
    """Shortest time of the payload, and whether every element of every sum was right."""
    payload = torch.empty(PAYLOAD_BYTES[device.type] // 4, device=device)
    own, expected = float(dist.get_rank() + 1), float(sum(rank + 1 for rank in ranks))

    def once() -> tuple[float, bool]:
        payload.fill_(own)
        dist.barrier(group)
        _synchronise(device)
        started_s = time.perf_counter()
        dist.all_reduce(payload, group=group)
        _synchronise(device)
        return time.perf_counter() - started_s, bool((payload == expected).all())

    first_s, is_right = once()  # opens the connections, so it counts only if no other call follows
    slowest = torch.tensor([first_s], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    repeats = min(MAX_REPEATS, int(REPEAT_BUDGET_S / max(float(slowest[0]), 1e-6)))
    best_s = first_s if repeats < 1 else float("inf")
    for _ in range(repeats):
        time_s, right = once()
        best_s, is_right = min(best_s, time_s), is_right and right
    return best_s, is_right


def transport_used(directory: RunDirectory, world: World, location: RankLocation) -> RankTransport:
    """The transport from the library's log. Gloo writes none, so its sockets are read from the kernel's table."""
    if location.device.type == "cuda":
        log = directory.preflight_library_log(world.rank)
        transport = read_log(log.read_text(errors="replace") if log.exists() else "", rank=world.rank)
        numbers = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        version = transport.version or ".".join(map(str, numbers))
        library = "rccl" if torch.version.hip is not None else "nccl"
        return replace(transport, library=library, version=version)
    interfaces = interfaces_of(own_tcp_addresses())
    return RankTransport(
        rank=world.rank, library="gloo", version=torch.__version__, network="TCP" if interfaces else "",
        routes=tuple(f"TCP/{name}" for name in interfaces), interfaces=tuple(interfaces),
    )  # fmt: skip
