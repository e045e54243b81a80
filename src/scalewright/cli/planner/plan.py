"""`scalewright plan`: the best layouts of a model on a machine, why others lost, and what the whole run costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewright.cli.options import AsJson, CatalogFolder, ExplainAll, ExplainStep, OutFile, print_json, report_written
from scalewright.cli.planner import options as shared

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog
    from scalewright.planner.plan import Plan
    from scalewright.planner.stages.stage_plan import StagePlan

SystemOption = Annotated[
    str | None, typer.Option(help="Catalogue name of the machine, a calibration's, or here.", show_default=False)
]
NodesText = Annotated[
    str | None, typer.Option(help="128, a choice 8,16,32, or doublings 8-64; default: it chooses.", show_default=False)
]
GpuCount = Annotated[int | None, typer.Option(help="Devices, where they are no whole nodes.", show_default=False)]
GlobalBatch = Annotated[int | None, typer.Option(help="Samples per step; default: it chooses.", show_default=False)]
FixText = Annotated[str | None, typer.Option(help="Knobs that are decided: tp=8,pp=4,recompute=full.")]
ObjectiveName = Annotated[str, typer.Option(help="time, gpu-hours, energy or money.")]
TokensText = Annotated[str | None, typer.Option(help="Tokens of the whole run, such as 300B; default: 20 a parameter.")]
StepCount = Annotated[int | None, typer.Option(help="Steps of the whole run, instead of tokens.")]
BudgetText = Annotated[
    str | None,
    typer.Option(help="gpu-hours=100000,energy=500 MWh,money=900 kEUR,time=30 d; billed=50000: the site's unit."),
]
Walltime = Annotated[str | None, typer.Option(help="Longest job, such as 24 h; default: the site's limit.")]
SiteName = Annotated[str | None, typer.Option(help="Profile of the cluster (see: site show); default: the system's.")]
StageName = Annotated[str, typer.Option(help="pretrain, sft, rl, generate or distill.")]
RlText = Annotated[
    str | None, typer.Option(help="The step of stage rl: prompts=128,samples=8,prompt=512,response=1024.")
]
GenerateText = Annotated[str | None, typer.Option(help="The requests of stage generate: prompt=2048,response=256.")]
TeacherName = Annotated[str | None, typer.Option(help="Model that generates, for stage distill.")]
CompareText = Annotated[str | None, typer.Option(help="More systems in one table: lumi,leonardo,jupiter.")]
WhatIfText = Annotated[str | None, typer.Option(help="Set otherwise: tp=8, precision=fp8, stack=eager, nodes=64.")]
EmitName = Annotated[str | None, typer.Option(help="Flags for megatron, torchtitan, deepspeed or fsdp.")]
EmitFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write what --emit gives here as well.")]
PlanPlot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw time, memory and scaling: .png, .svg or .pdf.")
]
TopCount = Annotated[int, typer.Option(help="How many layouts to list.")]


def run(
    model: shared.ModelName,
    global_batch: GlobalBatch = None,
    system: SystemOption = None,
    partition: shared.PartitionName = None,
    network: shared.NetworkText = None,
    nodes: NodesText = None,
    gpus: GpuCount = None,
    seq: shared.SeqLength = None,
    precision: shared.PrecisionName = "auto",
    stack: shared.StackName = "auto",
    fix: FixText = None,
    objective: ObjectiveName = "time",
    tokens: TokensText = None,
    steps: StepCount = None,
    budget: BudgetText = None,
    walltime: Walltime = None,
    site: SiteName = None,
    mode: shared.ModeText = "full",
    stage: StageName = "pretrain",
    teacher: TeacherName = None,
    rl: RlText = None,
    generate: GenerateText = None,
    compare: CompareText = None,
    what_if: WhatIfText = None,
    emit: EmitName = None,
    emit_to: EmitFile = None,
    plot: PlanPlot = None,
    top: TopCount = 5,
    explain: ExplainStep = False,
    explain_all: ExplainAll = False,
    as_json: AsJson = False,
    out: OutFile = None,
    catalog: CatalogFolder = None,
) -> None:
    """Choose layout and node count: what fits, how fast, why, and what the run costs. Exit 1: nothing fits."""
    from scalewright.catalog.library import open_catalog
    from scalewright.engines.expressed import plan_for_framework
    from scalewright.planner.plan_report import STAGES_WITHOUT_LAYOUT, check_unused, systems_of
    from scalewright.planner.request import PlanOptions
    from scalewright.planner.stages.stage_plan import plan_stage
    from scalewright.records.documents import write_text
    from scalewright.records.types import ExitCode

    _check_files(plot, emit_to, emit)
    library = open_catalog(catalog)
    options = PlanOptions(
        model=model, global_batch=global_batch, partition=partition, network=network, nodes=nodes, gpus=gpus, seq=seq,
        precision=precision, stack=stack, fix=fix, objective=objective, tokens=tokens, steps=steps, budget=budget,
        walltime=walltime, site=site, mode=mode, stage=stage, rl=rl, generate=generate, top=top,
    )  # fmt: skip
    systems = systems_of(system, compare)
    check_unused(options, teacher=teacher, compare=compare, what_if=what_if, emit=emit, emit_to=emit_to, plot=plot)
    if stage in STAGES_WITHOUT_LAYOUT:
        _print_stage_plan(
            plan_stage(library, systems[0], options, teacher=teacher, what_if=what_if), as_json=as_json, out=out
        )
    report = plan_for_framework(library, systems, options, what_if_text=what_if, framework=emit)
    document = report.document()
    if plot is not None and report.plan.fits:
        _plot_plan(plot, document)
    if emit_to is not None and report.emitted is not None:
        write_text(emit_to, document["emitted"]["text"])
        report_written(emit_to)
    if not print_json(document, out=out, as_json=as_json):
        _print_plan(report.plan, document, library, explain=explain or explain_all, whole=explain_all)
    raise typer.Exit(ExitCode.YES if report.plan.fits else ExitCode.NO)


def _check_files(plot: Path | None, emit_to: Path | None, emit: str | None) -> None:
    """Refuse what could not be written before anything is computed."""
    from scalewright.errors import ConfigError
    from scalewright.report.figure_file import check_plot

    if plot is not None:
        check_plot(plot)
    if emit_to is not None and emit is None:
        raise ConfigError(f"--emit-to {emit_to} and no --emit: name the framework, such as --emit megatron")


def _plot_plan(path: Path, document: dict[str, Any]) -> None:
    from scalewright.report.planner.plan_plot import plot_plan

    plot_plan(path, document)
    report_written(path)


def _print_plan(plan: Plan, document: dict[str, Any], library: Catalog, *, explain: bool, whole: bool) -> None:
    from scalewright.report.console import answer_console
    from scalewright.report.planner.answer import print_explanation
    from scalewright.report.planner.plan import print_plan

    console = answer_console()
    print_plan(console, document, explain=explain)
    if explain and plan.best is not None:
        print_explanation(console, plan.best, library, whole=whole)


def _print_stage_plan(plan: StagePlan, *, as_json: bool, out: Path | None) -> None:
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.planner.stages import print_stage_plan

    if not print_json(plan.document(), out=out, as_json=as_json):
        print_stage_plan(answer_console(), plan)
    raise typer.Exit(ExitCode.YES if plan.fits else ExitCode.NO)
