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


app.command("gemm", short_help="Matrix products: rate by shape and precision, best and sustained.")(bench_gemm.run)
app.command("memory", short_help="Copy, add, read, write; copies between host and device.")(bench_memory.run)
app.command("attention", short_help="Attention forward and backward, with every kernel.")(bench_attention.run)
app.command("convolution", short_help="Convolutions, norms, ReLU of a ResNet, both ways.")(bench_convolution.run)
app.command("dispatch", short_help="What starting a kernel costs: eager, compiled, CUDA graph.")(bench_dispatch.run)
app.command("topology", short_help="NUMA nodes, GPUs, network ports; what is badly placed.")(bench_topology.run)
app.command("collectives", short_help="Collectives in nccl-tests' columns, with alpha-beta fits.")(
    bench_collectives.run
)
app.command("storage", short_help="Small files, tar shards, LMDB, RAM; metadata rate.")(bench_storage.run)
app.command("checkpoint", short_help="Saves and restores of sharded state, sync and async.")(bench_checkpoint.run)
app.command("language", short_help="Train a GPT or Llama for some steps, in any layout.")(bench_language.run)
app.command("vision", short_help="Train a ResNet on images, with the large-batch recipe.")(bench_vision.run)
