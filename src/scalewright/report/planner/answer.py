"""An answer for people, of any kind: the summary, where time and memory go and, on request, why."""

from __future__ import annotations

from rich.console import Console

from scalewright.catalog.library import Catalog
from scalewright.planner.answer import Answer
from scalewright.planner.generation import Generation
from scalewright.planner.question import TransformerStep, VisionModelStep
from scalewright.report.planner.prediction import explain_transformer, print_transformer
from scalewright.report.planner.stages import explain_stage, print_generation, print_rl, print_vision
from scalewright.workload.rl import RlStep


def print_answer(console: Console, answer: Answer) -> None:
    match answer.question.stage:
        case TransformerStep():
            print_transformer(console, answer)
        case VisionModelStep():
            print_vision(console, answer)
        case Generation():
            print_generation(console, answer)
        case RlStep():
            print_rl(console, answer)


def print_explanation(console: Console, answer: Answer, catalog: Catalog, *, whole: bool) -> None:
    """What limits it, what one change at a time would give, and the equations of its largest terms.

    `whole`: every equation, and all inputs with their sources.
    """
    if isinstance(answer.question.stage, TransformerStep):
        explain_transformer(console, answer, catalog, whole=whole)
    else:
        explain_stage(console, answer, catalog, whole=whole)
