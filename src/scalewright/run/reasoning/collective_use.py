"""Collectives of a profiled step by name: calls, payload and time, from what PyTorch records for each call."""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from torch.profiler import profile

from scalewright import units
from scalewright.records.reasoning import CollectiveUse

RECORDED = "record_param_comms"
"""The event that PyTorch adds for every call of NCCL and RCCL, with its sizes; the kernels have events of their own."""
GLOO = "gloo:"
"""Events of Gloo, each a whole call; their sizes are recorded with the shapes of all operators."""
WIDTHS = {
    "double": 8, "long": 8, "long int": 8, "float": 4, "int": 4, "half": 2, "c10::half": 2, "bfloat16": 2,
    "c10::bfloat16": 2, "byte": 1, "char": 1, "bool": 1, "unsigned char": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


class _Uses:
    """Sums by the name of a collective."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self.sizes: dict[str, float] = defaultdict(float)
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, event: dict[str, Any]) -> None:
        name, arguments = str(event.get("name", "")), event.get("args", {})
        seconds = float(event.get("dur", 0.0)) * units.MICRO
        if name.startswith(GLOO):
            called = _plain(name.removeprefix(GLOO))
            self.counts[called] += 1
            self.sizes[called] += _gloo_bytes(arguments)
            self.seconds[called] += seconds
        elif name == RECORDED:
            called = _plain(str(arguments.get("Collective name", "")))
            self.counts[called] += 1
            self.sizes[called] += float(arguments.get("In msg nelems", 0)) * _width(arguments.get("dtype", ""))
        elif event.get("cat") == "kernel" and name.startswith(("ncclDevKernel", "ncclKernel")):
            self.seconds[_plain(name.partition("_")[2])] += seconds


def collective_use(trace: profile) -> dict[str, CollectiveUse]:
    """Calls of each collective in a profiled step of one rank."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    uses = _Uses()
    for event in events:
        if event.get("ph") == "X":
            uses.add(event)
    return {
        name: CollectiveUse(count=count, bytes=uses.sizes[name], seconds=uses.seconds[name])
        for name, count in sorted(uses.counts.items())
        if name
    }


def _gloo_bytes(arguments: dict[str, Any]) -> float:
    sizes, kinds = arguments.get("Input Dims", []), arguments.get("Input type", [])
    return float(sum(math.prod(size) * _width(kind) for size, kind in zip(sizes, kinds, strict=False) if size))


def _width(kind: object) -> int:
    return WIDTHS.get(str(kind).lower(), 4)


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
