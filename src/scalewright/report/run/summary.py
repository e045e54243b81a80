"""One run in the terminal and as a plot: measured and predicted, the split of a step, energy, network, and events."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.observe.collect import CollectedRun
from scalewright.observe.summary import PROCESS_MEMORY, Comparison, RunSummary
from scalewright.records import metric_names as names
from scalewright.report.console import bar_mark, plain_table, print_warnings, rate_words
from scalewright.report.figure_file import COLOURS, REST, write_figure
from scalewright.report.run.vision import print_vision
from scalewright.workload.layout import parse_layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR_WIDTH = 20
MAX_HAPPENINGS = 12
SAME_S = 30.0
MAX_NAMED_RANKS = 4
SIZE_INCH = (7.2, 3.8)
DIMENSIONS = {"s": units.SECONDS, "FLOP/s": units.FLOP_PER_S, "1": units.FRACTION, "bytes": units.BYTES}
TITLES = {
    names.STEP_TIME: "step time",
    names.TOKENS_PER_S: "throughput",
    names.IMAGES_PER_S: "throughput",
    names.FLOP_PER_S: "rate per device",
    names.MFU: "MFU",
    names.PEAK_MEMORY: "allocated memory",
    PROCESS_MEMORY: "memory of the process",
    names.COMPUTE_TIME: "compute",
    names.COMMUNICATION_TIME: "exposed communication",
    names.DATA_WAIT: "data wait",
    names.IDLE_TIME: "idle",
}
MEMORIES = (names.PEAK_MEMORY, PROCESS_MEMORY)


def print_run(console: Console, run: CollectedRun, summary: RunSummary) -> None:
    ranks = f"{summary.num_ranks} rank{'s' if summary.num_ranks != 1 else ''}"
    console.print(f"[bold]{escape(summary.run)}[/]: {summary.num_steps} steps on {ranks}; {escape(summary.end)}")
    if summary.not_finite_steps is not None:
        first, num = summary.not_finite_steps
        many = f"{num} steps" if num != 1 else "1 step"
        console.print(f"[bold red]the loss is not finite[/] in {many}, first in step {first}: the model has diverged")
    console.print(escape(_description(run.config)))
    warnings = (run.prediction or {}).get("warnings", ())
    _print_comparisons(console, summary, warnings)
    if summary.vision is not None:
        print_vision(console, summary.vision)
    _print_split(console, summary)
    _print_use(console, summary)
    _print_happenings(console, run)


def _description(config: dict[str, Any]) -> str:
    parts = [str(config[key]) for key in ("model_id", "precision") if key in config]
    if "layout" in config:
        parts.append(f"layout {parse_layout(str(config['layout'])).brief}")
    if "image_size" in config:
        parts.append(f"{config['batch']} images of {config['image_size']} px a rank, data {config['data']}")
    elif config.get("data", "synthetic") != "synthetic":
        parts.append(f"data {config['data']}")
    return ", ".join(parts)


def _print_comparisons(console: Console, summary: RunSummary, warnings: Iterable[str]) -> None:
    numbers = ("measured", "predicted", "ratio")
    table = plain_table("", *numbers, "90 % interval", right=numbers)
    for compared in summary.comparisons:
        ratio = "" if compared.ratio_frac is None else f"{compared.ratio_frac:.2f}"
        shown = (_format(compared.measured, compared.unit), _format(compared.predicted, compared.unit))
        table.add_row(TITLES[compared.name], f"[bold]{shown[0]}[/]", shown[1], ratio, _interval(compared))
    console.print(table)
    print_warnings(console, warnings)
    if summary.losses is not None:
        console.print(f"loss {summary.losses[0]:.4f} at the first step, {summary.losses[1]:.4f} at the last")


def _interval(compared: Comparison) -> str:
    if compared.interval is None or compared.inside is None:
        return ""
    low, high = (_format(value, compared.unit) for value in compared.interval)
    return f"{'inside' if compared.inside else '[yellow]outside[/]'} {low} to {high}"


def _format(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit in DIMENSIONS:
        return units.format(value, DIMENSIONS[unit])
    return rate_words(value, unit)


def _print_split(console: Console, summary: RunSummary) -> None:
    if not summary.split_s or not summary.split_of_s:
        console.print("no step was profiled, so the split of the step is not known")
        return
    many = f"{summary.num_split_steps} profiled step{'s' if summary.num_split_steps != 1 else ''}"
    table = plain_table("part", "time", "share", "", title=f"time of a step by part ({many})",
                        right=("time", "share"), header=False)  # fmt: skip
    mark = bar_mark(console)
    for name, value in summary.split_s.items():
        share = value / summary.split_of_s
        table.add_row(
            TITLES[name], units.format(value, units.SECONDS), f"{share:.1%}", mark * max(round(share * BAR_WIDTH), 0)
        )
    table.add_row("[bold]step[/]", f"[bold]{units.format(summary.split_of_s, units.SECONDS)}[/]", "", "")
    console.print()
    console.print(table)


def _print_use(console: Console, summary: RunSummary) -> None:
    table = plain_table("", "", "", header=False)
    if summary.energy_j is not None:
        each = "" if summary.tokens_per_j is None else f", {summary.tokens_per_j:.3g} tokens/J"
        each += "" if summary.images_per_j is None else f", {summary.images_per_j:.3g} images/J"
        table.add_row("energy", units.format(summary.energy_j, units.JOULES), f"{summary.energy_of}{each}")
    if summary.power_w is not None:
        table.add_row("power", units.format(summary.power_w, units.WATTS), "GPUs, during the steps that count")
    if summary.network_bytes_per_s is not None:
        rate = units.format(summary.network_bytes_per_s, units.LINK_BYTES_PER_S)
        table.add_row("network", rate, "received by all nodes, whole run")
    if summary.sampling_frac is not None:
        table.add_row("sampling", f"{summary.sampling_frac:.3%}", "of one core")
    console.print()
    console.print(table)


def _print_happenings(console: Console, run: CollectedRun) -> None:
    for text in dict.fromkeys(e.detail for e in run.happenings if e.name == names.EVENT_NO_SENSOR):
        console.print(f"not measured: {escape(text)}")
    table = plain_table("time", "rank", "what", "", title="events", header=False)
    for at_s, who, name, detail in _events(run)[-MAX_HAPPENINGS:]:
        at = datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")
        table.add_row(at, escape(who), name.removeprefix(names.EVENT_PREFIX).replace("_", " "), escape(detail))
    if table.row_count:
        console.print()
        console.print(table)


def _events(run: CollectedRun) -> list[tuple[float, str, str, str]]:
    """Time, ranks, name and detail of events. Equal events of several ranks at about the same time are one row."""
    rows: list[tuple[float, list[str], str, str]] = []
    for event in run.happenings:
        if event.name == names.EVENT_NO_SENSOR:
            continue
        who = str(event.rank) if event.rank >= 0 else event.host
        same = [
            r for r in rows if r[2:] == (event.name, event.detail) and event.time - r[0] < SAME_S and who not in r[1]
        ]
        if same:
            same[-1][1].append(who)
        else:
            rows.append((event.time, [who], event.name, event.detail))
    return [(at_s, _ranks(who), name, detail) for at_s, who, name, detail in rows]


def _ranks(who: list[str]) -> str:
    ordered = sorted(who, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
    return ",".join(ordered) if len(who) <= MAX_NAMED_RANKS else f"{len(who)} ranks"


def plot_run(path: Path, run: CollectedRun, summary: RunSummary) -> None:
    """Draw a run into a PNG, SVG or PDF file: step time, throughput, split, loss, memory and energy."""
    write_figure(path, lambda: draw(run, summary))


def draw(run: CollectedRun, summary: RunSummary) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCH, layout="constrained")
    (times, rates, split), (losses, memory, energy) = figure.subplots(2, 3)
    _draw_steps(times, run, summary.compared(names.STEP_TIME), label="step time (s)")
    _draw_steps(rates, run, summary.throughput, label=summary.throughput.unit)
    _draw_split(split, summary)
    _draw_loss(losses, run)
    _draw_memory(memory, run, next(c for c in reversed(summary.comparisons) if c.name in MEMORIES))
    _draw_energy(energy, run, summary)
    figure.suptitle(f"{summary.run}: {_description(run.config)}", fontsize=7)
    return figure


def _draw_steps(axes: Axes, run: CollectedRun, compared: Comparison, *, label: str) -> None:
    """A metric of each rank over the steps, and its prediction."""
    table = run.steps.get(compared.name, {})
    for rank in sorted({rank for ranks in table.values() for rank in ranks})[: len(COLOURS)]:
        steps = [step for step in sorted(table) if rank in table[step]]
        values = [table[step][rank] for step in steps]
        axes.plot(steps, values, linewidth=0.8, color=COLOURS[rank], label=f"rank {rank}")
    if compared.predicted is not None:
        axes.axhline(compared.predicted, color=REST, linewidth=0.8, linestyle="--", label="predicted")
    if compared.interval is not None:
        axes.axhspan(*compared.interval, color=REST, alpha=0.15, linewidth=0)
    axes.set(xlabel="step", ylabel=label)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=6)


def _draw_split(axes: Axes, summary: RunSummary) -> None:
    axes.set(xlabel="profiled step (s)")
    if not summary.split_s:
        axes.text(0.5, 0.5, "no step was profiled", ha="center", transform=axes.transAxes)
        return
    labels = [TITLES[name].replace("exposed ", "exposed\n") for name in summary.split_s]
    axes.barh(labels, list(summary.split_s.values()), color=COLOURS[: len(labels)], height=0.6)
    axes.invert_yaxis()


def _draw_loss(axes: Axes, run: CollectedRun) -> None:
    table = run.steps.get(names.LOSS, {})
    steps = sorted(table)
    axes.plot(steps, [sum(table[s].values()) / len(table[s]) for s in steps], linewidth=0.8, color=COLOURS[0])
    axes.set(xlabel="step", ylabel="loss")


def _draw_memory(axes: Axes, run: CollectedRun, compared: Comparison) -> None:
    """Peak memory of each rank, and the prediction where it is of the same kind."""
    peaks: dict[int, float] = {}
    for ranks in run.steps.get(names.PEAK_MEMORY, {}).values():
        for rank, value in ranks.items():
            peaks[rank] = max(value, peaks.get(rank, 0.0))
    axes.bar(list(peaks), [value / units.BINARY["Gi"] for value in peaks.values()], color=COLOURS[0], width=0.6)
    if compared.predicted is not None:
        axes.axhline(compared.predicted / units.BINARY["Gi"], color=REST, linewidth=0.8, linestyle="--")
    axes.set(xlabel="rank", ylabel=f"{TITLES[compared.name]} (GiB)")
    if len(peaks) <= len(COLOURS):
        axes.set_xticks(list(peaks))


def _draw_energy(axes: Axes, run: CollectedRun, summary: RunSummary) -> None:
    """Joules of every counter, in the order of nodes and devices."""
    counters = [c for c in run.counters if c.name in (names.GPU_ENERGY, names.CPU_ENERGY, names.NODE_ENERGY)]
    axes.set(ylabel="energy (kJ)")
    if not counters:
        axes.text(0.5, 0.5, summary.energy_of, ha="center", transform=axes.transAxes, fontsize=6)
        axes.set(xticks=[])
        return
    axes.bar(range(len(counters)), [counter.grown / units.KILO for counter in counters], color=COLOURS[1], width=0.6)
    if len(counters) <= len(COLOURS):
        axes.set_xticks(range(len(counters)), [counter.of or counter.host for counter in counters], rotation=30)
