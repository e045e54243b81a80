"""`scalewright launch`: a plan or any command as a job that an expert would have written for that cluster."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from scalewright.launch.job_request import Container, JobRequest, Script
    from scalewright.launch.plan_job import PlannedJob

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PLAN.json | -- COMMAND...]", help="What to run.", show_default=False),
]
SiteName = Annotated[str, typer.Option(help="Profile of the cluster (see: site show).", show_default=False)]
Nodes = Annotated[int | None, typer.Option(help="Nodes; a plan says it itself.", show_default=False)]
GpusPerNode = Annotated[int, typer.Option(help="0: all that a node has.")]
TimeText = Annotated[str, typer.Option("--time", help="HH:MM:SS or D-HH:MM:SS; default: as the plan predicts.")]
Account = Annotated[str, typer.Option(help="Project that pays.")]
Partition = Annotated[str, typer.Option(help="Default: the site's.")]
Qos = Annotated[str, typer.Option(help="Default: the site's.")]
Constraint = Annotated[str, typer.Option(help="Node features, such as 'a100|h100&nvlink'.")]
Reservation = Annotated[str, typer.Option(help="Reservation to run in.")]
Switches = Annotated[str, typer.Option(help="Most leaf switches, and how long to wait: 1@12:00:00.")]
Mig = Annotated[str, typer.Option(help="Slices of GPUs instead of whole ones: 1g.10gb.")]
JobName = Annotated[str, typer.Option("--name", help="Name of the job.")]
LauncherName = Annotated[str, typer.Option(help="srun (one task per GPU), torchrun, or auto: the site's.")]
TransportName = Annotated[str, typer.Option(help="rdma, ofi-plugin, ipoib, tcp, ...: forced; auto: the site's.")]
ImageName = Annotated[str, typer.Option("--container", metavar="IMAGE[@sha256:DIGEST]", help="Image to run in.")]
RuntimeName = Annotated[str, typer.Option(help="apptainer, pyxis, shifter, or auto: the site's.")]
ModuleNames = Annotated[list[str] | None, typer.Option("--module", help="Module to load; may be repeated.")]
Venv = Annotated[Path | None, typer.Option(metavar="DIR", help="Virtual environment to run in.")]
StagePaths = Annotated[list[Path] | None, typer.Option("--stage", help="Copy to every node first; it is in {stage}.")]
Manifest = Annotated[Path | None, typer.Option("--array", metavar="FILE", help="One task per line, which is {item}.")]
Width = Annotated[int, typer.Option(help="Tasks of the array that may run at once.")]
EnvTexts = Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Variable of the job.")]
Directives = Annotated[list[str] | None, typer.Option("--directive", metavar="NAME=VALUE", help="Any sbatch option.")]
Notice = Annotated[str, typer.Option(help="How long before the end ranks are asked to save, such as 5 min.")]
NoRequeue = Annotated[bool, typer.Option("--no-requeue", help="Do not queue the job again.")]
RunDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Default: runs/TIME-NAME. The same one resumes.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the script; submit and write nothing.")]


def run(
    words: Words = None,
    *,
    site: SiteName,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = 0,
    time: TimeText = "",
    account: Account = "",
    partition: Partition = "",
    qos: Qos = "",
    constraint: Constraint = "",
    reservation: Reservation = "",
    switches: Switches = "",
    mig: Mig = "",
    name: JobName = "",
    launcher: LauncherName = "auto",
    transport: TransportName = "auto",
    container: ImageName = "",
    runtime: RuntimeName = "auto",
    module: ModuleNames = None,
    venv: Venv = None,
    stage: StagePaths = None,
    array: Manifest = None,
    width: Width = 20,
    env: EnvTexts = None,
    directive: Directives = None,
    notice: Notice = "",
    no_requeue: NoRequeue = False,
    run_dir: RunDir = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Make a job of a plan or a command and submit it. Exit 3: sbatch is missing or refuses."""
    asked: dict[str, Any] = {
        "account": account, "partition": partition, "qos": qos, "constraint": constraint, "reservation": reservation,
        "switches": switches, "mig": mig, "launcher": _choice("--launcher", launcher, ("auto", "srun", "torchrun")),
        "transport": transport, "container": _container(container, runtime), "modules": tuple(module or ()),
        "venv": "" if venv is None else str(venv.resolve()), "stage": tuple(str(p.resolve()) for p in stage or ()),
        "variables": _pairs("--env", env), "directives": _pairs("--directive", directive), "requeue": not no_requeue,
        "work_dir": Path.cwd(), "notice_s": _seconds(notice),
    }  # fmt: skip
    job = _Job(list(words or ()), site, catalog)
    request = job.request(asked, nodes, gpus_per_node, time=time, name=name, run_dir=run_dir, array=array)
    request, items = _with_array(request, array, width)
    job.finish(request, items, dry_run=dry_run, as_json=as_json)


class _Job:
    """What is launched: a plan's run, or a command."""

    def __init__(self, words: list[str], site: str, catalog: Path | None) -> None:
        from scalewright.launch.plan_job import planned_job
        from scalewright.launch.sites.loader import find_site
        from scalewright.records.documents import read_document

        self.words, self.site, self.catalog = words, find_site(site, catalog), catalog
        self.plan: dict[str, Any] | None = None
        self.planned: PlannedJob | None = None
        if len(words) == 1 and words[0].endswith(".json"):
            self.plan = read_document(Path(words[0]), "plan")
            self.planned = planned_job(self.plan, where=words[0])

    def request(
        self,
        asked: dict[str, Any],
        nodes: int | None,
        gpus_per_node: int,
        *,
        time: str,
        name: str,
        run_dir: Path | None,
        array: Path | None,
    ) -> JobRequest:
        from scalewright.errors import ConfigError
        from scalewright.launch.job_request import JobRequest
        from scalewright.launch.walltime import parse_walltime_s
        from scalewright.records.run_directory import new_run_id

        walltime_s = parse_walltime_s(time) if time else 0
        if self.planned is not None:
            if array is not None:
                raise ConfigError("a plan is one job: leave out --array, or give a command after --")
            if nodes is not None or gpus_per_node:
                raise ConfigError("a plan says how many nodes and GPUs it takes: leave out --nodes and --gpus-per-node")
            return self._planned_request(self.planned, asked, walltime_s=walltime_s, name=name, run_dir=run_dir)
        if nodes is None:
            raise ConfigError("how many nodes? give --nodes")
        command = tuple(self.words)
        program = next((word for word in command if word.endswith((".py", ".sh"))), command[0] if command else "job")
        folder = run_dir or Path("runs") / new_run_id(name or Path(program).stem or "job")
        return JobRequest(
            command=command, num_nodes=nodes, gpus_per_node=gpus_per_node, walltime_s=walltime_s,
            name=name or "scalewright", run_dir=folder.absolute(), **asked,
        )  # fmt: skip

    def _planned_request(
        self, planned: PlannedJob, asked: dict[str, Any], *, walltime_s: int, name: str, run_dir: Path | None
    ) -> JobRequest:
        from scalewright.launch.job_request import JobRequest
        from scalewright.launch.plan_job import check_site, planned_notice_s, planned_walltime_s
        from scalewright.records.run_directory import new_run_id

        notes = check_site(planned, self.site)
        if not walltime_s:
            walltime_s, more = planned_walltime_s(planned, self.site, partition=asked["partition"], qos=asked["qos"])
            notes = (*notes, *more)
        folder = (run_dir or Path("runs") / new_run_id(f"language-{planned.config.model_id}")).absolute()
        python = "python" if asked["container"] is not None or asked["venv"] or asked["modules"] else sys.executable
        return JobRequest(
            command=(python, "-m", "scalewright.run", "language", "--run-dir", str(folder)),
            num_nodes=planned.num_nodes, gpus_per_node=planned.gpus_per_node, walltime_s=walltime_s,
            name=name or "scalewright", run_dir=folder, finds_its_rank=True, notes=notes,
            **asked | {"notice_s": asked["notice_s"] or planned_notice_s(planned, walltime_s)},
        )  # fmt: skip

    def finish(self, request: JobRequest, items: str, *, dry_run: bool, as_json: bool) -> None:
        """Print the script, or write the run directory and submit."""
        from scalewright.launch.launches import submit_alone
        from scalewright.launch.slurm_script import render
        from scalewright.launch.submit import check_sbatch
        from scalewright.records.documents import document, to_json

        script = render(request, self.site)
        body: dict[str, Any] = {"site": self.site.id, "run_dir": str(request.run_dir), "notes": list(script.notes)}
        answer, shown = script.text, script.warnings
        if not dry_run:
            check_sbatch()
            self._write(request, script, items)
            body["job"] = submit_alone(request, self.site, items=items.splitlines(), say=_say)
            answer, shown = f"{body['job']}\n", script.notes
        for note in () if as_json else shown:
            typer.echo(f"note: {note}", err=True)
        typer.echo(to_json(document("job-script", body | {"script": script.text})) if as_json else answer, nl=False)

    def _write(self, request: JobRequest, script: Script, items: str) -> None:
        from scalewright.catalog.library import open_catalog
        from scalewright.launch.preflight_request import request_of_job
        from scalewright.records.documents import document, write_document, write_text
        from scalewright.records.run_directory import RunDirectory

        planned = self.planned
        if planned is None:
            body = {"command": list(request.command), "site": self.site.id, "items": items.splitlines()}
            config, plan_id = document("command-run", body), ""
        else:
            config, plan_id = planned.config.document(), planned.plan_id
        directory = RunDirectory.create_or_resume(request.run_dir, config, plan_id=plan_id)
        if self.plan is not None and planned is not None:
            write_document(directory.plan, self.plan)
            write_document(directory.prediction, planned.prediction)
        if request.array is not None:
            write_text(request.array.manifest, items)
        expected = request_of_job(request, self.site, open_catalog(self.catalog))
        write_document(directory.preflight_request, expected.as_document())
        write_text(directory.script, script.text)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _with_array(request: JobRequest, file: Path | None, width: int) -> tuple[JobRequest, str]:
    """The request with one task per line of the file, which is kept beside the run: later edits change nothing."""
    if file is None:
        return request, ""
    from scalewright.errors import ConfigError
    from scalewright.launch.job_request import ArrayTasks
    from scalewright.records.documents import read_text

    lines = read_text(file).split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    empty = next((number for number, line in enumerate(lines, start=1) if not line.strip()), 0)
    if empty:
        raise ConfigError(f"{file}, line {empty}: is empty; write one work item per line")
    tasks = ArrayTasks(manifest=request.run_dir / "manifest.txt", num_items=len(lines), max_running=width)
    return replace(request, array=tasks), "".join(f"{line}\n" for line in lines)


def _container(text: str, runtime: str) -> Container | None:
    from scalewright.launch.job_request import Container

    kind = _choice("--runtime", runtime, ("auto", "apptainer", "pyxis", "shifter"))
    if not text:
        return None
    image, mark, digest = text.rpartition("@sha256:")
    if mark and "://" in image:
        image, digest = text, ""  # a registry checks the digest of a reference itself
    elif not mark:
        image, digest = text, ""
    local = image if "://" in image or not Path(image).is_file() else str(Path(image).resolve())
    return Container(image=local, sha256=digest, runtime=kind)  # type: ignore[arg-type]


def _choice(flag: str, value: str, allowed: tuple[str, ...]) -> str:
    from scalewright.errors import ConfigError

    if value not in allowed:
        raise ConfigError(f"{flag} {value!r} is not known: choose {', '.join(allowed)}")
    return value


def _pairs(flag: str, texts: list[str] | None) -> dict[str, str]:
    """NAME=VALUE; a directive may have no value."""
    from scalewright.errors import ConfigError

    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals and flag == "--env":
            raise ConfigError(f"{flag} {text!r} has no value: write NAME=VALUE")
        if key in pairs:
            raise ConfigError(f"{flag} {key} is given twice: give it once")
        pairs[key] = value
    return pairs


def _seconds(text: str) -> int:
    from scalewright import units

    return int(units.parse(text, units.SECONDS)) if text else 0
