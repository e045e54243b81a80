"""`scalewright reason evaluate`: evaluation."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.reason.options import EnginePrecision, EvalAnswers, EvalProblems, Temperature
from scalewright.cli.reason.stage_command import Values, stage_command


def own_options(
    temperature: Temperature = 1.0,
    engine_precision: EnginePrecision = "auto",
    engine_tp: Annotated[int, typer.Option(help="Ranks that share one engine.")] = 1,
    eval_problems: EvalProblems = None,
    eval_answers: EvalAnswers = 0,
) -> Values:
    """Measure the accuracy of weights on held-out problems, greedy and pass@k, with 95 % intervals."""
    return locals()


run = stage_command("evaluate", own_options)
