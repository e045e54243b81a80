"""A prediction for people: the answer, where the time and memory go, and, on request, why."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from scalewright import units
from scalewright.catalog.facts import Fact
from scalewright.catalog.library import Catalog
from scalewright.catalog.stage_constants import StageConstants
from scalewright.costs.breakdown import Breakdown
from scalewright.planner.predict import Prediction
from scalewright.planner.whatif import changes, limits
from scalewright.report.console import bar_mark, plain_table
from scalewright.report.formulas import formula

BAR_WIDTH = 20
NUM_LIMITS = 5


def print_prediction(console: Console, prediction: Prediction) -> None:
    layout, machine = prediction.layout, prediction.machine
    console.print(
        f"[bold]{escape(prediction.spec.id)}[/] on {layout.num_gpus} x {escape(machine.accelerator.id)} "
        f"({escape(machine.name)}, {prediction.num_nodes} node{'s' if prediction.num_nodes > 1 else ''})"
    )
    how = "" if prediction.mode.name == "full" else f", mode {prediction.mode}"
    optimizer = "" if prediction.recipe.optimizer == "adam" else f" with {prediction.recipe.optimizer}"
    console.print(f"{prediction.recipe.name}{optimizer}, stack {escape(prediction.stack.id)}{how}")
    console.print(f"layout {layout.brief}, sequences of {prediction.spec.transformer.seq}")
    _print_answer(console, prediction)
    _print_terms(console, "where the step goes", prediction.cost.time, units.SECONDS)
    _print_terms(console, "where the memory goes", prediction.cost.memory, units.BYTES)
    _print_terms(console, "where a node's host memory goes", prediction.cost.host_memory, units.BYTES)
    for warning in prediction.warnings():
        console.print(f"[yellow]note[/] {escape(warning)}")


def _print_answer(console: Console, prediction: Prediction) -> None:
    cost, layout = prediction.cost, prediction.layout
    low, high = cost.interval_s
    seconds = units.format(float(cost.time.total), units.SECONDS)
    table = plain_table("", "predicted", "")
    interval = f"90 % interval {units.format(float(low), units.SECONDS)} to {units.format(float(high), units.SECONDS)}"
    table.add_row("step time", f"[bold]{seconds}[/]", interval)
    rate = prediction.num_tokens_per_step / float(cost.time.total)
    table.add_row("throughput", f"{rate / int(layout.num_gpus):,.0f} tokens/s each", f"{rate:,.0f} tokens/s in all")
    table.add_row("MFU", units.format(float(cost.mfu_frac), units.FRACTION), _hfu_note(prediction))
    verdict = "[green]fits[/]" if cost.fits else "[bold red]does not fit[/]"
    peak = units.format(float(cost.memory.total), units.BYTES)
    reserved = units.format(float(cost.reserved_bytes), units.BYTES)
    device = units.format(prediction.machine.memory_bytes, units.BYTES)
    table.add_row("memory", peak, f"worst rank; {reserved} reserved of {device}: {verdict}")
    table.add_row("host memory", *_host_row(prediction))
    table.add_row("data", *_data_row(prediction))
    used = prediction.footprint
    if used is not None:
        energy, each = units.format(float(used.energy.total), units.JOULES), f"{used.num_tokens_per_j:.3g} tokens/J"
        money = f"; {units.format(used.cost_usd, units.USD)}" if used.cost_usd is not None else ""
        carbon = f"; {units.format(used.carbon_kgco2e, units.KGCO2E)}" if used.carbon_kgco2e is not None else ""
        table.add_row("a step costs", energy, f"{each}{money}{carbon}")
    table.add_row("confidence", prediction.confidence, "formulas and catalogue values; not measured here")
    console.print(table)


def _host_row(prediction: Prediction) -> tuple[str, str]:
    """What a node's processes hold, and whether it has that much."""
    room = prediction.machine.host_memory_bytes
    used = units.format(float(prediction.cost.host_memory.total), units.BYTES)
    if room is None:
        return used, "a node; what it has is not known"
    verdict = "[green]fits[/]" if prediction.cost.fits_host else "[bold red]does not fit[/]"
    return used, f"a node, of {units.format(room, units.BYTES)}: {verdict}"


def _data_row(prediction: Prediction) -> tuple[str, str]:
    """What the step waits for its samples, and where they come from."""
    feed, c = prediction.feed, prediction.machine.constants
    wait = float(prediction.cost.time.part("data").total)
    rate = prediction.num_tokens_per_step * c.token_bytes.value / float(prediction.cost.time.total)
    source = "" if feed.storage is None else f" from {escape(feed.storage.id)}"
    said = "no wait" if wait == 0.0 else f"waits {units.format(wait, units.SECONDS)}"
    return said, f"text at {units.format(rate, units.BYTES_PER_S)}{source}, {feed.num_loaders} loaders a device"


def _hfu_note(prediction: Prediction) -> str:
    peak = prediction.machine.peak_flop_per_s(prediction.recipe.matmul)
    dense = units.format(peak, units.FLOP_PER_S)
    note = f"of {dense} dense {prediction.recipe.matmul}"
    if prediction.layout.recompute == "none":
        return note
    return f"{note}; {units.format(float(prediction.cost.hfu_frac), units.FRACTION)} with recompute"


def _print_terms(console: Console, title: str, breakdown: Breakdown, dimension: units.Dimension) -> None:
    table = plain_table("term", "value", "share", "", title=title, right=("value", "share"), header=False)
    total, mark = float(breakdown.total), bar_mark(console)
    for depth, term in breakdown.walk():
        if depth == 0 or float(term.total) == 0.0:
            continue
        share = float(term.total) / total
        bar = mark * max(round(share * BAR_WIDTH), 0) if depth == 1 else ""
        name = "  " * (depth - 1) + term.name.replace("_", " ")
        table.add_row(name, units.format(float(term.total), dimension), f"{share:.1%}", bar)
    table.add_row("[bold]total[/]", f"[bold]{units.format(total, dimension)}[/]", "", "")
    console.print()
    console.print(table)


def print_explanation(console: Console, prediction: Prediction, catalog: Catalog) -> None:
    """From the total to the terms: what limits it, what one change would give, then equations, inputs and sources."""
    _print_limits(console, prediction)
    _print_changes(console, prediction, catalog)
    _print_equations(console, prediction)
    _print_inputs(console, prediction)


def _print_limits(console: Console, prediction: Prediction) -> None:
    table = plain_table("term", "share", "why, and what would reduce it", title="what limits it", right=("share",))
    for limit in limits(prediction)[:NUM_LIMITS]:
        table.add_row(limit.name.replace("_", " "), f"{limit.share_frac:.1%}", escape(limit.reason))
    console.print()
    console.print(table)


def _print_changes(console: Console, prediction: Prediction, catalog: Catalog) -> None:
    """Single changes, the largest gain first; those that would not fit say so."""
    numbers = ("step time", "time saved", "memory")
    table = plain_table("change", *numbers, "fits", title="one change at a time", right=numbers)
    for change in changes(prediction, catalog):
        saved = f"{change.gain_frac:+.1%}"
        verdict = "[green]yes[/]" if change.fits else "[bold red]no[/]"
        seconds = units.format(change.step_time_s, units.SECONDS)
        table.add_row(escape(change.name), seconds, saved, units.format(change.memory_bytes, units.BYTES), verdict)
    console.print()
    console.print(table if table.row_count else "[bold]one change at a time[/]\nno single change divides this model")


def _print_equations(console: Console, prediction: Prediction) -> None:
    """Every formula used, once: equation, source, assumptions, check."""
    console.print()
    console.print("[bold]equations[/]")
    keys = dict.fromkeys(
        term.formula
        for breakdown in (prediction.cost.time, prediction.cost.memory, prediction.cost.host_memory)
        for _, term in breakdown.walk()
        if term.formula and float(term.total) != 0.0
    )
    for key in [*keys, "interval.interval_s"]:
        found = formula(key)
        console.print(f"[cyan]{key}[/]  {escape(found.summary)}")
        table = plain_table("", "", header=False)
        for name, text in found.sections.items():
            # an equation's lines are its alternatives; the lines of a sentence are not
            table.add_row(name, escape(text if name == "Equation" else " ".join(text.splitlines())))
        console.print(Padding(table, (0, 0, 0, 2)))


def _print_inputs(console: Console, prediction: Prediction) -> None:
    machine = prediction.machine
    constants, accelerator, recipe = machine.constants, machine.accelerator, prediction.recipe
    precision = recipe.matmul
    published = accelerator.best_matmul.get(precision) or accelerator.best_matmul.get("bf16")
    used = [n for n in type(constants).model_fields if n not in StageConstants.model_fields]
    facts = {
        f"peak {precision}": accelerator.peak[precision],
        "memory": accelerator.usable_memory or accelerator.memory,
        "memory bandwidth": accelerator.memory_bandwidth,
        **({f"best matmul {precision}": published} if published and machine.matmul_is_published(precision) else {}),
        **{f"stack {n.replace('_', ' ')}": getattr(prediction.stack, n) for n in type(prediction.stack).model_fields},
        **{n.replace("_", " "): getattr(constants, n) for n in used},
    }
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
    shape = prediction.spec.transformer
    console.print(f"[bold]shape[/] {escape(shape.source.text)} ({shape.source.kind})")
