"""The current cluster as its scheduler describes it: the output of sinfo, scontrol and sacctmgr."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.sites.scheduler import Runner
from scalewright.sites.walltime import parse_walltime_s

TIMEOUT_S = 30.0
SINFO_FORMAT = "%R|%D|%c|%m|%G|%f"
_GPU = re.compile(r"(?:^|,)gpu(?::([^:,(]+))?:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes of one partition with the same resources."""

    partition: str
    num_nodes: int
    cpus: int
    memory_mb: int
    gpu_type: str
    gpus: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePartition:
    """A partition as scontrol describes it."""

    name: str
    is_default: bool
    max_time_s: int | None
    default_time_s: int | None
    max_nodes: int | None
    whole_node: bool
    nodes: tuple[NodeKind, ...]

    @property
    def gpus(self) -> int:
        """Largest number of GPUs in one of its nodes."""
        return max((kind.gpus for kind in self.nodes), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveQos:
    """A QOS as sacctmgr describes it."""

    name: str
    max_time_s: int | None
    max_jobs: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster as its scheduler describes it."""

    name: str
    version: str
    max_array_size: int
    partitions: tuple[LivePartition, ...]
    qos: tuple[LiveQos, ...]
    accounts: tuple[str, ...]
    """Accounts of the current user."""
    fabric: str


def ask_cluster(user: str) -> Cluster:
    """Query the scheduler. Accounting may be missing; the controller must answer."""
    config = parse_config(_output("scontrol", "show", "config"))
    kinds = parse_sinfo(_output("sinfo", "--noheader", f"--format={SINFO_FORMAT}"))
    partitions = parse_partitions(_output("scontrol", "--oneliner", "show", "partition"), kinds)
    qos = _output("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=Name,MaxWall,MaxJobsPU", missing="")
    command = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", "format=Account")
    accounts = _output(*command, missing="")
    return Cluster(
        name=config.get("ClusterName", "").lower(),
        version=config.get("SLURM_VERSION", ""),
        max_array_size=int(config.get("MaxArraySize", "0") or 0),
        partitions=partitions,
        qos=parse_qos(qos),
        accounts=tuple(dict.fromkeys(accounts.split())),
        fabric=fabric_here(Path("/sys/class")),
    )


def ask_cluster_name() -> str:
    """The scheduler's name of this cluster. Raises if there is no scheduler."""
    return parse_config(_output("scontrol", "show", "config")).get("ClusterName", "").lower()


def _output(*command: str, missing: str | None = None) -> str:
    """Output of a command; `missing` if it fails and `missing` is given."""
    try:
        return Runner(timeout_s=TIMEOUT_S, max_tries=1).call(command)
    except EnvironmentFailedError:
        if missing is not None:
            return missing
        raise


def parse_config(text: str) -> dict[str, str]:
    """The NAME = VALUE lines of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_sinfo(text: str) -> tuple[NodeKind, ...]:
    """Kinds of nodes from `sinfo --format=SINFO_FORMAT`."""
    kinds = []
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 6:
            continue
        partition, count, cpus, memory, gres, features = fields
        gpu = _GPU.search(gres)
        kinds.append(
            NodeKind(
                partition=partition,
                num_nodes=_whole(count),
                cpus=_whole(cpus),
                memory_mb=_whole(memory),
                gpu_type=(gpu.group(1) or "") if gpu else "",
                gpus=sum(int(m.group(2)) for m in _GPU.finditer(gres)),
                features=tuple(f for f in features.split(",") if f and f != "(null)"),
            )
        )
    return tuple(kinds)


def parse_partitions(text: str, kinds: tuple[NodeKind, ...]) -> tuple[LivePartition, ...]:
    """Partitions that are up, from `scontrol --oneliner show partition`."""
    partitions = []
    for line in text.splitlines():
        words = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        name = words.get("PartitionName", "")
        if not name or words.get("State", "UP") != "UP":
            continue
        partitions.append(
            LivePartition(
                name=name,
                is_default=words.get("Default") == "YES",
                max_time_s=_time_s(words.get("MaxTime", "")),
                default_time_s=_time_s(words.get("DefaultTime", "")),
                max_nodes=_limit(words.get("MaxNodes", "")),
                whole_node=words.get("OverSubscribe") == "EXCLUSIVE",
                nodes=tuple(kind for kind in kinds if kind.partition == name),
            )
        )
    return tuple(partitions)


def parse_qos(text: str) -> tuple[LiveQos, ...]:
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return tuple(LiveQos(name=n, max_time_s=_time_s(wall), max_jobs=_limit(jobs)) for n, wall, jobs in rows if n)


def fabric_here(classes: Path) -> str:
    """The kind of network adapters of this node. Login nodes usually have the same as compute nodes."""
    for folder, family in (("cxi", "slingshot"), ("infiniband", "infiniband")):
        if any((classes / folder).glob("*")):
            return family
    return "unknown"


def _whole(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits.group()) if digits else 0


def _limit(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) > 0 else None


def _time_s(text: str) -> int | None:
    try:
        return parse_walltime_s(text)
    except ConfigError:
        return None  # UNLIMITED, NONE, Partition_Limit or empty
