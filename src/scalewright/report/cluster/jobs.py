"""Launches and graphs of jobs: tables, JSON and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scalewright.errors import ConfigError
from scalewright.launch.graph.budget import Bill, Estimate, Usage
from scalewright.launch.graph.graph import Graph, dot, outline
from scalewright.launch.graph.launches import LaunchProgress
from scalewright.launch.graph.manifest import ALONE
from scalewright.records.documents import check_file, document, to_json, write_text
from scalewright.report.console import answer_console, plain_table
from scalewright.report.figure_file import SUFFIXES, check_plot, write_figure
from scalewright.units import grouped

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def print_launches(launches: Sequence[LaunchProgress], *, as_json: bool) -> None:
    if as_json:
        typer.echo(to_json(document("job-list", {"launches": [s.as_dict() for s in launches]})), nl=False)
        return
    console = answer_console()
    for launch in launches:
        table = plain_table("job", "items", "Slurm jobs", "states", right=("items",))
        for name, view in launch.jobs.items():
            ids = [job.id or "planned" for job in launch.manifest.slurm_jobs_of(name)]
            table.add_row(
                "-" if name == ALONE else name, str(view.graph_job.num_items), _first_ids(ids), _states(launch, name)
            )
        console.print(f"{launch.graph.name} in {launch.folder.path}", soft_wrap=True, markup=False)
        console.print(table)


def _first_ids(ids: list[str]) -> str:
    return ", ".join(ids) if len(ids) <= 4 else f"{', '.join(ids[:3])} and {len(ids) - 3} more"


def _states(launch: LaunchProgress, name: str) -> str:
    skipped = launch.manifest.skipped.get(name)
    if skipped is not None:
        return f"skipped: {skipped}"
    counts = launch.jobs[name].counts()
    if not counts:
        return "never submitted" if not launch.graph.jobs[name].after else "waits for the jobs before it"
    reason = next((j.reason for j in reversed(launch.manifest.slurm_jobs_of(name)) if j.reason), "")
    text = ", ".join(f"{count} {state}" if len(counts) > 1 or count > 1 else state for state, count in counts.items())
    return f"{text} ({reason})" if reason else text


def print_graph(
    graph: Graph, estimated: Estimate, price: Bill | None, dropped: Mapping[str, Sequence[str]], *, as_json: bool
) -> None:
    """Print the resolved graph and the GPU-hours it may use."""
    if as_json:
        body: dict[str, Any] = {"graph": graph.as_document(), "estimate": estimated.as_dict()}
        body["dropped"] = {name: list(items) for name, items in dropped.items()}
        typer.echo(
            to_json(document("graph-plan", body | ({} if price is None else {"bill": price.as_dict()}))), nl=False
        )
        return
    lines = [*outline(graph), f"at most {grouped(estimated.num_gpu_hours)} GPU-hours, without retries"]
    lines += [f"unknown: {', '.join(estimated.unknown)}"] if estimated.unknown else []
    lines += [] if price is None else [*price.lines(), *price.notes]
    typer.echo("\n".join(lines))


def print_spent(usage: Usage, price: Bill | None, *, limit_gpu_hours: float | None, as_json: bool) -> None:
    remaining = None if limit_gpu_hours is None else limit_gpu_hours - usage.num_gpu_hours
    if as_json:
        body: dict[str, Any] = {
            "num_jobs": usage.num_jobs, "num_gpu_hours": usage.num_gpu_hours, "source": usage.source,
        }  # fmt: skip
        body |= {} if remaining is None else {"num_gpu_hours_left": remaining}
        body |= {} if price is None else {"bill": price.as_dict()}
        typer.echo(to_json(document("spent", body)), nl=False)
        return
    lines = [f"{grouped(usage.num_gpu_hours)} GPU-hours by {usage.num_jobs} jobs ({usage.source})"]
    if remaining is not None and limit_gpu_hours is not None:
        lines.append(f"{grouped(remaining)} GPU-hours left of {grouped(limit_gpu_hours)}")
    lines += [] if price is None else [*price.lines(), *price.notes]
    typer.echo("\n".join(lines))


def check_graph_plot(path: Path) -> None:
    """Refuse a --plot that cannot be drawn, before anything is submitted."""
    if path.suffix == ".dot":
        check_file(path)
        return
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {path}: a graph is drawn as .dot, {', '.join(SUFFIXES)}: choose one of these")
    check_plot(path)


def draw_graph(path: Path, graph: Graph) -> None:
    if path.suffix == ".dot":
        write_text(path, dot(graph))
        return
    write_figure(path, lambda: _drawn_graph(graph))


def _drawn_graph(graph: Graph) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    positions = _positions(graph)
    width = 1 + max(x for x, _ in positions.values())
    height = 1 + max(y for _, y in positions.values())
    figure = Figure(figsize=(min(2.4 * width + 0.5, 40), min(0.9 * height + 0.6, 40)))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-0.6, width - 0.4)
    axes.set_ylim(height - 0.4, -0.6)
    for name, job in graph.jobs.items():
        x, y = positions[name]
        size = f"\n{len(job.items)} items" if job.items else ""
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "#30507a"}
        axes.text(x, y, name + size, ha="center", va="center", fontsize=9, bbox=box, parse_math=False)
        for up, relation in job.after.items():
            start = positions[up]
            arrow = {"arrowstyle": "->", "color": "#30507a", "shrinkA": 28, "shrinkB": 28}
            axes.annotate("", xy=(x, y), xytext=start, arrowprops=arrow)
            axes.text((x + start[0]) / 2, (y + start[1]) / 2 - 0.1, relation, fontsize=7, ha="center", color="#555555")
    return figure


def _positions(graph: Graph) -> dict[str, tuple[int, int]]:
    """Column and row of each job. The column is the length of the longest chain of jobs before it."""
    columns: dict[str, int] = {}
    rows: dict[int, int] = {}
    positions: dict[str, tuple[int, int]] = {}
    for name, job in graph.jobs.items():
        column = columns[name] = 1 + max((columns[up] for up in job.after), default=-1)
        positions[name] = (column, rows.get(column, 0))
        rows[column] = rows.get(column, 0) + 1
    return positions
