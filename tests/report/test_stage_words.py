"""Words of generation and RL answers: a load that nobody can answer, and a token budget that costs time."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.planner.answer import answer
from scalewright.planner.question import ask
from scalewright.planner.stages.stage_search import StageChoice
from scalewright.report.planner.stages import budget_sentences, print_generation, print_rl

CATALOG = Catalog((packaged_data(),))
STEP = "prompts=8,samples=8,prompt=64,response=256,longest=1024,budget=16384"


def shown(rate: str) -> str:
    request = f"prompt=512,response=128,rate={rate}"
    question = ask(CATALOG, model="llama3-8b", system="leonardo", layout="gbs=4", generate=request)
    console = Console(width=200, file=io.StringIO(), record=True)
    print_generation(console, answer(question))
    return " ".join(console.export_text().split())


def test_a_load_above_what_the_copies_answer_says_so_in_every_row() -> None:
    text = shown("1000")
    assert "of these 4 alone, without the queue" in text
    assert "times what the copies can answer: the queue and the first token grow without end" in text
    assert "running on a copy" in text


def test_a_load_that_is_answered_is_a_share() -> None:
    text = shown("1")
    assert "% of what the copies can answer; first token after" in text
    assert "without end" not in text


@pytest.mark.parametrize(
    ("gain", "sentence", "row"),
    [(0.94, "would cost time: rollout", "0.94 times a loss; model"), (1.2, "gains time", "1.20 times model")],
)
def test_a_token_budget_that_costs_time_is_called_a_loss(gain: float, sentence: str, row: str) -> None:
    layout = "dp=8,mbs=1,gbs=64,zero=2"
    predicted = answer(ask(CATALOG, model="llama3-8b", system="generic-h100", layout=layout, rl=STEP))
    changed = replace(predicted, figures=replace(predicted.rl, step_gain=gain))
    (words,) = budget_sentences([StageChoice(name="token budget", prediction=changed)])
    assert f"token budget of 16,384, retention 2, {sentence}" in words
    assert "biased to short answers: trained ones have 193 tokens on average instead of 256 (-25%)" in words
    console = Console(width=200, file=io.StringIO(), record=True)
    print_rl(console, changed)
    assert row in " ".join(console.export_text().split())
