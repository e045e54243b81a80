"""The time of a step in the terminal: its parts by rank, collectives, predicted beside measured, MFU."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.observe.breakdown.across_ranks import PARTS, RankMean
from scalewright.observe.breakdown.summary import BreakdownSummary
from scalewright.observe.breakdown.terms import TermTable
from scalewright.report.console import plain_table

MOST_RANKS = 8
MOST_COLLECTIVES = 5
LEAST_SHOWN_FRAC = 0.005
"""Parts below this share of every rank's step have no column."""
HEADINGS = {
    "compute_s": "compute", "exposed_communication_s": "exposed comm.", "data_s": "data", "idle_s": "idle",
    "memory_copy_s": "copies", "checkpoint_s": "checkpoint", "validation_s": "validation",
}  # fmt: skip


def print_breakdown(console: Console, summary: BreakdownSummary) -> None:
    console.print(f"\n[bold]Where a step goes[/] (measured by: {summary.measured_by})")
    _print_ranks(console, summary)
    _print_collectives(console, summary)
    if summary.terms is not None and summary.terms.predicted_s is not None:
        _print_terms(console, summary.terms)
    _print_utilization(console, summary)


def _time(value_s: float | None) -> str:
    return "-" if value_s is None else units.format(value_s, units.SECONDS)


def _share(value_s: float, whole_s: float) -> str:
    return f"{100.0 * value_s / whole_s:.0f} %"


def _print_ranks(console: Console, summary: BreakdownSummary) -> None:
    ranks = summary.across.ranks
    shown = [n for n in PARTS if any(rank.parts_s[n] >= LEAST_SHOWN_FRAC * rank.step_s for rank in ranks)]
    waits = any(rank.waited_s for rank in ranks)
    table = plain_table("rank", "step", *(HEADINGS[name] for name in shown), *(("waits for others",) if waits else ()))
    for rank in _chosen(summary):
        cells = (_share(rank.parts_s[name], rank.step_s) for name in shown)
        late = " (last)" if summary.across.critical and summary.across.critical.rank == rank.rank and waits else ""
        table.add_row(
            f"{rank.rank}{late}", _time(rank.step_s), *cells, *((_time(rank.waited_s),) if waits else ())
        )  # fmt: skip
    console.print(table)
    if len(ranks) > MOST_RANKS:
        console.print(f"{len(ranks) - MOST_RANKS} more ranks: see --json")


def _chosen(summary: BreakdownSummary) -> list[RankMean]:
    """The first ranks, and the one that the others wait for."""
    ranks = list(summary.across.ranks)
    critical = summary.across.critical
    kept = ranks[:MOST_RANKS]
    if critical is not None and all(rank.rank != critical.rank for rank in kept):
        kept[-1] = next(rank for rank in ranks if rank.rank == critical.rank)
    return kept


def _print_collectives(console: Console, summary: BreakdownSummary) -> None:
    if not summary.collectives:
        return
    table = plain_table("collective", "group", "term", "in all", "exposed")
    for row in summary.collectives[:MOST_COLLECTIVES]:
        table.add_row(
            row.name, escape(row.group or "-"), row.term.replace("_", " "), _time(row.total_s), _time(row.exposed_s)
        )
    console.print(table)


def _print_terms(console: Console, terms: TermTable) -> None:
    table = plain_table("term", "predicted", "measured", "difference")
    for row in terms.rows:
        sign = "+" if row.difference_s >= 0 else "-"
        table.add_row(
            row.name.replace("_", " "), _time(row.predicted_s), _time(row.measured_s),
            f"{sign}{_time(abs(row.difference_s))}",
        )  # fmt: skip
    table.add_row("step", _time(terms.predicted_s), _time(terms.measured_s), "")
    console.print(table)


def _print_utilization(console: Console, summary: BreakdownSummary) -> None:
    used, tail = summary.utilization, summary.step_times.tail if summary.step_times is not None else None
    if used is not None:
        rate = units.format(used.flop_per_s_per_device, units.FLOP_PER_S)
        mfu = "" if used.mfu_frac is None else f", MFU {used.mfu_frac:.1%} of {used.peak_of}"
        hfu = f", HFU {used.hfu_frac:.1%}" if used.hfu_frac is not None and used.hfu_frac != used.mfu_frac else ""
        console.print(f"computed again from model and tokens: {rate} a device{mfu}{hfu}", soft_wrap=True)
    if tail is not None:
        console.print(
            f"step times bend at {_time(tail.elbow.time_s)}: {tail.num_above} steps are slower, "
            f"{100.0 * tail.lost_frac:.1f} % of the time",
            soft_wrap=True,
        )
