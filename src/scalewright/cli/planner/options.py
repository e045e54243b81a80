"""Options that `plan` and `predict` share."""

from __future__ import annotations

from typing import Annotated

import typer

ModelName = Annotated[
    str,
    typer.Option(help="Catalogue name, Hugging Face config.json, or layers=..,hidden=..,heads=..", show_default=False),
]
PrecisionName = Annotated[
    str, typer.Option(help="fp32, tf32, fp16, bf16, bf16-lean, bf16-pure, fp8, mxfp8, nvfp4, or auto.")
]
StackName = Annotated[str, typer.Option(help="Software stack (see: catalog stacks), or auto.")]
SeqLength = Annotated[int | None, typer.Option(help="Tokens per sample; default: the model's own.")]
PartitionName = Annotated[str | None, typer.Option(help="Partition of the system; default: its main one.")]
NetworkText = Annotated[
    str | None, typer.Option(help="quiet, or shared with other jobs; default: as the system's entry says.")
]
ModeText = Annotated[str, typer.Option(help="full, offload (optimizer on the hosts) or lora (adapters).")]
