"""`scalewright bench attention`: scaled-dot-product attention by kernel, length and head size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from scalewright.cli.bench.start import DeviceName, RunFolder, start_bench
from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from scalewright.workload.micro_run import AttentionCase

NUM_TOKENS = {"cuda": 16384, "cpu": 1024}
"""Of a batch, whatever the length: the same work outside attention."""
DEFAULT_SEQ = {"cuda": "512,1024,2048,4096,8192,16384", "cpu": "128,256,512,1024"}
DEFAULT_HEADS = {"cuda": 32, "cpu": 8}
PrecisionText = Annotated[str, typer.Option(help="Some of fp32,fp16,bf16; auto: bf16 on GPUs, fp32 on CPUs.")]
SeqText = Annotated[str | None, typer.Option(metavar="N,...", help="Sequence lengths.")]
ModelText = Annotated[str | None, typer.Option(help="Model whose heads are measured, instead of the next three.")]


def run(
    seq: SeqText = None,
    precision: PrecisionText = "auto",
    model: ModelText = None,
    heads: Annotated[int, typer.Option(help="0: 32 on GPUs, 8 on CPUs.")] = 0,
    kv_heads: Annotated[int, typer.Option(help="Fewer than the heads: grouped queries. 0: as many.")] = 0,
    head_dim: Annotated[str, typer.Option(metavar="N,...", help="Sizes of a head.")] = "64,128",
    batch: Annotated[int, typer.Option(help="0: as many as make 16,384 tokens (1,024 on CPUs).")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Without the causal mask.")] = False,
    device: DeviceName = "auto",
    budget: Annotated[str, typer.Option(help="Time for measuring; start-up comes on top.")] = "30 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Time attention forward and backward with every kernel the device has. Exit 3: throttled twice."""
    from scalewright import units
    from scalewright.here.devices import device_here
    from scalewright.workload.language_run import DeviceKind
    from scalewright.workload.micro_run import AttentionPrecision, AttentionRun, as_precisions, parse_numbers

    budget_s = units.parse(budget, units.SECONDS)
    place = device_here(device, num_ranks=1)
    sizes = _heads(model, heads or DEFAULT_HEADS[place], kv_heads, parse_numbers(head_dim, flag="--head-dim"), catalog)
    lengths = parse_numbers(seq or DEFAULT_SEQ[place], flag="--seq")
    cases = _cases(lengths, sizes, batch=batch, num_tokens=NUM_TOKENS[place], causal=not full)
    chosen = ("bf16" if place == "cuda" else "fp32") if precision == "auto" else precision
    config = AttentionRun(
        precisions=cast(tuple[AttentionPrecision, ...], as_precisions(chosen)),
        cases=cases,
        device=cast(DeviceKind, place),
        budget_s=budget_s,
    )
    start_bench("attention", config.document(), run_dir=run_dir, as_json=as_json)


def _heads(
    model: str | None, heads: int, kv_heads: int, head_dims: tuple[int, ...], catalog: Path | None
) -> list[tuple[int, int, int]]:
    """Heads, key-value heads and size of a head, for each that is measured."""
    from scalewright.catalog.library import open_catalog
    from scalewright.workload.named import resolve_model

    if model is None:
        return [(heads, kv_heads or heads, size) for size in head_dims]
    shape = resolve_model(open_catalog(catalog), model).transformer
    return [(shape.heads, shape.kv_heads, shape.head_dim)]


def _cases(
    lengths: tuple[int, ...], sizes: list[tuple[int, int, int]], *, batch: int, num_tokens: int, causal: bool
) -> tuple[AttentionCase, ...]:
    from scalewright.workload.micro_run import AttentionCase

    return tuple(
        AttentionCase(
            batch=batch or max(1, num_tokens // seq), heads=heads, kv_heads=kv_heads, seq=seq, head_dim=size,
            causal=causal,
        )
        for seq in lengths
        for heads, kv_heads, size in sizes
    )  # fmt: skip
