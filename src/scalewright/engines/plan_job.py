"""A stored plan as a job of an engine: the request, the checks, the files, and the job script's request."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog
from scalewright.catalog.model_details import ModelDetails
from scalewright.catalog.types import TransformerShape
from scalewright.engines.given_files import check_given
from scalewright.engines.info import EngineInfo
from scalewright.engines.nearest import rendered
from scalewright.engines.stage_job import STAGE_PLAN, is_stage_plan, plan_of_stage, stage_notes, with_fix
from scalewright.engines.types import EngineDevice, EngineJob, EngineRefusedError, EngineRequest, optimizer_of
from scalewright.errors import ConfigError, DocumentError
from scalewright.launch.plan_job import (
    PlanOutline,
    check_site,
    planned_notice_s,
    planned_run,
    planned_walltime_s,
    whole_run_of,
)
from scalewright.launch.preflight.request import request_of_job
from scalewright.launch.script.request import Container, JobRequest, JobScript
from scalewright.records.documents import parse_json, read_document, read_text, write_document, write_text
from scalewright.records.loader import validate
from scalewright.records.run_directory import RunDirectory, new_run_id
from scalewright.sites.types import Site
from scalewright.workload.engine_run import EngineRun
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import recipe
from scalewright.workload.training import training_mode

FIXED_PATHS = ("data", "load", "tokenizer", "engine_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWork:
    """An engine's job from a plan: what to write, what to start, and what the plan said."""

    info: EngineInfo
    request: EngineRequest
    job: EngineJob
    plan: dict[str, Any]
    planned: PlanOutline
    stage_plan: dict[str, Any] | None = None
    """The file, where it is the plan of a stage."""

    @property
    def run(self) -> EngineRun:
        request = self.request
        return EngineRun(
            engine=self.info.id, model_id=request.spec.id, shape=request.shape, layout=request.layout,
            precision=request.recipe.name, task=request.task, steps=request.num_steps, device=request.device,
            data=request.data, load=request.load, seed=request.seed, settings=dict(request.settings),
            extra_args=request.extra_args,
        )  # fmt: skip


def read_plan(path: Path) -> dict[str, Any]:
    """A plan, or the plan of a stage."""
    body = parse_json(read_text(path), where=str(path))
    is_stage = isinstance(body, dict) and is_stage_plan(body)
    return read_document(path, STAGE_PLAN if is_stage else "plan")


def engine_work(
    info: EngineInfo, plan: dict[str, Any], *, where: str, run_dir: Path | None, task: str, given: Mapping[str, str],
    settings: Mapping[str, str], extra_args: tuple[str, ...], device: EngineDevice, python: str,
) -> EngineWork:  # fmt: skip
    """The job that runs a plan with an engine. What it cannot express is refused with the nearest layout."""
    notes: tuple[str, ...] = ()
    stored = plan
    if is_stage_plan(plan):
        plan = plan_of_stage(stored, info, where=where)
        notes = stage_notes(stored, plan, info, where=where)
    chosen = task or plan.get("task") or info.tasks[0]
    if chosen not in info.tasks:
        raise ConfigError(f"--task {chosen!r}: {info.title} does {' and '.join(info.tasks)} here, choose one of them")
    best, layout = best_of(plan, info, where=where)
    whole, paths = whole_run_of(plan, where=where), full_paths(given)
    try:
        spec = planned_spec(plan, best, where)
        folder = (run_dir or Path("runs") / new_run_id(f"{info.id}-{spec.id}")).absolute()
        num_gpus, num_nodes = int(plan["num_gpus"]), int(plan["num_nodes"])
        request = EngineRequest(
            spec=spec, layout=layout, recipe=recipe(str(best["input"]["precision"])), mode=planned_mode(best),
            seq_len=plan.get("seq_len") or spec.transformer.seq, rollout=plan.get("rollout"),
            gpus_per_node=-(-num_gpus // num_nodes), num_gpus=num_gpus, task=chosen, device=device,
            num_steps=int(whole["num_steps"]), run_dir=folder,
            engine_python=python, checkpoint_every=int(whole["checkpoint"]["every_num_steps"]),
            optimizer=optimizer_of(chosen), settings=settings, extra_args=extra_args, data=paths["data"],
            load=paths["load"], tokenizer=paths["tokenizer"], engine_dir=paths["engine_dir"],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DocumentError(f"{where}: is not a complete plan ({error!r}); make it again with plan --out") from error
    planned = planned_run(plan, best, whole, where=where, notes=notes)
    try:
        job = rendered(info.id, request)
    except EngineRefusedError as error:
        raise with_fix(error, layout) if notes else error from error
    check_given(info.id, request)
    return EngineWork(
        info=info, request=request, job=job, plan=plan, planned=planned,
        stage_plan=stored if notes else None
    )  # fmt: skip


def best_of(plan: dict[str, Any], info: EngineInfo, *, where: str) -> tuple[dict[str, Any], Layout]:
    """The plan's best prediction, and its layout: the one that was emitted for this engine where there is one."""
    best = plan.get("best")
    if not plan.get("fits") or not isinstance(best, dict):
        raise ConfigError(f"{where}: has no layout that fits: plan again with more nodes, then launch that plan")
    emitted = plan.get("emitted")
    text = best.get("layout_text")
    if isinstance(emitted, dict) and emitted.get("framework") in info.frameworks:
        text = emitted.get("layout_text")
    return best, parse_layout(str(text))


def planned_spec(plan: dict[str, Any], best: dict[str, Any], where: str) -> ModelSpec:
    """The model as the plan has it, details included."""
    source = {"kind": "assumed", "text": f"the plan, {where}", "checked": date.min}
    shape = validate({**best["input"]["shape"], "source": source}, TransformerShape, where=f"{where}, shape")
    stored = plan.get("model_details")
    details = None
    if isinstance(stored, dict):
        details = validate({"source": source, **stored}, ModelDetails, where=f"{where}, model_details")
    return ModelSpec(id=str(best["model"]), name=str(best["model"]), shape=shape, details=details)


def planned_mode(best: dict[str, Any]) -> Any:
    mode = best["input"].get("mode", "full")
    if isinstance(mode, dict):
        rank = mode.get("lora_rank") if mode.get("name") == "lora" else None
        return training_mode(str(mode.get("name", "full")), lora_rank=rank)
    return training_mode(str(mode))


def full_paths(given: Mapping[str, str]) -> dict[str, str]:
    """Paths of the user as full paths, because a job starts elsewhere; names that are no paths stay."""
    paths = {}
    for name in FIXED_PATHS:
        text = given.get(name, "")
        path = Path(text).expanduser()
        is_path = text and (path.exists() or path.with_name(f"{path.name}.bin").exists() or text.startswith((".", "~")))
        paths[name] = str(path.absolute()) if is_path else text
    return paths


def open_placeholders(work: EngineWork) -> str:
    """The sentence about what is missing; empty where the job can start."""
    places = work.job.placeholders
    if not places:
        return ""
    flags = ", ".join(f"--{one.name} ({one.what})" for one in places)
    can_do_without = any(one.name == "data" for one in places) and "grpo" not in work.info.tasks
    synthetic = ", or --data synthetic for a trial without data" if can_do_without else ""
    return f"{work.info.title} still needs {flags}: give {'it' if len(places) == 1 else 'them'}{synthetic}"


def engine_job_request(
    work: EngineWork, site: Site, options: Mapping[str, Any], *, walltime_s: int | None, name: str
) -> JobRequest:
    """The request of the job script. Image and modules are the site's for this engine, unless the user gave some."""
    planned, job = work.planned, work.job
    options, notes = with_site_software(work.info, site, options)
    notes = (*check_site(planned, site), *untested_notes(work.info), *stack_notes(work), *notes, *job.notes)
    if walltime_s is None:
        walltime_s, more = planned_walltime_s(
            planned, site, partition=options.get("partition", ""), qos=options.get("qos", "")
        )
        notes = (*notes, *more)
    variables = {**job.variables, **options.get("variables", {})}
    return JobRequest(
        command=job.command, num_nodes=planned.num_nodes, gpus_per_node=planned.gpus_per_node, walltime_s=walltime_s,
        run_dir=work.request.run_dir, work_dir=Path.cwd(), name=name or f"{work.info.id}-run", notes=notes,
        once_per_node=job.started_by == "node", saves_with_zero=job.saves_on_notice,
        mounted_paths=mounted(work.request),
        **{**options, "variables": variables, "ray": job.started_by == "ray",
           "notice_s": options.get("notice_s") or planned_notice_s(planned, walltime_s)},
    )  # fmt: skip


def mounted(request: EngineRequest) -> tuple[str, ...]:
    """Folders that an image has to show: of data, weights, tokenizer and engine."""
    folders = [str(Path(request.data).parent)] if request.data.startswith("/") else []
    folders += [one for one in (request.load, request.tokenizer, request.engine_dir) if one.startswith("/")]
    return tuple(dict.fromkeys(folders))


def with_site_software(
    info: EngineInfo, site: Site, options: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options with the site's image or modules for an engine, and what the user should know of them."""
    own = dict(options)
    entry = site.engine(info.id)
    if entry is None or own.get("container") or own.get("modules"):
        return own, ()
    if own.get("venv"):
        return own | {"modules": entry.modules}, ()
    notes = [f"{site.name}: {text}" for text in (entry.note, entry.advice) if text]
    if entry.container:
        own["container"] = Container(image=entry.container)
    if entry.modules:
        own["modules"] = entry.modules
    return own, tuple(notes)


def untested_notes(info: EngineInfo) -> tuple[str, ...]:
    return (f"untested: {info.tested_text}",) if info.is_untested else ()


def stack_notes(work: EngineWork) -> tuple[str, ...]:
    """A note where the plan was made with the factors of other software."""
    stack = work.planned.prediction["input"].get("stack")
    planned_with = str(stack.get("id") if isinstance(stack, dict) else stack)
    if planned_with in (work.info.stack, work.info.id) or "schema" not in work.planned.prediction:
        return ()
    if work.info.tasks == ("generate",):
        return ()  # nothing is trained, and its stack has no factors of its own
    return (
        f"the plan's times are those of stack {planned_with}: plan with --stack {work.info.id} for those of the engine",
    )


def engine_interpreter(given: str, options: Mapping[str, Any], site: Site, info: EngineInfo) -> str:
    """The word that starts Python in the job: that of an image, a module or an environment, else this one."""
    if given:
        return given
    entry = site.engine(info.id)
    elsewhere = any(options.get(name) for name in ("container", "venv", "modules"))
    if elsewhere or (entry is not None and (entry.container or entry.modules)):
        return "python"
    return sys.executable


def write_engine_job(work: EngineWork, request: JobRequest, script: JobScript, *, site: Site, catalog: Catalog) -> None:
    """Write the run directory of the job. The same run resumes; another one is refused."""
    directory = RunDirectory.create_or_resume(request.run_dir, work.run.document(), plan_id=work.planned.plan_id)
    write_document(directory.plan, work.stage_plan or work.plan)
    if "schema" in work.planned.prediction:  # a plan of a stage has no prediction of a training step
        write_document(directory.prediction, work.planned.prediction)
    for name, text in work.job.files.items():
        path = directory.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    expected = request_of_job(request, site, catalog, device=work.request.device)
    write_document(directory.preflight_request, expected.as_document())
    write_text(directory.script, script.text)
