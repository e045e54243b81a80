"""`scalewright reason generate`: bulk sampling."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder
from scalewright.cli.reason.options import (
    Attempts,
    BrokenReward,
    EnginePrecision,
    Largest,
    LayoutText,
    MaxResponse,
    ModelName,
    Numbers,
    Operators,
    PromptFile,
    RankCount,
    RewardMemory,
    RewardText,
    RewardTimeout,
    SandboxText,
    SeedNumber,
    StartFolder,
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
    num_problems: Annotated[int, typer.Option(help="Training problems.")] = 2048,
    answers: Annotated[int, typer.Option(help="Sampled answers to each.")] = 4,
    keeps: Annotated[str, typer.Option(help="correct: rejection sampling; all.")] = "correct",
    most_per_problem: Annotated[int, typer.Option(help="Kept answers to a problem; 0: all different.")] = 0,
    shard_problems: Annotated[int, typer.Option(help="Problems of a shard, which is written whole.")] = 256,
    temperature: Temperature = 1.0,
    top_p: Annotated[float, typer.Option(help="Share of the likeliest tokens to draw from.")] = 1.0,
    engine_precision: EnginePrecision = "auto",
    engine_tp: Annotated[int, typer.Option(help="Ranks that share one engine.")] = 1,
    seed: SeedNumber = 0,
    layout: LayoutText = None,
    ranks: RankCount = None,
    device: DeviceName = "auto",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Sample answers to training problems, keep the right ones in shards. Run again, it makes the rest."""
    run_benchmark(
        "reason", run_dir=run_dir, as_json=as_json, catalog=catalog, command="reason generate", stage="generate",
        model=model, start_from=text(start_from), task=task, numbers=numbers, largest=largest, operators=operators,
        attempts=attempts, prompts=text(prompts), reward=reward, tokenizer=text(tokenizer), max_response=max_response,
        sandbox=sandbox, reward_timeout_s=reward_timeout, reward_memory_bytes=num_bytes(reward_memory),
        broken_reward=broken_reward,
        num_problems=num_problems, answers=answers, keeps=keeps, most_per_problem=most_per_problem,
        shard_problems=shard_problems, temperature=temperature, top_p=top_p, engine_precision=engine_precision,
        engine_tp=engine_tp, seed=seed, layout=layout, ranks=ranks, device=device, eval_problems=0,
    )  # fmt: skip
