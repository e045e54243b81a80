"""`scalewright launch PLAN.json --engine X`: the run of a plan with one of the engines that people train with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from scalewright.engines.plan_job import EngineWork
    from scalewright.launch.script.request import JobRequest
    from scalewright.sites.types import Site

RULE = "# " + "-" * 70


def launch_engine(
    engine: str, words: tuple[str, ...], site: Site, options: Mapping[str, Any], catalog: Path | None, *,
    of_engine: Mapping[str, str], settings: Mapping[str, str], walltime_s: int | None, name: str,
    run_dir: Path | None, device: str, force: bool, limit_gpu_hours: float | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Check what the user gave, then print the script and files, or submit."""
    from scalewright.engines.environment import check_installed
    from scalewright.engines.info import find_engine
    from scalewright.engines.plan_job import (
        engine_interpreter,
        engine_job_request,
        engine_work,
        open_placeholders,
        read_plan,
    )
    from scalewright.errors import ConfigError
    from scalewright.launch.single_job import check_limit, planned_gpu_hours

    info = find_engine(engine)
    if not words or not words[0].endswith(".json"):
        raise ConfigError(f"--engine {engine} trains a plan: give PLAN.json first, made with scalewright plan --out")
    python = engine_interpreter(of_engine["python"], options, site, info)
    work = engine_work(
        info, read_plan(Path(words[0])), where=words[0], run_dir=run_dir, task=of_engine["task"],
        given=of_engine, settings=settings, extra_args=words[1:], device="cpu" if device == "cpu" else "cuda",
        python=python,
    )  # fmt: skip
    request = engine_job_request(work, site, options, walltime_s=walltime_s, name=name)
    missing = open_placeholders(work)
    if missing and not dry_run:
        raise ConfigError(missing)
    if Path(python).is_absolute() and not dry_run:
        check_installed(info, python, force=force)
    hours = planned_gpu_hours(work.plan)
    check_limit(hours, None if force else limit_gpu_hours)
    _finish(work, request, site, catalog, hours=hours, missing=missing, dry_run=dry_run, as_json=as_json)


def _finish(
    work: EngineWork, request: JobRequest, site: Site, catalog: Path | None, *, hours: float, missing: str,
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    from scalewright.catalog.library import open_catalog
    from scalewright.engines.plan_job import write_engine_job
    from scalewright.launch.graph.launches import submit_alone
    from scalewright.launch.job_files import kept_if_submitted
    from scalewright.launch.script.render import render
    from scalewright.launch.single_job import large_job_warning, next_commands
    from scalewright.launch.slurm.sbatch import check_sbatch
    from scalewright.records.documents import document, to_json
    from scalewright.records.run_directory import RunDirectory
    from scalewright.units import grouped

    script = render(request, site)
    body: dict[str, Any] = {
        "site": site.id, "engine": work.info.id, "run_dir": str(request.run_dir), "num_gpu_hours": hours,
        "notes": list(script.notes), "files": dict(work.job.files), "missing": missing,
        "untested": work.info.is_untested, "resume": work.job.resume,
    }  # fmt: skip
    output, notes = _shown(work, script.text), [*script.warnings]
    commands: dict[str, str] = {}
    library = open_catalog(catalog)
    large = large_job_warning(hours, site, library, what="the run of this plan")
    body["warnings"] = [large] if large else []
    if large:
        _say(f"warning: {large}")
    if not dry_run:
        check_sbatch()
        with kept_if_submitted(RunDirectory(request.run_dir), [request.run_dir / name for name in work.job.files]):
            write_engine_job(work, request, script, site=site, catalog=library)
            body["job"] = submit_alone(request, site, items=(), say=_say)
        output, notes, commands = f"{body['job']}\n", list(script.notes), next_commands(request, body["job"])
        body["next"] = list(commands.values())
    if not as_json:
        for note in [*notes, *filter(None, [missing, work.job.resume])]:
            _say(f"note: {note}")
    typer.echo(to_json(document("job-script", body | {"script": script.text})) if as_json else output, nl=False)
    if commands and not as_json:
        _say(f"job {body['job']} is submitted, for {grouped(hours)} GPU-hours; its run directory is {request.run_dir}")
        for purpose, command in commands.items():
            _say(f"  {purpose + ':':14} {command}")


def _shown(work: EngineWork, script: str) -> str:
    """The script, then each file of the engine under its name; our own programs by name only."""
    parts = [script]
    for name, text in work.job.files.items():
        is_program = name.endswith(".py")
        parts.append(f"{RULE}\n# file {name}{' (a program of scalewright)' if is_program else ''}\n{RULE}\n")
        parts.append("" if is_program else text)
    return "".join(parts)


def _say(text: str) -> None:
    typer.echo(text, err=True)
