"""Commands of `reason`: each has its own flags between those that all stages share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder
from scalewright.cli.reason.options import (
    Attempts,
    Batch,
    BrokenReward,
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
    num_bytes,
)

Values = dict[str, Any]
"""Options of a stage by name."""


def task_options(
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
) -> Values:
    """What every stage begins with: the model, its weights, and the task."""
    values = locals()
    values["reward_timeout_s"] = values.pop("reward_timeout")
    values["reward_memory_bytes"] = num_bytes(values.pop("reward_memory"))
    return values


def training_options(
    steps: StepCount = 0,
    batch: Batch = 0,
    learning_rate: Rate = 0.0,
    lora: LoraRank = 0,
    precision: PrecisionText = "auto",
    checkpoint_every: EveryText = "auto",
    eval_every: EvalEvery = 0,
    eval_problems: EvalProblems = None,
    eval_answers: EvalAnswers = 0,
) -> Values:
    """Of stages that train."""
    return locals()


def place_options(
    seed: SeedNumber = 0,
    layout: LayoutText = None,
    ranks: RankCount = None,
    device: DeviceName = "auto",
) -> Values:
    """What every stage ends with: the seed, and where it runs."""
    return locals()


def output_options(
    run_dir: RunFolder = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> Values:
    """Folders and the form of the answer."""
    return locals()


def stage_command(stage: str, own: Callable[..., Values], *others: Callable[..., Values]) -> Callable[..., None]:
    """The command of a stage. Its flags are those of the task, its own, `others` and the place, in this order.

    The docstring of `own` is its help. Typer reads flags from a signature, so the command gets that of all its parts.
    """
    parts: tuple[Callable[..., Values], ...] = (task_options, own, *others, place_options)
    flags = {part: _parameters(part) for part in (*parts, output_options)}

    def run(**given: Any) -> None:
        values: Values = {}
        for part in parts:
            values |= part(**{one.name: given[one.name] for one in flags[part]})
        texts: Values = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
        run_benchmark(
            "reason", run_dir=given["run_dir"], as_json=given["as_json"], catalog=given["catalog"],
            command=f"reason {stage}", stage=stage, **texts,
        )  # fmt: skip

    every = [one for part in flags.values() for one in part]
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in every}
    run.__doc__ = own.__doc__
    return run


def _parameters(part: Callable[..., Values]) -> list[inspect.Parameter]:
    hints = get_type_hints(part, include_extras=True)
    return [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name])
        for one in inspect.signature(part).parameters.values()
    ]
