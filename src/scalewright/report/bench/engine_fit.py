"""A training program's fitted factors in the terminal: each factor, and each run before and after the fit."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scalewright import units
from scalewright.catalog.calibration import EngineFit, Step
from scalewright.report.console import plain_table

FACTORS = {
    "host": "host work",
    "elementwise": "memory traffic outside products",
    "attention": "time of attention",
    "update": "memory traffic of the optimizer",
}


def print_engine(console: Console, fit: EngineFit) -> None:
    settings = "".join(f", {key}={value}" for key, value in fit.settings.items())
    spent, day = units.format(fit.spent_s, units.SECONDS), fit.created.date().isoformat()
    console.print(
        f"[bold]{escape(fit.engine)}[/] {escape(fit.release)} over stack {escape(fit.stack)}{escape(settings)}, {day}, "
        f"{spent}"
    )
    table = plain_table("factor on", "factor", "from", "to", right=("factor", "from", "to"))
    for factor in fit.factors:
        table.add_row(FACTORS[factor.name], f"[bold]{factor.factor:.2f}[/]", f"{factor.low:.2f}", f"{factor.high:.2f}")
    if fit.factors:
        console.print(table)
    else:
        console.print("No factor was worth fitting: stack and machine explain the runs.")
    console.print(step_table("run", fit.steps))
    before, after, left_out = (mean_error(fit.steps, key) for key in ("before_s", "after_s", "left_out_s"))
    console.print(
        f"Mean error of {len(fit.steps)} runs: {before:.1%} before the fit, {after:.1%} after, {left_out:.1%} for runs "
        "left out of their own fit."
    )
    for note in fit.notes:
        console.print(f"note: {escape(note)}")
    console.print(f"predict --stack {escape(fit.engine)} --system here uses these factors.")


def step_table(title: str, steps: Sequence[Step]) -> Table:
    """Each run with its errors before the fit, after it, and left out of it."""
    numbers = ("measured", "before", "after", "left out")
    table = plain_table(title, *numbers, right=numbers)
    for step in steps:
        ranks = f", {step.num_ranks} ranks" if step.num_ranks > 1 else ""
        errors = (
            f"{predicted_s / step.measured_s - 1.0:+.0%}"
            for predicted_s in (step.before_s, step.after_s, step.left_out_s)
        )
        table.add_row(escape(f"{step.label}{ranks}"), units.format(step.measured_s, units.SECONDS), *errors)
    return table


def mean_error(steps: Sequence[Step], key: str) -> float:
    errors = [abs(float(getattr(step, key)) / step.measured_s - 1.0) for step in steps]
    return sum(errors) / len(errors)
