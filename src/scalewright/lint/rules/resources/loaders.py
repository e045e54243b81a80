"""Rules about data loader workers and the CPUs that they run on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from scalewright.lint.job_facts import (
    DISTRIBUTED,
    GUIDE,
    code_of,
    number,
    ranks_per_launcher,
    runs_whole_nodes,
    step_tasks_per_node,
    work_commands,
)
from scalewright.lint.rule import Context, Hit, at_span, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch

_WORKERS = re.compile(
    r"(?<![\w-])(?:--|\+{0,2})(?:[A-Za-z_]{1,40}\.){0,6}(?:data[-_]?loader[-_])?num[-_]workers"
    r"(?:=|\s{1,9}|\s{0,9}\\\n\s{0,40})[\"']?(\d{1,3}\b|\$\{?\w{1,60}\}?|\$\(\([^()\n]{1,60}\)\))"
)
_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderWorkers:
    """The number of data loader workers per rank, and where the script sets it."""

    num_workers: int
    start: int
    end: int


def loader_workers(script: Script) -> LoaderWorkers | None:
    """Data loader workers per rank; None: the script sets no number, or several."""
    if "workers" not in script.text:
        return None
    matches = list(_WORKERS.finditer(code_of(script)))
    values = {number(script, match.group(1)) for match in matches}
    value = values.pop() if len(values) == 1 else None
    return None if value is None else LoaderWorkers(num_workers=value, start=matches[0].start(), end=matches[0].end())


@rule(
    id="workers-over-cpus",
    severity="warning",
    title="More data loader workers than CPUs",
    why="Workers that share a CPU take turns. Data arrives later than with fewer workers, and the GPU waits. "
    "PyTorch warns that the loader may freeze.",
    source=f"PyTorch, DataLoader: suggested max number of worker in current system; {GUIDE} 2.4.4: workers plus a few",
    before=_HEAD + "#SBATCH --cpus-per-task=4\nsrun python train.py --num_workers 16\n",
    after=_HEAD + "#SBATCH --cpus-per-task=18\nsrun python train.py --num_workers 16\n",
)
def workers_over_cpus(script: Script, context: Context) -> Iterator[Hit]:
    loaders = loader_workers(script)
    if loaders is None or not script.asks_for_gpus or script.header.num_components > 1:
        return
    training = _only_training(script)
    if training is None:
        return
    workers, cpus, ranks = loaders.num_workers, _cpus(script, context, training.step), training.num_ranks
    if cpus is None or ranks is None or workers * ranks <= cpus:
        return
    per_rank = "" if ranks == 1 else f" for each of {ranks} ranks"
    yield at_span(
        script,
        loaders.start,
        loaders.end,
        f"{workers} workers{per_rank} share {cpus} CPU{'s' * (cpus > 1)}",
        next_step=f"use at most {max(1, cpus // ranks - 1)} workers, or --cpus-per-task={(workers + 1) * ranks}",
        severity=None if workers > cpus else "info",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskOfTraining:
    """How a training starts its ranks."""

    step: Launch | None
    num_ranks: int | None
    """Ranks that one task starts, each with its own data loader; None: unknown."""


def _only_training(script: Script) -> _TaskOfTraining | None:
    """How the only training of a script starts its ranks; None: there are several, or its start is not understood."""
    works = [work for work in work_commands(script) if not work.command.origin]
    if len(works) != 1 or not works[0].is_foreground or works[0].command.within.loops:
        return None
    inner = [launch for launch in script.launched(*DISTRIBUTED, "python", "mpirun") if not launch.command.origin]
    launchers = [launch for launch in inner if launch.tool != "python"] or inner
    if len(launchers) != 1 or launchers[0].tool == "mpirun":
        return None
    ranks = 1 if launchers[0].tool == "python" else ranks_per_launcher(script, launchers[0])
    return _TaskOfTraining(step=works[0].step, num_ranks=ranks)


def _cpus(script: Script, context: Context, step: Launch | None) -> int | None:
    """CPUs of one task of the step; without a step, all CPUs of the job on its node; None: unknown."""
    per_task = number(script, step.value("cpus-per-task")) if step is not None and step.has("cpus-per-task") else None
    per_task = per_task or script.number("cpus-per-task")
    per_gpu, gpus = script.number("cpus-per-gpu"), script.gpus_per_node
    tasks = step_tasks_per_node(script, step) if step is not None else script.tasks_per_node
    if tasks is None or (step is None and runs_whole_nodes(script, context.site)):
        return None
    if per_task is None:
        return per_gpu * gpus // tasks if per_gpu is not None and gpus is not None and tasks else None
    return per_task if step is not None else per_task * tasks
