"""`scalewright bench generate`: answers of our engine or of a server, measured and predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.bench.options import BudgetText, SystemName
from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder

ModelName = Annotated[str | None, typer.Option(help="Catalogue name, config.json, or layers=..,hidden=..,heads=..")]
ServerUrl = Annotated[str | None, typer.Option(metavar="URL", help="Measure this OpenAI-compatible server instead.")]
LENGTHS = "512, uniform:64-512, lognormal:mean=512,cv=0.8 or pareto:mean=512,alpha=1.8,max=4096."
PromptLengths = Annotated[str, typer.Option(help=LENGTHS)]
AnswerLengths = Annotated[str, typer.Option(help="Likewise, of the answers.")]
RequestFile = Annotated[Path | None, typer.Option(metavar="FILE", help="JSON lines of lengths or prompts, instead.")]
RateText = Annotated[
    str, typer.Option(metavar="R,...", help="Poisson arrivals a second, or file; default: all at once.")
]
CacheSize = Annotated[str | None, typer.Option(help="Memory for keys and values of a rank; default: what is needed.")]
WeightFolder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A run, a checkpoint or a Hugging Face folder; default: random.")
]
PrecisionText = Annotated[str, typer.Option(help="fp32, bf16, fp8; auto: bf16 on GPUs, fp32 on CPUs.")]
ExecutionText = Annotated[str, typer.Option(help="plain, kernels, graphs; auto: the fastest the device has.")]
KeyVariable = Annotated[str, typer.Option(metavar="NAME", help="Variable that holds the server's key.")]
SilenceText = Annotated[str, typer.Option(help="Longest silence of the server.")]


def run(
    model: ModelName = None,
    url: ServerUrl = None,
    prompt_lengths: PromptLengths = "512",
    answer_lengths: AnswerLengths = "128",
    requests: RequestFile = None,
    num: Annotated[int, typer.Option(help="Requests of a load; 0: 64, or all of the file.")] = 0,
    answers: Annotated[int, typer.Option(help="Answers to each prompt, which is read once.")] = 1,
    rate: RateText = "",
    concurrency: Annotated[int, typer.Option(help="Requests in flight; 0: no limit.")] = 0,
    temperature: Annotated[float, typer.Option(help="0: the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens with this share.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from so many tokens; 0: from all.")] = 0,
    seed: Annotated[int, typer.Option(help="Of prompts, lengths, arrivals, tokens and weights.")] = 0,
    layout: Annotated[str | None, typer.Option(help="tp=2,dp=2; default: dp alone.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Processes; default: the layout's, or one per GPU.")] = None,
    precision: PrecisionText = "auto",
    weights: WeightFolder = None,
    context: Annotated[int, typer.Option(help="Longest prompt and answer; 0: that of the requests.")] = 0,
    cache: CacheSize = None,
    max_running: Annotated[int, typer.Option(help="Answers decoded at once; 0: as many as fit.")] = 0,
    prefill_chunk: Annotated[int, typer.Option(help="Prompt tokens read in a step; 0: the engine's.")] = 0,
    execution: ExecutionText = "auto",
    server_model: Annotated[str | None, typer.Option(help="As the server calls it; default: its first.")] = None,
    api: Annotated[str, typer.Option(help="completions or chat; auto: the first that works.")] = "auto",
    api_key_env: KeyVariable = "OPENAI_API_KEY",
    timeout: SilenceText = "120 s",
    device: DeviceName = "auto",
    system: SystemName = None,
    run_dir: RunFolder = None,
    budget: BudgetText = "10 min",
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Time answers of our engine, or of a server with --url. Exit 3: it failed; finished answers are kept."""
    run_benchmark(
        "generate", run_dir=run_dir, as_json=as_json, catalog=catalog,
        model=model, url=url, prompt_lengths=prompt_lengths, answer_lengths=answer_lengths, requests=_text(requests),
        num=num, answers=answers, rate=rate, concurrency=concurrency, temperature=temperature, top_p=top_p,
        top_k=top_k, seed=seed, layout=layout, ranks=ranks, precision=precision, weights=_text(weights),
        context=context, cache=cache, max_running=max_running, prefill_chunk=prefill_chunk, execution=execution,
        server_model=server_model, api=api, api_key_env=api_key_env, timeout=timeout, device=device,
        this_system=system, budget=budget,
    )  # fmt: skip


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
