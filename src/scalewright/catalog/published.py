"""Published training runs: one JSON object a line, as their sources printed them.

`measured` holds only what a source printed; `derived` what follows from it by arithmetic. Unknown keys are passed
over, because sources carry remarks of their own; missing or mistyped known ones are errors with file, line and key.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from scalewright.catalog.library import packaged_data
from scalewright.catalog.vision_runs import is_vision_row
from scalewright.records.loader import read_jsonl, validate


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class RunMoe(_Row):
    experts: int | None = Field(default=None, gt=0)
    top_k: int | None = Field(default=None, gt=0)
    shared: int = Field(default=0, ge=0)
    expert_ffn: int | None = Field(default=None, gt=0)
    dense_layers: int = Field(default=0, ge=0)


class RunLora(_Row):
    rank: int = Field(gt=0)
    targets: Literal["all", "attention"] = "all"


class RunModel(_Row):
    name: str
    params_b: float | None = None
    layers: int | None = Field(default=None, gt=0)
    hidden: int | None = Field(default=None, gt=0)
    heads: int | None = Field(default=None, gt=0)
    kv_heads: int | None = Field(default=None, gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    ffn_hidden: int | None = Field(default=None, gt=0)
    vocab: int | None = Field(default=None, gt=0)
    seq: int | None = Field(default=None, gt=0)
    gated: bool | None = False
    qk_norm: bool = False
    moe: RunMoe | None = None
    mla: bool = False
    q_lora_rank: int | None = Field(default=None, ge=0)
    """Rank of latent queries where it is not DeepSeek-V2's and V3's 1536; 0: queries are not compressed."""
    lora: RunLora | None = None


class RunHardware(_Row):
    gpu: str
    gpus: int | None = Field(default=None, gt=0)
    gpus_per_node: int = Field(gt=0)
    intra_bw_gb_per_s: float | None = Field(default=None, alias="intra_bw_GBps", gt=0)
    inter_bw_gb_per_s_per_gpu: float | None = Field(default=None, alias="inter_bw_GBps_per_gpu", gt=0)


class RunLayout(_Row):
    dp: int | None = Field(default=None, gt=0)
    dp_as_printed: int | None = Field(default=None, gt=0)
    """What the source prints where `dp` was worked out from the device count and differs."""
    tp: int | None = Field(default=None, gt=0)
    pp: int | None = Field(default=None, gt=0)
    vpp: int | None = Field(default=None, gt=0)
    cp: int | None = Field(default=1, gt=0)
    ep: int | None = Field(default=1, gt=0)
    sp: bool | None = None
    zero: int | None = Field(default=0, ge=0, le=3)
    micro_batch: int | None = Field(default=None, gt=0)
    global_batch: int | None = Field(default=None, gt=0)
    recompute: Literal["none", "selective", "selective-op", "full", "unstated"] = "unstated"
    fsdp: bool | str | None = None
    """A framework's name for its sharding, or whether it shards; null where the source does not say."""
    recompute_layers: int | None = Field(default=None, ge=0)
    """How many layers are recomputed in full, where the source gives a number."""
    compile: bool | None = None
    async_tp: bool = False
    fused_loss: bool = False
    """The loss is one kernel, where the stack's usual one is several."""
    fused_dispatch: bool = False
    """Tokens go to experts through one fused kernel (DeepEP) that also weighs their outputs."""
    narrow_gates: bool | None = None
    """Whether inputs of the activation function are kept in 8 bit; null where the source does not say."""


class RunMeasured(_Row):
    step_time_s: float | None = Field(default=None, gt=0)
    tflop_per_s_per_gpu: float | None = Field(default=None, alias="tflops_per_gpu", gt=0)
    mfu_pct: float | None = Field(default=None, gt=0)
    hfu_pct: float | None = Field(default=None, gt=0)
    tokens_per_s_per_gpu: float | None = Field(default=None, gt=0)
    memory_gib: float | None = Field(default=None, gt=0)
    memory_kind: Literal["allocated", "reserved", "device"] = "allocated"
    """Peak of the tensors, what the allocator took, or what nvidia-smi or rocm-smi showed."""
    oom: bool = False


class RunDerived(_Row):
    step_time_s: float | None = Field(default=None, gt=0)
    tokens_per_s_per_gpu: float | None = Field(default=None, gt=0)


class PublishedRun(_Row):
    """One training run somebody published."""

    id: str
    source: str
    year: int | None = None
    confidence: str = "sourced"
    model: RunModel
    hardware: RunHardware
    layout: RunLayout
    dtype: str | None
    measured: RunMeasured
    derived: RunDerived = RunDerived()
    release: str | None = None
    """Release of the software, where the source gives one."""
    framework: str | None = None
    publication: str | None = None
    """What the row was published in, where one publication spreads over many files."""
    conditions: str | None = None
    """What the source says of the machine that makes it unlike the catalogue's device, such as a lower power limit."""
    task: str | None = "pretrain"

    @property
    def document(self) -> str:
        """The source without the line it was read on: what belongs to one publication groups together."""
        return self.publication or re.sub(r":L\d+$", "", self.source)


def packaged_runs() -> Path:
    return packaged_data() / "published" / "training_runs.jsonl"


def packaged_memory_runs() -> Path:
    """Peaks and out-of-memory outcomes that others published; rows of the same form, without times."""
    return packaged_data() / "published" / "memory_runs.jsonl"


def load_runs(path: Path) -> list[PublishedRun]:
    """The language rows of a file; rates of images are `vision_runs`."""
    return [
        validate(row, PublishedRun, where=f"{path}, line {number}")
        for number, row in read_jsonl(path)
        if not is_vision_row(row)
    ]
