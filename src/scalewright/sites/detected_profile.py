"""A profile made from the current cluster, and the differences between a stored profile and the cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date
from typing import Any

from scalewright import units
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.records.documents import schema
from scalewright.records.types import Finding
from scalewright.sites.cluster import Cluster, LivePartition, NodeKind
from scalewright.sites.loader import KIND
from scalewright.sites.types import Site, SitePartition
from scalewright.sites.walltime import format_walltime

_AMD = re.compile(r"mi\d{2,3}|gfx|amd|instinct", re.IGNORECASE)
USABLE_MEMORY_FRAC = 0.95
"""Share of a node's memory that jobs may use; the rest is for the system."""
CORRECT_PROFILE = "correct the profile"


def detected(cluster: Cluster, name: str, *, today: date) -> dict[str, Any]:
    """The profile as a table for TOML."""
    partition, kind = _gpu_partition(cluster)
    live, assumed = {"source": "live"}, {"source": "assumed"}
    amd = bool(_AMD.search(kind.gpu_type))
    cpus = max(kind.cpus // kind.gpus, 1)
    memory_gb = int(kind.memory_mb * USABLE_MEMORY_FRAC) // units.KIB // kind.gpus
    num_nodes = sum(k.num_nodes for k in partition.nodes if (k.gpu_type, k.gpus) == (kind.gpu_type, kind.gpus))
    gpu = f"{kind.gpu_type or 'GPU of unknown type'}, {num_nodes} nodes in {partition.name}"
    tasks = ["--cpus-per-task={cpus}", "--gpus-per-node={gpus}"]
    profile: dict[str, Any] = {
        "schema": schema(KIND),
        "id": name,
        "name": f"{cluster.name or name} (detected)",
        "clusters": [cluster.name] if cluster.name else [],
        "verified": "detected",
        "vendor": "amd" if amd else "nvidia",
        "fabric": cluster.fabric,
        "launcher": "srun",
        "gpu": {"value": gpu, **live},
        "gpus_per_node": {"value": kind.gpus, **live},
        "cpus_per_gpu": {"value": cpus, **live, "note": "an even share of the node"},
        "slurm": {"value": cluster.version, **live},
        "account": {"required": False, **live, **_accounts(cluster)},
        "select": {"partition": partition.name, **live},
        "node_local": {"kind": "unknown", "variables": ["SLURM_TMPDIR", "TMPDIR"], "path": "/tmp", **assumed},
        "partitions": [_partition(p) for p in cluster.partitions],
        "qos": [_qos(q.name, q.max_time_s, q.max_jobs) for q in cluster.qos if re.fullmatch(r"[\w.+-]+", q.name)],
        "layouts": {
            "srun": {"sbatch": ["--ntasks-per-node={gpus}", *tasks], **assumed},
            "torchrun": {"sbatch": ["--ntasks-per-node=1", "--cpus-per-task={node_cpus}", tasks[1]], **assumed},
        },
        "transports": [{"id": transport, **assumed} for transport in _transports(cluster.fabric)],
        "runtimes": [{"kind": "apptainer", "command": "apptainer", "flags": ["--rocm" if amd else "--nv"], **assumed}],
        "sources": {
            "live": {
                "kind": "live",
                "text": f"sinfo, scontrol and sacctmgr of cluster {cluster.name}, Slurm {cluster.version}",
                "dated": today,
                "checked": today,
            },
            "assumed": {
                "kind": "assumed",
                "text": "Usual on Slurm clusters. The scheduler does not report it: check it on the site's pages",
                "checked": today,
                "confidence": "low",
            },
        },
    }
    if memory_gb:
        profile["memory_gb_per_gpu"] = {"value": memory_gb, **live, "note": "an even share of the node, less 5 %"}
    if cluster.max_array_size:
        profile["max_array_size"] = {"value": cluster.max_array_size, **live}
    return profile


def _gpu_partition(cluster: Cluster) -> tuple[LivePartition, NodeKind]:
    """The default partition if it has GPUs, else the one with the most GPU nodes; and its most common GPU nodes."""
    with_gpus = [p for p in cluster.partitions if p.gpus]
    if not with_gpus:
        raise EnvironmentFailedError(
            f"cluster {cluster.name or 'here'} has no partition with GPUs (gres gpu): use --site generic"
        )

    def num_nodes(partition: LivePartition) -> int:
        return sum(kind.num_nodes for kind in partition.nodes if kind.gpus)

    partition = max(with_gpus, key=lambda p: (p.is_default, num_nodes(p)))
    return partition, max((k for k in partition.nodes if k.gpus), key=lambda k: k.num_nodes)


def _accounts(cluster: Cluster) -> dict[str, str]:
    """The user's accounts. Slurm charges the default account if --account is missing, so it is not required."""
    return {"form": f"yours: {', '.join(cluster.accounts)}"} if cluster.accounts else {}


def _partition(live: LivePartition) -> dict[str, Any]:
    body: dict[str, Any] = {"name": live.name}
    if live.max_time_s is not None:
        body["max_time"] = format_walltime(live.max_time_s)
    if live.default_time_s is not None:
        body["default_time"] = format_walltime(live.default_time_s)
    if live.max_nodes is not None:
        body["max_nodes"] = live.max_nodes
    return body | {"whole_node": live.whole_node, "has_gpus": live.gpus > 0, "source": "live"}


def _qos(name: str, max_time_s: int | None, max_jobs: int | None) -> dict[str, Any]:
    body: dict[str, Any] = {"name": name}
    if max_time_s is not None:
        body["max_time"] = format_walltime(max_time_s)
    if max_jobs is not None:
        body["max_jobs"] = max_jobs
    return body | {"source": "live"}


def _transports(fabric: str) -> tuple[str, ...]:
    return {"slingshot": ("ofi-plugin", "tcp-slingshot"), "infiniband": ("rdma", "ipoib")}.get(fabric, ("tcp",))


def to_toml(table: dict[str, Any]) -> str:
    """A profile as TOML: plain keys first, then tables, then lists of tables."""
    lines: list[str] = []
    _emit(table, (), lines)
    return "\n".join(lines) + "\n"


def _emit(table: dict[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    def is_section(value: Any) -> bool:
        if isinstance(value, list):
            return bool(value) and isinstance(value[0], dict)
        return isinstance(value, dict) and ("value" not in value)

    for key, value in table.items():
        if not is_section(value):
            lines.append(f"{key} = {_value(value)}")
    for key, value in table.items():
        if not is_section(value):
            continue
        here = (*path, key)
        if isinstance(value, list):
            for item in value:
                lines.extend(["", f"[[{'.'.join(here)}]]"])
                _emit(item, here, lines)
            continue
        if any(not is_section(v) for v in value.values()):
            lines.extend(["", f"[{'.'.join(here)}]"])
        _emit(value, here, lines)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def differences(site: Site, cluster: Cluster) -> list[Finding]:
    """Where a profile and the current cluster differ. Values that the profile does not have are not compared."""
    findings: list[Finding] = []
    if site.clusters and cluster.name and cluster.name not in site.clusters:
        findings.append(_difference("cluster", " or ".join(site.clusters), cluster.name, "choose another profile"))
    live = {p.name: p for p in cluster.partitions}
    for partition in site.partitions:
        findings += _partition_differences(partition, live.get(partition.name))
    selected = live.get(site.select.partition)
    if selected is not None and selected.gpus and site.gpus_per_node is not None:
        counts = {kind.gpus for kind in selected.nodes if kind.gpus}
        if site.gpus_per_node.value not in counts:
            shown = " or ".join(map(str, sorted(counts)))
            findings.append(_difference("gpus_per_node", site.gpus_per_node.value, shown, CORRECT_PROFILE))
    live_qos = {qos.name: qos for qos in cluster.qos}
    for qos in site.qos if live_qos else ():
        if qos.name not in live_qos:
            next_step = "apply for access, or remove it from the profile"
            findings.append(_difference(f"qos.{qos.name}", "present", "not listed", next_step))
        else:
            findings += _time_difference(f"qos.{qos.name}", qos.max_time, live_qos[qos.name].max_time_s)
    return findings


def _partition_differences(partition: SitePartition, live: LivePartition | None) -> Iterator[Finding]:
    key = f"partitions.{partition.name}"
    if live is None:
        if partition.has_gpus:
            yield _difference(key, "present", "missing or down", "remove it from the profile")
        return
    yield from _time_difference(key, partition.max_time, live.max_time_s)
    if partition.max_nodes is not None and live.max_nodes not in (None, partition.max_nodes):
        yield _difference(f"{key}.max_nodes", partition.max_nodes, live.max_nodes, CORRECT_PROFILE)
    if partition.has_gpus != (live.gpus > 0) and live.nodes:
        yield _difference(f"{key}.has_gpus", partition.has_gpus, live.gpus > 0, CORRECT_PROFILE)


def _time_difference(key: str, in_profile_s: int | None, on_cluster_s: int | None) -> Iterator[Finding]:
    if in_profile_s is not None and on_cluster_s is not None and on_cluster_s != in_profile_s:
        in_profile, on_cluster = format_walltime(in_profile_s), format_walltime(on_cluster_s)
        yield _difference(f"{key}.max_time", in_profile, on_cluster, CORRECT_PROFILE)


def _difference(key: str, in_profile: object, on_cluster: object, next_step: str) -> Finding:
    return Finding(
        rule=f"site.{key}",
        severity="warning",
        message=f"{key} is {in_profile} in the profile, {on_cluster} on the cluster",
        next_step=next_step,
        evidence={"profile": str(in_profile), "cluster": str(on_cluster)},
    )


def check_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        raise ConfigError(f"--as {name!r} is not a profile name: use lower-case letters, digits, . + and -")
    return name
