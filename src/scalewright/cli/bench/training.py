"""Options that the benchmarks that train share."""

from __future__ import annotations

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
