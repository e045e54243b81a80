"""Prepare a language run: resolve ranks, layout and device, and predict its length. Nothing is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.costs.machine import Machine
from scalewright.data.tokens.mixture import Mixture, parse_sets
from scalewright.data.tokens.samples import checked_windows
from scalewright.data.tokens.token_set import open_token_set
from scalewright.errors import ConfigError, NotExpressedError, ScalewrightError
from scalewright.here.devices import CPU_START_S, GPU_START_S, Here, device_here, machine_here, visible_gpus
from scalewright.here.place import Place, calibrated_here, place_of
from scalewright.launch.plan_job import planned_job
from scalewright.launch.prepare.outlook import Outlook, Ready, RunTooLargeError, language_outlook, largest_that_fits
from scalewright.launch.ranks.allocation import default_num_ranks, is_inside, num_nodes
from scalewright.planner.question import resolve_recipe
from scalewright.planner.search.search import search
from scalewright.planner.search.space import Space, stacks_by_zero
from scalewright.records.documents import read_document
from scalewright.records.run_directory import MANIFEST, RunDirectory
from scalewright.records.types import WARNING, EnvName
from scalewright.workload import language_run
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.run_options import AUTO, SYNTHETIC, CompileMode, DeviceKind, has_tensors

DEFAULT_MICRO_BATCH = 4
NUM_TRIED = 64
"""Layouts of a search that are tried, the fastest first, until the reference code can run one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRequest:
    """Options of a language run as the user gives them; None where the run chooses."""

    spec: ModelSpec
    ranks: int | None
    layout: str | None
    device: str
    precision: str
    seq_len: int
    scaling: str
    compile: str = AUTO
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of LanguageRun that are taken as they are."""

    def run(self, spec: ModelSpec, split: Layout, device: str) -> LanguageRun:
        precision = ("bf16" if device == "cuda" else "fp32") if self.precision == AUTO else self.precision
        return language_run.resolve(
            spec,
            split,
            seq_len=self.seq_len,
            scaling=self.scaling,
            precision=precision,
            compile=compile_mode(split, device) if self.compile == AUTO else self.compile,
            device=device,
            **self.options,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Model, layout and precision of a run, and the plan that they come from, if any."""

    spec: ModelSpec
    layout: str | None
    precision: str
    plan_id: str = ""
    plan: dict[str, Any] | None = None


def resolve_language_run(request: LanguageRequest, directory: RunDirectory) -> tuple[LanguageRun, int]:
    """The configuration: from the request, from the run directory to resume in, and from this node."""
    split, num_ranks = resolve_ranks(request.ranks, request.layout, device=request.device)
    if request.layout is None and directory.config.exists():
        before = language_run.from_document(
            read_document(directory.config, language_run.KIND), where=str(directory.config)
        )
        if int(before.layout.num_gpus) == num_ranks:
            split = before.layout  # a search chose it when the run began: a resumed run keeps it
    # A rank that a job script gives one device of its own sees no other.
    per_node = 1 if EnvName.DEVICE in os.environ else num_ranks // num_nodes(os.environ)
    device = device_here(request.device, num_ranks=per_node)
    return request.run(request.spec, split, device), num_ranks


def resolve_ranks(ranks: int | None, layout: str | None, *, device: str) -> tuple[Layout, int]:
    """The layout and how many processes it takes; either follows from the other, and both must agree."""
    if ranks is not None and ranks < 1:
        raise ConfigError(f"--ranks {ranks} must be 1 or more")
    if layout is None:
        count = ranks or default_ranks(device)
        return parse_layout(f"dp={count},mbs={DEFAULT_MICRO_BATCH}"), count
    split = parse_layout(layout)
    needed = int(split.num_gpus)
    if ranks is not None and ranks != needed:
        raise ConfigError(
            f"--ranks {ranks} does not match layout {split.brief}, whose tp x pp x cp x dp is {needed}: "
            f"use --ranks {needed}, or another layout"
        )
    return split, needed


def default_ranks(device: str) -> int:
    """One per GPU of the allocation or of this machine; without GPUs, one."""
    if is_inside(os.environ):
        return default_num_ranks(os.environ)
    return 1 if device == "cpu" else max(len(visible_gpus()), 1)


def resolve_data(data: str, *, seq_len: int = 0) -> str:
    """The data sets by their full paths, so that the same ones resume from any folder. Damaged ones are refused."""
    if data == SYNTHETIC:
        return data
    sets = [replace(one, path=one.path.resolve()) for one in parse_sets(data)]
    for one in sets:
        checked_windows(open_token_set(one.path), max(seq_len, 1))
    Mixture([one.weight for one in sets])
    return ",".join(str(one) for one in sets)


def resolve_start(folder: Path | None, *, steps: int) -> str:
    """Full path of the checkpoint to start from. Refuse a folder without one, and one that has all the steps."""
    if folder is None:
        return ""
    if has_tensors(folder):
        return str(folder.resolve())
    checkpoint = folder if (folder / MANIFEST).is_file() else RunDirectory(folder).last_checkpoint()
    if checkpoint is None:
        raise ConfigError(
            f"--start-from {str(folder)!r}: holds no whole checkpoint and no safetensors: name a run directory, a "
            "checkpoint, or a Hugging Face folder"
        )
    done = read_document(checkpoint / MANIFEST, "checkpoint").get("step")
    if isinstance(done, int) and done >= steps:
        raise ConfigError(f"--start-from {str(checkpoint)!r}: it has {done} steps already: give --steps above {done}")
    return str(checkpoint.resolve())


def resolve_save_mode(mode: str) -> bool:
    """Whether training continues while a checkpoint is written."""
    if mode not in ("sync", "async"):
        raise ConfigError(f"--checkpoint {mode!r} is not known: choose sync or async")
    return mode == "async"


def compile_mode(layout: Layout, device: str) -> CompileMode:
    """The fastest mode that works: one graph a step on one GPU; uncompiled elsewhere."""
    one_gpu = device == "cuda" and int(layout.num_gpus) == 1
    return "graphs" if one_gpu and layout.recompute == "none" else "off"


def chosen_by_plan(path: Path) -> Chosen:
    """Model, layout and precision of a plan's best layout."""
    plan = read_document(path, "plan")
    job = planned_job(plan, where=str(path))
    config = job.config
    spec = ModelSpec(id=config.model_id, name=config.model_id, shape=config.shape)
    return Chosen(spec=spec, layout=str(config.layout), precision=config.precision, plan_id=job.plan_id, plan=plan)


def prepare(
    catalog: Catalog, request: LanguageRequest, directory: RunDirectory, *, system: str | None, budget_s: float
) -> Ready[LanguageRun]:
    """Resolve the configuration and predict its run, before anything starts."""
    config, num_ranks = resolve_language_run(request, directory)
    return prepare_config(catalog, request, config, num_ranks, directory, system=system, budget_s=budget_s)


def prepare_config(
    catalog: Catalog, request: LanguageRequest, config: LanguageRun, num_ranks: int, directory: RunDirectory, *,
    system: str | None, budget_s: float,
) -> Ready[LanguageRun]:  # fmt: skip
    """Predict the run of a resolved configuration.

    If data parallelism alone does not fit in memory and the layout is free, the layout comes from the planner's search.
    """
    here = machine_of(catalog, system, config, num_ranks)
    if here is None:
        note = "no prediction: name this machine with --system to have one"
        return Ready(config=config, num_ranks=num_ranks, here=None, outlook=None, note=note)
    try:
        outlook = language_outlook(catalog, config, here.machine, start_s=here.start_s)
        if not outlook.prediction.fits and request.layout is None and num_ranks > 1 and not directory.config.exists():
            config = best_split(catalog, request, config, here.machine)
            outlook = language_outlook(catalog, config, here.machine, start_s=here.start_s)
    except NotExpressedError as error:
        return Ready(config=config, num_ranks=num_ranks, here=here, outlook=None, note=f"no prediction: {error}")
    if not outlook.prediction.fits or outlook.duration_s > budget_s:
        remake = _remake(request, config)
        raise RunTooLargeError(_what_would_fit(catalog, outlook, here, remake=remake, budget_s=budget_s))
    return Ready(config=config, num_ranks=num_ranks, here=here, outlook=outlook, note="")


def best_split(catalog: Catalog, request: LanguageRequest, config: LanguageRun, machine: Machine) -> LanguageRun:
    """The fastest layout that fits and that the reference code can run; the configuration's own if there is none."""
    space = Space(
        spec=replace(request.spec, shape=config.shape),
        machine=machine,
        num_gpus=int(config.layout.num_gpus),
        global_batch=int(config.layout.gbs),
        recipes=(resolve_recipe(config.precision, machine),),
        stack_of=stacks_by_zero(catalog.stack_of_own_run(config.compile).id, catalog, machine),
        catalog=catalog,
    )
    result = search(space)
    for index in result.fastest(NUM_TRIED):
        try:
            return replace(config, layout=result.layout(index))
        except ScalewrightError:
            continue
    return config


class PlacedRun(Protocol):
    """What of a run decides which machine predicts it."""

    @property
    def device(self) -> DeviceKind: ...

    @property
    def precision(self) -> str: ...


def machine_of(catalog: Catalog, system: str | None, config: PlacedRun, num_ranks: int) -> Here | None:
    """The machine of a run: the named system, else the best calibration, else the catalogue or a probe.

    A calibration that does not predict its own left-out runs is not used, and the prediction says so.
    None for several nodes without a name: a probe of this node says nothing of the others.
    """
    if system is not None:
        place = place_of(catalog, system, num_ranks=num_ranks, device=config.device)
        return Here(machine=place.machine, device=config.device, start_s=_start_s(config), basis=place.basis)
    if num_nodes(os.environ) > 1:
        return None
    calibrated = calibrated_here(catalog, num_ranks=num_ranks, device=config.device)
    if calibrated is not None and calibrated.is_trusted:
        return Here(machine=calibrated.machine, device=config.device, start_s=_start_s(config), basis=calibrated.basis)
    here = machine_here(catalog, num_ranks=num_ranks, precision=config.precision, device=config.device)
    return here if calibrated is None else _instead_of(calibrated, here)


def _instead_of(calibrated: Place, here: Here) -> Here:
    """The machine without its calibration, and the reason as a warning of every prediction."""
    warning = (
        f"{WARNING}the {calibrated.basis} is not used, because {calibrated.doubt}. The prediction uses the "
        f"{here.basis} and is rough. Run scalewright calibrate when this machine is quiet."
    )
    return replace(here, machine=replace(here.machine, assumptions=(warning, *here.machine.assumptions)))


def _start_s(config: PlacedRun) -> float:
    """Time before the first step, where nothing was probed."""
    return GPU_START_S if config.device == "cuda" else CPU_START_S


def _remake(request: LanguageRequest, config: LanguageRun) -> Callable[[ModelSpec], LanguageRun]:
    return lambda spec: request.run(spec, config.layout, config.device)


def _what_would_fit(
    catalog: Catalog, outlook: Outlook, here: Here, *, remake: Callable[[ModelSpec], LanguageRun], budget_s: float
) -> str:
    duration, limit = (units.format(value, units.SECONDS) for value in (outlook.duration_s, budget_s))
    why = f"would take {duration}, over the budget of {limit}" if outlook.prediction.fits else "does not fit in memory"
    best = largest_that_fits(catalog, here.machine, remake=remake, start_s=here.start_s, budget_s=budget_s)
    hint = (
        "no preset fits: use fewer --steps or a larger --budget"
        if best is None
        else f"the largest preset that fits is {best[0]} ({units.format(best[1], units.SECONDS)})"
    )
    return f"{outlook.prediction.question.spec.id} {why} ({here.basis}): {hint}"
