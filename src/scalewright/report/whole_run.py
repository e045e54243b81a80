"""A whole run for people: days, GPU-hours, energy, money, carbon; checkpoints, failures and slices of a queue."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scalewright import units
from scalewright.costs.breakdown import Breakdown
from scalewright.planner.whole_run import WholeRun
from scalewright.report.console import plain_table


def print_whole_run(console: Console, run: WholeRun) -> None:
    """The answer, where the time goes, how to save, and how to cut it into jobs."""
    tokens = units.format(run.num_tokens, units.COUNT)
    console.print(f"[bold]the whole run[/] {run.num_steps:,} steps, {tokens} tokens")
    console.print(_answer(run))
    console.print()
    console.print(_terms("where the run goes", run.time))
    console.print()
    console.print(_saving(run))
    if run.slices is not None:
        cut = run.slices
        console.print()
        console.print(f"[bold]{cut.num_jobs} jobs of {_s(cut.limit_s)}, the last of {_s(cut.last_request_s)}; each[/]")
        console.print(_terms("", cut.one))
    for note in run.notes:
        console.print(f"[yellow]note[/] {escape(note)}")


def _answer(run: WholeRun) -> Table:
    low, high = run.interval_s
    table = plain_table("", "expected", "")
    table.add_row("time", f"[bold]{_s(run.time_s)}[/]", f"90 % interval {_s(low)} to {_s(high)}; no time in the queue")
    table.add_row("GPU-hours", f"{run.num_gpu_hours:,.0f}", f"{run.work.num_nodes} nodes of {run.work.gpus_per_node}")
    table.add_row("goodput", f"{run.goodput_frac:.1%}", "of the time goes to steps that are not done again")
    if run.energy is not None and run.work.site is not None:
        pue = f"with PUE {run.work.site.pue_frac:.2f}" if run.work.site.pue_frac > 1.0 else "without the building"
        table.add_row("energy", units.format(float(run.energy.total), units.JOULES), pue)
    if run.cost_usd is not None:
        table.add_row("money", units.format(run.cost_usd, units.USD), "devices at their price per hour")
    if run.carbon_kgco2e is not None:
        table.add_row("carbon", units.format(run.carbon_kgco2e, units.KGCO2E), "electricity only")
    return table


def _saving(run: WholeRun) -> Table:
    save = run.saving
    table = plain_table("", "", "", title="checkpoints and failures", header=False)
    size = units.format(save.size_bytes, units.BYTES)
    table.add_row("checkpoint", size, f"{run.checkpoint}, {_s(save.write_s)} to {escape(run.storage_id)}")
    table.add_row("save every", _s(run.every_s), f"{run.steps_between_checkpoints} steps; Young {_s(run.young_s)}")
    table.add_row("training stops", _s(save.stall_s), "for each")
    table.add_row("failures", f"{run.num_failures:,.1f}", f"one every {_s(run.interruptions.mttf_s)}")
    again = run.interruptions.restart_s + save.read_s
    table.add_row("each costs", _s(again), f"to restart, and {_s(run.every_s / 2 + save.exposed_s)} of work on average")
    return table


def _terms(title: str, breakdown: Breakdown) -> Table:
    table = plain_table("term", "value", "share", title=title, right=("value", "share"), header=False)
    total = float(breakdown.total)
    for term in breakdown.parts:
        value = float(term.total)
        if value:
            table.add_row(term.name.replace("_", " "), _s(value), f"{value / total:.1%}")
    return table


def compare_table(runs: Sequence[WholeRun]) -> Table:
    """The same work on other numbers of nodes or other machines, beside the first."""
    numbers = ("nodes", "time", "GPU-hours", "goodput", "energy", "money")
    table = plain_table("where", *numbers, right=numbers)
    for run in runs:
        energy = "" if run.energy is None else units.format(float(run.energy.total), units.JOULES)
        money = "" if run.cost_usd is None else units.format(run.cost_usd, units.USD)
        table.add_row(
            escape(run.work.machine), str(run.work.num_nodes), _s(run.time_s), f"{run.num_gpu_hours:,.0f}",
            f"{run.goodput_frac:.1%}", energy, money,
        )  # fmt: skip
    return table


def _s(value: float) -> str:
    return units.format(value, units.SECONDS)
