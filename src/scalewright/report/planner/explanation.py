"""Parts that explain any prediction: its terms, what limits it, operations under their roofs, equations and inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from scalewright import units
from scalewright.catalog.facts import Fact
from scalewright.catalog.types import Accelerator, Precision
from scalewright.costs.breakdown import Breakdown
from scalewright.planner.limits import Limit
from scalewright.records.types import Confidence
from scalewright.report.console import bar_mark, plain_table
from scalewright.report.pictures import Picture, points
from scalewright.report.planner.formulas import formula

BAR_WIDTH = 20
LEAST_SHOWN_FRAC = 1e-9
"""A smaller share of the total is what rounding leaves of a term, not a term."""
NUM_LIMITS = 5
LEAST_EXPLAINED_FRAC = 0.02
"""Share of the time from which on a term is explained without being asked for."""
MAIN_SECTIONS = ("Equation", "Source")
NUM_OPERATIONS = 6


def interval_words(confidence: Confidence, interval_s: tuple[float, float]) -> str:
    """How a time was made and where it may lie."""
    low, high = (units.format(end, units.SECONDS) for end in interval_s)
    return f"{confidence}; 90 % interval {low} to {high}"


def print_terms(
    console: Console, title: str, breakdown: Breakdown, dimension: units.Dimension, *, max_depth: int = 9
) -> None:
    table = plain_table("term", "value", "share", "", title=title, right=("value", "share"), header=False)
    total, mark = float(breakdown.total), bar_mark(console)
    for depth, term in breakdown.walk():
        share = float(term.total) / total if total else 0.0
        if depth == 0 or depth > max_depth or abs(share) < LEAST_SHOWN_FRAC:
            continue
        bar = mark * max(round(share * BAR_WIDTH), 0) if depth == 1 else ""
        name = "  " * (depth - 1) + term.name.replace("_", " ")
        table.add_row(name, units.format(float(term.total), dimension), f"{share:.1%}", bar)
    table.add_row("[bold]total[/]", f"[bold]{units.format(total, dimension)}[/]", "", "")
    console.print()
    console.print(table)


def print_limits(console: Console, limits: Sequence[Limit]) -> None:
    table = plain_table("term", "share", "why, and what would reduce it", title="what limits it", right=("share",))
    for limit in limits[:NUM_LIMITS]:
        table.add_row(limit.name.replace("_", " "), f"{limit.share_frac:.1%}", escape(limit.reason))
    others = [limit for limit in limits[NUM_LIMITS:] if limit.share_frac >= LEAST_SHOWN_FRAC]
    if others:
        names = ", ".join(limit.name.replace("_", " ") for limit in others)
        table.add_row("all others", f"{sum(limit.share_frac for limit in others):.1%}", escape(names))
    console.print()
    console.print(table)


def print_operations(console: Console, picture: Picture) -> None:
    """The largest operations, the lowest roof over each, and how close to it they are predicted."""
    numbers = ("share", "FLOP/byte", "rate", "of roof")
    table = plain_table("operation", *numbers, "roof", "data fits", title="under which roof", right=numbers)
    for point in points(picture)[:NUM_OPERATIONS]:
        placed = point.placement
        table.add_row(
            escape(point.name), f"{point.share_frac:.1%}", f"{point.intensity_flop_per_byte:.3g}",
            units.format(point.achieved_flop_per_s, units.FLOP_PER_S),
            f"{point.achieved_flop_per_s / placed.attainable_flop_per_s:.0%}", placed.roof, placed.home,
        )  # fmt: skip
    console.print()
    console.print(table)
    if picture.machine.accelerator.l2_bandwidth is None:
        console.print(f"no published cache bandwidth of {picture.machine.accelerator.id}: memory is the only slope")


def print_equations(console: Console, breakdowns: Iterable[Breakdown], *more: str) -> None:
    """Every formula used, once: equation, source, assumptions, check."""
    keys = dict.fromkeys(
        term.formula
        for breakdown in breakdowns
        for _, term in breakdown.walk()
        if term.formula and float(term.total) != 0.0
    )
    _print_formulas(console, "equations", [*keys, *more])


def print_main_equations(console: Console, time: Breakdown) -> None:
    """Equation and source of the terms that matter, and how to see the others."""
    least = LEAST_EXPLAINED_FRAC * float(time.total)
    leaves = [term for _, term in time.walk() if not term.parts and term.formula and abs(float(term.total)) >= least]
    keys = dict.fromkeys(term.formula for term in leaves if term.formula)
    share = f"{LEAST_EXPLAINED_FRAC:.0%}".replace("%", " %")
    _print_formulas(console, f"equations of the terms that take at least {share} of the time", keys, MAIN_SECTIONS)
    console.print()
    console.print("all equations with their assumptions and checks, and all inputs: --explain-all")


def _print_formulas(console: Console, title: str, keys: Iterable[str], sections: Sequence[str] | None = None) -> None:
    console.print()
    console.print(f"[bold]{title}[/]")
    for key in keys:
        docstring = formula(key)
        console.print(f"[cyan]{key}[/]  {escape(docstring.summary)}")
        table = plain_table("", "", header=False)
        for name, text in docstring.sections.items():
            if sections is not None and name not in sections:
                continue
            # an equation's lines are its alternatives; the lines of a sentence are not
            table.add_row(name, escape(text if name == "Equation" else " ".join(text.splitlines())))
        console.print(Padding(table, (0, 0, 0, 2)))


def device_facts(device: Accelerator, precision: Precision) -> dict[str, object]:
    """Rates and memories of the device, by the names that they are printed under."""
    return {
        f"peak {precision}": device.peak[precision],
        "memory": device.usable_memory or device.memory,
        "memory bandwidth": device.memory_bandwidth,
        "L2": device.l2,
        "L2 bandwidth": device.l2_bandwidth,
    }


def print_facts(console: Console, facts: dict[str, object]) -> None:
    """Values that went in, under the sources they come from; what is no Fact is passed over."""
    by_source: dict[str, list[str]] = {}
    for name, fact in facts.items():
        if isinstance(fact, Fact):
            kind = fact.source.kind + (", recalled" if fact.source.recalled else "")
            by_source.setdefault(f"[cyan]{kind}[/] {escape(fact.source.text)}", []).append(f"{name} {fact.text}")
    console.print()
    console.print("[bold]inputs[/]")
    for source, values in by_source.items():
        console.print(source)
        console.print(Padding(escape("; ".join(values)), (0, 0, 0, 2)))
