"""A predicted training step of a transformer for people: time and memory, where they go and, on request, why."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scalewright import units
from scalewright.catalog.constant_types.calibration import CalibrationConstants
from scalewright.catalog.constant_types.campaign import CampaignConstants
from scalewright.catalog.constant_types.rl import RlConstants
from scalewright.catalog.constant_types.serving import ServingConstants
from scalewright.catalog.constant_types.vision import VisionConstants
from scalewright.catalog.constant_types.whole_run import WholeRunConstants
from scalewright.catalog.library import Catalog
from scalewright.planner.answer import CONFIDENCE_TITLES, Answer
from scalewright.planner.changes import changes
from scalewright.report.console import plain_table, print_model, print_notes, print_warnings, rate_words
from scalewright.report.pictures import picture_of
from scalewright.report.planner.explanation import (
    device_facts,
    interval_words,
    print_equations,
    print_facts,
    print_limits,
    print_main_equations,
    print_operations,
    print_terms,
)
from scalewright.report.planner.memory import memory_rows, short_verdict

MAX_RANKS_SHOWN = 8


def print_transformer(console: Console, answer: Answer) -> None:
    question, layout, machine = answer.question, answer.question.layout, answer.question.machine
    console.print(
        f"[bold]{escape(question.spec.id)}[/] on {question.num_gpus} x {escape(machine.accelerator.id)} "
        f"({escape(machine.name)}, {question.num_nodes} node{'s' if question.num_nodes > 1 else ''})"
    )
    print_model(console, answer.model_words)
    mode = "" if question.mode.name == "full" else f", mode {question.mode}"
    origin = f" ({escape(question.stack_origin)})" if question.stack_origin else ""
    optimizer = "" if question.recipe.optimizer == "adam" else f" with {question.recipe.optimizer}"
    console.print(f"{question.recipe.name}{optimizer}, stack {escape(question.stack.id)}{origin}{mode}")
    console.print(f"layout {layout.brief}, sequences of {question.spec.transformer.seq}")
    console.print(_summary(answer))
    print_warnings(console, answer.warnings)
    print_terms(console, "where the step goes", answer.time, units.SECONDS)
    print_terms(console, "where the memory goes", answer.memory, units.BYTES)
    print_terms(console, "where a node's host memory goes", answer.transformer.cost.host_memory, units.BYTES)
    if int(layout.pp) > 1:
        _print_pipeline_ranks(console, answer)
    print_notes(console, answer.warnings)


def _summary(answer: Answer) -> Table:
    seconds, rate = units.format(answer.time_s, units.SECONDS), answer.rate_per_s
    table = plain_table("", "predicted", "")
    table.add_row("step time", f"[bold]{seconds}[/]", interval_words(answer.confidence, answer.interval_s))
    table.add_row("at least", units.format(answer.bound_s, units.SECONDS), "bound; the arithmetic at dense peak")
    each, in_all = rate_words(rate / answer.question.num_gpus, "tokens/s each"), rate_words(rate, "tokens/s in all")
    table.add_row("throughput", each, in_all)
    table.add_row("MFU", units.format(answer.transformer.mfu_frac, units.FRACTION), _hfu_note(answer))
    for row in memory_rows(answer, where="worst rank; "):
        table.add_row(*row)
    table.add_row("host memory", *_host_row(answer))
    table.add_row("data", *_data_row(answer))
    used = answer.footprint
    if used is not None:
        energy, each = units.format(float(used.energy.total), units.JOULES), f"{used.num_tokens_per_j:.3g} tokens/J"
        money = f"; {units.format(used.cost_usd, units.USD)}" if used.cost_usd is not None else ""
        carbon = f"; {units.format(used.carbon_kgco2e, units.KGCO2E)}" if used.carbon_kgco2e is not None else ""
        table.add_row("a step costs", energy, f"model; {each}{money}{carbon}")
    table.add_row("confidence", answer.confidence, CONFIDENCE_TITLES[answer.confidence])
    return table


def _print_pipeline_ranks(console: Console, answer: Answer) -> None:
    """Every rank of a short pipeline; of a long one the first, second and last, which are the extremes."""
    sizes, which = answer.transformer.memory_bytes_per_pipeline_rank, "memory of each pipeline rank"
    if len(sizes) > MAX_RANKS_SHOWN:
        sizes, which = [*sizes[:2], sizes[-1]], "memory of the first, second and last pipeline rank"
    console.print(f"{which}: {', '.join(units.format(size, units.BYTES) for size in sizes)}")


def _host_row(answer: Answer) -> tuple[str, str]:
    """What a node's processes hold, and whether it has that much."""
    room = answer.question.machine.host_memory_bytes
    used = units.format(float(answer.transformer.cost.host_memory.total), units.BYTES)
    if room is None:
        return used, "a node; what it has is not known"
    verdict = "[green]fits[/]" if answer.fits_host else "[bold red]does not fit[/]"
    return used, f"a node, of {units.format(room, units.BYTES)}: {verdict}"


def _data_row(answer: Answer) -> tuple[str, str]:
    """What the step waits for its samples, and where they come from."""
    feed, wait_s = answer.question.feed, answer.transformer.data_wait_s
    rate = answer.rate_per_s * answer.question.machine.constants.token_bytes.value
    source = "" if feed.storage is None else f" from {escape(feed.storage.id)}"
    wait = "no wait" if wait_s == 0.0 else f"waits {units.format(wait_s, units.SECONDS)}"
    return wait, f"text at {units.format(rate, units.BYTES_PER_S)}{source}, {feed.num_loaders} loaders a device"


def _hfu_note(answer: Answer) -> str:
    precision = answer.question.recipe.matmul
    peak = units.format(answer.question.machine.peak_flop_per_s(precision), units.FLOP_PER_S)
    note = f"of {peak} dense {precision}"
    if answer.question.layout.recompute == "none":
        return note
    return f"{note}; {units.format(answer.transformer.hfu_frac, units.FRACTION)} with recompute"


def explain_transformer(console: Console, answer: Answer, catalog: Catalog, *, whole: bool) -> None:
    """From the total to the terms: what limits it, what one change would give, then equations, inputs and sources."""
    print_limits(console, answer.limits)
    print_operations(console, picture_of(answer))
    _print_changes(console, answer, catalog)
    _print_exchange(console, answer)
    if not whole:
        print_main_equations(console, answer.time)
        return
    cost = answer.transformer.cost
    print_equations(console, (cost.time, cost.memory, cost.host_memory), "interval.interval_s")
    _print_inputs(console, answer)


def _print_changes(console: Console, answer: Answer, catalog: Catalog) -> None:
    """Single changes, the largest gain first; those that would not fit say so."""
    numbers = ("step time", "time saved", "memory")
    table = plain_table("change", *numbers, "fits", title="one change at a time", right=numbers)
    for change in changes(answer, catalog):
        saved = f"{change.gain_frac:+.1%}"
        seconds = units.format(change.after.time_s, units.SECONDS)
        memory = units.format(change.after.memory_bytes, units.BYTES)
        table.add_row(escape(change.name), seconds, saved, memory, short_verdict(change.after))
    console.print()
    console.print(table if table.row_count else "[bold]one change at a time[/]\nno single change divides this model")


def _print_exchange(console: Console, answer: Answer) -> None:
    """Which algorithm each transfer takes, how far it reaches, and what congestion makes of it."""
    table = plain_table("transfer", "algorithm", "span", "slowdown", title="how it is exchanged", right=("slowdown",))
    for term in answer.time.part("communication").parts:
        if float(term.total) > 0:
            slowdown = float(term.inputs.get("slowdown", 1.0))
            words = (term.name.replace("_", " "), str(term.inputs["algorithm"]), str(term.inputs["span"]))
            table.add_row(*(escape(w) for w in words), f"{slowdown:.3g}x" if slowdown > 1.0 else "")
    if table.row_count:
        console.print()
        console.print(table)


def _print_inputs(console: Console, answer: Answer) -> None:
    machine, stack = answer.question.machine, answer.question.stack
    constants, accelerator, precision = machine.constants, machine.accelerator, answer.question.recipe.matmul
    published = accelerator.best_matmul.get(precision) or accelerator.best_matmul.get("bf16")
    groups = (
        ServingConstants,
        RlConstants,
        WholeRunConstants,
        CampaignConstants,
        VisionConstants,
        CalibrationConstants,
    )
    others = {name for group in groups for name in group.model_fields}
    used = [n for n in type(constants).model_fields if n not in others]
    facts: dict[str, object] = {
        **device_facts(accelerator, precision),
        **({f"best matmul {precision}": published} if published and machine.matmul_is_published(precision) else {}),
        **{f"stack {n.replace('_', ' ')}": getattr(stack, n) for n in type(stack).model_fields},
        **{n.replace("_", " "): getattr(constants, n) for n in used},
    }
    print_facts(console, facts)
    shape = answer.question.spec.transformer
    console.print(f"[bold]shape[/] {escape(shape.source.text)} ({shape.source.kind})")
