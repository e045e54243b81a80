"""`scalewright reason distill`: distillation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder
from scalewright.cli.reason.options import (
    Attempts,
    Batch,
    BrokenReward,
    DataFolder,
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
    RewardMemory,
    RewardText,
    RewardTimeout,
    SandboxText,
    SeedNumber,
    StartFolder,
    StepCount,
    TaskName,
    Temperature,
    TokenizerFolder,
    num_bytes,
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
    sandbox: SandboxText = None,
    reward_timeout: RewardTimeout = None,
    reward_memory: RewardMemory = None,
    broken_reward: BrokenReward = None,
    tokenizer: TokenizerFolder = None,
    max_response: MaxResponse = None,
    data_from: DataFolder = None,
    mode: Annotated[str, typer.Option(help="data: a teacher's answers; on-policy: its probabilities.")] = "data",
    teacher: Annotated[Path | None, typer.Option(metavar="DIR", help="Weights of the teacher, for on-policy.")] = None,
    num_traces: Annotated[int, typer.Option(help="Cold-start traces, where no answers are given.")] = 4096,
    num_prompts: Annotated[int, typer.Option(help="Prompts of an on-policy step.")] = 128,
    temperature: Temperature = 1.0,
    engine_precision: EnginePrecision = "auto",
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
    """Train a student on a teacher's answers, or on its own by the teacher's probabilities. Exit 75: run it again."""
    run_benchmark(
        "reason", run_dir=run_dir, as_json=as_json, catalog=catalog, command="reason distill", stage="distill",
        model=model, start_from=text(start_from), task=task, numbers=numbers, largest=largest, operators=operators,
        attempts=attempts, prompts=text(prompts), reward=reward, tokenizer=text(tokenizer), max_response=max_response,
        sandbox=sandbox, reward_timeout_s=reward_timeout, reward_memory_bytes=num_bytes(reward_memory),
        broken_reward=broken_reward,
        data_from=text(data_from), mode=mode, teacher=text(teacher), num_traces=num_traces,
        num_prompts=num_prompts, temperature=temperature, engine_precision=engine_precision, steps=steps,
        batch=batch, learning_rate=learning_rate, lora=lora, precision=precision,
        checkpoint_every=checkpoint_every, eval_every=eval_every, eval_problems=eval_problems,
        eval_answers=eval_answers, seed=seed, layout=layout, ranks=ranks, device=device,
    )  # fmt: skip
