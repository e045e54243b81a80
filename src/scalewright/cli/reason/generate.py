"""`scalewright reason generate`: bulk sampling."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.reason.options import EnginePrecision, Temperature
from scalewright.cli.reason.stage_command import Values, stage_command


def own_options(
    num_problems: Annotated[int, typer.Option(help="Training problems.")] = 2048,
    answers: Annotated[int, typer.Option(help="Sampled answers to each.")] = 4,
    keeps: Annotated[str, typer.Option(help="correct: rejection sampling; all.")] = "correct",
    most_per_problem: Annotated[int, typer.Option(help="Kept answers to a problem; 0: all different.")] = 0,
    shard_problems: Annotated[int, typer.Option(help="Problems of a shard, which is written whole.")] = 256,
    temperature: Temperature = 1.0,
    top_p: Annotated[float, typer.Option(help="Share of the likeliest tokens to draw from.")] = 1.0,
    engine_precision: EnginePrecision = "auto",
    engine_tp: Annotated[int, typer.Option(help="Ranks that share one engine.")] = 1,
) -> Values:
    """Sample answers to training problems, keep the right ones in shards. Run again, it makes the rest."""
    return locals() | {"eval_problems": 0}


run = stage_command("generate", own_options)
