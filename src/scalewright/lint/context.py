"""The context of a script: the site, its Slurm version, the duration of a pilot run, and what the model needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright.errors import ConfigError, DocumentError
from scalewright.lint.engine import parse_version
from scalewright.lint.rule import Context, ModelNeeds
from scalewright.lint.script import Script
from scalewright.lint.settings import LintSettings
from scalewright.records.documents import read_document
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory

if TYPE_CHECKING:
    from scalewright.planner.search.fewest import Fewest

NeedsOf = Callable[[Script], ModelNeeds | None]


def lint_context(settings: LintSettings, pilot: Path | None, catalog: Path | None) -> Context:
    """Site, Slurm version and pilot run; the model is added for each script."""
    site = None
    if settings.site:
        from scalewright.sites.loader import find_site  # takes as long as linting fifty scripts

        site = find_site(settings.site, catalog)
    slurm = settings.slurm or (site.slurm.value if site is not None and site.slurm is not None else "")
    version = parse_version(slurm)
    if settings.slurm and version is None:
        raise ConfigError(f"Slurm {settings.slurm!r} is not a version: write it as 23.11")
    return Context(site=site, slurm=version, pilot_s=None if pilot is None else pilot_duration_s(pilot))


def pilot_duration_s(folder: Path) -> float:
    """Longest time from the first to the last event of one job in a run directory."""
    directory = RunDirectory(folder)
    spans: dict[str, tuple[float, float]] = {}
    for path in directory.all_rank_events().values():
        for event in read_events(path):
            first, last = spans.get(event.job, (event.time, event.time))
            spans[event.job] = (min(first, event.time), max(last, event.time))
    if not spans:
        raise ConfigError(f"--pilot {folder} has no events: name the run directory of a run that has done steps")
    return max(last - first for first, last in spans.values())


def needs_of(context: Context, model: str, plan: Path | None, catalog: Path | None) -> NeedsOf:
    """What the model needs on the GPUs of a script, as the planner says; nothing where no model is named."""
    if model and plan is not None:
        raise ConfigError("--model and --plan both say what is trained: give one of them")
    if plan is not None:
        planned = _planned_needs(read_document(plan, "plan"), where=str(plan))
        return lambda script: planned
    if not model:
        return lambda script: None
    system = context.site.system if context.site is not None else None
    if system is None:
        raise ConfigError(f"--model {model} needs a machine: give --site with a profile that names a catalogued system")
    needed = _fewest_needs(model, system, catalog)
    return lambda script: needed


def _planned_needs(plan: dict[str, Any], *, where: str) -> ModelNeeds:
    best = plan.get("best")
    if not isinstance(best, dict):
        raise ConfigError(f"{where}: holds no layout that fits: plan again with more nodes")
    try:
        layout = best["layout"]
        return ModelNeeds(
            model=str(best["model"]),
            num_gpus=int(plan["num_gpus"]),
            device_bytes=float(best.get("needed_bytes") or best["reserved_bytes"]),
            host_bytes_per_node=float(best["host_memory_bytes_per_node"] or 0.0),
            tp=int(layout["tp"]),
            pp=int(layout["pp"]),
            is_planned=True,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DocumentError(f"{where}: is not a whole plan ({error!r}); make it again with plan --out") from error


def _fewest_needs(model: str, system: str, catalog: Path | None) -> ModelNeeds | None:
    """The fewest devices on which any layout fits with the full state, one sample in flight."""
    from scalewright.catalog.library import open_catalog
    from scalewright.planner.question import resolve_spec
    from scalewright.planner.request import PlanOptions, resolve_request
    from scalewright.planner.search.fewest import fewest_gpus
    from scalewright.workload.training import TEXT

    library = open_catalog(catalog)
    spec = resolve_spec(library, model)
    if spec.is_vision:
        raise ConfigError(f"--model {model} fits on one GPU of any machine: leave it out")
    options = PlanOptions(model=model, nodes="1", global_batch=_LEAST_BATCH, precision="bf16")
    request = resolve_request(library, system, options, feed=TEXT)
    space = request.space(library, request.counts[0])
    fewest = next((row for row in fewest_gpus(space) if row.mode.name == "full"), None)
    return None if fewest is None else _needs(spec.id, fewest)


_LEAST_BATCH = 4096
"""Large enough for any number of devices to have a sample each; memory does not depend on it."""


def _needs(model: str, fewest: Fewest) -> ModelNeeds:
    return ModelNeeds(
        model=model,
        num_gpus=fewest.num_gpus,
        device_bytes=fewest.needed_bytes,
        host_bytes_per_node=0.0,
        tp=int(fewest.layout.tp),
        pp=int(fewest.layout.pp),
    )
