"""`scalewright reason evaluate`: evaluation."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder
from scalewright.cli.reason.options import (
    Attempts,
    BrokenReward,
    EnginePrecision,
    EvalAnswers,
    EvalProblems,
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
    temperature: Temperature = 1.0,
    engine_precision: EnginePrecision = "auto",
    engine_tp: Annotated[int, typer.Option(help="Ranks that share one engine.")] = 1,
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
    """Measure the accuracy of weights on held-out problems, greedy and pass@k, with 95 % intervals."""
    run_benchmark(
        "reason", run_dir=run_dir, as_json=as_json, catalog=catalog, command="reason evaluate", stage="evaluate",
        model=model, start_from=text(start_from), task=task, numbers=numbers, largest=largest, operators=operators,
        attempts=attempts, prompts=text(prompts), reward=reward, tokenizer=text(tokenizer), max_response=max_response,
        sandbox=sandbox, reward_timeout_s=reward_timeout, reward_memory_bytes=num_bytes(reward_memory),
        broken_reward=broken_reward,
        temperature=temperature, engine_precision=engine_precision, engine_tp=engine_tp,
        eval_problems=eval_problems, eval_answers=eval_answers, seed=seed, layout=layout, ranks=ranks,
        device=device,
    )  # fmt: skip
