"""`scalewright reason distill`: distillation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.reason.options import DataFolder, EnginePrecision, Temperature
from scalewright.cli.reason.stage_command import Values, stage_command, training_options


def own_options(
    data_from: DataFolder = None,
    mode: Annotated[str, typer.Option(help="data: a teacher's answers; on-policy: its probabilities.")] = "data",
    teacher: Annotated[Path | None, typer.Option(metavar="DIR", help="Weights of the teacher, for on-policy.")] = None,
    num_prompts: Annotated[int, typer.Option(help="Prompts of an on-policy step.")] = 128,
    temperature: Temperature = 1.0,
    engine_precision: EnginePrecision = "auto",
) -> Values:
    """Train a student on a teacher's answers, or on its own by the teacher's probabilities. Exit 75: run it again."""
    return locals()


run = stage_command("distill", own_options, training_options)
