"""Time a rank's device and links with PyTorch: a product, a copy, and the warm-up all-reduce in small groups."""

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
from scalewright.run.preflight.facts import Gpu, Timings, Transport
from scalewright.run.preflight.gather import own_tcp_addresses
from scalewright.run.preflight.interfaces import interfaces_of
from scalewright.run.preflight.library_log import read_log
from scalewright.run.preflight.slow_nodes import rounds
from scalewright.run.preflight.stages import IN_NODE, IN_PAIR, IN_WORLD, JOIN
from scalewright.run.world import World

PRODUCT_SIZE = {"cpu": 512, "cuda": 8192}
COPY_BYTES = 128 * units.MIB
MEASURE_S = 0.05
MAX_REPEATS = 4
REPEAT_BUDGET_S = 1.0
"""A collective that takes longer is not repeated: a slow link is known after one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The device that this rank uses."""

    device: torch.device
    gpu: Gpu | None
    num_visible: int


def choose_place(wanted: str, world: World) -> Place:
    """The device of this local rank. A rank without one gets the CPU and no `gpu`: a finding, not an exception."""
    num_visible = 0 if wanted == "cpu" or not torch.cuda.is_available() else torch.cuda.device_count()
    index = int(os.environ.get(EnvName.DEVICE, world.local_rank))
    if index >= num_visible:
        return Place(device=torch.device("cpu"), gpu=None, num_visible=num_visible)
    torch.cuda.set_device(index)
    about = torch.cuda.get_device_properties(index)
    place = [getattr(about, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    bus = "" if None in place else f"{place[0]:04x}:{place[1]:02x}:{place[2]:02x}.0"
    gpu = Gpu(uuid=str(getattr(about, "uuid", "")), bus=bus, name=about.name)
    return Place(device=torch.device("cuda", index), gpu=gpu, num_visible=num_visible)


def listen_to_library(directory: RunDirectory, world: World) -> None:
    """Have NCCL or RCCL write down what it does; it reads these when its first communicator is made."""
    directory.preflight.mkdir(parents=True, exist_ok=True)
    directory.preflight_library_log(world.rank).unlink(missing_ok=True)
    os.environ |= {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
        "NCCL_DEBUG_FILE": str(directory.preflight_library_log(world.rank)),
    }


def time_device(place: Place, rank: int) -> Timings:
    """A product and, on a GPU, a copy from pinned memory: the rank alone."""
    kind = place.device.type
    size = PRODUCT_SIZE[kind]
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    left = torch.ones(size, size, device=place.device, dtype=dtype)
    product_s = _best_s(lambda: torch.mm(left, left), place.device)
    if kind == "cpu":
        return Timings(rank=rank, product_s=product_s)
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=place.device)
    copy_s = _best_s(lambda: target.copy_(source, non_blocking=True), place.device)
    return Timings(rank=rank, product_s=product_s, copy_bytes_per_s=COPY_BYTES / copy_s)


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    """Shortest of repeated runs: others who use the machine only make it slower."""
    work()
    _settle(device)
    best, until_s = float("inf"), time.monotonic() + MEASURE_S
    while time.monotonic() < until_s or best == float("inf"):
        begun_s = time.perf_counter()
        work()
        _settle(device)
        best = min(best, time.perf_counter() - begun_s)
    return best


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def join(world: World, store: Store, place: Place, *, timeout_s: float) -> None:
    """Join all ranks; communicators are made lazily, group by group."""
    backend = "cpu:gloo,cuda:nccl" if place.device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=store, rank=world.rank, world_size=world.world_size, timeout=timedelta(seconds=timeout_s)
    )


def time_collectives(
    world: World, hosts: Sequence[str], place: Place, before: Timings, *, timeout_s: float, tell: Callable[[str], None]
) -> Timings:
    """All-reduce inside the node, with two neighbouring nodes, and over all ranks; `hosts` has each rank's host."""
    names = list(dict.fromkeys(hosts))
    ranks_of = {name: [rank for rank, host in enumerate(hosts) if host == name] for name in names}
    wait = timedelta(seconds=timeout_s)

    def group_s(ranks: list[int]) -> tuple[float, bool]:
        group = dist.new_group(ranks, timeout=wait, use_local_synchronization=True)
        try:
            return _all_reduce_s(group, ranks, place.device)
        finally:
            dist.destroy_process_group(group)

    tell(JOIN)
    dist.barrier()
    found = replace(before, clock_s=time.time())
    right = True
    if len(ranks_of[world.host]) > 1:
        tell(IN_NODE)
        node_s, right = group_s(ranks_of[world.host])
        found = replace(found, node_s=node_s)
    pairs: dict[str, float] = {}
    for number, pairs_of_round in enumerate(rounds(len(names)), start=1):
        for first, second in pairs_of_round:
            if world.host in (names[first], names[second]):
                tell(f"{IN_PAIR} {number}")
                other = names[second] if world.host == names[first] else names[first]
                pairs[other], is_right = group_s(sorted(ranks_of[names[first]] + ranks_of[names[second]]))
                right = right and is_right
    world_s = None
    if world.world_size > 1:
        tell(IN_WORLD)
        world_s, is_right = _all_reduce_s(dist.group.WORLD, list(range(world.world_size)), place.device)
        right = right and is_right
    return replace(found, pairs_s=pairs, world_s=world_s, is_sum_right=right)


def _all_reduce_s(group: dist.ProcessGroup | None, ranks: list[int], device: torch.device) -> tuple[float, bool]:
    """Shortest time of the payload, and whether every element of every sum was right."""
    payload = torch.empty(PAYLOAD_BYTES[device.type] // 4, device=device)
    mine, expected = float(dist.get_rank() + 1), float(sum(rank + 1 for rank in ranks))

    def once() -> tuple[float, bool]:
        payload.fill_(mine)
        dist.barrier(group)
        _settle(device)
        begun_s = time.perf_counter()
        dist.all_reduce(payload, group=group)
        _settle(device)
        return time.perf_counter() - begun_s, bool((payload == expected).all())

    first_s, is_right = once()  # makes the connections, so it does not count where there is another
    slowest = torch.tensor([first_s], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    repeats = min(MAX_REPEATS, int(REPEAT_BUDGET_S / max(float(slowest[0]), 1e-6)))
    best_s = first_s if repeats < 1 else float("inf")
    for _ in range(repeats):
        time_s, right = once()
        best_s, is_right = min(best_s, time_s), is_right and right
    return best_s, is_right


def transport_taken(directory: RunDirectory, world: World, place: Place) -> Transport:
    """The library's own log; Gloo writes none, so its sockets are looked up in the kernel's table."""
    if place.device.type == "cuda":
        log = directory.preflight_library_log(world.rank)
        found = read_log(log.read_text(errors="replace") if log.exists() else "", rank=world.rank)
        told = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        version = found.version or ".".join(map(str, told))
        library = "rccl" if torch.version.hip is not None else "nccl"
        return replace(found, library=library, version=version)
    named = interfaces_of(own_tcp_addresses())
    return Transport(
        rank=world.rank, library="gloo", version=torch.__version__, network="TCP" if named else "",
        ways=tuple(f"TCP/{name}" for name in named), interfaces=tuple(named),
    )  # fmt: skip
