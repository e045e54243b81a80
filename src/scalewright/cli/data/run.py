"""`scalewright data run`: a pipeline file becomes a data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.data.check import PipelinePath
from scalewright.cli.options import AsJson

if TYPE_CHECKING:
    from scalewright.data.text.execution.backend import Backend

DataFolder = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Where the data set goes. The same one resumes.")
]
Workers = Annotated[int | None, typer.Option("--workers", help="Processes; default: the cores of this machine.")]
OnRay = Annotated[bool, typer.Option("--ray", help="Run on the nodes of a Ray cluster: inside `launch --ray`.")]
KeepWork = Annotated[bool, typer.Option("--keep-work", help="Keep the intermediate files.")]


def run(
    pipeline: PipelinePath, out: DataFolder = Path("data-set"), workers: Workers = None, ray: OnRay = False,
    keep_work: KeepWork = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Read, clean, deduplicate, tokenise, shuffle and write. Run it again to go on after a kill."""
    from scalewright.data.text.execution.worker_start import one_thread
    from scalewright.errors import ConfigError

    if ray and workers is not None:
        raise ConfigError("--workers and --ray both say it: leave out --workers, Ray uses the CPUs of its nodes")
    with one_thread():  # NumPy starts its threads when it is loaded, and a process with threads is not forked
        from scalewright.data.text.execution.preparation import prepare_job
        from scalewright.data.text.execution.run import run_job
        from scalewright.data.text.reading.inputs import PAGE_NAME
        from scalewright.records.documents import to_json
        from scalewright.report.data.page import write_report
        from scalewright.report.data.phase_bar import PhaseBar
        from scalewright.report.data.terminal import print_data_set

        job = prepare_job(pipeline, out=out)
        backend = _backend(workers, is_ray=ray)
    try:
        with PhaseBar() as bar:
            result = run_job(job, backend, on_progress=bar.show, keep_work=keep_work)
    finally:
        backend.close()
    write_report(out / PAGE_NAME, result, out.resolve().name)
    if as_json:
        typer.echo(to_json(result), nl=False)
        return
    print_data_set(result, out)


def _backend(num_workers: int | None, *, is_ray: bool) -> Backend:
    if is_ray:
        from scalewright.data.text.execution.ray_backend import RayBackend

        return RayBackend()
    from scalewright.data.text.execution.local import LocalBackend

    return LocalBackend(num_workers if num_workers is not None else len(os.sched_getaffinity(0)))
