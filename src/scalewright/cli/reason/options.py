"""Options that the stages share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelName = Annotated[
    str | None, typer.Option(help="Catalogue name, config.json, or layers=..,hidden=..,heads=..; default: 0.36M.")
]
TaskName = Annotated[str | None, typer.Option(help="countdown or files; default: that of --start-from, or countdown.")]
Numbers = Annotated[int | None, typer.Option(help="Countdown: numbers of a problem.")]
Largest = Annotated[int | None, typer.Option(help="Countdown: the largest number.")]
Operators = Annotated[str | None, typer.Option(help="Countdown: some of +-*/.")]
Attempts = Annotated[int | None, typer.Option(help="Countdown: most attempts of an answer; more make a longer tail.")]
PromptFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Files: prompts as JSON lines or text lines.")]
RewardText = Annotated[str | None, typer.Option(help="Files: module:function, file.py:function or command: PROGRAM.")]
SandboxText = Annotated[
    str | None, typer.Option(help="Files: rewards run in a sandbox: off, auto (what the host permits), strict.")
]
RewardTimeout = Annotated[float | None, typer.Option(help="Files: seconds for a batch of answers; default: 60.")]
RewardMemory = Annotated[str | None, typer.Option(help="Sandbox: memory of a job; default: 512 MiB.")]
BrokenReward = Annotated[float | None, typer.Option(help="Sandbox: reward where the reward itself fails; default: 0.")]
MaxResponse = Annotated[int | None, typer.Option(help="Files: most tokens of an answer; default: 1024.")]
TokenizerFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Files: folder with tokenizer.json.")]
TraceFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Files: prompt and response as JSON lines.")]
StartFolder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Weights: a stage, a checkpoint, a Hugging Face folder.")
]
DataFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Answers of this `reason generate`.")]
StepCount = Annotated[int, typer.Option(help="0: as usual for the stage.")]
Batch = Annotated[int, typer.Option(help="Sequences of an update; 0: as usual for the stage.")]
Rate = Annotated[float, typer.Option(help="0: as usual for a million parameters.")]
LoraRank = Annotated[int, typer.Option(help="Rank of adapters; 0: all weights are trained.")]
PrecisionText = Annotated[str, typer.Option(help="Of the trainer; auto: bf16 on GPUs, fp32 on CPUs.")]
EnginePrecision = Annotated[str, typer.Option(help="Of the engine: fp32, bf16, fp8, int4, int3; auto: the trainer's.")]
EvalProblems = Annotated[
    int | None, typer.Option(help="Held-out problems at the end; default: 256, or all if fewer; 0: no evaluation.")
]
EvalAnswers = Annotated[int, typer.Option(help="Sampled answers to each, for pass@k; 0: greedy only.")]
EvalEvery = Annotated[int, typer.Option(help="Steps between evaluations on the way; 0: none.")]
EveryText = Annotated[str, typer.Option(help="Steps between checkpoints; auto: from the failure model.")]
LayoutText = Annotated[str | None, typer.Option(help="dp=4,zero=3 or tp=2,dp=2; default: dp alone.")]
RankCount = Annotated[int | None, typer.Option(help="Processes; default: the layout's, or one per GPU.")]
SeedNumber = Annotated[int, typer.Option(help="Of weights, problems, order and sampling.")]
Temperature = Annotated[float, typer.Option(help="Of sampled answers.")]


def num_bytes(size: str | None) -> int | None:
    """Bytes of a size such as 512 MiB."""
    from scalewright import units

    return None if size is None else int(units.parse(size, units.BYTES))
