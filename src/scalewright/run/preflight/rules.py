"""Rules of the pre-flight check: pure functions from facts, logs and timings to findings.

`evidence["nodes"]` of a finding names the nodes at fault. It is empty if the request is wrong, not a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scalewright import units
from scalewright.records.node_devices import Nic
from scalewright.records.preflight import PreflightRequest
from scalewright.records.types import Finding, Rule, Severity
from scalewright.run.preflight.facts import RankFacts, RankTransport, Timings
from scalewright.units import BYTES, BYTES_PER_S
from scalewright.units import format as shown

KERNEL_PCI = "Linux, Documentation/ABI/testing/sysfs-bus-pci"
KERNEL_IB = "Linux, Documentation/ABI/stable/sysfs-class-infiniband"
NCCL_GUIDE = "NVIDIA, NCCL documentation, Troubleshooting"
LUMI_GUIDE = "LUMI documentation, GPU binding"
_ROWS: tuple[tuple[str, Severity, str, str, str], ...] = (
    ("rank-missing", "error", "a rank did not arrive", "",
     "The first collective would wait for it until the job's time is over."),
    ("device-shared", "error", "two ranks use one device", NCCL_GUIDE,
     "Both run at half speed, and NCCL refuses duplicate devices."),
    ("device-missing", "error", "a rank has no device", "",
     "Its share of the work runs on the host, or not at all."),
    ("device-other", "error", "a device is of another kind", "",
     "Every step waits for the slowest device."),
    ("cpus-far", "warning", "CPUs far from the device", LUMI_GUIDE,
     "Launches and copies cross the link between sockets."),
    ("cpus-shared", "warning", "ranks share CPUs", LUMI_GUIDE,
     "Their loaders and launches take turns."),
    ("transport-other", "error", "traffic takes another route", NCCL_GUIDE,
     "Libraries fall back to sockets without a message; steps then take many times longer."),
    ("transport-host", "warning", "traffic goes through host memory", NCCL_GUIDE,
     "Device to device without the host is faster; it needs peer access or GPUDirect RDMA."),
    ("pcie-narrow", "error", "a PCIe link trained narrow", KERNEL_PCI,
     "Half the lanes give half the rate until the device is reseated or replaced."),
    ("pcie-slow", "warning", "a PCIe link runs below its generation", KERNEL_PCI,
     "Under load a healthy link runs at its highest speed."),
    ("copy-slow", "error", "copies to the device are slow", KERNEL_PCI,
     "Data and checkpoints pass here; measured against the link's nominal rate."),
    ("nic-slow", "error", "a port runs below its nominal rate", KERNEL_IB,
     "A link may train at half width without any other message."),
    ("nic-down", "error", "a port is down", KERNEL_IB,
     "Its devices share the other ports."),
    ("versions-differ", "error", "driver, image or software differ", "",
     "Collectives between different versions hang or crash."),
    ("folder-full", "error", "too little room", "",
     "The run would end at its first checkpoint."),
    ("clock-off", "warning", "a clock is off", "",
     "Logs of several nodes cannot be put in order, and tickets expire."),
    ("node-slow", "error", "a node is slow", "",
     "Every step waits for the slowest node."),
    ("device-slow", "warning", "a device is slow", "",
     "Every step waits for the slowest device; heat or a power cap are the usual causes."),
    ("collective-slow", "warning", "the warm-up is slower than expected", "",
     "All nodes alike: the fabric is busy, or traffic takes another route than predicted."),
    ("collective-hung", "error", "the warm-up did not end", "",
     "All other ranks wait for the ranks that did not finish."),
    ("sum-wrong", "error", "the warm-up's sum is wrong", "",
     "A device or link that corrupts data must not train."),
)  # fmt: skip
RULES = tuple(Rule(id=i, severity=s, title=title, source=source, why=why) for i, s, title, source, why in _ROWS)
BY_ID = {rule.id: rule for rule in RULES}
REQUEST_RULES = frozenset({"device-shared", "device-missing", "transport-other"})
"""If every node breaks one of these rules, the request is wrong, and other nodes would not help."""
COPY_SHARE = 0.6
"""Share of a PCIe link's nominal rate that a pinned copy must reach; healthy links reach 0.75 to 0.9."""
CPU_SLOW_RATIO = 3.0
"""Ranks on CPUs share the machine with other work, so only much slower ranks are reported."""
EXPECTED_RATIO = 3.0
CLOCK_LIMIT_S = 1.0
FAST = ("infiniband", "roce", "slingshot")
NETWORKS_OF_TRANSPORT = {
    "rdma": ("rdma",),
    "rdma-host": ("rdma",),
    "ipoib": ("sockets",),
    "tcp": ("sockets",),
    "tcp-slingshot": ("sockets",),
    "ofi-plugin": ("libfabric",),
}
"""Families of the library's networks that belong to each catalogued transport."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightEvidence:
    """Everything that the rules see."""

    request: PreflightRequest
    hosts: tuple[str, ...]
    """Nodes in the order of their ranks, including those that did not arrive."""
    ranks: tuple[RankFacts, ...]
    timings: tuple[Timings, ...] = ()
    transports: tuple[RankTransport, ...] = ()
    missing: tuple[tuple[int, str, str], ...] = ()
    """Rank, host and the last phase it reported, for ranks that did not arrive or did not finish."""

    def host_of(self, rank: int) -> str:
        return next((r.host for r in self.ranks if r.rank == rank), "")

    def by_host(self) -> dict[str, list[RankFacts]]:
        ranks_of_host: dict[str, list[RankFacts]] = {}
        for rank in self.ranks:
            ranks_of_host.setdefault(rank.host, []).append(rank)
        return ranks_of_host


def finding(rule_id: str, message: str, *, nodes: Iterable[str] = (), next_step: str = "", **details: Any) -> Finding:
    """A finding of a rule, with `nodes` and `details` as its evidence."""
    rule = BY_ID[rule_id]
    hosts = list(dict.fromkeys(nodes))
    return Finding(
        rule=rule_id, severity=rule.severity, message=message, evidence={"nodes": hosts, **details},
        next_step=next_step, source=rule.source,
    )  # fmt: skip


def missing_ranks(evidence: PreflightEvidence) -> Iterator[Finding]:
    for has_arrived, rule_id, words in (
        (False, "rank-missing", "did not arrive"),
        (True, "collective-hung", "did not come back"),
    ):
        lost = [(rank, host, phase) for rank, host, phase in evidence.missing if bool(phase) == has_arrived]
        if lost:
            hosts = [host for _, host, _ in lost]
            ranks = ", ".join(str(rank) for rank, _, _ in lost[:8]) + (" ..." if len(lost) > 8 else "")
            phases = sorted({phase for *_, phase in lost if phase})
            yield finding(
                rule_id, f"rank {ranks} on {_names(hosts)} {words}" + (f" from {', '.join(phases)}" if phases else ""),
                nodes=hosts, ranks=[rank for rank, _, _ in lost],
                next_step="look at the node's log, and leave the node out",
            )  # fmt: skip


def device_map(evidence: PreflightEvidence) -> Iterator[Finding]:
    """Each rank has a device of its own, and all devices are of one kind."""
    on_devices = any(r.gpu is not None for r in evidence.ranks) or evidence.request.device == "cuda"
    without = [r for r in evidence.ranks if on_devices and r.gpu is None]
    if without:
        yield finding(
            "device-missing", f"{_ranks(without)} see no GPU", nodes=[r.host for r in without],
            next_step="ask for one GPU per rank, and check CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES",
        )  # fmt: skip
    for host, ranks in evidence.by_host().items():
        users: dict[str, list[RankFacts]] = {}
        for rank in ranks:
            if rank.gpu is not None:
                users.setdefault(rank.gpu.uuid or rank.gpu.bus, []).append(rank)
        for device, sharing in users.items():
            if device and len(sharing) > 1:
                yield finding(
                    "device-shared", f"{_ranks(sharing)} of {host} all use {sharing[0].gpu_text()}", nodes=[host],
                    ranks=[r.rank for r in sharing], device=device,
                    next_step="let each rank choose the device of its local rank, or bind one per task",
                )  # fmt: skip
    names = Counter(r.gpu.name for r in evidence.ranks if r.gpu is not None)
    usual = names.most_common(1)[0][0] if names else ""
    odd = [(r, r.gpu.name) for r in evidence.ranks if r.gpu is not None and r.gpu.name != usual]
    if odd:
        hosts = [rank.host for rank, _ in odd]
        yield finding(
            "device-other", f"{_ranks([r for r, _ in odd])} on {_names(hosts)} have {odd[0][1]}, not {usual}",
            nodes=hosts, next_step="name the kind of GPU with --constraint or --gres",
        )  # fmt: skip


def cpu_map(evidence: PreflightEvidence) -> Iterator[Finding]:
    """The CPUs of a rank are near its device, and no other rank has them."""
    far = [
        r
        for r in evidence.ranks
        if r.gpu is not None and r.gpu.numa >= 0 and r.numa_nodes() and r.gpu.numa not in r.numa_nodes()
    ]
    if far:
        first = far[0]
        assert first.gpu is not None
        yield finding(
            "cpus-far",
            f"{_ranks(far)} on {_names([r.host for r in far])}: rank {first.rank} has its GPU on NUMA node "
            f"{first.gpu.numa} and its CPUs on {', '.join(map(str, first.numa_nodes()))}",
            nodes=[r.host for r in far], ranks=[r.rank for r in far],
            next_step="bind with --cpu-bind=mask_cpu from the site's profile, or --gpu-bind=closest",
        )  # fmt: skip
    for host, ranks in evidence.by_host().items():
        bound = [r for r in ranks if r.cpus and len(r.cpus) < r.num_node_cpus]
        users = Counter(cpu for r in bound for cpu in r.cpus)
        shared = sorted(cpu for cpu, count in users.items() if count > 1)
        if shared:
            both = [r for r in bound if set(r.cpus) & set(shared)]
            yield finding(
                "cpus-shared", f"{_ranks(both)} of {host} share CPUs {_cpu_text(shared)}", nodes=[host],
                next_step="repeat --cpus-per-task on srun, or bind with a mask per rank",
            )  # fmt: skip


def transport_taken(evidence: PreflightEvidence) -> Iterator[Finding]:
    """The route in the library's log is the one that the job was rendered for, or the fastest that the node has."""
    from scalewright.run.preflight.library_log import goes_through_host, is_direct, networks_used

    num_hosts = len(set(evidence.hosts))
    expected = NETWORKS_OF_TRANSPORT.get(evidence.request.transport, ())
    fast_hosts = {r.host for r in evidence.ranks if any(n.kind in FAST and n.is_up for n in r.nics)}
    wrong: dict[str, list[int]] = {}
    hosted: list[int] = []
    inside: list[int] = []
    for transport in evidence.transports:
        used = networks_used(transport)
        host = evidence.host_of(transport.rank)
        bad = [network for network in used if expected and network not in expected]
        if not expected and transport.library != "gloo" and host in fast_hosts:
            bad = [network for network in used if network == "sockets"]
        for network in bad:
            wrong.setdefault(network, []).append(transport.rank)
        if used and "sockets" not in used and evidence.request.transport != "rdma-host" and not is_direct(transport):
            hosted.append(transport.rank)
        if goes_through_host(transport):
            inside.append(transport.rank)
    for network, ranks in wrong.items():
        why = f"the job was made for {evidence.request.transport}" if expected else "the nodes have a faster fabric"
        yield finding(
            "transport-other", f"{len(ranks)} of {len(evidence.transports)} ranks use {network}, but {why}",
            nodes=[evidence.host_of(r) for r in ranks], ranks=ranks, network=network,
            next_step="check the network plugin, NCCL_NET and NCCL_IB_DISABLE, or launch with --transport",
        )  # fmt: skip
    for ranks, where, step in (
        (hosted if num_hosts > 1 else [], "between nodes", "check GPUDirect RDMA: nvidia-peermem or DMA-BUF"),
        (inside, "inside a node", "check peer access: NCCL_P2P_DISABLE, IOMMU and ACS, and the container's IPC"),
    ):
        if ranks:
            yield finding(
                "transport-host", f"{len(ranks)} ranks exchange through host memory {where}",
                nodes=[evidence.host_of(r) for r in ranks], ranks=ranks, next_step=step,
            )  # fmt: skip


def links(evidence: PreflightEvidence) -> Iterator[Finding]:
    """PCIe links have all lanes and full speed, and copies come near their nominal rate."""
    copies = {t.rank: t.copy_bytes_per_s for t in evidence.timings}
    for rank in evidence.ranks:
        devices = [] if rank.gpu is None else [(rank.gpu_text(), rank.gpu.link)]
        if rank.local_rank == 0:
            devices += [(nic.name, nic.link) for nic in rank.nics if nic.kind in FAST]
        for name, link in devices:
            if link is None:
                continue
            if link.num_lanes < link.max_num_lanes:
                yield finding(
                    "pcie-narrow", f"{name} of {rank.host} has {link.num_lanes} of {link.max_num_lanes} PCIe lanes",
                    nodes=[rank.host], rank=rank.rank, next_step="leave the node out and report it to the operators",
                )  # fmt: skip
            elif link.transfers_per_s < link.max_transfers_per_s:
                yield finding(
                    "pcie-slow", f"{name} of {rank.host} runs PCIe at {link.transfers_per_s / units.GIGA:g} of "
                    f"{link.max_transfers_per_s / units.GIGA:g} GT/s", nodes=[rank.host], rank=rank.rank,
                    next_step="idle devices save power this way: compare with the copy rate",
                )  # fmt: skip
        rate = copies.get(rank.rank)
        if rate is not None and rank.gpu is not None and rank.gpu.link is not None:
            nominal = rank.gpu.link.max_bytes_per_s
            if rate < COPY_SHARE * nominal:
                yield finding(
                    "copy-slow", f"{rank.gpu_text()} of {rank.host} copies {shown(rate, BYTES_PER_S)} where the link's "
                    f"nominal rate is {shown(nominal, BYTES_PER_S)}", nodes=[rank.host], rank=rank.rank,
                    next_step="check the CPU binding first, then leave the node out",
                )  # fmt: skip


def ports(evidence: PreflightEvidence) -> Iterator[Finding]:
    """Ports of the fabric are up, at the nominal rate or at the rate of the same port of other nodes."""
    of_node = {host: [n for n in ranks[0].nics if n.kind in FAST] for host, ranks in evidence.by_host().items()}
    best: dict[str, float] = {}
    for nic in (n for nics in of_node.values() for n in nics if n.bytes_per_s):
        best[nic.name] = max(best.get(nic.name, 0.0), nic.bytes_per_s or 0.0)
    up_somewhere = {n.name for nics in of_node.values() for n in nics if n.is_up}
    for host, nics in of_node.items():
        for nic in nics:
            if not nic.is_up and nic.name in up_somewhere:
                yield finding("nic-down", f"{nic.name} of {host} is down", nodes=[host], port=nic.name,
                              next_step="leave the node out and report it to the operators")  # fmt: skip
            elif nic.is_up:
                yield from _port_rate(host, nic, best.get(nic.name), evidence.request.nic_bytes_per_s)
        num_expected = evidence.request.num_nics
        num_up = len({n.name for n in nics if n.is_up and not _is_ip_of_port(n)})
        if num_expected is not None and 0 < num_up < num_expected and not any(not n.is_up for n in nics):
            yield finding("nic-down", f"{host} has {num_up} of {num_expected} ports of the fabric", nodes=[host],
                          next_step="leave the node out and report it to the operators")  # fmt: skip


def _port_rate(host: str, nic: Nic, best_elsewhere: float | None, nominal: float | None) -> Iterator[Finding]:
    if nic.bytes_per_s is None or _is_ip_of_port(nic):
        return
    limit = nominal or best_elsewhere
    if limit is not None and nic.bytes_per_s < 0.99 * limit:
        whose = "nominal" if nominal else "other nodes' rate"
        yield finding(
            "nic-slow", f"{nic.name} of {host} runs at {nic.rate_text or shown(nic.bytes_per_s, BYTES_PER_S)}, "
            f"{nic.bytes_per_s / limit:.0%} of the {whose}", nodes=[host], port=nic.name,
            bytes_per_s=nic.bytes_per_s, expected_bytes_per_s=limit,
            next_step="a cable or lane is bad: leave the node out and report it to the operators",
        )  # fmt: skip


def _is_ip_of_port(nic: Nic) -> bool:
    """An IPoIB interface belongs to a port that is listed separately."""
    return nic.kind == "infiniband" and ":" not in nic.name


def same_everywhere(evidence: PreflightEvidence) -> Iterator[Finding]:
    """All nodes have the same driver, image and versions. The nodes in the minority are at fault."""
    firsts = [ranks[0] for ranks in evidence.by_host().values()]
    readers: dict[str, Callable[[RankFacts], str]] = {
        "driver": lambda r: r.driver,
        "image": lambda r: r.image,
    }
    for name in sorted({key for r in firsts for key in r.software}):
        readers[name] = lambda r, name=name: r.software.get(name, "none")  # type: ignore[misc]
    for name, read in readers.items():
        counts = Counter(read(r) for r in firsts)
        if len(counts) < 2:
            continue
        usual = counts.most_common(1)[0][0]
        odd = [r for r in firsts if read(r) != usual]
        yield finding(
            "versions-differ", f"{name} of {_names([r.host for r in odd])} is {read(odd[0]) or 'none'!r}, elsewhere "
            f"{usual or 'none'!r}", nodes=[r.host for r in odd], of=name,
            next_step="leave the node out, or use one image on all nodes",
        )  # fmt: skip


def room(evidence: PreflightEvidence) -> Iterator[Finding]:
    request = evidence.request
    for rank in evidence.ranks:
        for disk in rank.disks:
            if disk.problem:
                text = f"{disk.path} on {rank.host} cannot be written: {disk.problem}"
            elif disk.free_bytes is not None and disk.free_bytes < request.min_free_bytes:
                text = (
                    f"{disk.path} on {rank.host} has {shown(disk.free_bytes, BYTES)} free, "
                    f"{shown(request.min_free_bytes, BYTES)} are needed"
                )
            elif disk.num_free_inodes is not None and disk.num_free_inodes < request.min_free_inodes:
                text = f"{disk.path} on {rank.host} has {disk.num_free_inodes:,.0f} inodes free"
            else:
                continue
            yield finding("folder-full", text, nodes=[rank.host], path=disk.path,
                          next_step="remove old runs, or choose another scratch folder")  # fmt: skip


def clocks(evidence: PreflightEvidence) -> Iterator[Finding]:
    clock_of_rank = {t.rank: t.clock_s for t in evidence.timings if t.clock_s is not None}
    if not clock_of_rank:
        return
    usual = sorted(clock_of_rank.values())[len(clock_of_rank) // 2]
    off = {rank: clock - usual for rank, clock in clock_of_rank.items() if abs(clock - usual) > CLOCK_LIMIT_S}
    if off:
        hosts = [evidence.host_of(rank) for rank in off]
        worst = max(abs(offset) for offset in off.values())
        yield finding("clock-off", f"clock of {_names(hosts)} is off by up to {worst:.1f} s", nodes=hosts,
                      next_step="report to the operators: NTP or PTP does not run there")  # fmt: skip


def _ranks(ranks: Sequence[RankFacts]) -> str:
    numbers = [str(r.rank) for r in ranks]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:8])}{' ...' if len(numbers) > 8 else ''}"


def _names(hosts: Iterable[str]) -> str:
    unique = list(dict.fromkeys(hosts))
    return ", ".join(unique[:6]) + (f" and {len(unique) - 6} more" if len(unique) > 6 else "")


def _cpu_text(cpus: Sequence[int]) -> str:
    return ",".join(map(str, cpus[:8])) + (" ..." if len(cpus) > 8 else "")
