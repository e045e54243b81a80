"""The scripts of a graph's jobs: rendered for the site, or the user's own. One for each part of each job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.errors import ConfigError
from scalewright.launch.graph.graph import Graph, GraphJob
from scalewright.launch.graph.manifest import ALONE, LaunchFolder, environment_errors
from scalewright.launch.graph.progress import num_parts
from scalewright.launch.plan_job import PlannedJob, planned_job, planned_request
from scalewright.launch.script.render import render
from scalewright.launch.script.request import ArrayTasks, JobRequest
from scalewright.records.documents import read_document, read_text, write_document, write_text
from scalewright.records.run_directory import RunDirectory
from scalewright.sites.types import Site
from scalewright.sites.walltime import format_walltime

_HEADER_OPTIONS = ("account", "partition", "qos", "constraint", "reservation")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphJobScript:
    """The script of one part of a job, and the files it needs."""

    job: str
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


def graph_job_scripts(
    graph: Graph, job: GraphJob, folder: LaunchFolder, site: Site | None, size: int
) -> list[GraphJobScript]:
    """Every script of a job; `size` is the largest number of tasks of one array."""
    scripts = []
    for part in range(num_parts(job, size)):
        run_dir = part_folder(folder, job, part, size)
        items = job.items[part * size : (part + 1) * size]
        if job.script is not None:
            text = read_text(job.script)
            scripts.append(GraphJobScript(job=job.name, part=part, run_dir=run_dir, text=text, items=items))
        elif site is None:
            raise ConfigError(f"job {job.name} needs the profile of a site for its script: give --site")
        elif job.plan is not None:
            scripts.append(_planned_script(graph, job, run_dir, site))
        else:
            rendered = render(_request(graph, job, run_dir, items), site)
            scripts.append(
                GraphJobScript(
                    job=job.name, part=part, run_dir=run_dir, text=rendered.text, items=items, notes=rendered.notes
                )
            )
    return scripts


def job_name(graph: Graph, job: GraphJob) -> str:
    return graph.name if job.name == ALONE else f"{graph.name}.{job.name}"


def part_folder(folder: LaunchFolder, job: GraphJob, part: int, size: int) -> Path:
    """The run directory of a job, or of one part of it if its items fill several arrays."""
    whole = folder.job(job.name).absolute()
    return whole / f"part-{part}" if num_parts(job, size) > 1 else whole


def script_path(run_dir: Path) -> Path:
    return run_dir / "script.sh"


def own_options(graph: Graph, job: GraphJob, run_dir: Path) -> tuple[str, ...]:
    """Options of sbatch for the user's own script. A rendered script has them in its header."""
    if job.script is None:
        return ()
    log = "%A_%a" if job.items else "%j"
    more = job.options.get("directives", {})
    options = [f"--chdir={graph.folder}", f"--output={run_dir}/logs/slurm-{log}.out", "--open-mode=append"]
    options += [f"--{name}={job.options[name]}" for name in _HEADER_OPTIONS if job.options.get(name)]
    options += [f"--{name}={value}" if value else f"--{name}" for name, value in more.items()]
    if job.num_nodes is not None:
        options.append(f"--nodes={job.num_nodes}")
    if job.gpus_per_node:
        options.append(f"--gpus-per-node={job.gpus_per_node}")
    if job.walltime_s is not None:
        options.append(f"--time={format_walltime(job.walltime_s)}")
    return tuple(options)


def _request(graph: Graph, job: GraphJob, run_dir: Path, items: tuple[str, ...]) -> JobRequest:
    assert job.num_nodes is not None  # `resolve` refuses a command without nodes or time
    assert job.walltime_s is not None
    array = None
    if items:
        width = min(job.width, len(items))
        array = ArrayTasks(manifest=run_dir / "items.txt", num_items=len(items), max_running=width)
    return JobRequest(
        command=job.command, num_nodes=job.num_nodes, gpus_per_node=job.gpus_per_node,
        walltime_s=job.walltime_s, run_dir=run_dir, work_dir=graph.folder, name=job_name(graph, job), array=array,
        **_options(job),
    )  # fmt: skip


def _options(job: GraphJob) -> dict[str, Any]:
    return dict(job.options) | {"modules": tuple(job.options.get("modules", ()))}


def _planned_script(graph: Graph, job: GraphJob, run_dir: Path, site: Site) -> GraphJobScript:
    assert job.plan is not None
    plan = read_document(job.plan, "plan")
    planned = planned_job(plan, where=str(job.plan))
    request = planned_request(
        planned, site, _options(job), walltime_s=job.walltime_s, run_dir=run_dir, work_dir=graph.folder,
        name=job_name(graph, job),
    )  # fmt: skip
    script = render(request, site)
    return GraphJobScript(
        job=job.name, part=0, run_dir=run_dir, text=script.text, items=(), notes=script.notes,
        plan=plan, planned=planned,
    )  # fmt: skip


def write_scripts(scripts: list[GraphJobScript]) -> None:
    """Write all files that a job needs before it is submitted. A second call changes nothing."""
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
