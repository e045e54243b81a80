"""`scalewright reason`: the stages, each in a file of its own."""

from __future__ import annotations

import typer

from scalewright.cli.reason import distill, evaluate, generate, grpo, sft

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Train a reasoning model, stage by stage.")


@app.callback()
def _root() -> None:
    """Run one stage: its run directory has checkpoints, accuracy, and where the time went. The same one resumes."""


app.command("sft", short_help="Supervised fine-tuning on traces or on generated answers.")(sft.run)
app.command("grpo", short_help="Reinforcement learning: GRPO, DAPO, Dr.GRPO, GSPO; IcePop, TIS.")(grpo.run)
app.command("generate", short_help="Sample answers in bulk and keep the right ones.")(generate.run)
app.command("distill", short_help="Train a student on a teacher's answers or probabilities.")(distill.run)
app.command("evaluate", short_help="Greedy accuracy and pass@k with intervals.")(evaluate.run)
