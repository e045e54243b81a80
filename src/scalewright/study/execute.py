"""The one executor: a point becomes a run directory, its ranks start, and the exit code is returned.

Benchmarks, calibrations and studies all run through here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog
from scalewright.engines.local import run_engine
from scalewright.errors import ConfigError, ScalewrightError
from scalewright.here.devices import num_cores, visible_gpus
from scalewright.lab.network import ShapedNetwork
from scalewright.lab.ranks import run_on_network
from scalewright.launch.ranks.allocation import is_inside, run_in_allocation
from scalewright.launch.ranks.external import become_rank, rank_of_process, run_first
from scalewright.launch.ranks.local import run_ranks
from scalewright.launch.roles.start import run_roles
from scalewright.launch.roles.supervisor import RoleObserver
from scalewright.observe.alpha_beta import add_fits
from scalewright.observe.generation_summary import add_comparison
from scalewright.observe.reason_summary import add_cost
from scalewright.observe.rollup import write_rollup
from scalewright.records.documents import write_document, write_text
from scalewright.records.events import Event, EventTail
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.study.conditions import watched
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.registry import kind_named

AFTER_RANKS: dict[str, Callable[[RunDirectory], None]] = {
    "collectives": add_fits,
    "generate": add_comparison,
    "reason": add_cost,
}
"""What is added to a benchmark's measurements once its ranks have ended."""

LONGEST_ON_LINKS_S = 3600.0
MOST_RANKS_PER_CORE = 8
"""With more, processes only wait for each other; hundreds of them exhaust the memory of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObserver:
    """Functions that are called while ranks run."""

    on_events: Callable[[list[Event]], None] = field(default=lambda _: None)
    on_signal: Callable[[int], None] = field(default=lambda _: None)
    on_note: Callable[[str], None] = field(default=lambda _: None)
    """Gets sentences about roles that were started again."""


def execution_of(
    catalog: Catalog, kind: str, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
) -> Execution:
    """The run that measures one point of a kind on this machine. `where` names the options' origin in errors.

    Without `predicts`, the run has no prediction beside it, and nothing is probed.
    """
    return kind_named(kind).execution(catalog, options, path=path, where=where, predicts=predicts)


def execute(execution: Execution, observer: RunObserver | None = None) -> int:
    """Run a point to its end, or resume it. A finished one is left alone. Returns the run's exit code."""
    if execution.is_finished:
        return ExitCode.YES
    observer = observer or RunObserver()
    place = rank_of_process(os.environ)
    if place is None and not is_inside(os.environ) and execution.num_ranks > MOST_RANKS_PER_CORE * num_cores():
        raise ConfigError(
            f"{execution.num_ranks} ranks on {num_cores()} cores would only wait for each other: give "
            f"{MOST_RANKS_PER_CORE * num_cores()} or fewer, or use more nodes"
        )
    if execution.engine_job is not None and (place is not None or is_inside(os.environ)):
        raise ConfigError(
            "bench engine starts its own ranks on one machine: run it once, outside srun and torchrun, or start the "
            "engine as a job with launch plan.json --engine"
        )
    if place is not None and execution.engine_ranks:
        raise ConfigError(
            f"{place[1]} ranks were started, and a stage with engines starts its own: run the command once, without "
            "srun or torchrun"
        )
    if place is not None and place[0] > 0:
        become_rank(execution.directory, execution.config, kind=execution.kind)
    directory = RunDirectory.create_or_resume(
        execution.path,
        execution.config,
        plan_id=execution.plan_id,
        point_id=execution.point_id,
        study_id=execution.study_id,
    )
    with directory.held():
        _write_once(directory, execution)
        code = _start(directory, execution, observer)
        with contextlib.suppress(ScalewrightError, OSError):  # a full disk must not hide why the run ended
            write_rollup(directory)
        if code == ExitCode.YES and execution.kind in AFTER_RANKS:
            AFTER_RANKS[execution.kind](directory)
    return code


def _write_once(directory: RunDirectory, execution: Execution) -> None:
    """The documents of the first attempt stay: a resumed run is compared with the same prediction."""
    documents: Iterable[tuple[Path, dict[str, Any] | None]] = (
        (directory.plan, execution.plan),
        (directory.machine, _machine(execution)),
        (directory.prediction, execution.prediction),
    )
    for path, content in documents:
        if content is not None and not path.exists():
            write_document(path, content)
    if execution.script and not directory.script.exists():
        write_text(directory.script, execution.script)


def _machine(execution: Execution) -> dict[str, Any] | None:
    if execution.machine is None or execution.link_bytes_per_s is None:
        return execution.machine
    return {**execution.machine, "link_bytes_per_s": execution.link_bytes_per_s}


def _start(directory: RunDirectory, execution: Execution, observer: RunObserver) -> int:
    if execution.engine_ranks:
        return _start_roles(directory, execution, observer)
    if execution.engine_job is not None:
        return _start_engine(directory, execution, observer)
    if execution.link_bytes_per_s is not None:
        names = [f"r{rank}" for rank in range(execution.num_ranks)]
        with watched(directory), ShapedNetwork(names, rate_bytes_per_s=execution.link_bytes_per_s) as network:
            return run_on_network(network, directory, kind=execution.kind, timeout_s=LONGEST_ON_LINKS_S)
    if rank_of_process(os.environ) is not None:
        tail = EventTail(directory.rank_events(0))
        tail.skip_to_end()
        return run_first(directory, kind=execution.kind, look=lambda: observer.on_events(tail.read()))
    if is_inside(os.environ):
        return run_in_allocation(
            os.environ, directory, kind=execution.kind, num_ranks=execution.num_ranks, on_events=observer.on_events
        )
    with watched(directory):
        return run_ranks(
            directory,
            kind=execution.kind,
            num_ranks=execution.num_ranks,
            num_cores=num_cores(),
            on_events=observer.on_events,
            on_signal=observer.on_signal,
        )


def _start_engine(directory: RunDirectory, execution: Execution, observer: RunObserver) -> int:
    """Another training program, as so many processes on this machine."""
    assert execution.engine_job is not None
    assert execution.engine_run is not None
    with watched(directory):
        return run_engine(
            directory, execution.engine_job, execution.engine_run, num_cores=num_cores(),
            installed=execution.engine_releases, on_events=observer.on_events, on_signal=observer.on_signal,
        )  # fmt: skip


def _start_roles(directory: RunDirectory, execution: Execution, observer: RunObserver) -> int:
    """Trainer, engines and controller as roles of their own."""
    roles = RoleObserver(on_events=observer.on_events, on_signal=observer.on_signal, on_note=observer.on_note)
    is_gpu = execution.config.get("device") == "cuda"
    with watched(directory):
        return run_roles(
            directory, num_trainer_ranks=execution.num_ranks, engine_ranks=execution.engine_ranks,
            num_gpus=len(visible_gpus()) if is_gpu else 0, observer=roles,
        )  # fmt: skip
