"""Nodes as they are on real machines, for tests of the pre-flight rules."""

from __future__ import annotations

from pathlib import Path

from scalewright.records.node_devices import Nic, PcieLink
from scalewright.records.preflight import PreflightRequest
from scalewright.run.preflight.facts import Disk, RankFacts, RankGpu, RankTransport, Timings
from scalewright.run.preflight.rules import PreflightEvidence

GEN5 = PcieLink(transfers_per_s=32e9, max_transfers_per_s=32e9, num_lanes=16, max_num_lanes=16)
NDR = 400e9 / 8
# Four NUMA nodes of 16 cores with two devices each: GPU 0 and 1 of a LUMI-G node sit on NUMA node 3, and so on.
LUMI_NUMA = {str(n): tuple(range(16 * n, 16 * n + 16)) for n in range(4)}
LUMI_GPU_NUMA = (3, 3, 1, 1, 0, 0, 2, 2)
LUMI_GPU_BUS = ("c1", "c6", "c9", "ce", "d1", "d6", "d9", "de")


def lumi_rank(
    rank: int, *, host: str = "nid005001", cpus: tuple[int, ...] | None = None, device: int | None = None
) -> RankFacts:
    """A rank of the documented binding: seven cores near its die."""
    local = rank % 8
    index = local if device is None else device
    numa = LUMI_GPU_NUMA[index]
    first = 16 * numa + (1 if index % 2 == 0 else 9)
    return RankFacts(
        rank=rank, local_rank=local, host=host, cpus=tuple(range(first, first + 7)) if cpus is None else cpus,
        num_node_cpus=64, cpus_of_numa=LUMI_NUMA, device="cuda",
        gpu=RankGpu(
            uuid=f"GPU-{host}-{index}", bus=f"0000:{LUMI_GPU_BUS[index]}:00.0", name="AMD Instinct MI250X", numa=numa
        ),
        num_visible_gpus=8,
        nics=tuple(Nic(name=f"hsn{n}", kind="slingshot", is_up=True, bytes_per_s=25e9, numa=n) for n in range(4)),
        driver="6.3.6", image="/images/pytorch.sif", software={"torch": "2.13.0"},
    )  # fmt: skip


def dgx_rank(rank: int, *, host: str, **changes: object) -> RankFacts:
    """A rank of a node with eight GPUs and eight NDR ports on two sockets."""
    local = rank % 8
    numa = local // 4
    body: dict[str, object] = {
        "rank": rank, "local_rank": local, "host": host, "cpus": tuple(range(14 * local, 14 * local + 14)),
        "num_node_cpus": 112, "cpus_of_numa": {"0": tuple(range(56)), "1": tuple(range(56, 112))}, "device": "cuda",
        "gpu": RankGpu(uuid=f"GPU-{host}-{local}", bus=f"0000:{local:02x}:00.0", name="NVIDIA H100 80GB HBM3",
                       numa=numa, link=GEN5),
        "num_visible_gpus": 8,
        "nics": tuple(
            Nic(name=f"mlx5_{n}:1", kind="infiniband", is_up=True, bytes_per_s=NDR, rate_text="400 Gb/sec (4X NDR)",
                numa=n // 4, link=GEN5) for n in range(8)
        ),
        "driver": "550.54.15", "image": "/images/pytorch.sqsh", "software": {"torch": "2.13.0", "python": "3.12.3"},
        "disks": (Disk(path="/scratch", free_bytes=1e12, num_free_inodes=1e6),),
    }  # fmt: skip
    return RankFacts(**(body | changes))  # type: ignore[arg-type]


def healthy(num_nodes: int, *, request: PreflightRequest | None = None) -> PreflightEvidence:
    """Nodes n1, n2, ... in which nothing is wrong."""
    hosts = tuple(f"n{i + 1}" for i in range(num_nodes))
    ranks = tuple(dgx_rank(8 * i + local, host=host) for i, host in enumerate(hosts) for local in range(8))
    timings = []
    for i, host in enumerate(hosts):
        near = {hosts[i - 1], hosts[(i + 1) % num_nodes]} - {host}
        timings += [
            Timings(rank=8 * i + local, product_s=2e-3, copy_bytes_per_s=50e9, node_s=1e-3, world_s=4e-3,
                    pairs_s=dict.fromkeys(near, 2e-3), clock_s=1000.0)
            for local in range(8)
        ]  # fmt: skip
    routes = ("P2P/CUMEM", "NET/IB/0/GDRDMA") if num_nodes > 1 else ("P2P/CUMEM",)
    return PreflightEvidence(
        request=request or PreflightRequest(), hosts=hosts, ranks=ranks, timings=tuple(timings),
        transports=tuple(RankTransport(rank=r.rank, library="nccl", network="IB", routes=routes) for r in ranks),
    )  # fmt: skip


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root
