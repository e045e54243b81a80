"""Collectives of a profiled step by name: calls, payload and time, from what PyTorch records for each call."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from torch.profiler import profile

from scalewright import units
from scalewright.records.reasoning import CollectiveUse

RECORDED = "record_param_comms"
"""The event that PyTorch adds for every collective call, with its sizes."""
WIDTHS = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
BACKENDS = ("nccl", "gloo", "rccl", "mpi", "ucc")


def collective_use(trace: profile) -> dict[str, CollectiveUse]:
    """Calls of each collective. Time is that of the back end's own work, not of the wait for it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    counts: dict[str, int] = defaultdict(int)
    sizes: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("ph") != "X":
            continue
        if name == RECORDED:
            arguments = event.get("args", {})
            called = _plain(str(arguments.get("Collective name", "")))
            if called:
                counts[called] += 1
                sizes[called] += _payload_bytes(arguments)
        elif name.lower().startswith(BACKENDS):
            seconds[_of_backend(name)] += float(event.get("dur", 0.0)) * units.MICRO
    return {
        name: CollectiveUse(count=counts[name], bytes=sizes[name], seconds=seconds.get(name, 0.0))
        for name in sorted(counts)
    }


def _payload_bytes(arguments: dict[str, Any]) -> float:
    num = max(int(arguments.get("In msg nelems", 0)), int(arguments.get("Out msg nelems", 0)))
    return float(num * WIDTHS.get(str(arguments.get("dtype", "")), 4))


def _of_backend(name: str) -> str:
    """`gloo:all_reduce` and `ncclDevKernel_AllReduce_Sum_f32_RING_LL` are both all_reduce."""
    words = name.lower().replace("nccldevkernel_", "").replace("ncclkernel_", "")
    return _plain(words.partition(":")[2] or words.partition("_")[0])


def _plain(name: str) -> str:
    """One name for the spellings of a collective."""
    letters = name.lower().replace("_", "").strip()
    known = {
        "allreduce": "all_reduce", "allgather": "all_gather", "allgatherbase": "all_gather",
        "reducescatter": "reduce_scatter", "reducescatterbase": "reduce_scatter", "broadcast": "broadcast",
        "alltoall": "all_to_all", "barrier": "barrier", "send": "send", "recv": "recv", "sendrecv": "send",
    }  # fmt: skip
    for spelling in sorted(known, key=len, reverse=True):
        if letters.startswith(spelling):
            return known[spelling]
    return ""
