"""A plan for people, printed from its document, so that a stored plan reads as the fresh one did."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scalewright import units
from scalewright.report.console import bar_mark, plain_table, print_model, print_notes, print_warnings, rate_words
from scalewright.report.planner.whole_run import print_run
from scalewright.workload.layout import parse_layout

Document = dict[str, Any]
NUM_LOSERS = 8
BAR_WIDTH = 14
MAX_TERMS = 8
LEAST_FRAC = 0.0005
"""Of a total: what is less prints as 0.0 %."""
MODE_WORDS = {"full": "with full state", "offload": "with offload", "lora": "with LoRA"}
SMALLEST_SHOWN_FRAC = 1e-3
"""Differences below this part of a step are left out of a table; the document has them."""


def print_plan(console: Console, plan: Document, *, explain: bool = False) -> None:
    _print_question(console, plan)
    if plan["best"] is None:
        _print_misfit(console, plan)
    else:
        _print_best(console, plan)
        if plan["whole_run"] is not None:
            origin, rule = plan["request"]["tokens_origin"], (plan.get("time_limit") or {}).get("rule", "as asked")
            print_run(console, plan["whole_run"], origin=origin, limit_rule=rule, details=explain)
            _print_budget(console, plan.get("budget", []))
        _print_ranking(console, plan)
        _print_losers(console, plan, whole=explain)
        _print_scaling(console, plan)
    _print_minimum(console, plan)
    _print_search(console, plan, whole=explain)
    if "what_if" in plan:
        print_what_if(console, plan)
    if "compared" in plan:
        print_comparison(console, plan)
    if "emitted" in plan:
        _print_emitted(console, plan["emitted"])
    print_notes(console, _warnings(plan))


def _warnings(plan: Document) -> list[str]:
    return [*plan["warnings"], *_selection_notes(plan), *(plan["best"] or {}).get("warnings", ())]


def _selection_notes(plan: Document) -> list[str]:
    """By how much steps of the chosen layout are longer than predicted, on average, because a search chose it."""
    choice = plan.get("choice")
    if not choice or choice["selection_frac"] < LEAST_FRAC:
        return []
    expected = _s(plan["best"]["step_time_s"] * (1.0 + choice["selection_frac"]))
    return [
        f"a search over {plan['feasible']:,} layouts tends to pick one whose prediction is too fast: expect about "
        f"{choice['selection_frac']:.1%} more than predicted, {expected} a step"
    ]


def _print_question(console: Console, plan: Document) -> None:
    request = plan["request"]
    verdict = "[green]fits[/]" if plan["fits"] else "[bold red]does not fit[/]"
    console.print(
        f"[bold]{escape(request['model'])}[/] on {plan['num_gpus']} x {escape(plan['accelerator'])} "
        f"({escape(plan['system'])}, {_nodes(plan['num_nodes'])}): {verdict}"
    )
    print_model(console, plan.get("model_words", ""))  # plans of earlier versions have none
    mode = "" if request["mode"] == "full" else f", mode {escape(request['mode'])}"
    batch = plan["batch"]
    console.print(
        f"batch {request['global_batch']} x {request['shape']['seq']} = {_count(batch['batch_tokens'])} tokens; "
        f"critical batch about {_count(batch['critical_batch_tokens'])}{mode}"
    )


def _print_best(console: Console, plan: Document) -> None:
    best = plan["best"]
    given = best["input"]
    console.print(f"recommended by {plan['request']['objective']}: [bold]{escape(best['layout_text'])}[/]")
    origin = f" ({escape(best['stack_origin'])})" if best.get("stack_origin") else ""
    console.print(f"{escape(given['precision'])}, stack {escape(given['stack'])}{origin}")
    choice = plan.get("choice") or {}
    if choice.get("sentence"):
        console.print(escape(choice["sentence"]))
    table = plain_table("", "predicted", "")
    low, high = best["step_time_interval_s"]
    table.add_row("step time", f"[bold]{_s(best['step_time_s'])}[/]", f"90 % interval {_s(low)} to {_s(high)}")
    rate = best["tokens_per_s_per_gpu"]
    table.add_row(
        "MFU",
        f"{best['mfu_frac']:.1%}",
        f"{rate_words(rate, 'tokens/s each')}, {rate_words(rate * plan['num_gpus'], 'in all')}",
    )
    table.add_row("memory", _b(best["memory_bytes"]), f"allocated, worst rank; {_b(best['reserved_bytes'])} reserved")
    shown = best.get("device_bytes", best["reserved_bytes"])  # plans of earlier versions have one figure for both
    table.add_row("", _b(shown), f"on the device, of {_b(best['device_memory_bytes'])}")
    console.print()
    console.print(table)
    print_warnings(console, _warnings(plan))
    console.print()
    console.print(_bars(console, "where the step goes", best["time"], units.SECONDS))
    console.print()
    console.print(_bars(console, "where the memory goes", best["memory"], units.BYTES))


def _bars(console: Console, title: str, tree: Document, dimension: units.Dimension) -> Table:
    """The largest leaves of a breakdown, passes of one kind together, and all others as one row that names them."""
    leaves: dict[str, float] = {}
    key = f"total_{'s' if dimension is units.SECONDS else 'bytes'}"

    def walk(node: Document) -> None:
        for part in node.get("parts", ()):
            walk(part)
        if "parts" not in node:
            name = node["name"].removesuffix("_forward").removesuffix("_backward").replace("_", " ")
            leaves[name] = leaves.get(name, 0.0) + node[key]

    walk(tree)
    total, mark = tree[key], bar_mark(console)
    ranked = sorted(((v, n) for n, v in leaves.items() if v > 0), reverse=True)
    rest = ranked[MAX_TERMS:]
    shown = [*ranked[:MAX_TERMS], *([(sum(v for v, _ in rest), ", ".join(n for _, n in rest))] if rest else [])]
    table = plain_table("term", "value", "share", "", title=title, right=("value", "share"), header=False)
    for value, name in shown:
        share = min(value / total, 1.0) if total > 0 else 0.0  # of a changed plan, terms may exceed the total
        table.add_row(escape(name), units.format(value, dimension), f"{share:.1%}", mark * round(share * BAR_WIDTH))
    return table


def _print_budget(console: Console, budget: list[Document]) -> None:
    """Each limit, and that the run keeps to it."""
    for line in budget:
        limit, needs, high = line["words"]
        text = f"budget {line['name']}: {needs}, {line['needs'] / line['limit']:.0%} of {limit}"
        above = f"; the upper end of the interval, {high}, is above it" if line["high"] > line["limit"] else ""
        console.print(escape(f"{text}{above}"))


def _print_ranking(console: Console, plan: Document) -> None:
    numbers = ("step", "MFU", "memory")
    table = plain_table(*numbers, "layout", title="the recommended layout, then the fastest others", right=numbers)
    for prediction in (plan["best"], *plan["alternatives"]):
        text = prediction["layout_text"].replace(f",gbs={plan['request']['global_batch']}", "")
        seconds, mfu = _s(prediction["step_time_s"]), f"{prediction['mfu_frac']:.1%}"
        table.add_row(seconds, mfu, _b(prediction["memory_bytes"]), escape(text))
    console.print()
    console.print(table)


def _print_losers(console: Console, plan: Document, *, whole: bool) -> None:
    """One line a family: by default the closest rival of each knob and what cannot be."""
    shown = plan["why_others_lost"] if whole else _closest(plan["why_others_lost"])
    if not shown:
        return
    title = "why others lost: the fastest layout with each other choice, beside the best"
    table = plain_table("choice", "step", "because", title=title, right=("step",))
    for names, loser in _by_layout(shown):
        name = ", ".join(names)
        if "loss_s" not in loser:
            table.add_row(escape(name), "excluded", escape(loser["sentence"]))
            continue
        terms = units.format_differences(loser["terms_s"], units.SECONDS)
        gap = units.format_difference(loser["loss_s"], units.SECONDS)
        if loser["loss_s"] < 0:
            terms = f"faster, not as safe; {terms}"
        moved = _moved_with(names, plan["best"]["layout_text"], loser["layout"])
        table.add_row(escape(name), gap, escape(f"with {moved}: {terms}" if moved else terms))
    console.print()
    console.print(table)


def _moved_with(names: list[str], best: str, rival: str) -> str:
    """Knobs of a rival that differ from the best layout beside those that its family is named for; dp follows."""
    ours, theirs = parse_layout(best).as_dict(), parse_layout(rival).as_dict()
    named = {name.split("=", 1)[0] for name in names} | {"dp", "gbs"}
    moved = {knob: value for knob, value in theirs.items() if knob not in named and value != ours[knob]}
    return " ".join(f"{knob}={int(value) if isinstance(value, bool) else value}" for knob, value in moved.items())


def _by_layout(losers: list[Document]) -> list[tuple[list[str], Document]]:
    """Families whose best member is the same layout share a line."""
    by_layout: dict[str, tuple[list[str], Document]] = {}
    for loser in losers:
        name = f"{loser['knob']}={loser['value']}"
        by_layout.setdefault(loser.get("layout", name), ([], loser))[0].append(name)
    return list(by_layout.values())


def _closest(losers: list[Document]) -> list[Document]:
    """The best rival of each knob, and the first value of each that cannot be."""
    closest = {(loser["knob"], "loss_s" in loser): loser for loser in reversed(losers)}
    ranked = [loser for loser in losers if loser is closest[loser["knob"], "loss_s" in loser]]
    lost = [loser for loser in ranked if "loss_s" in loser]
    return lost[:NUM_LOSERS] + [loser for loser in ranked if "loss_s" not in loser]


def _print_scaling(console: Console, plan: Document) -> None:
    rows = plan["scaling"]
    if not rows or (len(rows) < 2 and plan["recommended"] is None):
        return
    title = "node counts, each with its own best layout; strong, weak: the recommended layout with more copies"
    has_cost, by_energy = any("cost_usd" in row for row in rows), plan["request"]["objective"] == "energy"
    more = (*(("cost",) if has_cost else ()), *(("energy",) if by_energy else ()))
    names = ("nodes", "GPUs", "step", "MFU", "run", "GPU-h", *more, "strong", "weak")
    table = plain_table(*names, "", title=title, right=names, gap=1)
    for row in rows:
        cells = [str(row["num_nodes"]), str(row["num_gpus"]), *_cells_of_count(row, more)]
        table.add_row(*cells, escape(", ".join(_marks(plan, row)) if row["fits"] else row["reason"]))
    console.print()
    console.print(table)
    for sentence in _other_layouts(plan):
        console.print(escape(sentence))
    if plan["recommended"] is not None:
        advice = plan["recommended"]
        console.print(f"recommended: [bold]{_nodes(advice['num_nodes'])}[/] ({_devices(advice['num_gpus'])}).")
        console.print(escape(advice["sentence"]))


def _other_layouts(plan: Document) -> list[str]:
    """Counts whose best layout splits the model otherwise than the recommended one, and what that gains there."""
    own = _split(plan["best"]["layout_text"])
    counts: dict[str, list[Document]] = {}
    for row in plan["scaling"]:
        if row["fits"] and _split(row["layout"]) != own:
            counts.setdefault(_split(row["layout"]), []).append(row)
    nodes = [row["num_nodes"] for row in plan["scaling"]]
    unit = "node" if len(set(nodes)) == len(nodes) else "device"
    return [_other_layout(split, rows, unit) for split, rows in counts.items()]


def _other_layout(split: str, rows: list[Document], unit: str) -> str:
    """Where a split is best, and what it has over the recommended one there."""
    gains = [1.0 - row["step_time_s"] / row["strong_step_time_s"] for row in rows if "strong_step_time_s" in row]
    without = [row for row in rows if "strong_step_time_s" not in row]
    reasons = []
    if gains:
        most = max(gains)
        reasons.append(
            f"up to {most:.1%} faster than the recommended split" if most >= LEAST_FRAC else "it is safer there"
        )
    if without:
        reasons.append(
            f"the recommended split is not possible {'there' if not gains else f'on {_numbers(without, unit)}'}"
        )
    return f"On {_numbers(rows, unit)} the best is {split}: {'; '.join(reasons)}."


def _numbers(rows: list[Document], unit: str) -> str:
    """Node counts of rows, or devices where some share a node."""
    numbers = [row["num_nodes" if unit == "node" else "num_gpus"] for row in rows]
    return f"{', '.join(map(str, numbers))} {unit}{'s' if numbers != [1] else ''}"


def _split(layout_text: str) -> str:
    """A layout without the number of copies and the batch."""
    return ",".join(part for part in layout_text.split(",") if part.split("=")[0] not in ("dp", "gbs"))


def _cells_of_count(row: Document, more: tuple[str, ...]) -> list[str]:
    """Step, MFU, run, GPU-hours, cost, energy and efficiencies of one node count."""
    shares = ["-" if row.get(f"{name}_efficiency_frac") is None else f"{row[f'{name}_efficiency_frac']:.0%}"
              for name in ("strong", "weak")]  # fmt: skip
    if not row["fits"]:
        return [*("-",) * (4 + len(more)), *shares]
    run = _s(row["run_time_s"]) if "run_time_s" in row else "-"
    hours = row["num_gpu_hours"] if "num_gpu_hours" in row else row["gpu_time_per_step_s"] / units.HOUR_S
    cells = [_s(row["step_time_s"]), f"{row['mfu_frac']:.0%}", run, f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"]
    beside = {"cost": ("cost_usd", units.USD), "energy": ("energy_j", units.JOULES)}
    for name in more:
        key, dimension = beside[name]
        cells.append(units.format(row[key], dimension) if key in row else "-")
    return [*cells, *shares]


def _marks(plan: Document, row: Document) -> list[str]:
    """What to say about a node count in one or two words."""
    advice = plan["recommended"] or {}
    is_asked = row["num_gpus"] == plan["num_gpus"] and len(plan["request"]["num_gpus"]) == 1
    marks = {
        "asked": is_asked and not plan["request"].get("chooses_nodes"),
        "recommended": row["num_gpus"] == advice.get("num_gpus"),
        "cheapest": row["num_gpus"] == advice.get("cheapest_num_gpus"),
        "over budget": bool(row.get("over_budget")),
        "over the site's limit": bool(row.get("is_over_site")),
        "dominated": not row["is_efficient"],
    }
    return [name for name, is_set in marks.items() if is_set]


def _print_minimum(console: Console, plan: Document) -> None:
    if not plan["minimum_gpus"]:
        return
    tight = {"tight": ", tightly"}
    each = "; ".join(
        f"{m['num_gpus']} {MODE_WORDS[m['mode']]}{tight.get(m.get('room', ''), '')}" for m in plan["minimum_gpus"]
    )
    console.print()
    console.print(f"fewest devices that fit: {each}")


def _print_search(console: Console, plan: Document, *, whole: bool) -> None:
    console.print(
        f"searched {escape(', '.join(plan['searched']))}: {plan['considered']:,} considered, "
        f"{plan['feasible']:,} fit, {plan['costed']:,} costed"
    )
    if whole:
        table = plain_table("layouts", "rejected because", right=("layouts",))
        for reason, count in sorted(plan["rejected"].items(), key=lambda r: -r[1]):
            table.add_row(f"{count:,}", escape(reason))
        console.print(table)


def _print_misfit(console: Console, plan: Document) -> None:
    console.print(f"the smallest layout {escape(plan['reason'])}")
    console.print()
    if not plan["fixes"]:
        console.print("no single change makes it fit: nodes, knobs, precision and modes were tried")
        return
    first, *others = plan["fixes"]
    console.print(f"[bold]smallest change that fits[/]  {escape(first['sentence'])}")
    for fix in others:
        console.print(f"  or {escape(fix['sentence'])}")


def print_what_if(console: Console, plan: Document) -> None:
    """The change beside the best: devices and work where they differ, then times at equal work."""
    change, best = plan["what_if"], plan["best"]
    other = change["best"]
    console.print()
    console.print(f"[bold]what if {escape(change['change'])}[/]: {escape(other['layout_text'])}")
    numbers = ("best", "what if", "difference")
    table = plain_table("", *numbers, right=numbers)
    counted = next(name for name in ("num_tokens", "num_images") if name in change)
    for title, name in (("devices", "num_gpus"), (f"{counted.removeprefix('num_')} of a step", counted)):
        before, after = change[name]
        if after != before:
            table.add_row(title, f"{before:,.0f}", f"{after:,.0f}", f"{after - before:+,.0f}")
    delta = change["step_time_difference_s"]
    table.add_row(
        "step time", _s(best["step_time_s"]), _s(other["step_time_s"]), units.format_difference(delta, units.SECONDS)
    )
    least = SMALLEST_SHOWN_FRAC * best["step_time_s"]
    for name, value in change["terms_s"].items():
        if abs(value) >= least:
            table.add_row(f"  {escape(name.replace('_', ' '))}", "", "", units.format_difference(value, units.SECONDS))
    memory = units.format_difference(change["memory_difference_bytes"], units.BYTES)
    table.add_row("memory", _b(best["memory_bytes"]), _b(other["memory_bytes"]), memory)
    console.print(table)
    if change[counted][0] != change[counted][1]:
        console.print(f"parts of the step: for as many {counted.removeprefix('num_')} as before")
    console.print(escape(change["summary"]))


def print_comparison(console: Console, plan: Document) -> None:
    compared = plan["compared"]
    numbers = ("GPUs", "step", "MFU", "run", "GPU-h", "energy", "carbon")
    table = plain_table("system", "device", *numbers, right=numbers, gap=1, title=f"systems, {compared['basis']}")
    for row in compared["systems"]:
        name, device, count = escape(row["system"]), escape(row["accelerator"]), f"{row['num_gpus']:,}"
        if not row["fits"]:
            table.add_row(name, device, count, "no", *("",) * 5)
            continue
        best, run = row["best"], row.get("whole_run")
        cells = [_s(best["step_time_s"]), f"{best['mfu_frac']:.0%}"]
        if run is not None:
            carbon = units.format(run["carbon_kgco2e"], units.KGCO2E) if "carbon_kgco2e" in run else "-"
            energy = units.format(run["energy_j"], units.JOULES) if "energy_j" in run else "-"
            cells += [_s(run["time_s"]), _count(run["num_gpu_hours"]), energy, carbon]
        table.add_row(name, device, count, *cells)
    console.print()
    console.print(table)
    for row in compared["systems"]:
        text = row["best"]["layout_text"] if row["fits"] else row["reason"]
        charged = _charged(row["whole_run"]) if row["fits"] and "whole_run" in row else ""
        console.print(f"  {escape(row['system'])}: {escape(text)}{escape(charged)}")


def _charged(run: Document) -> str:
    """What the site bills and what it costs, or why that is not known."""
    billed, parts = run.get("billed"), []
    if billed is not None:
        note = f" ({billed['note']})" if billed["note"] else ""
        parts.append(f"billed {_count(billed['num_units'])} {billed['unit']}{note}")
    if "cost_eur" in run:
        parts.append(f"cost {units.format(run['cost_eur'], units.EUR)} at {run['price']}")
    elif "price" in run:
        parts.append(run["price"])
    return "".join(f"; {part}" for part in parts)


def _print_emitted(console: Console, emitted: Document) -> None:
    console.print()
    console.print(
        f"[bold]{escape(emitted['framework'])}[/] {escape(emitted['version'])}, {escape(emitted['filename'])}"
    )
    console.print(escape(emitted["layout_text"]))
    console.print(
        f"stack {escape(emitted['stack'])}: {_s(emitted['step_time_s'])} a step, {_b(emitted['reserved_bytes'])} "
        f"reserved of {_b(emitted['device_memory_bytes'])}"
    )
    console.print(escape(emitted["text"]), soft_wrap=True)
    for note in emitted["notes"]:
        console.print(f"[yellow]note[/] {escape(note)}")


def _devices(count: int) -> str:
    return f"{count} device{'s' if count != 1 else ''}"


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"


def _s(value: float) -> str:
    return units.format(value, units.SECONDS)


def _b(value: float) -> str:
    return units.format(value, units.BYTES)


def _count(value: float) -> str:
    return units.format(value, units.COUNT)
