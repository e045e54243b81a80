"""Generation, an RL step and minimum devices for people: the answer, then where time and memory go."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scalewright import units
from scalewright.costs.breakdown import Breakdown
from scalewright.planner.energy_use import Footprint
from scalewright.planner.stage_memory import MinimumGpus
from scalewright.planner.stages import GenerationPrediction, RlPrediction
from scalewright.planner.vision import VisionPrediction
from scalewright.report.console import bar_mark, plain_table
from scalewright.report.formulas import formula

BAR_WIDTH = 16


def print_generation(console: Console, prediction: GenerationPrediction, *, explain: bool) -> None:
    serving, count = prediction.serving, prediction.num_gpus
    console.print(
        f"[bold]{escape(prediction.spec.id)}[/] generating on {count} x {serving.machine.accelerator.id} "
        f"({escape(serving.machine.name)}), {serving.recipe.name}, tp={serving.tp}"
    )
    console.print(
        f"{prediction.batch} prompts of {prediction.prompt_len} tokens, answers of {prediction.response_len}"
        + (f", the longest {prediction.longest_len}" if prediction.longest_len != prediction.response_len else "")
    )
    table = plain_table("", "predicted", "")
    rate = prediction.num_generated_per_s
    table.add_row("throughput", f"[bold]{rate:,.0f} tokens/s[/]", f"{rate / count:,.0f} each; generated tokens only")
    table.add_row("all answers", _s(float(prediction.time.total)), f"{prediction.num_alive} sequences a copy at once")
    table.add_row("first token", _s(prediction.ttft_s), "of a prompt that arrives alone")
    table.add_row("next token", _s(prediction.itl_s), "of a running sequence")
    room = f"room for {prediction.num_fit} sequences a copy: {_verdict(prediction.fits)}"
    table.add_row("memory", _b(float(prediction.memory.total)), f"of {_b(serving.machine.memory_bytes)}; {room}")
    console.print(table)
    _print_terms(console, "where the time goes", prediction.time, units.SECONDS)
    _print_terms(console, "where the memory goes", prediction.memory, units.BYTES)
    _print_notes(console, prediction.warnings())
    if explain:
        _print_formulas(console, (prediction.time, prediction.memory))


def print_rl(console: Console, prediction: RlPrediction, *, explain: bool) -> None:
    machine, rollout = prediction.machine, prediction.rollout
    console.print(
        f"[bold]{escape(prediction.spec.id)}[/] GRPO step on {prediction.num_gpus} x {machine.accelerator.id} "
        f"({escape(machine.name)}), {prediction.recipe.name}, mode {prediction.mode}"
    )
    console.print(f"trainer {prediction.layout.brief}; generator tp={rollout.serving.tp} {rollout.serving.recipe.name}")
    table = plain_table("", "predicted", "")
    answers = prediction.num_prompts * prediction.num_responses
    tokens = answers * (rollout.prompt_len + rollout.response_len)
    total = float(prediction.time.total)
    table.add_row("step time", f"[bold]{_s(total)}[/]", f"{answers} answers, {prediction.sync.replace('_', ' ')} sync")
    table.add_row("throughput", f"{tokens / total / prediction.num_gpus:,.0f} tokens/s each", "prompts and answers")
    table.add_row("rollout memory", _b(float(prediction.memory_rollout.total)), f"of {_b(machine.memory_bytes)}")
    table.add_row("update memory", _b(float(prediction.memory_update.total)), _verdict(prediction.fits))
    has = "" if machine.host_memory_bytes is None else f"of {_b(machine.host_memory_bytes)} "
    table.add_row("host memory", _b(float(prediction.host_memory.total)), f"{has}a node")
    console.print(table)
    _print_terms(console, "where the step goes", prediction.time, units.SECONDS)
    _print_terms(console, "memory during rollout", prediction.memory_rollout, units.BYTES)
    _print_terms(console, "memory during the update", prediction.memory_update, units.BYTES)
    _print_terms(console, "host memory of a node", prediction.host_memory, units.BYTES)
    _print_notes(console, prediction.warnings())
    if explain:
        kinds = (prediction.time, prediction.memory_rollout, prediction.memory_update, prediction.host_memory)
        _print_formulas(console, kinds)


def print_vision(console: Console, prediction: VisionPrediction, *, explain: bool) -> None:
    p, n = prediction, int(prediction.layout.dp)
    console.print(
        f"[bold]{escape(p.spec.id)}[/] on {n} x {escape(p.machine.accelerator.id)} ({escape(p.machine.name)})"
    )
    console.print(f"{p.recipe.name}, stack {escape(p.stack.id)}, {p.layout.mbs} images each")
    table = plain_table("", "predicted", "")
    table.add_row("step time", _s(float(p.time.total)), "channels last" if p.channels_last else "channels first")
    table.add_row("throughput", f"{p.num_images_per_s:,.0f} images/s", f"{p.num_images_per_s / n:,.0f} each")
    table.add_row("MFU", units.format(p.mfu_frac, units.FRACTION), f"of the dense {p.recipe.matmul} peak")
    console.print(table)
    _print_terms(console, "where the step goes", p.time, units.SECONDS)
    _print_notes(
        console,
        [
            "memory is not predicted for vision models",
            "against one H200 the model is 0.93 to 1.57 times the measured rate; there is no interval",
        ],
    )
    if explain:
        _print_formulas(console, (p.time,))


def minimum_table(found: Iterable[MinimumGpus]) -> Table:
    """Fewest devices by stage, each with the mode it assumes."""
    table = plain_table("stage", "mode", "devices", "tp", "memory", "assumes", right=("devices", "tp", "memory"))
    for row in found:
        memory = _b(float(row.memory.total))
        table.add_row(row.stage, row.mode_name, str(row.num_gpus), str(row.tp), memory, row.assumption)
    return table


def print_footprint(console: Console, footprint: Footprint) -> None:
    table = plain_table("", "predicted", "")
    energy = units.format(float(footprint.energy.total), units.JOULES)
    table.add_row("energy", energy, f"boards at {footprint.board_w:,.0f} W")
    each = f"{footprint.num_tokens_per_j:.3g} tokens per joule"
    table.add_row("per token", units.format(footprint.energy_j_per_token, units.JOULES), each)
    if footprint.cost_usd is not None:
        table.add_row("money", units.format(footprint.cost_usd, units.USD), "devices at their price per hour")
    if footprint.carbon_kgco2e is not None:
        table.add_row("carbon", units.format(footprint.carbon_kgco2e, units.KGCO2E), "electricity only")
    console.print(table)
    _print_terms(console, "where the energy goes", footprint.energy, units.JOULES)


def _s(value: float) -> str:
    return units.format(value, units.SECONDS)


def _b(value: float) -> str:
    return units.format(value, units.BYTES)


def _verdict(fits: bool) -> str:
    return "[green]fits[/]" if fits else "[bold red]does not fit[/]"


def _print_terms(console: Console, title: str, breakdown: Breakdown, dimension: units.Dimension) -> None:
    table = plain_table("term", "value", "share", "", title=title, right=("value", "share"), header=False)
    total, mark = float(breakdown.total), bar_mark(console)
    for depth, term in breakdown.walk():
        value = float(term.total)
        if depth == 0 or depth > 2 or value == 0.0:
            continue
        bar = mark * max(round(value / total * BAR_WIDTH), 0) if depth == 1 else ""
        name = "  " * (depth - 1) + term.name.replace("_", " ")
        table.add_row(name, units.format(value, dimension), f"{value / total:.1%}", bar)
    table.add_row("[bold]total[/]", f"[bold]{units.format(total, dimension)}[/]", "", "")
    console.print()
    console.print(table)


def _print_notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"[yellow]note[/] {escape(note)}")


def _print_formulas(console: Console, breakdowns: tuple[Breakdown, ...]) -> None:
    """Every formula used, once: equation, source, assumptions, check."""
    console.print()
    console.print("[bold]equations[/]")
    for key in dict.fromkeys(t.formula for b in breakdowns for _, t in b.walk() if t.formula):
        found = formula(key)
        console.print(f"[cyan]{key}[/]  {escape(found.summary)}")
        for name, text in found.sections.items():
            for i, line in enumerate(text.splitlines()):
                console.print(f"  {name if i == 0 else '':<9} {escape(line)}")
