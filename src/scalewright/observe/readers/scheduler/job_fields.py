"""Fields of Slurm's commands as SI values: times, sizes, counts of GPUs, states and exit codes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scalewright import units
from scalewright.observe.evidence.facts import JobFact, Spot
from scalewright.observe.readers.prefixes import time_in
from scalewright.records.node_list import expand_nodes

_DURATION = re.compile(
    r"^(?:(?P<days>\d{1,15})-)?(?:(?P<hours>\d{1,15}):)?(?P<minutes>\d{1,15}):(?P<seconds>\d{1,15})(?:\.\d+)?$"
)
_SIZE = re.compile(r"^(?P<number>[\d.]+)\s?(?P<unit>[KMGTP]?)i?[Bb]?(?P<per>[nc]?)$")
_GPUS = re.compile(r"(?:gres/)?gpu(?::(?!\d)[\w.-]+)?[=:](\d{1,15})")
_SCALES = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
SHORT_STATES = {
    "PD": "PENDING", "R": "RUNNING", "CG": "COMPLETING", "CF": "CONFIGURING", "CD": "COMPLETED", "F": "FAILED",
    "TO": "TIMEOUT", "CA": "CANCELLED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PR": "PREEMPTED", "S": "SUSPENDED",
    "ST": "STOPPED", "RQ": "REQUEUED", "BF": "BOOT_FAIL", "DL": "DEADLINE",
}  # fmt: skip
_STATES = (
    "TIMEOUT",
    "DEADLINE",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "BOOT_FAIL",
    "PREEMPTED",
    "CANCELLED",
    "REQUEUED",
    "COMPLETED",
    "COMPLETING",
    "RUNNING",
    "PENDING",
    "FAILED",
)
"""Those that tables may cut."""
MOST_SIGNAL = 64
"""`0:125` marks a step that ran out of memory; no signal has that number."""
MOST_NODES = 20_000


def duration_s(text: str) -> float | None:
    """`10-13:27:06`, `02:00:00`, `05:30.123`; UNLIMITED and INVALID are None."""
    match = _DURATION.match(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * units.DAY_S + hours * units.HOUR_S + minutes * units.MINUTE_S + seconds


def size_bytes(text: str, *, num_nodes: int | None = None, num_cpus: int | None = None) -> float | None:
    """`31000M`, `4Gn` (a node), `2Gc` (a core), `123456K`, `1.50 GB`."""
    match = _SIZE.match(text.strip())
    if match is None or match["number"].count(".") > 1 or match["number"] == ".":
        return None
    share = {"n": num_nodes, "c": num_cpus}.get(match["per"], 1)
    return float(match["number"]) * _SCALES[match["unit"]] * (share or 1)


def num_gpus(text: str) -> int | None:
    """`billing=12,cpu=12,gres/gpu:a100=2,gres/gpu=2` has 2: the kinds are counted again in the sum."""
    plain = re.search(r"gres/gpu=(\d{1,15})", text)
    numbers = [int(number) for number in _GPUS.findall(text)]
    return int(plain[1]) if plain else sum(numbers) if numbers else None


def plain_state(text: str) -> str:
    """`CANCELLED by 1000`, `NODE_FAIL+`, `OUT_OF_ME+` and `PD` in full, without additions."""
    word = (text.split() or [""])[0].rstrip("+").upper()
    cut = [name for name in _STATES if name.startswith(word)]
    return SHORT_STATES.get(word) or (cut[0] if cut and len(word) > 4 else word)


def codes(text: str) -> tuple[int | None, int | None]:
    """`1:0` is exit code 1; `0:9` is signal 9."""
    match = re.match(r"^(\d{1,15}):(\d{1,15})$", text.strip())
    return (int(match[1]), int(match[2])) if match else (None, None)


def count(text: str) -> int | None:
    match = re.match(r"^(\d{1,9})", text.strip())
    return int(match[1]) if match else None


def moment_s(text: str) -> float | None:
    return time_in(text.strip())


def node_names(text: str) -> tuple[str, ...]:
    if not text or text.startswith("(") or text in ("None assigned", "None", "N/A"):
        return ()
    widths = [int(b) - int(a) for a, b in re.findall(r"(\d{1,9})-(\d{1,9})", text)]
    if any(width > MOST_NODES for width in widths) or len(text) > 100_000 or text.count("[") > 3:
        return ()
    return expand_nodes(text)[:MOST_NODES]


def job_fact(fields: Mapping[str, str], spot: Spot) -> JobFact | None:
    """A job from the fields of sacct, squeue or scontrol, by the names that those commands use, in lower case."""

    def field(*names: str) -> str:
        return next((fields[name].strip() for name in names if fields.get(name, "").strip()), "")

    job_id = field("jobid", "job id", "jobidraw")
    if not re.match(r"^\d", job_id):
        return None
    exit_code, signal = codes(field("exitcode"))
    nodes = count(field("nnodes", "numnodes", "nodes", "allocnodes"))
    cpus = count(field("ncpus", "alloccpus", "numcpus", "cpus"))
    resources = field("alloctres", "tres", "reqtres", "tres_alloc", "tres_per_node", "tresperjob", "tres-per-node")
    memory = re.search(r"mem=([\d.]+[KMGTP]?)", resources)
    reason = field("reason")
    listed = field("nodelist", "nodelist(reason)", "batchhost")
    if listed.startswith("("):
        reason, listed = reason or listed.strip("()"), ""
    values: dict[str, Any] = {
        "name": field("jobname", "name"), "state": plain_state(field("state", "jobstate", "st")),
        "exit_code": exit_code, "signal": signal if signal and signal <= MOST_SIGNAL else None,
        "reason": "" if reason == "None" else reason,
        "partition": field("partition"), "nodes": node_names(listed), "num_nodes": nodes,
        "num_tasks": count(field("ntasks", "numtasks")), "num_cpus": cpus, "num_gpus": num_gpus(resources),
        "submitted_at_s": moment_s(field("submit", "submittime", "submit_time")),
        "started_at_s": moment_s(field("start", "starttime", "start_time")),
        "ended_at_s": moment_s(field("end", "endtime", "end_time")),
        "limit_s": duration_s(field("timelimit", "time_limit")),
        "elapsed_s": duration_s(field("elapsed", "runtime", "time")),
        "requested_memory_bytes": size_bytes(memory[1]) if memory else size_bytes(
            field("reqmem", "minmemorynode"), num_nodes=nodes, num_cpus=cpus
        ),
        "peak_memory_bytes": size_bytes(field("maxrss")),
        "cpu_time_s": duration_s(field("totalcpu")),
    }  # fmt: skip
    return JobFact(job_id=job_id, spot=spot, **values)
