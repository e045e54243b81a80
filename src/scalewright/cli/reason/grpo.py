"""`scalewright reason grpo`: reinforcement learning."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.reason.options import EnginePrecision, Temperature
from scalewright.cli.reason.stage_command import Values, stage_command, training_options


def own_options(
    num_prompts: Annotated[int, typer.Option(help="Prompts of a step.")] = 32,
    answers: Annotated[int, typer.Option(help="Answers to each prompt: the group.")] = 8,
    epochs: Annotated[int, typer.Option(help="Times that a step's answers are trained on.")] = 1,
    loss: Annotated[str, typer.Option(help="grpo, dapo, dr-grpo, gspo, c3po.")] = "grpo",
    correction: Annotated[str, typer.Option(help="Of engine mismatch: icepop, tis, none.")] = "icepop",
    clip_low: Annotated[float | None, typer.Option(help="Ratio is clipped at 1 - this.")] = None,
    clip_high: Annotated[float | None, typer.Option(help="Ratio is clipped at 1 + this.")] = None,
    band_low: Annotated[float | None, typer.Option(help="IcePop keeps tokens from here")] = None,
    band_high: Annotated[float | None, typer.Option(help="... to here.")] = None,
    tis_cap: Annotated[float | None, typer.Option(help="TIS cuts weights off here.")] = None,
    kl_coef: Annotated[float | None, typer.Option(help="Weight of the KL to the start.")] = None,
    token_budget: Annotated[str, typer.Option(help="Tokens that a step writes, as 4k; 0: it waits for all.")] = "0",
    retention: Annotated[int, typer.Option(help="Budget: give an answer up after so many cuts.")] = 2,
    groups: Annotated[str, typer.Option(help="Budget: train whole groups or parts.")] = "whole",
    old_tokens: Annotated[str, typer.Option(help="Budget: train on tokens of older weights, or mask.")] = "train",
    stale_keys: Annotated[bool, typer.Option(help="Budget: do not read prefixes again.")] = False,
    release: Annotated[str, typer.Option(help="State of trainer and engine leaves in turn: on, off.")] = "auto",
    temperature: Temperature = 1.0,
    engine_precision: EnginePrecision = "auto",
    engines: Annotated[int, typer.Option(help="Beside the trainer; 0: its own ranks write the answers.")] = 0,
    engine_tp: Annotated[str, typer.Option(help="Ranks of an engine: one number, or one for each: 2,1.")] = "1",
    staleness: Annotated[int, typer.Option(help="Versions behind: 0: in turns; 1: one step off; more: async.")] = 0,
    sync: Annotated[str, typer.Option(help="Of weights to engines: auto, broadcast, peers, file.")] = "auto",
) -> Values:
    """Sample groups of answers, score them, update, and give the engine the new weights. Exit 75: run it again."""
    return locals()


run = stage_command("grpo", own_options, training_options)
