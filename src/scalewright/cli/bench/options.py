"""Options that several benchmarks share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SystemName = Annotated[
    str | None, typer.Option(help="Name of this machine, or here; default: calibration, GPU or a probe.")
]
BudgetText = Annotated[str, typer.Option(help="Longest time it may take, as predicted.")]
EveryText = Annotated[str, typer.Option(help="Steps; 0: only when stopped; auto: from the failure model.")]
SavingText = Annotated[str, typer.Option(help="async: train on while it is written; sync: wait.")]
KeepNumber = Annotated[int, typer.Option(help="Newest whole checkpoints that are kept.")]
KeepTrace = Annotated[bool, typer.Option("--profile", help="Keep a Kineto trace of the profiled steps.")]
MeasuringTime = Annotated[str, typer.Option(help="Time for measuring; start-up comes on top.")]
ScratchFolder = Annotated[Path, typer.Option(metavar="DIR", help="Scratch folder on the storage to measure.")]
ImageSize = Annotated[int, typer.Option(help="Side of an image in pixels; 0: the model's own.")]
