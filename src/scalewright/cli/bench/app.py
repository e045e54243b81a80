"""`scalewright bench`: the benchmarks, each in a file of its own."""

from __future__ import annotations

import typer

from scalewright.cli.bench import (
    attention,
    checkpoint,
    collectives,
    convolution,
    dispatch,
    engine,
    gemm,
    generate,
    language,
    memory,
    storage,
    sync,
    topology,
    vision,
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run a benchmark, predicted and measured.")


@app.callback()
def _root() -> None:
    """Run a benchmark here: a run directory with what was measured, and the prediction beside it where there is one."""


app.command("gemm", short_help="Matrix products: rate by shape and precision, best and sustained.")(gemm.run)
app.command("memory", short_help="Copy, add, read, write; copies between host and device.")(memory.run)
app.command("attention", short_help="Attention forward and backward, with every kernel.")(attention.run)
app.command("convolution", short_help="Convolutions, norms, ReLU of a ResNet, both ways.")(convolution.run)
app.command("dispatch", short_help="What starting a kernel costs: eager, compiled, CUDA graph.")(dispatch.run)
app.command("topology", short_help="NUMA nodes, GPUs, network ports; what is badly placed.")(topology.run)
app.command("collectives", short_help="Collectives in nccl-tests' columns, with alpha-beta fits.")(collectives.run)
app.command("sync", short_help="Weights from trainer to engine ranks: peers, broadcast, file.")(sync.run)
app.command("storage", short_help="Small files, tar shards, LMDB, RAM; metadata rate.")(storage.run)
app.command("checkpoint", short_help="Saves and restores of sharded state, sync and async.")(checkpoint.run)
app.command("language", short_help="Train a GPT or Llama for some steps, in any layout.")(language.run)
app.command("engine", short_help="Train with torchtitan, DeepSpeed, Hugging Face or TRL.")(engine.run)
app.command("vision", short_help="Train a ResNet on images, with the large-batch recipe.")(vision.run)
app.command("generate", short_help="Answer requests: our engine, or any OpenAI-compatible server.")(generate.run)
