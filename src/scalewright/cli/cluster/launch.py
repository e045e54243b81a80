"""`scalewright launch`: run a plan or any command as a job on a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewright.cli.cluster.options import Constraint, Force, Qos
from scalewright.cli.options import AsJson, CatalogFolder, RunFolder

if TYPE_CHECKING:
    from scalewright.launch.script.request import Container, JobRequest
    from scalewright.launch.single_job import JobWork
    from scalewright.sites.types import Site

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PLAN.json | -- COMMAND...]", help="What to run.", show_default=False),
]
SiteName = Annotated[
    str, typer.Option(help="Profile of the cluster (see: site show); here: the cluster you are on.", show_default=False)
]
Nodes = Annotated[int | None, typer.Option(help="Nodes; a plan has its own number.", show_default=False)]
GpusPerNode = Annotated[int, typer.Option(help="0: all GPUs of a node.")]
Spares = Annotated[int, typer.Option(help="Additional nodes: the run uses those that pass the pre-flight check.")]
Device = Annotated[str, typer.Option(help="Device of a plan's run: cuda, or cpu for a rehearsal; auto: cuda.")]
TimeText = Annotated[str, typer.Option("--time", help="HH:MM:SS or D-HH:MM:SS; default: as the plan predicts.")]
Account = Annotated[str, typer.Option(help="Project to charge.")]
Partition = Annotated[str, typer.Option(help="Default: the site's.")]
Reservation = Annotated[str, typer.Option(help="Reservation to run in.")]
Switches = Annotated[str, typer.Option(help="Largest number of leaf switches, and the wait for it: 1@12:00:00.")]
Mig = Annotated[str, typer.Option(help="MIG slices instead of whole GPUs: 1g.10gb.")]
JobName = Annotated[str, typer.Option("--name", help="Name of the job.")]
LauncherName = Annotated[str, typer.Option(help="srun (one task per GPU), torchrun, or auto: the site's.")]
TransportName = Annotated[str, typer.Option(help="rdma, ofi-plugin, ipoib, tcp, ...: forced; auto: the site's.")]
ImageName = Annotated[str, typer.Option("--container", metavar="IMAGE[@sha256:DIGEST]", help="Image to run in.")]
RuntimeName = Annotated[str, typer.Option(help="apptainer, pyxis, shifter, or auto: the site's.")]
ModuleNames = Annotated[list[str] | None, typer.Option("--module", help="Module to load; may be repeated.")]
Venv = Annotated[Path | None, typer.Option(metavar="DIR", help="Virtual environment to run in.")]
CopiedPaths = Annotated[list[Path] | None, typer.Option("--copy", help="Copy to every node first; it is in {copy}.")]
ItemsFile = Annotated[Path | None, typer.Option("--array", metavar="FILE", help="One task per line; it is {item}.")]
Width = Annotated[int, typer.Option(help="Largest number of array tasks that run at once.")]
EnvTexts = Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Variable of the job.")]
Directives = Annotated[list[str] | None, typer.Option("--directive", metavar="NAME=VALUE", help="Any sbatch option.")]
Notice = Annotated[str, typer.Option(help="How long before the time limit the ranks save, such as 5 min.")]
NoRequeue = Annotated[bool, typer.Option("--no-requeue", help="Do not requeue the job at its time limit.")]
LimitHours = Annotated[float | None, typer.Option(help="Refuse a job that may use more.", min=0.0, show_default=False)]
OnRay = Annotated[bool, typer.Option("--ray", help="Start Ray on all nodes, and the command once, beside its head.")]
EngineName = Annotated[
    str,
    typer.Option("--engine", help="Run a plan with megatron, torchtitan, deepspeed, huggingface, trl, verl, vllm."),
]
TaskName = Annotated[str, typer.Option("--task", help="Of --engine: pretrain, sft, grpo or generate.")]
DataName = Annotated[str, typer.Option("--data", help="Of --engine: data set or token file; synthetic: random tokens.")]
LoadFolder = Annotated[str, typer.Option("--load", help="Of --engine: folder of the weights to start from.")]
TokenizerPath = Annotated[str, typer.Option("--tokenizer", help="Of --engine: folder or file of the tokenizer.")]
EngineFolder = Annotated[str, typer.Option("--engine-dir", help="Of --engine: checkout of Megatron-LM.")]
EnginePython = Annotated[str, typer.Option("--python", help="Of --engine: interpreter that has the engine.")]
SetTexts = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Of --engine: key of its own configuration.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the script; submit and write nothing.")]


def run(
    words: Words = None,
    *,
    site: SiteName,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = 0,
    spares: Spares = 0,
    device: Device = "auto",
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
    ray: OnRay = False,
    transport: TransportName = "auto",
    container: ImageName = "",
    runtime: RuntimeName = "auto",
    module: ModuleNames = None,
    venv: Venv = None,
    copy: CopiedPaths = None,
    array: ItemsFile = None,
    width: Width = 20,
    env: EnvTexts = None,
    directive: Directives = None,
    notice: Notice = "",
    no_requeue: NoRequeue = False,
    limit_gpu_hours: LimitHours = None,
    engine: EngineName = "",
    task: TaskName = "",
    data: DataName = "",
    load: LoadFolder = "",
    tokenizer: TokenizerPath = "",
    engine_dir: EngineFolder = "",
    python: EnginePython = "",
    set_: SetTexts = None,
    force: Force = False,
    run_dir: RunFolder = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Submit a plan or a command as a job. Exit 1: over the limit; 3: sbatch is missing or refuses."""
    options: dict[str, Any] = {
        "account": account, "partition": partition, "qos": qos, "constraint": constraint, "reservation": reservation,
        "switches": switches, "mig": mig, "launcher": _choice("--launcher", launcher, ("auto", "srun", "torchrun")),
        "transport": transport, "container": _container(container, runtime), "modules": tuple(module or ()),
        "venv": "" if venv is None else str(venv.resolve()),
        "copied_paths": tuple(str(p.resolve()) for p in copy or ()),
        "variables": _pairs("--env", env), "directives": _pairs("--directive", directive), "requeue": not no_requeue,
        "notice_s": _seconds(notice), "num_spares": spares, "ray": ray,
    }  # fmt: skip
    of_engine = {"task": task, "data": data, "load": load, "tokenizer": tokenizer, "engine_dir": engine_dir,
                 "python": python}  # fmt: skip
    flags = LaunchFlags(
        words=tuple(words or ()), site=site, nodes=nodes, gpus_per_node=gpus_per_node, device=device, time=time,
        name=name, array=array, width=width, limit_gpu_hours=limit_gpu_hours, force=force, run_dir=run_dir,
        dry_run=dry_run, as_json=as_json, catalog=catalog,
    )  # fmt: skip
    if engine:
        _run_engine(engine, flags, options, of_engine, _pairs("--set", set_))
    else:
        _run_job(flags, options, [name for name, value in (*of_engine.items(), ("set", set_)) if value])


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFlags:
    """Options of launch that are no fields of the job's request."""

    words: tuple[str, ...]
    site: str
    nodes: int | None
    gpus_per_node: int
    device: str
    time: str
    name: str
    array: Path | None
    width: int
    limit_gpu_hours: float | None
    force: bool
    run_dir: Path | None
    dry_run: bool
    as_json: bool
    catalog: Path | None

    @property
    def walltime_s(self) -> int | None:
        from scalewright.sites.walltime import parse_walltime_s

        return parse_walltime_s(self.time) if self.time else None


def _run_engine(
    engine: str, flags: LaunchFlags, options: dict[str, Any], of_engine: dict[str, str], settings: dict[str, str]
) -> None:
    """Run a plan with an engine."""
    from scalewright.cli.cluster.engine_job import launch_engine
    from scalewright.errors import ConfigError
    from scalewright.sites.current import site_named

    if flags.array is not None or flags.nodes is not None or flags.gpus_per_node or options["ray"]:
        raise ConfigError("a plan has its own nodes: leave out --array, --nodes, --gpus-per-node and --ray")
    launch_engine(
        engine, flags.words, site_named(flags.site, flags.catalog), options, flags.catalog, of_engine=of_engine,
        settings=settings, walltime_s=flags.walltime_s, name=flags.name, run_dir=flags.run_dir,
        device=_choice("--device", flags.device, ("auto", "cpu", "cuda")), force=flags.force,
        limit_gpu_hours=flags.limit_gpu_hours, dry_run=flags.dry_run, as_json=flags.as_json,
    )  # fmt: skip


def _run_job(flags: LaunchFlags, options: dict[str, Any], of_engine: list[str]) -> None:
    """Run a plan with our reference training, or any command."""
    from scalewright.errors import ConfigError
    from scalewright.launch.single_job import check_limit, job_request, num_gpu_hours, read_work
    from scalewright.sites.current import site_named

    if of_engine:
        flag = of_engine[0].replace("_", "-")
        raise ConfigError(f"--{flag} belongs to an engine: name it with --engine, or leave it out")
    work = read_work(flags.words, _choice("--device", flags.device, ("auto", "cpu", "cuda")))  # type: ignore[arg-type]
    if work.planned is not None and options["ray"]:
        raise ConfigError("a plan starts its own ranks: leave out --ray, or give a program of Ray after --")
    if work.planned is not None and flags.array is not None:
        raise ConfigError("a plan is one job: leave out --array, or give a command after --")
    profile = site_named(flags.site, flags.catalog)
    request = job_request(
        work, profile, options, num_nodes=flags.nodes, gpus_per_node=flags.gpus_per_node, walltime_s=flags.walltime_s,
        name=flags.name, run_dir=flags.run_dir,
    )  # fmt: skip
    request, items = _with_array(request, flags.array, flags.width)
    hours = num_gpu_hours(work, request, profile, num_items=len(items))
    check_limit(hours, None if flags.force else flags.limit_gpu_hours)
    _finish(work, request, items, profile, flags.catalog, hours=hours, dry_run=flags.dry_run, as_json=flags.as_json)


def _finish(
    work: JobWork,
    request: JobRequest,
    items: tuple[str, ...],
    site: Site,
    catalog: Path | None,
    *,
    hours: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Print the script, or write the run directory and submit."""
    from scalewright.catalog.library import open_catalog
    from scalewright.launch.graph.launches import submit_alone
    from scalewright.launch.job_files import kept_if_submitted
    from scalewright.launch.script.render import render
    from scalewright.launch.single_job import (
        large_job_warning,
        next_commands,
        requeue_note,
        size_warning,
        write_job,
    )
    from scalewright.launch.slurm.sbatch import check_sbatch
    from scalewright.records.documents import document, to_json
    from scalewright.records.run_directory import RunDirectory
    from scalewright.sites.scheduler import Runner
    from scalewright.units import grouped

    script, library = render(request, site), open_catalog(catalog)
    body: dict[str, Any] = {"site": site.id, "run_dir": str(request.run_dir), "num_gpu_hours": hours}
    body["notes"] = list(script.notes)
    output, notes = script.text, list(script.warnings)
    commands: dict[str, str] = {}
    is_chain = work.plan is not None and request.requeue
    what = "the run, a chain of jobs," if is_chain else "the job"
    large = large_job_warning(hours, site, library, what=what)
    body["warnings"] = [large] if large else []
    if large:
        _say(f"warning: {large}")
    if not dry_run:
        check_sbatch()
        if warning := size_warning(request, site, Runner(max_tries=1)):
            _say(f"warning: {warning}")
        lists = () if request.array is None else (request.array.manifest,)
        with kept_if_submitted(RunDirectory(request.run_dir), lists):
            write_job(work, request, script, items=items, site=site, catalog=library)
            body["job"] = submit_alone(request, site, items=items, say=_say)
        output, notes, commands = f"{body['job']}\n", list(script.notes), next_commands(request, body["job"])
        body["next"] = list(commands.values())
    notes += filter(None, [requeue_note(work, request)])
    for note in () if as_json else notes:
        _say(f"note: {note}")
    typer.echo(to_json(document("job-script", body | {"script": script.text})) if as_json else output, nl=False)
    if commands and not as_json:
        _say(f"job {body['job']} is submitted, for {grouped(hours)} GPU-hours; its run directory is {request.run_dir}")
        for purpose, command in commands.items():
            _say(f"  {purpose + ':':14} {command}")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _with_array(request: JobRequest, file: Path | None, width: int) -> tuple[JobRequest, tuple[str, ...]]:
    """The request with one task per line of the file. The lines are copied, so later edits do not matter."""
    if file is None:
        return request, ()
    from scalewright.launch.graph.file import read_items
    from scalewright.launch.script.request import ArrayTasks

    items = read_items(file)
    tasks = ArrayTasks(manifest=request.run_dir / "manifest.txt", num_items=len(items), max_running=width)
    return replace(request, array=tasks), items


def _container(text: str, runtime: str) -> Container | None:
    from scalewright.launch.script.request import Container

    kind = _choice("--runtime", runtime, ("auto", "apptainer", "pyxis", "shifter"))
    if not text:
        return None
    image, mark, digest = text.rpartition("@sha256:")
    if mark and "://" in image:
        image, digest = text, ""  # the registry checks the digest of a reference
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
    """NAME=VALUE texts as a dictionary. A directive may have no value."""
    from scalewright.errors import ConfigError

    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals and flag in ("--env", "--set"):
            raise ConfigError(f"{flag} {text!r} has no value: write {'NAME' if flag == '--env' else 'KEY'}=VALUE")
        if key in pairs:
            raise ConfigError(f"{flag} {key} is given twice: give it once")
        pairs[key] = value
    return pairs


def _seconds(text: str) -> int:
    from scalewright import units
    from scalewright.errors import ConfigError, QuantityError

    try:
        return int(units.parse(text, units.SECONDS)) if text else 0
    except QuantityError as error:
        raise ConfigError(f"--notice {error}") from error
