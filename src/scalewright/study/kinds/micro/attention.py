"""Scaled-dot-product attention by kernel, length and head size."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError
from scalewright.records.measurements import Measurements
from scalewright.study.kinds.micro.kind import MicroKind, largest
from scalewright.study.kinds.options import STRICT
from scalewright.workload.micro_run import (
    AttentionCase,
    AttentionPrecision,
    AttentionRun,
    as_precisions,
    parse_numbers,
)
from scalewright.workload.named import resolve_model
from scalewright.workload.run_options import DeviceKind

NUM_TOKENS = {"cuda": 16384, "cpu": 1024}
"""Of a batch, for every length: so that lengths are compared at equal work outside attention."""
DEFAULT_SEQ = {"cuda": "512,1024,2048,4096,8192,16384", "cpu": "128,256,512,1024"}
DEFAULT_HEADS = {"cuda": 32, "cpu": 8}


@checked(frozen=True, kw_only=True, config=STRICT)
class AttentionOptions:
    """Options of `bench attention`, and of a point of this kind."""

    seq: str = ""
    """Sequence lengths, separated by commas; empty: a sweep that suits the device."""
    precision: str = "auto"
    """Some of fp32,fp16,bf16; auto: bf16 on GPUs, fp32 on CPUs."""
    model: str | None = None
    """Model whose heads are measured, instead of the next three options."""
    heads: int = 0
    """0: 32 on GPUs, 8 on CPUs."""
    kv_heads: int = 0
    """0: as many as heads."""
    head_dim: str = "64,128"
    batch: int = 0
    """0: as many sequences as make 16,384 tokens (1,024 on CPUs)."""
    full: bool = False
    """Without the causal mask."""
    cases: str = ""
    """Batch, length and head size of each case, separated by semicolons, instead of all combinations."""
    ranks: int | None = None
    device: str = "auto"
    budget: str = "30 s"


class AttentionKind(MicroKind[AttentionOptions]):
    name = "attention"
    options = TypeAdapter(AttentionOptions)
    metrics = ("flop_per_s_per_gpu",)

    def config(self, catalog: Catalog, options: AttentionOptions, *, device: DeviceKind, folder: Path) -> AttentionRun:
        del folder
        auto = "fp32" if device == "cpu" else "bf16"
        precisions = as_precisions(auto if options.precision == "auto" else options.precision)
        return AttentionRun(
            precisions=cast(tuple[AttentionPrecision, ...], precisions),
            cases=_cases(catalog, options, device="cpu" if device == "cpu" else "cuda"),
            device=device,
            budget_s=units.parse(options.budget, units.SECONDS),
        )

    def numbers(self, measurements: Measurements) -> dict[str, float | None]:
        return {"flop_per_s_per_gpu": largest(measurements.rows, "flop_per_s")}


def _cases(catalog: Catalog, options: AttentionOptions, *, device: str) -> tuple[AttentionCase, ...]:
    heads = options.heads or DEFAULT_HEADS[device]
    kv_heads, head_dims = options.kv_heads or heads, parse_numbers(options.head_dim, flag="--head-dim")
    if options.model is not None:
        shape = resolve_model(catalog, options.model).transformer
        heads, kv_heads, head_dims = shape.heads, shape.kv_heads, (shape.head_dim,)
    lengths = parse_numbers(options.seq or DEFAULT_SEQ[device], flag="--seq")
    sizes = [
        (options.batch or max(1, NUM_TOKENS[device] // seq), seq, head_dim) for seq in lengths for head_dim in head_dims
    ]
    if options.cases:
        sizes = [_case(text) for text in options.cases.split(";")]
    return tuple(
        AttentionCase(
            batch=batch, heads=heads, kv_heads=kv_heads, seq=seq, head_dim=head_dim, causal=not options.full
        )
        for batch, seq, head_dim in sizes
    )  # fmt: skip


def _case(text: str) -> tuple[int, int, int]:
    numbers = parse_numbers(text, flag="cases")
    if len(numbers) != 3:
        raise ConfigError(f"cases {text!r} is not batch,length,head size: write 4,2048,128;1,8192,128")
    return numbers[0], numbers[1], numbers[2]


KIND = AttentionKind()
