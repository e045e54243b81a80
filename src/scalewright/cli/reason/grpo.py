"""`scalewright reason grpo`: reinforcement learning."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder
from scalewright.cli.reason.options import (
    Attempts,
    Batch,
    EnginePrecision,
    EvalAnswers,
    EvalEvery,
    EvalProblems,
    EveryText,
    Largest,
    LayoutText,
    LoraRank,
    MaxResponse,
    ModelName,
    Numbers,
    Operators,
    PrecisionText,
    PromptFile,
    RankCount,
    Rate,
    RewardText,
    SeedNumber,
    StartFolder,
    StepCount,
    TaskName,
    Temperature,
    TokenizerFolder,
    text,
)


def run(
    model: ModelName = None,
    start_from: StartFolder = None,
    task: TaskName = None,
    numbers: Numbers = None,
    largest: Largest = None,
    operators: Operators = None,
    attempts: Attempts = None,
    prompts: PromptFile = None,
    reward: RewardText = None,
    tokenizer: TokenizerFolder = None,
    max_response: MaxResponse = None,
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
    temperature: Temperature = 1.0,
    engine_precision: EnginePrecision = "auto",
    engines: Annotated[int, typer.Option(help="Beside the trainer; 0: its own ranks write the answers.")] = 0,
    engine_tp: Annotated[str, typer.Option(help="Ranks of an engine: one number, or one for each: 2,1.")] = "1",
    staleness: Annotated[
        int, typer.Option(help="Versions that answers may be behind. 0: synchronous; 1: one step off; more: async.")
    ] = 0,
    sync: Annotated[str, typer.Option(help="Of weights to engines: auto, broadcast, peers, file.")] = "auto",
    steps: StepCount = 0,
    batch: Batch = 0,
    learning_rate: Rate = 0.0,
    lora: LoraRank = 0,
    precision: PrecisionText = "auto",
    checkpoint_every: EveryText = "auto",
    eval_every: EvalEvery = 0,
    eval_problems: EvalProblems = 256,
    eval_answers: EvalAnswers = 0,
    seed: SeedNumber = 0,
    layout: LayoutText = None,
    ranks: RankCount = None,
    device: DeviceName = "auto",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Sample groups of answers, score them, update, and give the engine the new weights. Exit 75: run it again."""
    run_benchmark(
        "reason", run_dir=run_dir, as_json=as_json, catalog=catalog, command="reason grpo", stage="grpo",
        model=model, start_from=text(start_from), task=task, numbers=numbers, largest=largest, operators=operators,
        attempts=attempts, prompts=text(prompts), reward=reward, tokenizer=text(tokenizer), max_response=max_response,
        num_prompts=num_prompts, answers=answers, epochs=epochs, loss=loss, correction=correction,
        clip_low=clip_low, clip_high=clip_high, band_low=band_low, band_high=band_high, tis_cap=tis_cap,
        kl_coef=kl_coef, token_budget=token_budget, retention=retention, groups=groups, old_tokens=old_tokens,
        stale_keys=stale_keys, temperature=temperature, engine_precision=engine_precision, engines=engines,
        engine_tp=engine_tp, staleness=staleness, sync=sync, steps=steps, batch=batch, learning_rate=learning_rate,
        lora=lora, precision=precision,
        checkpoint_every=checkpoint_every, eval_every=eval_every, eval_problems=eval_problems,
        eval_answers=eval_answers, seed=seed, layout=layout, ranks=ranks, device=device,
    )  # fmt: skip
