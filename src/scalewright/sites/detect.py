"""A profile of the cluster at hand, and a stored profile held against it."""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Any

from scalewright import units
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.records.documents import schema
from scalewright.records.types import Finding
from scalewright.sites.cluster import Cluster, LivePartition, NodeKind
from scalewright.sites.loader import KIND
from scalewright.sites.types import Site
from scalewright.sites.walltime import format_walltime

_AMD = re.compile(r"mi\d{2,3}|gfx|amd|instinct", re.IGNORECASE)
USABLE_MEMORY_FRAC = 0.95


def detected(cluster: Cluster, name: str, *, today: date) -> dict[str, Any]:
    """The profile as a table, ready to be written as TOML."""
    chosen, kind = _gpu_partition(cluster)
    live, assumed = {"source": "live"}, {"source": "assumed"}
    amd = bool(_AMD.search(kind.gpu_type))
    cpus = max(kind.cpus // kind.gpus, 1)
    memory_gb = int(kind.memory_mb * USABLE_MEMORY_FRAC) // units.KIB // kind.gpus
    alike = sum(k.num_nodes for k in chosen.nodes if (k.gpu_type, k.gpus) == (kind.gpu_type, kind.gpus))
    gpu = f"{kind.gpu_type or 'GPU of unknown type'}, {alike} nodes in {chosen.name}"
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
        "select": {"partition": chosen.name, **live},
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
                "text": "Usual on Slurm clusters; the scheduler does not tell it: check it against the site's pages",
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
    """The default partition if it has GPUs, else the one with the most GPU nodes; and its commonest such nodes."""
    able = [p for p in cluster.partitions if p.gpus]
    if not able:
        raise EnvironmentFailedError(
            f"cluster {cluster.name or 'here'} shows no partition with GPUs (gres gpu): use --site generic"
        )

    def num_nodes(partition: LivePartition) -> int:
        return sum(kind.num_nodes for kind in partition.nodes if kind.gpus)

    chosen = max(able, key=lambda p: (p.is_default, num_nodes(p)))
    return chosen, max((k for k in chosen.nodes if k.gpus), key=lambda k: k.num_nodes)


def _accounts(cluster: Cluster) -> dict[str, str]:
    """Never required: a user without --account is charged to the default account."""
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
    """TOML of a profile: plain keys first, then tables, then lists of tables."""
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
    """Where a profile and the live cluster disagree; what a profile does not say is not compared."""
    found: list[Finding] = []
    live = {p.name: p for p in cluster.partitions}

    def differ(key: str, told: object, is_now: object, next_step: str) -> None:
        message = f"{key} is {told} in the profile, {is_now} on the cluster"
        found.append(
            Finding(
                rule=f"site.{key}",
                severity="warning",
                message=message,
                next_step=next_step,
                evidence={"profile": str(told), "cluster": str(is_now)},
            )
        )

    if site.clusters and cluster.name and cluster.name not in site.clusters:
        differ("cluster", " or ".join(site.clusters), cluster.name, "is this the right profile?")
    for partition in site.partitions:
        if partition.name not in live:
            if partition.has_gpus:
                differ(f"partitions.{partition.name}", "there", "missing or down", "leave it out of the profile")
            continue
        now = live[partition.name]
        if partition.max_time is not None and now.max_time_s not in (None, partition.max_time):
            shown = format_walltime(now.max_time_s or 0)
            differ(f"partitions.{partition.name}.max_time", format_walltime(partition.max_time), shown, "correct it")
        if partition.max_nodes is not None and now.max_nodes not in (None, partition.max_nodes):
            differ(f"partitions.{partition.name}.max_nodes", partition.max_nodes, now.max_nodes, "correct it")
        if partition.has_gpus != (now.gpus > 0) and now.nodes:
            differ(f"partitions.{partition.name}.has_gpus", partition.has_gpus, now.gpus > 0, "correct it")
    chosen = live.get(site.select.partition)
    if chosen is not None and chosen.gpus and site.gpus_per_node is not None:
        counts = {kind.gpus for kind in chosen.nodes if kind.gpus}
        if site.gpus_per_node.value not in counts:
            shown = " or ".join(map(str, sorted(counts)))
            differ("gpus_per_node", site.gpus_per_node.value, shown, "correct it")
    known = {qos.name: qos for qos in cluster.qos}
    for qos in site.qos if known else ():
        if qos.name not in known:
            differ(f"qos.{qos.name}", "there", "not listed", "ask for access, or leave it out")
        elif qos.max_time is not None and known[qos.name].max_time_s not in (None, qos.max_time):
            shown = format_walltime(known[qos.name].max_time_s or 0)
            differ(f"qos.{qos.name}.max_time", format_walltime(qos.max_time), shown, "correct it")
    return found


def check_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        raise ConfigError(f"--as {name!r} is no name for a profile: use lower-case letters, digits, . + and -")
    return name
