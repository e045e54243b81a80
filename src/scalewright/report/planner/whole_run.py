"""A whole run in detail: where its time goes, how to save it, what failures cost, and what each job is made of."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scalewright import units
from scalewright.report.console import plain_table, print_notes, print_warnings


def print_run(
    console: Console, run: dict[str, Any], *, origin: str, limit_rule: str = "as asked", details: bool = False
) -> None:
    """The short table and, on request, where time goes and what the notes say."""
    console.print()
    console.print(run_table(run, origin=origin, limit_rule=limit_rule))
    print_warnings(console, run["notes"])
    if details:
        print_run_details(console, run)


def run_table(run: dict[str, Any], *, origin: str, limit_rule: str) -> Table:
    """The whole run in short: time, GPU-hours, money, checkpoints and failures, with their intervals."""
    table = plain_table("", "", "", header=False, title="the whole run")
    table.add_row("tokens", _count(run["num_tokens"]), f"{run['num_steps']:,} steps; {escape(origin)}")
    table.add_row("time", _s(run["time_s"]), f"{_s_range(run['time_interval_s'])}; 90 % interval")
    hours = " to ".join(_whole(end) for end in run["num_gpu_hours_interval"])
    table.add_row("GPU-hours", _whole(run["num_gpu_hours"]), f"{hours}; whole nodes")
    table.add_row("goodput", f"{run['goodput_frac']:.0%}", _beside_steps(run["time"]))
    billed = run.get("billed")
    if billed is not None:
        ends = " to ".join(_whole(end) for end in billed["num_units_interval"])
        note = f"; {escape(billed['note'])}" if billed["note"] else ""
        table.add_row("billed", _whole(billed["num_units"]), f"{escape(billed['unit'])}, {ends}{note}")
    if "energy_j" in run:
        carbon = units.format(run["carbon_kgco2e"], units.KGCO2E) if "carbon_kgco2e" in run else "no grid: no carbon"
        table.add_row("energy", units.format(run["energy_j"], units.JOULES), carbon)
    _add_money(table, run)
    _add_checkpoint(table, run["checkpoint"])
    table.add_row("failures", f"{run['num_failures']:,.1f}", f"one each {_s(run['mttf_s'])} of this many devices")
    if "slices" in run:
        for row in _job_rows(run, limit_rule):
            table.add_row(*row)
    return table


LEAST_NAMED_FRAC = 0.005
"""Smaller parts of a run are not named in its short table."""
PART_WORDS = {
    "layout_gap": "layouts slower than the best",
    "unexplained": "no known cause",
    "ramp_up": "ramp-up of the batch",
    "rollbacks": "steps repeated after divergence",
}
PUBLISHED_PARTS = ("layout_gap", "slow_steps", "evaluation", "ramp_up", "rollbacks", "unexplained")
"""Parts that are the averages of published runs, whatever this run does."""


def _beside_steps(time: dict[str, Any]) -> str:
    """Where time goes that planned steps do not take, the largest first: what published runs lost, and its own."""
    shares = {term["name"]: term["total_s"] / time["total_s"] for term in time["parts"] if term["name"] != "steps"}
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    shown = [(name, f"{part_words(name)} {share:.0%}") for name, share in ranked if share >= LEAST_NAMED_FRAC]
    published = ", ".join(words for name, words in shown if name in PUBLISHED_PARTS)
    own = ", ".join(words for name, words in shown if name not in PUBLISHED_PARTS)
    parts = (f"as published runs lose on average: {published}" if published else "", own)
    return "; ".join(part for part in parts if part) or "nothing beside the steps above 0.5 %"


def part_words(name: str) -> str:
    return PART_WORDS.get(name, name.replace("_", " "))


def _add_money(table: Table, run: dict[str, Any]) -> None:
    if "cost_eur" in run:
        low, high = (units.format(end, units.EUR) for end in run["cost_eur_interval"])
        dollars = units.format(run["cost_usd"], units.USD)
        table.add_row("cost", units.format(run["cost_eur"], units.EUR), f"{low} to {high}; {dollars}")
        table.add_row("", "", f"at {escape(run['price'])}, {run['usd_per_eur']:.4g} USD/EUR")
    elif "price" in run:
        table.add_row("cost", "-", escape(run["price"]))


def _add_checkpoint(table: Table, saved: dict[str, Any]) -> None:
    cost = f"costs at most {saved['most_cost_frac']:.1%}; {_b(saved['size_bytes'])} each to {escape(saved['storage'])}"
    table.add_row(
        "checkpoint", f"every {_every(saved)}", cost + (", lost with a node" if saved["is_lost_with_node"] else "")
    )


def _every(saved: dict[str, Any]) -> str:
    """The range of intervals that cost little; one where there is no choice."""
    low, high = saved["shortest_every_s"], saved["longest_every_s"]
    if low == high:
        return _s_short(low)
    (first, unit), last = _s_short(low).split(" "), _s_short(high)
    return f"{first} to {last}" if last.endswith(f" {unit}") else f"{first} {unit} to {last}"


def _s_short(value: float) -> str:
    """Whole minutes and hours without digits behind the point."""
    for unit_s, name in ((units.HOUR_S, "h"), (units.MINUTE_S, "min")):
        if value >= unit_s and value % unit_s == 0:
            return f"{value / unit_s:.0f} {name}"
    return _s(value)


def _job_rows(run: dict[str, Any], rule: str) -> list[tuple[str, str, str]]:
    """Jobs of at most the time limit, whose limit that is, and what cutting the run costs."""
    cut = run["slices"]
    one, whole = (
        {part["name"]: part["total_s"] for part in tree["parts"]} for tree in (cut["one"], run["time"])
    )  # fmt: skip
    jobs = f"of at most {_s(cut['limit_s'])}" if cut["num_jobs"] > 1 else f"of {_s(cut['last_request_s'])}"
    around = f"{_s(whole['job_starts'] + whole['last_checkpoints'])} in all to start, restore and save"
    rows = [("jobs", f"{cut['num_jobs']:,}", f"{jobs}; {escape(rule)}")]
    return [*rows, ("", "", f"{_s(one['work'])} of work in each; {around}")] if cut["num_jobs"] > 1 else rows


def _s_range(ends: list[float]) -> str:
    return " to ".join(_s(end) for end in ends)


def _whole(value: float) -> str:
    """Three digits say as much as the interval allows."""
    return f"{float(f'{value:.3g}'):,.0f}"


def _count(value: float) -> str:
    return units.format(value, units.COUNT)


def _b(value: float) -> str:
    return units.format(value, units.BYTES)


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
    print_notes(console, run["notes"])


def _saving(run: dict[str, Any]) -> Table:
    save = run["checkpoint"]
    size, young = units.format(save["size_bytes"], units.BYTES), _s(save["young_interval_s"])
    lost = save["every_s"] / 2 + max(save["write_s"] - save["stall_s"], 0.0)
    table = plain_table("", "", "", title="checkpoints and failures", header=False)
    table.add_row("checkpoint", size, f"{save['kind']}, {_s(save['write_s'])} to {escape(save['storage'])}")
    table.add_row("save every", _every(save), f"costs at most {save['most_cost_frac']:.1%}; Young's interval {young}")
    table.add_row("counted with", _s(save["every_s"]), f"{save['every_num_steps']:,} steps")
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
            table.add_row(part_words(term["name"]), _s(value), share)
    return table


def _s(value: float) -> str:
    return units.format(value, units.SECONDS)
