"""Launches and graphs of jobs, for people and as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from scalewright.errors import ConfigError, MissingExtraError
from scalewright.launch.graph.budget import Bill, Estimate, Usage
from scalewright.launch.graph.graph import Graph, dot, outline
from scalewright.launch.graph.launches import Standing
from scalewright.launch.graph.manifest import ALONE
from scalewright.records.documents import document, to_json, write_bytes, write_text
from scalewright.report.console import answer_console, plain_table

PICTURES = (".svg", ".png", ".pdf")


def print_launches(standings: Sequence[Standing], *, as_json: bool) -> None:
    if as_json:
        typer.echo(to_json(document("job-list", {"launches": [s.as_dict() for s in standings]})), nl=False)
        return
    console = answer_console()
    for standing in standings:
        table = plain_table("stage", "items", "jobs", "states", right=("items",))
        for name, view in standing.stages.items():
            jobs = [job.id or "planned" for job in standing.manifest.of_stage(name)]
            table.add_row(
                "-" if name == ALONE else name, str(view.stage.num_items), _few(jobs), _states(standing, name)
            )
        console.print(f"{standing.graph.name} in {standing.folder.path}", soft_wrap=True, markup=False)
        console.print(table)


def _few(jobs: list[str]) -> str:
    return ", ".join(jobs) if len(jobs) <= 4 else f"{', '.join(jobs[:3])} and {len(jobs) - 3} more"


def _states(standing: Standing, name: str) -> str:
    skipped = standing.manifest.skipped.get(name)
    if skipped is not None:
        return f"skipped: {skipped}"
    counts = standing.stages[name].counts()
    if not counts:
        return "never submitted" if not standing.graph.stages[name].after else "waits for what comes before"
    told = next((j.reason for j in reversed(standing.manifest.of_stage(name)) if j.reason), "")
    text = ", ".join(f"{count} {state}" if len(counts) > 1 or count > 1 else state for state, count in counts.items())
    return f"{text} ({told})" if told else text


def print_graph(
    graph: Graph, found: Estimate, price: Bill | None, dropped: Mapping[str, Sequence[str]], *, as_json: bool
) -> None:
    """The resolved graph and what it may use."""
    if as_json:
        body: dict[str, Any] = {"graph": graph.as_document(), "estimate": found.as_dict()}
        body["dropped"] = {name: list(items) for name, items in dropped.items()}
        typer.echo(
            to_json(document("graph-plan", body | ({} if price is None else {"bill": price.as_dict()}))), nl=False
        )
        return
    lines = [*outline(graph), f"at most {found.num_gpu_hours:.4g} GPU-hours, retries not counted"]
    lines += [f"not known: {', '.join(found.unknown)}"] if found.unknown else []
    lines += [] if price is None else [*price.lines(), *price.notes]
    typer.echo("\n".join(lines))


def print_spent(usage: Usage, price: Bill | None, *, limit_gpu_hours: float | None, as_json: bool) -> None:
    left = None if limit_gpu_hours is None else limit_gpu_hours - usage.num_gpu_hours
    if as_json:
        body: dict[str, Any] = {
            "num_jobs": usage.num_jobs, "num_gpu_hours": usage.num_gpu_hours, "source": usage.source,
        }  # fmt: skip
        body |= {} if left is None else {"num_gpu_hours_left": left}
        body |= {} if price is None else {"bill": price.as_dict()}
        typer.echo(to_json(document("spent", body)), nl=False)
        return
    lines = [f"{usage.num_gpu_hours:.4g} GPU-hours by {usage.num_jobs} jobs ({usage.source})"]
    lines += [] if left is None else [f"{left:.4g} GPU-hours left of {limit_gpu_hours:g}"]
    lines += [] if price is None else [*price.lines(), *price.notes]
    typer.echo("\n".join(lines))


def check_graph_plot(path: Path) -> None:
    """Refuse before anything is submitted what could only fail after."""
    if path.suffix == ".dot":
        return
    if path.suffix not in PICTURES:
        raise ConfigError(f"--plot {path}: a graph is drawn as .dot, {', '.join(PICTURES)}: choose one of these")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("report", "matplotlib") from error


def draw_graph(path: Path, graph: Graph) -> None:
    if path.suffix == ".dot":
        write_text(path, dot(graph))
        return
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    places = _places(graph)
    width = 1 + max(x for x, _ in places.values())
    height = 1 + max(y for _, y in places.values())
    figure = Figure(figsize=(min(2.4 * width + 0.5, 40), min(0.9 * height + 0.6, 40)))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-0.6, width - 0.4)
    axes.set_ylim(height - 0.4, -0.6)
    for name, stage in graph.stages.items():
        x, y = places[name]
        size = f"\n{len(stage.items)} items" if stage.items else ""
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "#30507a"}
        axes.text(x, y, name + size, ha="center", va="center", fontsize=9, bbox=box, parse_math=False)
        for up, relation in stage.after.items():
            start = places[up]
            arrow = {"arrowstyle": "->", "color": "#30507a", "shrinkA": 28, "shrinkB": 28}
            axes.annotate("", xy=(x, y), xytext=start, arrowprops=arrow)
            axes.text((x + start[0]) / 2, (y + start[1]) / 2 - 0.1, relation, fontsize=7, ha="center", color="#555555")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:])
    write_bytes(path, buffer.getvalue())


def _places(graph: Graph) -> dict[str, tuple[int, int]]:
    """Columns by how much comes before, rows in order."""
    columns: dict[str, int] = {}
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for name, stage in graph.stages.items():
        column = columns[name] = 1 + max((columns[up] for up in stage.after), default=-1)
        places[name] = (column, rows.get(column, 0))
        rows[column] = rows.get(column, 0) + 1
    return places
