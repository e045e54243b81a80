"""Facts about each rank, its node and its transport: plain values that ranks exchange as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from scalewright.records.node_devices import UNKNOWN_NUMA, Nic, PcieLink


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGpu:
    """The device that a rank really uses, as its framework names it."""

    uuid: str
    bus: str
    """Domain, bus and device, such as 0000:c1:00.0; empty if the framework does not report it."""
    name: str
    numa: int = UNKNOWN_NUMA
    link: PcieLink | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A folder that the job will write to."""

    path: str
    free_bytes: float | None
    num_free_inodes: float | None
    """None if the file system has no fixed number."""
    problem: str = ""
    """Why nothing can be written there; empty: a file could be made and removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One rank and the node under it."""

    rank: int
    local_rank: int
    host: str
    switch: str = ""
    cpus: tuple[int, ...] = ()
    """CPUs that the rank may run on."""
    num_node_cpus: int = 0
    cpus_of_numa: dict[str, tuple[int, ...]] = field(default_factory=dict)
    device: Literal["cpu", "cuda"] = "cpu"
    gpu: RankGpu | None = None
    num_visible_gpus: int = 0
    nics: tuple[Nic, ...] = ()
    driver: str = ""
    image: str = ""
    software: dict[str, str] = field(default_factory=dict)
    """Versions that must be the same everywhere, by name."""
    disks: tuple[Disk, ...] = ()

    def numa_nodes(self) -> tuple[int, ...]:
        """NUMA nodes that the rank's CPUs are on."""
        own = set(self.cpus)
        return tuple(sorted(int(node) for node, cpus in self.cpus_of_numa.items() if own & set(cpus)))

    def gpu_text(self) -> str:
        """The device in messages: its bus, else its UUID."""
        return "no GPU" if self.gpu is None else f"GPU {self.gpu.bus or self.gpu.uuid}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> RankFacts:
        gpu = body["gpu"]
        return cls(
            **{
                **body,
                "cpus": tuple(body["cpus"]),
                "cpus_of_numa": {node: tuple(cpus) for node, cpus in body["cpus_of_numa"].items()},
                "gpu": None if gpu is None else RankGpu(**{**gpu, "link": _link(gpu["link"])}),
                "nics": tuple(Nic(**{**nic, "link": _link(nic["link"])}) for nic in body["nics"]),
                "disks": tuple(Disk(**disk) for disk in body["disks"]),
            }
        )


def _link(body: dict[str, Any] | None) -> PcieLink | None:
    return None if body is None else PcieLink(**body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Times measured by one rank. None: there was nothing to measure."""

    rank: int
    product_s: float | None = None
    """A matrix product on its device, alone."""
    copy_bytes_per_s: float | None = None
    """From pinned host memory to the device."""
    node_s: float | None = None
    """All-reduce among the ranks of its node."""
    pairs_s: dict[str, float] = field(default_factory=dict)
    """All-reduce among the ranks of two nodes, by the other's name."""
    world_s: float | None = None
    """All-reduce among all ranks."""
    is_sum_right: bool = True
    clock_s: float | None = None
    """The node's clock right after a barrier of all ranks: the same moment up to milliseconds."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTransport:
    """How one rank communicates with the others, in the words of its library."""

    rank: int
    library: str
    """nccl, rccl or gloo."""
    version: str = ""
    network: str = ""
    """Between nodes: IB, Socket, AWS Libfabric, ...; empty if the library chose none."""
    provider: str = ""
    """libfabric's provider, such as cxi."""
    routes: tuple[str, ...] = ()
    """Each distinct route of a channel, such as P2P/CUMEM or NET/IB/0/GDRDMA."""
    has_multicast: bool = False
    """The switch inside the node sums (NVLS)."""
    warnings: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> RankTransport:
        lists = ("routes", "warnings", "interfaces")
        return cls(**{**body, **{name: tuple(body[name]) for name in lists}})
