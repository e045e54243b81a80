"""`scalewright reason sft`: supervised fine-tuning."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.reason.options import DataFolder, TraceFile
from scalewright.cli.reason.stage_command import Values, stage_command, training_options


def own_options(
    traces: TraceFile = None,
    data_from: DataFolder = None,
    num_traces: Annotated[int, typer.Option(help="Cold-start traces.")] = 4096,
) -> Values:
    """Train on written answers: the task's traces, or answers of an earlier stage. Exit 75: stopped, run it again."""
    return locals()


run = stage_command("sft", own_options, training_options)
