"""What a warning of NCCL or RCCL means: lost connections, errors of devices, and those that do no harm."""

from __future__ import annotations

import re

from scalewright.observe.evidence.facts import HappeningKind

_BENIGN = re.compile(
    r"MSCCL\+\+: Cannot enable|Missing .(?:amd_)?iommu=(?:on|pt)"
    r"|Could not find: libnccl|Plugin load .*returned|No plugin found|using internal"
    r"|NET/Plugin: (?:Failed|Could not|Loaded)|TUNER/Plugin|ncclTunerPlugin|PROFILER/Plugin|ENV/Plugin"
    r"|Failed to find ncclNetPlugin|Failed to find ncclCollNetPlugin|Failed to find symbol ncclCollNet"
    r"|cuMem(?:Create|Alloc|Host)?\b.*(?:not supported|disabled)|DMA-BUF is (?:not )?available|gdrcopy|GDRCOPY"
    r"|libnuma|NVLS multicast support is not available|RAS (?:disabled|failed)|Accept failed Success"
    r"|NCCL_CUMEM|NET/OFI (?:Configuring|Using|Setting)|Attribute \w+ of node \w+ not found|already loaded",
)
"""Said on healthy runs: optional plugins and features that are not there."""
_KINDS_BY_WORDS: tuple[tuple[str, HappeningKind], ...] = (
    (
        r"(?:Cuda|CUDA|HIP) (?:failure|error)[^']*'?out of memory|Failed to (?:CUDA|HIP) (?:c|m)alloc",
        "device_out_of_memory",
    ),
    (r"creating shared memory segment|failed to extend /dev/shm|attaching to shared memory", "host_out_of_memory"),
    (r"No space left on device", "disk_full"),
    (
        r"unhandled cuda error|(?:Cuda|CUDA|HIP) (?:failure|error)|uncorrectable|Xid|NVLink.*(?:error|fatal)",
        "device_error",
    ),
    (
        r"Got completion (?:from|with)|async event.*(?:error|fatal)|ibv_\w+ failed|local catastrophic|transport retry"
        r"|NET/\w+.*(?:completed with error|[Uu]nable to register memory|new endpoint.*failed)",
        "network_error",
    ),
    (
        r"Connection (?:closed|reset|refused|timed out)|[Bb]roken pipe|[Ss]ocket\w*.*(?:fail|closed|error|timed out)",
        "connection_lost",
    ),
    (
        r"Connect to .* failed|Call to (?:recv|connect|send|bind|accept).* failed|Net :.*(?:closed|fail)",
        "connection_lost",
    ),
    (r"Proxy [Cc]all to rank|[Nn]o route to host|Network is unreachable|remote process exited", "connection_lost"),
    (r"[Mm]ismatch(?:ed)? (?:collective|operation)|collective .*mismatch", "collective_abort"),
    (r"[Tt]imeout|timed out", "collective_timeout"),
    (r"no socket interface found|Invalid (?:config|argument|value|usage)|invalid usage", "bad_configuration"),
)
_KINDS = [(re.compile(pattern), kind) for pattern, kind in _KINDS_BY_WORDS]
_STATUS = re.compile(r"(?:status[= ]|with error )(\d{1,15})")
_PEER = re.compile(r"(?:peer|to|from) ([\w.:-]+)<\d+>")
STATUS_WORDS = {
    4: "local protection error: memory that was not registered, often with GPUDirect RDMA",
    5: "work request flushed: an earlier operation on this connection failed",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "transport retries exceeded: the peer or the path to it does not answer",
    13: "receiver not ready retries exceeded",
}
"""Status of a work completion (libibverbs, enum ibv_wc_status)."""


FLUSHED = 5
"""This status only follows from another error."""


def warning_kind(message: str) -> tuple[HappeningKind, bool, dict[str, float | str]]:
    """Kind, whether it is harmless, and the numbers in it."""
    values: dict[str, float | str] = {}
    if peer := _PEER.search(message):
        values["peer"] = peer[1]
    if (status := _STATUS.search(message)) and "ompletion" in message:
        number = int(status[1])
        values["status"] = float(number)
        values["meaning"] = STATUS_WORDS.get(number, "")
        if number == FLUSHED:
            return "connection_lost", False, values
    if _BENIGN.search(message):
        return "warning", True, values
    for pattern, kind in _KINDS:
        if pattern.search(message):
            return kind, False, values
    return "warning", False, values
