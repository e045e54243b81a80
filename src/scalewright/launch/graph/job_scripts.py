"""Scripts of a graph's stages: rendered for the site, or taken as they are. One per stage and part of its array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.errors import ConfigError
from scalewright.launch.graph.graph import Graph, Stage
from scalewright.launch.graph.manifest import ALONE, LaunchFolder, environment_errors
from scalewright.launch.graph.progress import num_parts
from scalewright.launch.plan_job import PlannedJob, planned_job, planned_request
from scalewright.launch.script.render import render
from scalewright.launch.script.request import ArrayTasks, JobRequest
from scalewright.records.documents import read_document, read_text, write_document, write_text
from scalewright.records.run_directory import RunDirectory
from scalewright.sites.types import Site
from scalewright.sites.walltime import format_walltime

_HEADER = ("account", "partition", "qos", "constraint", "reservation")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageScript:
    """One script: what sbatch is given for a part of a stage."""

    stage: str
    part: int
    run_dir: Path
    text: str
    items: tuple[str, ...]
    notes: tuple[str, ...] = ()
    plan: Mapping[str, Any] | None = None
    planned: PlannedJob | None = None

    @property
    def path(self) -> Path:
        return script_path(self.run_dir)

    @property
    def items_file(self) -> Path:
        return self.run_dir / "items.txt"


def stage_scripts(graph: Graph, stage: Stage, folder: LaunchFolder, site: Site | None, size: int) -> list[StageScript]:
    """Every script of a stage; `size` is the largest number of tasks of one array."""
    parts = num_parts(stage, size)
    found = []
    for part in range(parts):
        run_dir = part_folder(folder, stage, part, size)
        items = stage.items[part * size : (part + 1) * size]
        if stage.script is not None:
            text = read_text(stage.script)
            found.append(StageScript(stage=stage.name, part=part, run_dir=run_dir, text=text, items=items))
        elif site is None:
            raise ConfigError(f"stage {stage.name} needs a site to be made into a script: give --site")
        elif stage.plan is not None:
            found.append(_planned(graph, stage, run_dir, site))
        else:
            request = _request(graph, stage, run_dir, items)
            made = render(request, site)
            found.append(
                StageScript(stage=stage.name, part=part, run_dir=run_dir, text=made.text, items=items, notes=made.notes)
            )
    return found


def job_name(graph: Graph, stage: Stage) -> str:
    return graph.name if stage.name == ALONE else f"{graph.name}.{stage.name}"


def part_folder(folder: LaunchFolder, stage: Stage, part: int, size: int) -> Path:
    """The run directory of a stage, or of one part where its items fill several arrays."""
    whole = folder.stage(stage.name).absolute()
    return whole / f"part-{part}" if num_parts(stage, size) > 1 else whole


def script_path(run_dir: Path) -> Path:
    return run_dir / "script.sh"


def own_options(graph: Graph, stage: Stage, run_dir: Path) -> tuple[str, ...]:
    """What sbatch's command line adds to a script of somebody's own; a rendered one has it in its header."""
    if stage.script is None:
        return ()
    log = "%A_%a" if stage.items else "%j"
    more = stage.options.get("directives", {})
    options = [f"--chdir={graph.folder}", f"--output={run_dir}/logs/slurm-{log}.out", "--open-mode=append"]
    options += [f"--{name}={stage.options[name]}" for name in _HEADER if stage.options.get(name)]
    options += [f"--{name}={value}" if value else f"--{name}" for name, value in more.items()]
    if stage.num_nodes is not None:
        options.append(f"--nodes={stage.num_nodes}")
    if stage.gpus_per_node:
        options.append(f"--gpus-per-node={stage.gpus_per_node}")
    if stage.walltime_s is not None:
        options.append(f"--time={format_walltime(stage.walltime_s)}")
    return tuple(options)


def _request(graph: Graph, stage: Stage, run_dir: Path, items: tuple[str, ...]) -> JobRequest:
    assert stage.num_nodes is not None  # a command without its nodes or time was refused with the file
    assert stage.walltime_s is not None
    array = None
    if items:
        width = min(stage.width, len(items))
        array = ArrayTasks(manifest=run_dir / "items.txt", num_items=len(items), max_running=width)
    return JobRequest(
        command=stage.command, num_nodes=stage.num_nodes, gpus_per_node=stage.gpus_per_node,
        walltime_s=stage.walltime_s, run_dir=run_dir, work_dir=graph.folder, name=job_name(graph, stage), array=array,
        **_options(stage),
    )  # fmt: skip


def _options(stage: Stage) -> dict[str, Any]:
    return dict(stage.options) | {"modules": tuple(stage.options.get("modules", ()))}


def _planned(graph: Graph, stage: Stage, run_dir: Path, site: Site) -> StageScript:
    assert stage.plan is not None
    plan = read_document(stage.plan, "plan")
    planned = planned_job(plan, where=str(stage.plan))
    request = planned_request(
        planned, site, _options(stage), walltime_s=stage.walltime_s, run_dir=run_dir, work_dir=graph.folder,
        name=job_name(graph, stage),
    )  # fmt: skip
    script = render(request, site)
    return StageScript(
        stage=stage.name, part=0, run_dir=run_dir, text=script.text, items=(), notes=script.notes,
        plan=plan, planned=planned,
    )  # fmt: skip


def write_scripts(scripts: list[StageScript]) -> None:
    """Everything that a stage needs on disk before it is submitted; the same again changes nothing."""
    for script in scripts:
        with environment_errors(script.run_dir):
            if script.planned is not None and script.plan is not None:
                config = script.planned.config.document()
                directory = RunDirectory.create_or_resume(script.run_dir, config, plan_id=script.planned.plan_id)
                write_document(directory.plan, dict(script.plan))
                write_document(directory.prediction, script.planned.prediction)
            (script.run_dir / "logs").mkdir(parents=True, exist_ok=True)
            if script.items:
                write_text(script.items_file, "".join(f"{item}\n" for item in script.items), is_synced=False)
            write_text(script.path, script.text, is_synced=False)
