"""Generation, an RL step and minimum devices for people: the answer, then where time and memory go."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scalewright import units
from scalewright.catalog.constant_types.rl import RlConstants
from scalewright.catalog.constant_types.serving import ServingConstants
from scalewright.catalog.constant_types.vision import VisionConstants
from scalewright.catalog.constant_types.whole_run import WholeRunConstants
from scalewright.catalog.library import Catalog
from scalewright.costs.breakdown import Breakdown
from scalewright.planner.answer import Answer, Change
from scalewright.planner.changes import changes
from scalewright.planner.energy_use import Footprint
from scalewright.planner.figures import GenerationFigures, RlFigures
from scalewright.planner.generation import Generation
from scalewright.planner.limits import used_frac
from scalewright.planner.question import VisionModelStep
from scalewright.planner.stages.minimum_gpus import MinimumGpus
from scalewright.planner.stages.stage_plan import StagePlan
from scalewright.planner.stages.stage_search import StageChoice
from scalewright.planner.stages.vision_step import loader_words
from scalewright.report.console import plain_table, print_model, print_notes, print_warnings, rate_number, rate_words
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
from scalewright.report.planner.memory import memory_rows, short_verdict, verdict
from scalewright.workload.layout import Layout
from scalewright.workload.rl import RlStep


def print_generation(console: Console, answer: Answer) -> None:
    question, figures, machine = answer.question, answer.generation, answer.question.machine
    generation, layout, kind = question.stage, question.layout, answer.confidence
    assert isinstance(generation, Generation)
    console.print(
        f"[bold]{escape(question.spec.id)}[/] generating on {question.num_gpus} x {machine.accelerator.id} "
        f"({escape(machine.name)}), {_precision_words(answer, generation)}, {_split_words(layout)}"
    )
    print_model(console, answer.model_words)
    console.print(_request_words(answer, generation))
    table, rate, total, ends = plain_table("", "predicted", ""), answer.rate_per_s, answer.time_s, answer.interval_s
    spread = f"{rate_number(rate * total / ends[1])} to {rate_number(rate * total / ends[0])}"
    rates = f"{kind}; {spread}; {rate_words(rate / question.num_gpus, 'each')}"
    table.add_row("throughput", f"[bold]{rate_words(rate, 'tokens/s')}[/]", f"{rates}; generated tokens only")
    is_overloaded = figures.load_frac is not None and figures.load_frac >= 1.0
    at_once = f"{figures.num_alive} sequences a copy at once"
    if is_overloaded:
        at_once = f"of these {layout.gbs} alone, without the queue"
    table.add_row("all answers", _s(total), f"{interval_words(kind, ends)}; {at_once}")
    table.add_row("at least", _s(answer.bound_s), "bound; weights once a step, or arithmetic at dense peak")
    first, following = (interval_words(kind, each) for each in (figures.ttft_interval_s, figures.itl_interval_s))
    table.add_row("first token", _s(figures.ttft_s), f"{first}; of a prompt that arrives alone")
    running = f"with {figures.num_alive} running on a copy" if is_overloaded else "of a running sequence"
    table.add_row("next token", _s(figures.itl_s), f"{following}; {running}")
    if figures.load_frac is not None:
        table.add_row("load", *_load_words(figures))
    table.add_row("utilisation", units.format(used_frac(answer.time), units.FRACTION), _use_words(figures))
    room = f"room for {figures.num_fit} sequences a copy: {verdict(answer)}"
    table.add_row("memory", _b(answer.memory_bytes), f"model; of {_b(machine.memory_bytes)}; {room}")
    _add_energy(table, answer.footprint, "all answers cost", "tokens")
    console.print(table)
    print_warnings(console, answer.warnings)
    print_terms(console, "where the time goes", answer.time, units.SECONDS, max_depth=2)
    print_terms(console, "where the memory goes", answer.memory, units.BYTES, max_depth=2)
    print_notes(console, answer.warnings)


def _split_words(layout: Layout) -> str:
    names = [name for name in ("tp", "pp", "ep") if name == "tp" or int(getattr(layout, name)) > 1]
    return ", ".join(f"{name}={getattr(layout, name)}" for name in names)


def _precision_words(answer: Answer, generation: Generation) -> str:
    words = answer.question.recipe.name
    if generation.weights:
        words += f", {generation.weights} weights"
    width = answer.generation.serving.cache_bytes
    return words if width == answer.question.recipe.activation_bytes else f"{words}, {8 * width:g}-bit cache"


def _request_words(answer: Answer, generation: Generation) -> str:
    prompts, layout = generation.prompts, answer.question.layout
    of = f"{generation.prompt_len} tokens" if prompts is None else f"{generation.prompt_len} tokens ({prompts.text})"
    longest = f", the longest {generation.longest}" if generation.longest != generation.response_len else ""
    answers = "" if generation.answers is None else f" ({generation.answers.text})"
    each = "" if generation.num_per_prompt == 1 else f", {generation.num_per_prompt} to each"
    engine = "" if generation.engine is None else f"; limits of {generation.engine.id}"
    num = int(layout.gbs) // generation.num_per_prompt
    rate = "" if generation.requests_per_s is None else f"; {generation.requests_per_s:g} arrive a second"
    return f"{num} prompts of {of}, answers of {generation.response_len}{longest}{answers}{each}{rate}{engine}"


def _load_words(figures: GenerationFigures) -> tuple[str, str]:
    frac = figures.load_frac or 0.0
    if figures.loaded_ttft_s is None or math.isinf(figures.loaded_ttft_s):
        return f"{frac:.3g} times", "what the copies can answer: the queue and the first token grow without end"
    load = units.format(frac, units.FRACTION)
    first = _s(figures.loaded_ttft_s)
    return load, f"of what the copies can answer; first token after {first}, {figures.num_running:.3g} run at once"


def _use_words(figures: GenerationFigures) -> str:
    percent = {
        "of the memory bandwidth": figures.memory_frac,
        "of the arithmetic": figures.mfu_frac,
        "of the cache": figures.cache_frac,
    }
    used = ", ".join(f"{units.format(frac, units.FRACTION)} {name}" for name, frac in percent.items())
    busy = units.format(figures.busy_frac, units.FRACTION)
    return f"of the time a device reads or computes; {busy} with exchange, as its monitor counts; {used}"


def print_rl(console: Console, answer: Answer) -> None:
    question, figures, machine = answer.question, answer.rl, answer.question.machine
    rl, rollout, kind = question.stage, figures.rollout.question, answer.confidence
    assert isinstance(rl, RlStep)
    assert answer.host_memory is not None
    console.print(
        f"[bold]{escape(question.spec.id)}[/] GRPO step on {question.num_gpus} x {machine.accelerator.id} "
        f"({escape(machine.name)}), {question.recipe.name}, mode {question.mode}"
    )
    where = f"on {rl.rollout_gpus} devices of its own" if rl.is_split else "on the same devices"
    split = f"tp={rollout.layout.tp}" + (f",pp={rollout.layout.pp}" if rl.rollout_pp > 1 else "")
    print_model(console, answer.model_words)
    console.print(f"trainer {question.layout.brief}")
    console.print(f"generator {split} {rollout.recipe.name} {where}, {rl.policy}")
    table, rate = plain_table("", "predicted", ""), answer.rate_per_s / question.num_gpus
    answers = f"{rl.num_sequences if figures.budget is None else round(figures.budget.simulated.num_answers)} answers"
    table.add_row("step time", f"[bold]{_s(answer.time_s)}[/]", f"{interval_words(kind, answer.interval_s)}; {answers}")
    table.add_row("at least", _s(answer.bound_s), "bound; rollout in turns, and the updates at dense peak")
    table.add_row("throughput", rate_words(rate, "tokens/s each"), "prompts and answers")
    room = f"model; of {_b(machine.memory_bytes)}"
    table.add_row("rollout memory", _b(float(figures.memory_rollout.total)), room)
    table.add_row("update memory", _b(float(figures.memory_update.total)), f"{room}; {verdict(answer)}")
    has = "" if machine.host_memory_bytes is None else f"of {_b(machine.host_memory_bytes)} "
    table.add_row("host memory", _b(float(answer.host_memory.total)), f"model; {has}a node")
    _add_energy(table, answer.footprint, "a step costs", "tokens")
    if figures.budget is not None:
        _add_budget(table, rl, figures)
    console.print(table)
    print_warnings(console, answer.warnings)
    _print_parts(console, answer)
    print_terms(console, "where the step goes", answer.time, units.SECONDS, max_depth=2)
    print_terms(console, "memory during rollout", figures.memory_rollout, units.BYTES, max_depth=2)
    print_terms(console, "memory during the update", figures.memory_update, units.BYTES, max_depth=2)
    print_terms(console, "host memory of a node", answer.host_memory, units.BYTES, max_depth=2)
    print_notes(console, answer.warnings)


def _add_budget(table: Table, rl: RlStep, figures: RlFigures) -> None:
    """What a token budget gives, what it wastes, and how old the trained tokens are."""
    assert figures.budget is not None
    gain, one = figures.budget.gain, figures.budget.simulated
    ends = f"{gain.low:.2f} to {gain.high:.2f} in {gain.num_seeds} draws"
    table.add_row("rollout gain", f"{gain.ratio:.2f} times", f"simulated; {ends}; over all done, equal trained tokens")
    assert figures.step_gain is not None
    loss = "a loss; " if figures.step_gain < 1.0 else ""
    table.add_row("step gain", f"{figures.step_gain:.2f} times", f"{loss}model; over all done, equal trained tokens")
    used = f"{one.num_trained:,.0f} trained; {one.wasted_frac:.1%} of the decoded wasted"
    table.add_row("token budget", f"{rl.token_budget:,}", used)
    lengths = f"tokens on average; all answers have {figures.budget.mean_len:,.0f}"
    bias = f"; {figures.budget.bias_frac:+.0%}: the longest are lost" if figures.budget.bias_words else ""
    table.add_row("trained answers", f"{figures.budget.trained_len:,.0f}", f"{lengths}{bias}")
    cuts = ", ".join(f"{num:,.0f} cut {times} x" for times, num in one.carried_by_cuts.items()) or "none"
    table.add_row("carried over", f"{sum(one.carried_by_cuts.values()):,.0f} answers", cuts)
    table.add_row(
        "staleness", f"{one.mean_staleness:.2f} versions", f"mean of the trained tokens; at most {one.max_staleness}"
    )


def _print_parts(console: Console, answer: Answer) -> None:
    """What each part takes, and what of it the step does not wait for."""
    if not answer.rl.part("rollout").hidden_frac > 0.0:
        return
    table = plain_table("part", "takes", "hidden", "behind", title="what hides what", right=("takes", "hidden"))
    for part in answer.rl.parts:
        if part.whole_s > 0.0:
            hidden = part.hidden_s > 0.0
            name, behind = part.name.replace("_", " "), part.behind if hidden else ""
            table.add_row(name, _s(part.whole_s), _s(part.hidden_s) if hidden else "-", behind)
    console.print(table)


def print_vision(console: Console, answer: Answer) -> None:
    question, figures, machine = answer.question, answer.vision, answer.question.machine
    n, total, rate, wait_s = question.num_gpus, answer.time_s, answer.rate_per_s, figures.data_wait_s
    console.print(
        f"[bold]{escape(question.spec.id)}[/] on {n} x {escape(machine.accelerator.id)} ({escape(machine.name)})"
    )
    order = "channels last" if question.channels_last else "channels first"
    precision, stack = question.recipe.name, escape(question.stack.id)
    print_model(console, answer.model_words)
    console.print(f"{precision}, stack {stack}, {order}, {question.layout.mbs} images each")
    table = plain_table("", "predicted", "")
    table.add_row("step time", f"[bold]{_s(total)}[/]", interval_words(answer.confidence, answer.interval_s))
    table.add_row("at least", _s(answer.bound_s), "bound; the arithmetic at dense peak")
    without = "" if wait_s == 0.0 else f"; {rate * total / (total - wait_s) / n:,.0f} if images were ready"
    table.add_row("throughput", rate_words(rate, "images/s"), f"{rate_words(rate / n, 'each')}{without}")
    table.add_row("efficiency", units.format(figures.efficiency_frac, units.FRACTION), "per batch, against one node")
    loader, loaded = loader_words(question, figures.loader), float(figures.loader.num_images_per_s)
    verdict = "sets the rate of an epoch" if loaded < rate else "keeps up"
    table.add_row("loader", rate_words(loaded, "images/s"), f"{loader}: {verdict}")
    epoch_rate = rate_words(figures.epoch_images_per_s, "images/s")
    table.add_row("an epoch", _s(figures.epoch_s), f"of ImageNet at {epoch_rate}, without start, end and validation")
    peak = f"of the dense {question.recipe.matmul} peak"
    table.add_row("MFU", units.format(figures.mfu_frac, units.FRACTION), peak)
    for row in memory_rows(answer):
        table.add_row(*row)
    _add_energy(table, answer.footprint, "a step costs", "images")
    console.print(table)
    print_warnings(console, answer.warnings)
    print_terms(console, "where the step goes", answer.time, units.SECONDS)
    print_terms(console, "where the memory goes", answer.memory, units.BYTES)
    print_notes(console, answer.warnings)


def _add_energy(table: Table, used: Footprint | None, name: str, counted: str) -> None:
    if used is None:
        return
    money = f"; {units.format(used.cost_usd, units.USD)}" if used.cost_usd is not None else ""
    carbon = f"; {units.format(used.carbon_kgco2e, units.KGCO2E)}" if used.carbon_kgco2e is not None else ""
    joules = units.format(float(used.energy.total), units.JOULES)
    table.add_row(name, joules, f"model; {used.num_tokens_per_j:.3g} {counted}/J{money}{carbon}")


def explain_stage(console: Console, answer: Answer, catalog: Catalog, *, whole: bool) -> None:
    """From the total to the terms: limits, roofs, single changes, then equations, inputs and sources."""
    print_limits(console, answer.limits)
    if not isinstance(answer.question.stage, RlStep):  # an RL step has no operations of one kind
        print_operations(console, picture_of(answer))
    _print_changes(console, changes(answer, catalog))
    if not whole:
        print_main_equations(console, answer.time)
        return
    breakdowns: tuple[Breakdown, ...] = (answer.time, answer.memory)
    if isinstance(answer.figures, RlFigures):
        assert answer.host_memory is not None
        figures = answer.figures
        breakdowns = (answer.time, figures.memory_rollout, figures.memory_update, answer.host_memory)
    more = FORMULAS[type(answer.question.stage)]
    if isinstance(answer.figures, RlFigures) and answer.figures.budget is not None:
        more = (*more, "rollout_simulation.simulate", "rollout_simulation.compared_with_all")
    print_equations(console, breakdowns, *more)
    _print_inputs(console, answer)


FORMULAS: dict[type, tuple[str, ...]] = {
    Generation: ("generation.phases", "generation.generation_interval_s", "generation.least_time_s"),
    RlStep: ("stage.rl_interval_s", "stage.waited_rollout_s"),
    VisionModelStep: ("vision.move_time_s", "vision.interval_s"),
}
"""Formulas of a stage that no term of its breakdowns names."""


def _print_changes(console: Console, offered: Iterable[Change]) -> None:
    table = plain_table("change", "rate", "memory", "fits", title="one change at a time", right=("rate", "memory"))
    for change in offered:
        fitting = short_verdict(change.after)
        gain = f"{change.rate_ratio_frac - 1.0:+.1%}"
        table.add_row(escape(change.name), gain, _b(change.after.memory_bytes), fitting)
    if table.row_count:
        console.print()
        console.print(table)


def _print_inputs(console: Console, answer: Answer) -> None:
    machine, precision = answer.question.machine, answer.question.recipe.matmul
    is_vision = isinstance(answer.question.stage, VisionModelStep)
    groups = (VisionConstants,) if is_vision else (ServingConstants, RlConstants, WholeRunConstants)
    fields = [name for group in groups for name in group.model_fields]
    common = ("memory_bandwidth_share", "depth_overhead")
    facts: dict[str, object] = {
        **device_facts(machine.accelerator, precision),
        **{n.replace("_", " "): getattr(machine.constants, n) for n in (*common, *fields)},
    }
    print_facts(console, facts)


def print_stage_plan(console: Console, plan: StagePlan) -> None:
    print_model(console, f"{plan.spec.id}: {plan.spec.words(uses_seq=not plan.request)}")
    console.print(minimum_table(plan.minimum))
    if plan.num_gpus is not None:
        mode = "" if plan.stage == "generate" else f" in mode {plan.mode.name}"
        console.print(f"{plan.num_gpus} devices: {'enough' if plan.fits else 'not enough'}{mode}")
    if not plan.choices:
        return
    console.print(f"\n{plan.stage} {escape(plan.request)}", soft_wrap=False)
    console.print(_rl_choices(plan) if plan.stage == "rl" else _generation_choices(plan))
    print_warnings(console, plan.choices[0].prediction.warnings)
    for sentence in budget_sentences(plan.choices):
        console.print(sentence)
    if plan.change is not None:
        change = plan.change
        console.print(
            f"what if {escape(change.name)}: {_s(change.before.time_s)} -> {_s(change.after.time_s)}, "
            f"{change.after.verdict}; {escape(change.summary)}"
        )


def _rl_choices(plan: StagePlan) -> Table:
    """One line a choice: pace, copies of the generator, layouts of both, the step and its interval."""
    title = f"fastest ways on {plan.choices[0].prediction.question.num_gpus} devices, most tokens/s first"
    right = ("step", "tokens/s")
    table = plain_table("pace", "generator", "trainer", "step", "interval", "tokens/s", title=title, right=right, gap=1)
    for choice in plan.choices:
        question = choice.prediction.question
        step = question.stage
        assert isinstance(step, RlStep)
        copies = f"{step.rollout_gpus // (step.rollout_tp * step.rollout_pp)} x " if step.is_split else ""
        low, high = choice.prediction.interval_s
        table.add_row(
            choice.name, f"{copies}tp={step.rollout_tp}", question.layout.brief.replace(",", ", "),
            _s(choice.prediction.time_s), f"{_s(low)} to {_s(high)}", rate_number(choice.prediction.rate_per_s),
        )  # fmt: skip
    return table


def budget_sentences(choices: Iterable[StageChoice]) -> Iterator[str]:
    """What a token budget gives at each pace that is listed with one."""
    for choice in choices:
        figures, step = choice.prediction.figures, choice.prediction.question.stage
        if isinstance(figures, RlFigures) and figures.budget is not None and isinstance(step, RlStep):
            gain, wasted = figures.budget.gain, figures.budget.simulated.wasted_frac
            assert figures.step_gain is not None
            effect = "would cost time" if figures.step_gain < 1.0 else "gains time"
            bias = f"; {figures.budget.bias_words}" if figures.budget.bias_words else ""
            yield (
                f"{choice.name} of {step.token_budget:,}, retention {step.retention}, {effect}: rollout "
                f"{gain.ratio:.2f} times as fast, the step {figures.step_gain:.2f} times, at equal trained tokens; "
                f"{wasted:.0%} of the decoded tokens wasted{bias}"
            )


def _generation_choices(plan: StagePlan) -> Table:
    title = f"fastest ways on {plan.choices[0].prediction.question.num_gpus} devices, most tokens/s first"
    columns = ("tokens/s", "each", "first token", "next token")
    table = plain_table("split", *columns, title=title, right=columns)
    for choice in plan.choices:
        prediction, figures = choice.prediction, choice.prediction.generation
        each = prediction.rate_per_s / prediction.question.num_gpus
        table.add_row(
            choice.name, rate_number(prediction.rate_per_s), rate_number(each), _s(figures.ttft_s), _s(figures.itl_s)
        )
    return table


def minimum_table(minimum: Iterable[MinimumGpus]) -> Table:
    """Fewest devices by stage, each with the mode it assumes."""
    table = plain_table("stage", "mode", "devices", "tp", "memory", "assumes", right=("devices", "tp", "memory"))
    for row in minimum:
        memory = _b(float(row.memory.total))
        table.add_row(row.stage, row.mode_name, str(row.num_gpus), str(row.tp), memory, row.assumption)
    return table


def _s(value: float) -> str:
    return units.format(value, units.SECONDS)


def _b(value: float) -> str:
    return units.format(value, units.BYTES)
