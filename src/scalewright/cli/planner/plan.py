"""`scalewright plan`: the best layouts of a model on a machine, why others lost, and what the whole run costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from scalewright.cli.options import AsJson, CatalogFolder, Explain, OutFile
from scalewright.cli.planner.predict import ModelName, ModeText, PartitionName, PrecisionName, SeqLength, StackName

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog
    from scalewright.planner.emit import Framework
    from scalewright.planner.plan import Plan
    from scalewright.planner.request import Request

SystemOption = Annotated[
    str | None, typer.Option(help="Catalogue name of the machine, a calibration's, or here.", show_default=False)
]
NodesText = Annotated[str | None, typer.Option(help="128, a choice 8,16,32, or doublings 8-64.", show_default=False)]
GpuCount = Annotated[int | None, typer.Option(help="Devices, where they are no whole nodes.", show_default=False)]
GlobalBatch = Annotated[int | None, typer.Option(help="Samples per step.", show_default=False)]
FixText = Annotated[str | None, typer.Option(help="Knobs that are decided: tp=8,pp=4,recompute=full.")]
ObjectiveName = Annotated[str, typer.Option(help="time, gpu-hours, energy or money.")]
TokensText = Annotated[str | None, typer.Option(help="Tokens of the whole run, such as 300B; default: 20 a parameter.")]
StepCount = Annotated[int | None, typer.Option(help="Steps of the whole run, instead of tokens.")]
BudgetText = Annotated[str | None, typer.Option(help="gpu-hours=100000,energy=500 MWh,money=1 MUSD,time=30 d")]
Walltime = Annotated[str | None, typer.Option(help="Longest job of the queue, such as 24 h.")]
StageName = Annotated[str, typer.Option(help="pretrain, sft, rl, generate or distill.")]
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
    model: ModelName,
    global_batch: GlobalBatch = None,
    system: SystemOption = None,
    partition: PartitionName = None,
    nodes: NodesText = None,
    gpus: GpuCount = None,
    seq: SeqLength = None,
    precision: PrecisionName = "auto",
    stack: StackName = "auto",
    fix: FixText = None,
    objective: ObjectiveName = "time",
    tokens: TokensText = None,
    steps: StepCount = None,
    budget: BudgetText = None,
    walltime: Walltime = None,
    mode: ModeText = "full",
    stage: StageName = "pretrain",
    teacher: TeacherName = None,
    compare: CompareText = None,
    what_if: WhatIfText = None,
    emit: EmitName = None,
    emit_to: EmitFile = None,
    plot: PlanPlot = None,
    top: TopCount = 5,
    explain: Explain = False,
    as_json: AsJson = False,
    out: OutFile = None,
    catalog: CatalogFolder = None,
) -> None:
    """Choose layout and node count: what fits, how fast, why, and what the run costs. Exit 1: nothing fits."""
    from scalewright.catalog.library import open_catalog
    from scalewright.errors import ConfigError
    from scalewright.records.documents import write_text

    if plot is not None:
        from scalewright.report.planner.roofline import check_plot

        check_plot(plot)
    library = open_catalog(catalog)
    given: dict[str, Any] = {
        "model": model, "global_batch": global_batch, "partition": partition, "nodes": nodes, "gpus": gpus, "seq": seq,
        "precision": precision, "stack": stack, "fix": fix, "objective": objective, "tokens": tokens, "steps": steps,
        "budget": budget, "walltime": walltime, "mode": mode, "stage": stage, "top": top,
    }  # fmt: skip
    names = _systems(system, compare)
    _check_unused(
        given, stage, teacher=teacher, compare=compare, what_if=what_if, emit=emit, emit_to=emit_to, plot=plot
    )
    if emit_to is not None and emit is None:
        raise ConfigError(f"--emit-to {emit_to} and no --emit: name the framework, such as --emit megatron")
    if stage in STAGES_WITHOUT_LAYOUT:
        _answer_stage(library, names[0], given, teacher, as_json=as_json, out=out)
    plan, document = plan_document(library, names, given, what_if_text=what_if, framework=emit)
    if plot is not None and plan.fits:
        from scalewright.report.planner.plan_plot import plot_plan

        plot_plan(plot, document)
    if emit_to is not None and "emitted" in document:
        write_text(emit_to, document["emitted"]["text"])
    _finish(document, fits=plan.fits, explain=explain, as_json=as_json, out=out, plan=plan, library=library)


STAGES_WITHOUT_LAYOUT = ("rl", "generate", "distill")
DEFAULTS = {"objective": "time", "top": 5}
"""Of flags that have one; the others are absent unless given."""


def _check_unused(given: dict[str, Any], stage: str, *, teacher: str | None, **asked: object) -> None:
    """Refuse flags that the answer would not follow."""
    from scalewright.errors import ConfigError

    if teacher is not None and stage != "distill":
        raise ConfigError(f"--teacher means nothing in stage {stage}: only distill has one; leave it out")
    if stage not in STAGES_WITHOUT_LAYOUT:
        return
    searched = {name: given[name] for name in ("fix", "objective", "tokens", "steps", "budget", "walltime", "top")}
    for name, value in {**searched, **asked}.items():
        if value != DEFAULTS.get(name):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} means nothing in stage {stage}, which has no layouts to search; leave it out")


def _systems(system: str | None, compare: str | None) -> list[str]:
    """The system planned for first, then those it is compared with."""
    from scalewright.errors import ConfigError

    more = [name.strip() for name in (compare or "").split(",") if name.strip()]
    names = list(dict.fromkeys(([] if system is None else [system]) + more))
    if not names:
        raise ConfigError("which machine? give --system lumi (see: scalewright catalog systems)")
    return names


def plan_document(
    library: Catalog, names: list[str], given: dict[str, Any], *, what_if_text: str | None, framework: str | None
) -> tuple[Plan, dict[str, Any]]:
    """The plan for the first system, and its document with whatever else was asked for."""
    from scalewright.planner.expressed import express
    from scalewright.planner.plan import compare, make_plan, what_if, what_if_body

    if framework is not None:
        _check_framework(framework)
    requests = [resolve_request(library, name, given) for name in names]
    plan = make_plan(library, requests[0])
    document = plan.as_document()
    if what_if_text is not None:
        asked = what_if(library, plan, what_if_text)
        document["what_if"] = what_if_body(asked)
    if len(requests) > 1:
        basis = f"{given['nodes']} nodes of each" if given["gpus"] is None else f"{given['gpus']} devices of each"
        document["compared"] = {
            "basis": basis,
            "systems": [row.as_dict() for row in compare(library, requests)],
        }
    if framework is not None and plan.best is not None:
        found = express(plan.result, plan.best, cast("Framework", framework), facility=plan.request.facility)
        document["emitted"] = found.as_dict(plan.best)
    return plan, document


def resolve_request(library: Catalog, system: str, given: dict[str, Any]) -> Request:
    """What was written on the command line, for one system."""
    from scalewright import units
    from scalewright.errors import ConfigError
    from scalewright.here.place import place_of
    from scalewright.planner.energy_use import facility_of
    from scalewright.planner.question import resolve_recipe
    from scalewright.planner.request import Request, parse_budget, parse_counts, parse_objective, resolve_work
    from scalewright.planner.search.space import parse_fixed
    from scalewright.workload.named import resolve_model
    from scalewright.workload.stage import stage
    from scalewright.workload.training import Feed, training_mode

    stage(given["stage"])
    if given["global_batch"] is None:
        raise ConfigError("how large is the batch? give --global-batch 1536, in samples per step")
    if not 1 <= given["top"] <= MAX_TOP:
        raise ConfigError(f"--top {given['top']}: list 1 to {MAX_TOP} layouts")
    limit_s = None if given["walltime"] is None else units.parse(given["walltime"], units.SECONDS)
    if limit_s == 0:
        raise ConfigError(f"--walltime {given['walltime']}: a job needs time, such as 24 h")
    spec = resolve_model(library, given["model"])
    if spec.is_vision:
        raise ConfigError(f"{spec.id} has one layout, data parallel: use scalewright predict --layout dp=8,mbs=256")
    if given["seq"] is not None:
        spec = spec.with_seq(given["seq"])
    place = place_of(library, system, partition=given["partition"], num_ranks=given["gpus"] or 1)
    machine, system = place.machine, place.system
    facility = facility_of(library, system, machine.accelerator.id)
    counts = parse_counts(given["nodes"], given["gpus"], machine)
    names = [name.strip() for name in given["precision"].split(",") if name.strip()]
    return Request(
        spec=spec, system=library.system(system).id, machine=machine, stack=given["stack"], facility=facility,
        limit_s=limit_s, global_batch=given["global_batch"], stage=given["stage"],
        counts=counts, fixed=parse_fixed(given["fix"]),
        recipes=tuple(dict.fromkeys(resolve_recipe(name, machine) for name in names)),
        work=resolve_work(
            spec, tokens=given["tokens"], steps=given["steps"], global_batch=given["global_batch"],
            stage=given["stage"],
        ),
        feed=Feed(storage=place.storage_of(library, num_gpus=max(counts)), async_checkpoint=True),
        objective=parse_objective(given["objective"]), mode=training_mode(given["mode"]),
        budget=parse_budget(given["budget"]), top=given["top"],
    )  # fmt: skip


MAX_TOP = 1000


def _check_framework(name: str) -> None:
    from scalewright.errors import UnknownNameError
    from scalewright.planner.emit import EMITTERS

    if name not in EMITTERS:
        raise UnknownNameError("framework", name, EMITTERS, hint=f"choose {', '.join(EMITTERS)}")


def _finish(
    document: dict[str, Any], *, fits: bool, explain: bool, as_json: bool, out: Path | None, plan: Plan,
    library: Catalog,
) -> None:  # fmt: skip
    from scalewright.records.documents import to_json, write_document
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.planner.answer import print_explanation
    from scalewright.report.planner.plan import print_plan

    if out is not None:
        write_document(out, document)
    if as_json:
        typer.echo(to_json(document), nl=False)
    else:
        console = answer_console()
        print_plan(console, document, explain=explain)
        if explain and plan.best is not None:
            print_explanation(console, plan.best, library)
    raise typer.Exit(ExitCode.YES if fits else ExitCode.NO)


def _answer_stage(
    library: Catalog, system: str, given: dict[str, Any], teacher: str | None, *, as_json: bool, out: Path | None
) -> None:
    """Stages that are not one training step: the fewest devices by mode, and whether those asked for suffice."""
    from scalewright.here.place import place_of
    from scalewright.planner.question import resolve_recipe, resolve_stack
    from scalewright.planner.request import parse_counts
    from scalewright.planner.stages.minimum_gpus import stage_answers
    from scalewright.records.documents import document, to_json, write_document
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.planner.stages import minimum_table
    from scalewright.workload.layout import Layout
    from scalewright.workload.named import resolve_model
    from scalewright.workload.training import training_mode

    spec, mode = resolve_model(library, given["model"]), training_mode(given["mode"])
    machine = place_of(library, system, partition=given["partition"], num_ranks=given["gpus"] or 1).machine
    found = stage_answers(
        spec=spec, machine=machine, stage_name=given["stage"], seq=given["seq"] or spec.transformer.seq,
        stack=resolve_stack(given["stack"], library, Layout(zero=3), machine),
        recipe=resolve_recipe(given["precision"], machine),
        teacher=None if teacher is None else resolve_model(library, teacher),
    )  # fmt: skip
    needed = [m.num_gpus for m in found if m.mode_name in (mode.name, "serve")]
    counted = given["nodes"] is not None or given["gpus"] is not None
    asked = max(parse_counts(given["nodes"], given["gpus"], machine)) if counted else None
    fits = asked is None or (bool(needed) and asked >= max(needed))
    doc = document("stage-plan", {
        "stage": given["stage"], "model": spec.id, "system": machine.name, "mode": str(mode), "num_gpus": asked,
        "fits": fits, "minimum_gpus": [m.as_dict() for m in found],
    })  # fmt: skip
    if out is not None:
        write_document(out, doc)
    if as_json:
        typer.echo(to_json(doc), nl=False)
    else:
        console = answer_console()
        console.print(minimum_table(found))
        if asked is not None:
            how = "" if given["stage"] == "generate" else f" in mode {mode.name}"
            console.print(f"{asked} devices: {'enough' if fits else 'not enough'}{how}")
    raise typer.Exit(ExitCode.YES if fits else ExitCode.NO)
