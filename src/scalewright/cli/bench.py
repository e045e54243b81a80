"""`scalewright bench`: the benchmarks, each in a file of its own."""

from __future__ import annotations

import typer

from scalewright.cli import bench_collectives, bench_language

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run a benchmark, predicted and measured.")


@app.callback()
def _root() -> None:
    """Run a benchmark here: a run directory with what was measured, and the prediction beside it where there is one."""


app.command("collectives")(bench_collectives.run)
app.command("language")(bench_language.run)
