"""What a kernel, an operator or an annotation of a trace is, by its name.

Kinds of computing have the names of the planner's terms, so that measured and predicted time line up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

SpanKind = Literal["compute", "communication", "copy"]
ComputeKind = Literal["matmul", "attention", "convolution", "elementwise", "optimizer"]
PhaseKind = Literal["step", "data", "checkpoint", "validation", "optimizer"]

_COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|nvshmem|rocshmem|deep_ep|cross_device_reduce|(?:one|two)_shot_all_?reduce|multimem_|oneccl|hccl",
    re.IGNORECASE,
)
"""NCCL and RCCL (whose kernels have NCCL's names), MSCCL(++), NVSHMEM, DeepEP, the one-node sums of serving engines."""
_COPY = re.compile(r"Memcpy|Memset|^(?:dma_request|CopyHostToDevice|CopyDeviceToHost|CopyDeviceToDevice|FillBuffer)")
_OPTIMIZER = re.compile(
    r"multi_tensor_apply|multi_tensor_adam|fused_?adam|fused_?sgd|adam_?w?_kernel|lamb_|_fused_(?:adam|sgd)|"
    r"_foreach_(?:addc|lerp|sqrt|div_|add_|mul_)",
    re.IGNORECASE,
)
_ATTENTION = re.compile(r"flash|fmha|attention|attn|sdpa|scaled_dot_product|unified_attention|paged", re.IGNORECASE)
_CONVOLUTION = re.compile(
    r"conv(?!ert)|implicit_gemm|winograd|wgrad2d|dgrad2d|miopen.*conv|cudnn.*(?:dgrad|wgrad)", re.IGNORECASE
)
_MATMUL = re.compile(
    r"gemm|gemv|matmul|nvjet|cutlass|^Cijk_|xmma|wgmma|splitk|triton_(?:tem|mm)|_mm_|aten::(?:mm|addmm|bmm|baddbmm|linear|"
    r"_scaled_mm|_grouped_mm|mkldnn_linear|matmul)\b|mkldnn::_linear|onednn::",
    re.IGNORECASE,
)
_STEP = re.compile(r"^(?:ProfilerStep|(?:train(?:ing)?[_ ])?(?:step|iteration|iter))[ #_:=-]*(\d+)$", re.IGNORECASE)
_DATA = re.compile(
    r"^enumerate\(.*\)#.*__next__|data_?load|dataloader|get_batch|next_batch|fetch_(?:batch|data)|load_batch|^data$|data_wait",
    re.IGNORECASE,
)
_CHECKPOINT = re.compile(
    r"(?:sav|writ|load|stor)\w*[ _.:]*(?:the )?(?:model )?(?:checkpoint|ckpt)|"
    r"(?:checkpoint|ckpt)\w*[ _.:]*(?:sav|writ|stor)|torch\.save|dcp\.(?:async_)?save|^checkpoint$",
    re.IGNORECASE,
)
_VALIDATION = re.compile(r"(?:^|[^a-z])(?:validat(?:e|ion)|eval(?:uat(?:e|ion))?|val_step)(?:[^a-z]|$)", re.IGNORECASE)
_LAUNCH = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
_HOST_COLLECTIVE = re.compile(r"^(?:gloo|mpi|ucc|nccl|xccl|hccl|ccl|oneccl):", re.IGNORECASE)
_DISPATCH = re.compile(r"^(?:c10d::|_c10d_functional::|record_param_comms)")

_COLLECTIVES = (
    ("reducescatter", "reduce_scatter"), ("allreduce", "all_reduce"), ("allgather", "all_gather"),
    ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("bcast", "broadcast"), ("sendrecv", "send_recv"),
    ("coalesced", "send_recv"), ("send", "send"), ("recv", "recv"), ("barrier", "barrier"), ("allred", "all_reduce"),
    ("crossdevicereduce", "all_reduce"), ("dispatch", "all_to_all"), ("combine", "all_to_all"), ("gather", "gather"),
    ("scatter", "scatter"), ("reduce", "reduce"),
)  # fmt: skip
"""Part of a name without separators, and the collective; the first that matches counts."""
UNKNOWN_COLLECTIVE = "collective"
"""A kernel that serves every collective and has no arguments to say which."""


@dataclass(frozen=True, slots=True)
class CollectiveLabel:
    """A collective of a group, as far as an event says it."""

    name: str
    group: str
    """Its description, else its name, else its size; empty if nothing says it."""
    ranks: tuple[int, ...] = ()
    """Of the group, where the event lists all of them."""


@lru_cache(maxsize=65536)
def device_kind(name: str) -> SpanKind:
    if _COPY.search(name):
        return "copy"
    return "communication" if _COMMUNICATION.search(name) else "compute"


@lru_cache(maxsize=65536)
def copy_way(name: str) -> str:
    """Direction of a copy."""
    if match := re.search(r"HtoD|DtoH|DtoD|PtoP", name):
        return match.group()
    if "emset" in name or name.startswith("FillBuffer"):
        return "memset"
    directions = {"HostToDevice": "HtoD", "DeviceToHost": "DtoH", "DeviceToDevice": "DtoD"}
    return next((way for words, way in directions.items() if words in name), "other")


@lru_cache(maxsize=65536)
def compute_kind(name: str) -> ComputeKind:
    """A term of the planner; what is neither a product nor attention nor an update moves memory."""
    for kind, pattern in _COMPUTE_PATTERNS:
        if pattern.search(name):
            return kind
    return "elementwise"


_COMPUTE_PATTERNS: tuple[tuple[ComputeKind, re.Pattern[str]], ...] = (
    ("optimizer", _OPTIMIZER), ("attention", _ATTENTION), ("convolution", _CONVOLUTION), ("matmul", _MATMUL),
)  # fmt: skip


@lru_cache(maxsize=65536)
def phase_of(name: str) -> tuple[PhaseKind, int] | None:
    """The phase that an annotation marks, with the step's number (-1 for others)."""
    if match := _STEP.match(name):
        return "step", int(match.group(1)[:15])
    if name.startswith("Optimizer.step"):
        return "optimizer", -1
    for kind, pattern in _PHASE_PATTERNS:
        if pattern.search(name):
            return kind, -1
    return None


_PHASE_PATTERNS: tuple[tuple[PhaseKind, re.Pattern[str]], ...] = (
    ("data", _DATA), ("checkpoint", _CHECKPOINT), ("validation", _VALIDATION),
)  # fmt: skip


@lru_cache(maxsize=65536)
def is_launch(name: str) -> bool:
    """A call of the runtime that puts work on a stream: kernels, graphs and copies."""
    return bool(_LAUNCH.search(name))


@lru_cache(maxsize=65536)
def is_host_collective(name: str) -> bool:
    """A collective as the host's profiler shows it; on a CPU this is the transfer itself."""
    return bool(_HOST_COLLECTIVE.match(name))


@lru_cache(maxsize=65536)
def is_dispatch(name: str) -> bool:
    """An operator that starts a collective or waits for one."""
    return bool(_DISPATCH.match(name))


@lru_cache(maxsize=65536)
def collective_name(name: str) -> str:
    """The collective in a kernel's, an operator's or an argument's name."""
    plain = re.sub(r"[^a-z0-9]", "", name.split("(", 1)[0].lower())
    return next((known for part, known in _COLLECTIVES if part in plain), UNKNOWN_COLLECTIVE)


def collective_label(name: str, args: Mapping[str, Any], *, stream: object = None) -> CollectiveLabel:
    """What Kineto's arguments say of a collective; an old trace has its kernel's name and its stream only."""
    stated = args.get("Collective name")
    collective = collective_name(stated if isinstance(stated, str) and stated else name)
    if collective == UNKNOWN_COLLECTIVE:
        collective = collective_name(name)
    ranks = _ranks(args.get("Process Group Ranks"))
    for key in ("Process Group Description", "Process Group Name"):
        value = args.get(key)
        if isinstance(value, str | int) and str(value).strip() not in ("", "undefined"):
            return CollectiveLabel(collective, str(value).strip()[:80], ranks)
    size = args.get("Group size")
    if isinstance(size, int) and size > 0:
        return CollectiveLabel(collective, f"{size} ranks", ranks)
    return CollectiveLabel(collective, "" if stream is None else f"stream {stream}", ranks)


def _ranks(value: object) -> tuple[int, ...]:
    """`[0, 1, 2]` as a text or a list; a list that Kineto cut short (`...`) says nothing."""
    if isinstance(value, str):
        inside = value.strip().strip("[]")
        parts = [part.strip() for part in inside.split(",")]
        return tuple(int(part) for part in parts) if parts and all(part.isdecimal() for part in parts) else ()
    if isinstance(value, list) and all(type(rank) is int for rank in value):
        return tuple(value)
    return ()
