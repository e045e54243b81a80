"""A whole run in detail: where its time goes, how to save it, what failures cost, and what each job is made of."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scalewright import units
from scalewright.report.console import plain_table


def print_run_details(console: Console, run: dict[str, Any]) -> None:
    """From the run's document, so that a stored plan prints the same."""
    console.print()
    console.print(_terms("where the run goes", run["time"]))
    console.print()
    console.print(_saving(run))
    cut = run.get("slices")
    if cut is not None:
        console.print()
        last = _s(cut["last_request_s"])
        console.print(f"[bold]{cut['num_jobs']} jobs of {_s(cut['limit_s'])}, the last of {last}; each[/]")
        console.print(_terms("", cut["one"]))
    for note in run["notes"]:
        console.print(f"[yellow]note[/] {escape(note)}")


def _saving(run: dict[str, Any]) -> Table:
    save = run["checkpoint"]
    size, young = units.format(save["size_bytes"], units.BYTES), _s(save["young_interval_s"])
    lost = save["every_s"] / 2 + max(save["write_s"] - save["stall_s"], 0.0)
    table = plain_table("", "", "", title="checkpoints and failures", header=False)
    table.add_row("checkpoint", size, f"{save['kind']}, {_s(save['write_s'])} to {escape(save['storage'])}")
    table.add_row("save every", _s(save["every_s"]), f"{save['every_num_steps']:,} steps; Young's interval {young}")
    table.add_row("training stops", _s(save["stall_s"]), "for each")
    table.add_row("failures", f"{run['num_failures']:,.1f}", f"one every {_s(run['mttf_s'])}")
    table.add_row("each costs", _s(run["restart_s"]), f"to restart, and {_s(lost)} of work on average")
    return table


def _terms(title: str, breakdown: dict[str, Any]) -> Table:
    table = plain_table("term", "value", "share", title=title, right=("value", "share"), header=False)
    for term in breakdown["parts"]:
        value = term["total_s"]
        if value:
            share = f"{value / breakdown['total_s']:.1%}"
            table.add_row(term["name"].replace("_", " "), _s(value), share)
    return table


def _s(value: float) -> str:
    return units.format(value, units.SECONDS)
