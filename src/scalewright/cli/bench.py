"""`scalewright bench`: the benchmarks, each in a file of its own."""

from __future__ import annotations

import typer

from scalewright.cli import (
    bench_attention,
    bench_checkpoint,
    bench_collectives,
    bench_convolution,
    bench_dispatch,
    bench_gemm,
    bench_language,
    bench_memory,
    bench_storage,
    bench_topology,
    bench_vision,
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run a benchmark, predicted and measured.")


@app.callback()
def _root() -> None:
    """Run a benchmark here: a run directory with what was measured, and the prediction beside it where there is one."""


app.command("gemm")(bench_gemm.run)
app.command("memory")(bench_memory.run)
app.command("attention")(bench_attention.run)
app.command("convolution", short_help="Convolutions, norms, ReLU of a ResNet, both ways.")(bench_convolution.run)
app.command("dispatch")(bench_dispatch.run)
app.command("topology")(bench_topology.run)
app.command("collectives")(bench_collectives.run)
app.command("storage")(bench_storage.run)
app.command("checkpoint")(bench_checkpoint.run)
app.command("language")(bench_language.run)
app.command("vision")(bench_vision.run)
