"""Planned and published GPU-hours of whole runs, in 80 columns."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.planner.validation.campaign_rows import CampaignRow, CampaignTable
from scalewright.report.console import plain_table


def print_campaigns(console: Console, table: CampaignTable) -> None:
    numbers = ("published", "planned", "low", "high", "goodput")
    is_left_out = any(row.left_out is not None for row in table.rows)
    title = "GPU-hours of whole runs" + ("; each planned with its own family left out" if is_left_out else "")
    shown = plain_table("run", "GPUs", *numbers, "inside", title=title, right=("GPUs", *numbers), gap=1)
    for row in table.rows:
        shown.add_row(*_cells(row))
    console.print(shown)
    total = len(table.planned)
    if total:
        families = len({row.run.family for row in table.planned})
        inside = table.num_inside_left_out if is_left_out else table.num_inside
        shipped = f"; {table.num_inside} with the shipped constants" if is_left_out else ""
        runs = f"{inside} of {total} runs of {families} families"
        console.print(f"{runs} are inside the 90 % interval ({inside / total:.0%}){shipped}")
        console.print(f"median error of the centre: {table.median_error_frac:.0%}")
    for row in table.rows:
        if row.plan is None:
            console.print(f"[yellow]not planned[/] {escape(row.run.id)}: {escape(row.reason)}")
    console.print("sources, inputs that were assumed and the parts of each run: --json")


def _cells(row: CampaignRow) -> tuple[str, ...]:
    run, plan = row.run, row.left_out or row.plan
    head = escape(run.id), f"{run.num_gpus:,}", _hours(run.num_gpu_hours)
    if plan is None:
        return (*head, "-", "-", "-", "-", "")
    is_inside = row.is_inside if row.left_out is None else row.is_inside_left_out
    low, high = plan.gpu_hours_interval
    verdict = "yes" if is_inside else "[bold]no[/]"
    return (*head, _hours(plan.num_gpu_hours), _hours(low), _hours(high), f"{plan.goodput_frac:.0%}", verdict)


def _hours(value: float) -> str:
    return units.format(value, units.COUNT)
