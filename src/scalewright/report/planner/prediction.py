"""A prediction for people: the answer, where the time and memory go, and, on request, why."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.catalog.stage_constants import StageConstants
from scalewright.catalog.vision_constants import VisionConstants
from scalewright.planner.answers import CONFIDENCE_TITLES
from scalewright.planner.predict import Prediction
from scalewright.planner.whatif import changes, limits
from scalewright.report.console import plain_table, rate_words
from scalewright.report.pictures import picture_of
from scalewright.report.planner.explanation import (
    interval_words,
    print_equations,
    print_facts,
    print_limits,
    print_operations,
    print_terms,
)

MAX_STAGES_SHOWN = 8


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
    print_terms(console, "where the step goes", prediction.cost.time, units.SECONDS)
    print_terms(console, "where the memory goes", prediction.cost.memory, units.BYTES)
    print_terms(console, "where a node's host memory goes", prediction.cost.host_memory, units.BYTES)
    if int(prediction.layout.pp) > 1:
        _print_stages(console, prediction)
    for warning in prediction.warnings():
        console.print(f"[yellow]note[/] {escape(warning)}")


def _print_answer(console: Console, prediction: Prediction) -> None:
    cost, layout = prediction.cost, prediction.layout
    ends, kind = (float(cost.interval_s[0]), float(cost.interval_s[1])), prediction.confidence
    seconds = units.format(float(cost.time.total), units.SECONDS)
    table = plain_table("", "predicted", "")
    table.add_row("step time", f"[bold]{seconds}[/]", interval_words(kind, ends))
    table.add_row("at least", units.format(prediction.bound_s, units.SECONDS), "bound; the arithmetic at dense peak")
    rate = prediction.num_tokens_per_step / float(cost.time.total)
    table.add_row(
        "throughput", rate_words(rate / int(layout.num_gpus), "tokens/s each"), rate_words(rate, "tokens/s in all")
    )
    table.add_row("MFU", units.format(float(cost.mfu_frac), units.FRACTION), _hfu_note(prediction))
    verdict = "[green]fits[/]" if cost.fits else "[bold red]does not fit[/]"
    peak = units.format(float(cost.memory.total), units.BYTES)
    reserved = units.format(float(cost.reserved_bytes), units.BYTES)
    device = units.format(prediction.machine.memory_bytes, units.BYTES)
    table.add_row("memory", peak, f"model; worst rank; {reserved} reserved of {device}: {verdict}")
    table.add_row("host memory", *_host_row(prediction))
    table.add_row("data", *_data_row(prediction))
    used = prediction.footprint
    if used is not None:
        energy, each = units.format(float(used.energy.total), units.JOULES), f"{used.num_tokens_per_j:.3g} tokens/J"
        money = f"; {units.format(used.cost_usd, units.USD)}" if used.cost_usd is not None else ""
        carbon = f"; {units.format(used.carbon_kgco2e, units.KGCO2E)}" if used.carbon_kgco2e is not None else ""
        table.add_row("a step costs", energy, f"model; {each}{money}{carbon}")
    table.add_row("confidence", kind, CONFIDENCE_TITLES[kind])
    console.print(table)


def _print_stages(console: Console, prediction: Prediction) -> None:
    """Every stage of a short pipeline; of a long one the first, second and last, which are the extremes."""
    sizes, which = prediction.memory_bytes_per_stage, "memory of each pipeline stage"
    if len(sizes) > MAX_STAGES_SHOWN:
        sizes, which = [*sizes[:2], sizes[-1]], "memory of the first, second and last pipeline stage"
    console.print(f"{which}: {', '.join(units.format(size, units.BYTES) for size in sizes)}")


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


def print_explanation(console: Console, prediction: Prediction, catalog: Catalog) -> None:
    """From the total to the terms: what limits it, what one change would give, then equations, inputs and sources."""
    print_limits(console, limits(prediction))
    print_operations(console, picture_of(prediction))
    _print_changes(console, prediction, catalog)
    _print_exchange(console, prediction)
    cost = prediction.cost
    print_equations(console, (cost.time, cost.memory, cost.host_memory), "interval.interval_s")
    _print_inputs(console, prediction)


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


def _print_exchange(console: Console, prediction: Prediction) -> None:
    """Which algorithm each transfer takes, how far it reaches, and what congestion makes of it."""
    table = plain_table("transfer", "algorithm", "span", "slowdown", title="how it is exchanged", right=("slowdown",))
    for term in prediction.cost.time.part("communication").parts:
        if float(term.total) > 0:
            slowdown = float(term.inputs.get("slowdown", 1.0))
            words = (term.name.replace("_", " "), str(term.inputs["algorithm"]), str(term.inputs["span"]))
            table.add_row(*(escape(w) for w in words), f"{slowdown:.3g}x" if slowdown > 1.0 else "")
    if table.row_count:
        console.print()
        console.print(table)


def _print_inputs(console: Console, prediction: Prediction) -> None:
    machine = prediction.machine
    constants, accelerator, recipe = machine.constants, machine.accelerator, prediction.recipe
    precision = recipe.matmul
    published = accelerator.best_matmul.get(precision) or accelerator.best_matmul.get("bf16")
    others = {*StageConstants.model_fields, *VisionConstants.model_fields}
    used = [n for n in type(constants).model_fields if n not in others]
    facts: dict[str, object] = {
        f"peak {precision}": accelerator.peak[precision],
        "memory": accelerator.usable_memory or accelerator.memory,
        "memory bandwidth": accelerator.memory_bandwidth,
        "L2": accelerator.l2,
        "L2 bandwidth": accelerator.l2_bandwidth,
        **({f"best matmul {precision}": published} if published and machine.matmul_is_published(precision) else {}),
        **{f"stack {n.replace('_', ' ')}": getattr(prediction.stack, n) for n in type(prediction.stack).model_fields},
        **{n.replace("_", " "): getattr(constants, n) for n in used},
    }
    print_facts(console, facts)
    shape = prediction.spec.transformer
    console.print(f"[bold]shape[/] {escape(shape.source.text)} ({shape.source.kind})")
