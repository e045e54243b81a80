"""A prediction for people: the answer, where the time and memory go, and, on request, why."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.costs.breakdown import Breakdown
from scalewright.planner.predict import Prediction
from scalewright.report.console import bar_mark, plain_table
from scalewright.report.formulas import formula

BAR_WIDTH = 20


def print_prediction(console: Console, prediction: Prediction, *, explain: bool) -> None:
    cost, layout, machine = prediction.cost, prediction.layout, prediction.machine
    low, high = cost.interval_s
    seconds = units.format(float(cost.time.total), units.SECONDS)
    console.print(
        f"[bold]{escape(prediction.spec.id)}[/] on {layout.num_gpus} x {machine.accelerator.id} "
        f"({machine.name}, {prediction.num_nodes} node{'s' if prediction.num_nodes > 1 else ''}), "
        f"{prediction.recipe.name}, stack {prediction.stack.id}"
    )
    console.print(f"layout {layout.brief}")
    table = plain_table("", "predicted", "")
    interval = f"90 % interval {units.format(float(low), units.SECONDS)} to {units.format(float(high), units.SECONDS)}"
    table.add_row("step time", f"[bold]{seconds}[/]", interval)
    rate = prediction.num_tokens_per_step / float(cost.time.total)
    table.add_row("throughput", f"{rate / int(layout.num_gpus):,.0f} tokens/s each", f"{rate:,.0f} tokens/s in all")
    table.add_row("MFU", units.format(float(cost.mfu_frac), units.FRACTION), _hfu_note(prediction))
    verdict = "[green]fits[/]" if cost.fits else "[bold red]does not fit[/]"
    peak = units.format(float(cost.memory.total), units.BYTES)
    reserved = units.format(float(cost.reserved_bytes), units.BYTES)
    device = units.format(machine.memory_bytes, units.BYTES)
    table.add_row("memory", peak, f"worst rank; {reserved} reserved of {device}: {verdict}")
    table.add_row("confidence", prediction.confidence, "formulas with catalogue values, not measured on this machine")
    console.print(table)
    _print_terms(console, "where the step goes", cost.time, units.SECONDS)
    _print_terms(console, "where the memory goes", cost.memory, units.BYTES)
    for warning in prediction.warnings():
        console.print(f"[yellow]note[/] {escape(warning)}")
    if explain:
        print_explanation(console, prediction)


def _hfu_note(prediction: Prediction) -> str:
    peak = prediction.machine.peak_flop_per_s(prediction.recipe.matmul)
    dense = units.format(peak, units.FLOP_PER_S)
    hfu = units.format(float(prediction.cost.hfu_frac), units.FRACTION)
    return f"of {dense} dense {prediction.recipe.matmul}; {hfu} with recompute"


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


def print_explanation(console: Console, prediction: Prediction) -> None:
    """Every formula used, once: equation, source, assumptions, check; then the inputs and their sources."""
    console.print()
    console.print("[bold]equations[/]")
    keys = dict.fromkeys(
        term.formula
        for breakdown in (prediction.cost.time, prediction.cost.memory)
        for _, term in breakdown.walk()
        if term.formula
    )
    for key in [*keys, "interval.interval_s"]:
        found = formula(key)
        console.print(f"[cyan]{key}[/]  {escape(found.summary)}")
        for name, text in found.sections.items():
            for i, line in enumerate(text.splitlines()):
                console.print(f"  {name if i == 0 else '':<9} {escape(line)}")
    _print_inputs(console, prediction)


def _print_inputs(console: Console, prediction: Prediction) -> None:
    machine = prediction.machine
    constants, accelerator, recipe = machine.constants, machine.accelerator, prediction.recipe
    precision = recipe.matmul
    published = accelerator.best_matmul.get(precision) or accelerator.best_matmul.get("bf16")
    facts = {
        f"peak {precision}": accelerator.peak[precision],
        "memory": accelerator.memory,
        "memory bandwidth": accelerator.memory_bandwidth,
        **({f"best matmul {precision}": published} if published and machine.matmul_is_published(precision) else {}),
        **{
            name.replace("_", " "): getattr(constants, name)
            for name in type(constants).model_fields
            if hasattr(getattr(constants, name), "dimension")
        },
    }
    table = plain_table("input", "value", "kind", "source", title="inputs")
    for name, fact in facts.items():
        kind = fact.source.kind + (" (recalled)" if fact.source.recalled else "")
        table.add_row(name, fact.text, kind, escape(fact.source.text))
    console.print()
    console.print(table)
    shape = prediction.spec.transformer
    console.print(f"[bold]shape[/] {escape(shape.source.text)} ({shape.source.kind})")
