"""Hand-made Kineto traces whose parts are known. Times are milliseconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.readers.reading import read_evidence

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_tn"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>"
SUM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
Event = dict[str, Any]


def span(category: str, name: str, start: float, end: float, *, tid: object = 1, **args: Any) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": start * 1000, "dur": (end - start) * 1000,
        "args": {key.replace("__", " "): value for key, value in args.items()},
    }  # fmt: skip


def kernel(
    start: float, end: float, *, name: str = GEMM, stream: int = 7, link: int | None = None, **args: Any
) -> Event:
    linked = {} if link is None else {"correlation": link}
    return span("kernel", name, start, end, tid=stream, device=0, stream=stream, **linked, **args)


def launch(start: float, link: int, name: str = "cudaLaunchKernel") -> Event:
    return span("cuda_runtime", name, start, start + 0.005, correlation=link)


def collective(
    start: float, end: float, *, name: str = SUM, stream: int = 20, group: str = "mesh_dp", **args: Any
) -> Event:
    described = {"Process Group Description": group} if group else {}
    return kernel(start, end, name=name, stream=stream, **{"Collective name": "allreduce", **described, **args})


def step(start: float, end: float, number: int = 3) -> Event:
    return span("user_annotation", f"ProfilerStep#{number}", start, end)


def trace(events: list[Event], *, rank: int | None = 0, num_ranks: int = 2, **others: Any) -> dict[str, Any]:
    info = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": num_ranks}}
    return {"schemaVersion": 1, **info, **others, "traceEvents": events}


def written(path: Path, events: list[Event], *, packed: bool = False, **others: Any) -> Path:
    text = json.dumps(trace(events, **others))
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


def read(path: Path) -> Evidence:
    return read_evidence([path])
