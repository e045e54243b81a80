"""Generation, an RL step and minimum devices for people: the answer, then where time and memory go."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.catalog.stage_constants import StageConstants
from scalewright.catalog.vision_constants import VisionConstants
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.generation import generation_interval_s
from scalewright.planner.energy_use import Footprint
from scalewright.planner.stages.generation_rl import GenerationPrediction, RlPrediction
from scalewright.planner.stages.limits import StageChange, StagePrediction, stage_changes, stage_limits
from scalewright.planner.stages.memory import MinimumGpus
from scalewright.planner.stages.vision_step import VisionPrediction
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


def print_generation(
    console: Console, prediction: GenerationPrediction, *, explain: bool, catalog: Catalog
) -> None:  # fmt: skip
    p, serving, count = prediction, prediction.serving, prediction.num_gpus
    console.print(
        f"[bold]{escape(p.spec.id)}[/] generating on {count} x {serving.machine.accelerator.id} "
        f"({escape(serving.machine.name)}), {serving.recipe.name}, tp={serving.tp}"
    )
    longest = f", the longest {p.longest_len}" if p.longest_len != p.response_len else ""
    console.print(f"{p.batch} prompts of {p.prompt_len} tokens, answers of {p.response_len}{longest}")
    table, rate, kind = plain_table("", "predicted", ""), p.num_generated_per_s, serving.machine.confidence
    total, ends = float(p.time.total), p.interval_s
    rates = f"{kind}; {rate * total / ends[1]:,.0f} to {rate * total / ends[0]:,.0f}; {rate / count:,.0f} each"
    table.add_row("throughput", f"[bold]{rate_words(rate, 'tokens/s')}[/]", f"{rates}; generated tokens only")
    table.add_row("all answers", _s(total), f"{interval_words(kind, ends)}; {p.num_alive} sequences a copy at once")
    table.add_row("at least", _s(p.bound_s), "bound; weights once a step, or arithmetic at dense peak")
    first = generation_interval_s(time_s=p.ttft_s, serving=serving, is_first_token=True)
    table.add_row("first token", _s(p.ttft_s), f"{interval_words(kind, first)}; of a prompt that arrives alone")
    each = p.itl_s * ends[0] / total, p.itl_s * ends[1] / total
    table.add_row("next token", _s(p.itl_s), f"{interval_words(kind, each)}; of a running sequence")
    room = f"room for {p.num_fit} sequences a copy: {_verdict(p.fits)}"
    table.add_row("memory", _b(float(p.memory.total)), f"model; of {_b(serving.machine.memory_bytes)}; {room}")
    _add_energy(table, p.footprint, "all answers cost", "tokens")
    console.print(table)
    print_terms(console, "where the time goes", p.time, units.SECONDS, max_depth=2)
    print_terms(console, "where the memory goes", p.memory, units.BYTES, max_depth=2)
    _print_notes(console, p.warnings())
    if explain:
        _explain(console, p, catalog, (p.time, p.memory), "generation.generation_interval_s", "generation.least_time_s")


def print_rl(console: Console, prediction: RlPrediction, *, explain: bool, catalog: Catalog) -> None:
    p, machine, rollout = prediction, prediction.machine, prediction.rollout
    console.print(
        f"[bold]{escape(p.spec.id)}[/] GRPO step on {p.num_gpus} x {machine.accelerator.id} "
        f"({escape(machine.name)}), {p.recipe.name}, mode {p.mode}"
    )
    console.print(f"trainer {p.layout.brief}; generator tp={rollout.serving.tp} {rollout.serving.recipe.name}")
    table, total, kind = plain_table("", "predicted", ""), float(p.time.total), machine.confidence
    answers = f"{p.num_prompts * p.num_responses} answers, {p.sync.replace('_', ' ')} sync"
    table.add_row("step time", f"[bold]{_s(total)}[/]", f"{interval_words(kind, p.interval_s)}; {answers}")
    table.add_row("at least", _s(p.bound_s), "bound; the rollout's, and the updates' arithmetic at dense peak")
    table.add_row("throughput", rate_words(p.num_tokens / total / p.num_gpus, "tokens/s each"), "prompts and answers")
    room = f"model; of {_b(machine.memory_bytes)}"
    table.add_row("rollout memory", _b(float(p.memory_rollout.total)), room)
    table.add_row("update memory", _b(float(p.memory_update.total)), f"{room}; {_verdict(p.fits)}")
    has = "" if machine.host_memory_bytes is None else f"of {_b(machine.host_memory_bytes)} "
    table.add_row("host memory", _b(float(p.host_memory.total)), f"model; {has}a node")
    _add_energy(table, p.footprint, "a step costs", "tokens")
    console.print(table)
    print_terms(console, "where the step goes", p.time, units.SECONDS, max_depth=2)
    print_terms(console, "memory during rollout", p.memory_rollout, units.BYTES, max_depth=2)
    print_terms(console, "memory during the update", p.memory_update, units.BYTES, max_depth=2)
    print_terms(console, "host memory of a node", p.host_memory, units.BYTES, max_depth=2)
    _print_notes(console, p.warnings())
    if explain:
        _explain(
            console, p, catalog, (p.time, p.memory_rollout, p.memory_update, p.host_memory), "stage.rl_interval_s"
        )  # fmt: skip


def print_vision(console: Console, prediction: VisionPrediction, *, explain: bool, catalog: Catalog) -> None:
    p, n, total, kind = (
        prediction,
        int(prediction.layout.dp),
        float(prediction.time.total),
        prediction.machine.confidence,
    )
    console.print(
        f"[bold]{escape(p.spec.id)}[/] on {n} x {escape(p.machine.accelerator.id)} ({escape(p.machine.name)})"
    )
    order = "channels last" if p.channels_last else "channels first"
    console.print(f"{p.recipe.name}, stack {escape(p.stack.id)}, {order}, {p.layout.mbs} images each")
    table, rate = plain_table("", "predicted", ""), p.num_images_per_s
    table.add_row("step time", f"[bold]{_s(total)}[/]", interval_words(kind, p.interval_s))
    table.add_row("at least", _s(p.bound_s), "bound; the arithmetic at dense peak")
    wait = float(p.time.part("data").total)
    without = "" if wait == 0.0 else f"; {rate * total / (total - wait) / n:,.0f} if images were ready"
    table.add_row("throughput", rate_words(rate, "images/s"), f"{rate_words(rate / n, 'each')}{without}")
    table.add_row("efficiency", units.format(p.efficiency_frac, units.FRACTION), "per batch, against one node")
    table.add_row("an epoch", _s(p.epoch_s), "of ImageNet, without its start, end and validation")
    table.add_row("MFU", units.format(p.mfu_frac, units.FRACTION), f"of the dense {p.recipe.matmul} peak")
    room = f"{_b(p.reserved_bytes)} reserved of {_b(p.machine.memory_bytes)}: {_verdict(p.fits)}"
    table.add_row("memory", _b(float(p.memory.total)), f"model; {room}")
    _add_energy(table, p.footprint, "a step costs", "images")
    console.print(table)
    print_terms(console, "where the step goes", p.time, units.SECONDS)
    print_terms(console, "where the memory goes", p.memory, units.BYTES)
    _print_notes(console, p.warnings())
    if explain:
        _explain(console, p, catalog, (p.time, p.memory), "vision.move_time_s", "vision.vision_interval_s")


def _add_energy(table: Table, used: Footprint | None, name: str, counted: str) -> None:
    if used is None:
        return
    money = f"; {units.format(used.cost_usd, units.USD)}" if used.cost_usd is not None else ""
    carbon = f"; {units.format(used.carbon_kgco2e, units.KGCO2E)}" if used.carbon_kgco2e is not None else ""
    joules = units.format(float(used.energy.total), units.JOULES)
    table.add_row(name, joules, f"model; {used.num_tokens_per_j:.3g} {counted}/J{money}{carbon}")


def _explain(
    console: Console, prediction: StagePrediction, catalog: Catalog, breakdowns: tuple[Breakdown, ...], *formulas: str
) -> None:
    """From the total to the terms: limits, roofs, single changes, then equations, inputs and sources."""
    print_limits(console, stage_limits(prediction))
    if not isinstance(prediction, RlPrediction):
        print_operations(console, picture_of(prediction))
    _print_changes(console, stage_changes(prediction, catalog))
    print_equations(console, breakdowns, *formulas)
    _print_inputs(console, prediction)


def _print_changes(console: Console, found: list[StageChange]) -> None:
    table = plain_table("change", "rate", "memory", "fits", title="one change at a time", right=("rate", "memory"))
    for change in found:
        verdict = "[green]yes[/]" if change.fits else "[bold red]no[/]"
        table.add_row(escape(change.name), f"{change.rate_ratio_frac - 1.0:+.1%}", _b(change.memory_bytes), verdict)
    if table.row_count:
        console.print()
        console.print(table)


def _print_inputs(console: Console, prediction: StagePrediction) -> None:
    if isinstance(prediction, GenerationPrediction):
        machine, recipe, fields = prediction.serving.machine, prediction.serving.recipe, StageConstants.model_fields
    elif isinstance(prediction, RlPrediction):
        machine, recipe, fields = prediction.machine, prediction.recipe, StageConstants.model_fields
    else:
        machine, recipe, fields = prediction.machine, prediction.recipe, VisionConstants.model_fields
    a, common = machine.accelerator, ("memory_bandwidth_share", "sustained_matmul_share", "depth_overhead")
    facts: dict[str, object] = {
        f"peak {recipe.matmul}": a.peak[recipe.matmul],
        "memory": a.usable_memory or a.memory,
        "memory bandwidth": a.memory_bandwidth,
        "L2": a.l2,
        "L2 bandwidth": a.l2_bandwidth,
        **{n.replace("_", " "): getattr(machine.constants, n) for n in (*common, *fields)},
    }
    print_facts(console, facts)


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
    print_terms(console, "where the energy goes", footprint.energy, units.JOULES)


def _s(value: float) -> str:
    return units.format(value, units.SECONDS)


def _b(value: float) -> str:
    return units.format(value, units.BYTES)


def _verdict(fits: bool) -> str:
    return "[green]fits[/]" if fits else "[bold red]does not fit[/]"


def _print_notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"[yellow]note[/] {escape(note)}")
