"""`scalewright reason sft`: supervised fine-tuning."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder
from scalewright.cli.reason.options import (
    Attempts,
    Batch,
    BrokenReward,
    DataFolder,
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
    TokenizerFolder,
    TraceFile,
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
    traces: TraceFile = None,
    data_from: DataFolder = None,
    num_traces: Annotated[int, typer.Option(help="Cold-start traces.")] = 4096,
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
    """Train on written answers: the task's traces, or answers of an earlier stage. Exit 75: stopped, run it again."""
    run_benchmark(
        "reason", run_dir=run_dir, as_json=as_json, catalog=catalog, command="reason sft", stage="sft",
        model=model, start_from=text(start_from), task=task, numbers=numbers, largest=largest, operators=operators,
        attempts=attempts, prompts=text(prompts), reward=reward, tokenizer=text(tokenizer), max_response=max_response,
        sandbox=sandbox, reward_timeout_s=reward_timeout, reward_memory_bytes=num_bytes(reward_memory),
        broken_reward=broken_reward,
        traces=text(traces), data_from=text(data_from), num_traces=num_traces, steps=steps, batch=batch,
        learning_rate=learning_rate, lora=lora, precision=precision, checkpoint_every=checkpoint_every,
        eval_every=eval_every, eval_problems=eval_problems, eval_answers=eval_answers, seed=seed, layout=layout,
        ranks=ranks, device=device,
    )  # fmt: skip
