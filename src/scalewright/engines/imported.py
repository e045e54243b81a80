"""A run directory from a log that somebody else kept, so that their run stands beside the prediction."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.engines.harvest import Harvest, harvest, write_harvest
from scalewright.engines.info import all_engines
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.here.place import place_of
from scalewright.observe.evidence.evidence import Evidence
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import AUTO, ask
from scalewright.records.documents import document, write_document
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.workload.engine_run import EngineRun
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.named import resolve_model
from scalewright.workload.precision import recipe

MOST_LOG_BYTES = 2 * units.GIB
"""Larger logs are named in the run directory, not copied into it."""
SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "seq")
SPLITS = ("tp", "pp", "cp", "ep", "dp", "mbs", "gbs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What the user says of a log."""

    logs: tuple[Path, ...]
    model: str
    layout: str
    precision: str = "bf16"
    seq: int = 0
    system: str = ""
    """System that it ran on; empty: no prediction."""
    partition: str = ""
    stack: str = AUTO
    """auto: that of the program that wrote the log."""
    network: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """An imported run before it is written."""

    run: EngineRun
    taken: Harvest
    prediction: Answer | None
    machine: dict[str, object] | None
    notes: tuple[str, ...]


def read_import(catalog: Catalog, request: ImportRequest) -> ImportedRun:
    """Read the logs, compare them with what the user says, and predict the run. Nothing is written."""
    for path in request.logs:
        if not path.exists():
            raise ConfigError(f"{path}: no such file: name the log of a training run")
    spec = resolve_model(catalog, request.model)
    spec = spec.with_seq(request.seq) if request.seq else spec
    layout = parse_layout(request.layout)
    draft = EngineRun(
        engine="unknown", model_id=spec.id, shape=spec.transformer, layout=layout,
        precision=recipe(request.precision).name, logs=tuple(str(path.resolve()) for path in request.logs),
    )  # fmt: skip
    taken = harvest(request.logs, draft)
    _check_steps(request, taken)
    _check_given(taken.evidence, spec, layout)
    version = next(iter(taken.evidence.versions.values()), "")
    run = _named(draft, taken, version)
    prediction, machine, notes = _prediction(catalog, request, spec, layout, taken.dialect)
    return ImportedRun(run=run, taken=taken, prediction=prediction, machine=machine, notes=notes)


def _named(draft: EngineRun, taken: Harvest, version: str) -> EngineRun:
    return EngineRun(
        engine=taken.dialect, version=version, model_id=draft.model_id, shape=draft.shape, layout=draft.layout,
        precision=draft.precision, steps=len(taken.steps), logs=draft.logs,
    )  # fmt: skip


def _check_steps(request: ImportRequest, taken: Harvest) -> None:
    names = ", ".join(str(path) for path in request.logs)
    if not taken.steps:
        problems = [source.problem for source in taken.evidence.sources if source.problem]
        why = f" ({problems[0]})" if problems else ""
        raise ConfigError(
            f"{names}: holds no training step that is understood{why}: give the log of the first or last rank, with "
            "the lines that name step, loss and time"
        )
    if not taken.has_times:
        raise ConfigError(
            f"{names}: has {len(taken.steps)} steps and no time of any: give a log with times, rates or time stamps"
        )


def _check_given(evidence: Evidence, spec: ModelSpec, layout: Layout) -> None:
    """Refuse a model or layout that the log itself contradicts."""
    shape = spec.transformer
    given = {name: getattr(shape, name) for name in SIZES} | {name: int(getattr(layout, name)) for name in SPLITS}
    given["num_ranks"] = int(layout.num_gpus)
    for name, value in given.items():
        text, spot = evidence.settings.get(name, ("", None))
        if not text or spot is None:
            continue
        try:
            logged = int(float(text))
        except ValueError:
            continue
        if logged != value:
            flag = "--seq" if name == "seq" else "--model" if name in SIZES else "--layout"
            raise ConfigError(
                f"{spot.file}:{spot.line}: the log says {name}={logged}, and {flag} says {value}: give what was run"
            )


def _prediction(
    catalog: Catalog, request: ImportRequest, spec: ModelSpec, layout: Layout, dialect: str
) -> tuple[Answer | None, dict[str, object] | None, tuple[str, ...]]:  # fmt: skip
    if not request.system:
        return None, None, ("no prediction: name the system that it ran on with --system",)
    place = place_of(
        catalog, request.system, partition=request.partition or None, num_ranks=int(layout.num_gpus)
    )  # fmt: skip
    stack = stack_of(dialect) if request.stack == AUTO else request.stack
    try:
        prediction = answer(ask(
            catalog, model=spec, system=place, layout=layout, precision=request.precision, stack=stack,
            network=request.network or None,
        ))  # fmt: skip
    except NotExpressedError as error:
        return None, None, (f"no prediction: {error}",)
    peak = place.machine.accelerator.peak.get(recipe(request.precision).matmul)
    machine = document("machine", {
        "name": place.machine.name, "accelerator": place.machine.accelerator.id, "basis": place.basis,
        "peak_flop_per_s": None if peak is None else peak.value,
        "peak_kind": None if peak is None else peak.source.kind, "memory_bytes": place.machine.memory_bytes,
    })  # fmt: skip
    return prediction, machine, ()


def stack_of(dialect: str) -> str:
    """The stack of the engine that writes this dialect, by the engine's name, so that its factors count; the planner's
    choice for a program that is none of them."""
    return next((info.id for info in all_engines().values() if info.dialect == dialect), AUTO)


def write_import(path: Path, imported: ImportedRun, logs: Sequence[Path]) -> RunDirectory:
    """Make the run directory: configuration, prediction, events, and copies of the logs."""
    directory = RunDirectory.create_or_resume(path, imported.run.document())
    if imported.machine is not None:
        write_document(directory.machine, imported.machine)
    if imported.prediction is not None:
        write_document(directory.prediction, imported.prediction.document())
    num_timed = write_harvest(directory, imported.run, imported.taken, job="imported")
    for number, log in enumerate(logs):
        if log.is_file() and log.stat().st_size <= MOST_LOG_BYTES:
            shutil.copyfile(log, directory.logs / f"imported-{number}-{log.name}")
    write_document(
        directory.provenance,
        document("provenance", {"attempts": [{
            "job": "imported", "attempt": 0, "time": time.time(), "launcher": "imported",
            "num_ranks": imported.run.num_ranks, "packages": dict(imported.taken.evidence.versions),
        }]}),
    )  # fmt: skip
    reason = f"imported from {len(logs)} log{'' if len(logs) == 1 else 's'}, {num_timed} steps with a time"
    directory.write_exit_info(
        ExitInfo(code=0, reason=reason, job="imported", attempt=0, rank=0, last_checkpoint=None, time=time.time())
    )
    return directory
