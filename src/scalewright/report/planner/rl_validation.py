"""The errors of predicted RL steps for people, in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright.planner.validation.rl_table import RlTable, rl_scores
from scalewright.report.console import plain_table
from scalewright.report.planner.validation import percent


def print_rl_table(console: Console, table: RlTable, *, left_out: Mapping[str, Any]) -> None:
    """Scores by model, mode and framework; `left_out` holds a model's error under constants of the other models."""
    columns = ("rows", "MAPE", "median", "bias", "inside", "width", "left out")
    shown = plain_table(
        "", *columns, right=columns, gap=1,
        title="error of predicted RL steps, %; inside and width of the 90 % interval; model left out of the fit",
    )  # fmt: skip
    models = left_out.get("models", {})
    for kind, groups in table.groups.items():
        for name, rows in groups.items():
            own = percent(models[name]["mape_frac"]) if kind == "model" and name in models else ""
            shown.add_row(escape(f"{kind} {name}"), *_cells(rl_scores(rows)), own)
    if table.scored:
        mean = percent(left_out["mape_frac"]) if models else ""
        shown.add_row("[bold]all rows[/]", *_cells(rl_scores(table.scored)), mean)
    console.print(shown)
    _print_order(console, table, left_out)
    _print_parts(console, table)
    if table.reasons:
        console.print("[bold]steps not predicted, and why[/]")
        for reason, count in table.reasons.items():
            console.print(f"{count:5d}  {escape(reason)}")
    odd = len(table.predicted) - len(table.scored)
    if odd:
        console.print(f"{odd} rows whose own columns disagree are predicted and not scored")
    console.print("every row with its parts and what was assumed: --json")


def _print_order(console: Console, table: RlTable, left_out: Mapping[str, Any]) -> None:
    if table.order_frac is None:
        return
    unseen = f" ({left_out['order_frac']:.0%} with the model left out)" if left_out.get("models") else ""
    console.print(f"order of modes right in {table.order_frac:.0%} of pairs{unseen}")


def _print_parts(console: Console, table: RlTable) -> None:
    if not table.parts:
        return
    columns = ("rows", "MAPE", "published s", "predicted s")
    shown = plain_table("part", *columns, right=columns, title="parts that rows time; seconds are medians")
    for name, times in table.part_groups.items():
        error = sum(abs(part.error_frac) for part in times) / len(times)
        middle = sorted(times, key=lambda part: part.published_s)[len(times) // 2]
        shown.add_row(name, str(len(times)), percent(error), f"{middle.published_s:.3g}", f"{middle.predicted_s:.3g}")
    console.print(shown)


def _cells(scores: Mapping[str, float | int]) -> tuple[str, ...]:
    return (
        str(scores["num_rows"]), percent(scores["mape_frac"]), percent(scores["median_ape_frac"]),
        percent(scores["bias_frac"], signed=True), percent(scores["coverage_frac"]),
        percent(scores["mean_width_frac"]),
    )  # fmt: skip
