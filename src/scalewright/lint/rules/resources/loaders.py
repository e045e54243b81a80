"""Rules about loader workers against the CPUs that a rank has."""

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
from scalewright.lint.rule import Context, Hit, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch

_WORKERS = re.compile(
    r"(?<![\w-])(?:--|\+{0,2})(?:[A-Za-z_]{1,40}\.){0,6}(?:data[-_]?loader[-_])?num[-_]workers"
    r"(?:=|\s{1,9}|\s{0,9}\\\n\s{0,40})[\"']?(\d{1,3}\b|\$\{?\w{1,60}\}?|\$\(\([^()\n]{1,60}\)\))"
)
_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaders:
    """What a command says of the processes that load data for each of its ranks."""

    num_workers: int
    start: int
    end: int


def loaders(script: Script) -> Loaders | None:
    """Workers of each rank, where the script says one number; None: it says none, or several."""
    if "workers" not in script.text:
        return None
    found = list(_WORKERS.finditer(code_of(script)))
    values = {number(script, match.group(1)) for match in found}
    value = values.pop() if len(values) == 1 else None
    return None if value is None else Loaders(num_workers=value, start=found[0].start(), end=found[0].end())


@rule(
    id="workers-over-cpus",
    severity="warning",
    title="More loader workers than CPUs",
    why="Workers that share a CPU take turns: data comes later than with fewer of them, the GPU waits, and PyTorch "
    "itself warns that the loader may freeze.",
    source=f"PyTorch, DataLoader: suggested max number of worker in current system; {GUIDE} 2.4.4: workers plus a few",
    before=_HEAD + "#SBATCH --cpus-per-task=4\nsrun python train.py --num_workers 16\n",
    after=_HEAD + "#SBATCH --cpus-per-task=18\nsrun python train.py --num_workers 16\n",
)
def workers_over_cpus(script: Script, context: Context) -> Iterator[Hit]:
    said = loaders(script)
    if said is None or not script.asks_for_gpus or script.header.num_components > 1:
        return
    start = _start_of_ranks(script)
    if start is None:
        return
    cpus, ranks = _cpus(script, context, start.step), start.num_ranks
    if cpus is None or ranks is None or said.num_workers * ranks <= cpus:
        return
    line, column = script.place(said.start)
    shared = "" if ranks == 1 else f" for each of {ranks} ranks"
    yield Hit(
        line=line,
        column=column,
        end_column=column + said.end - said.start if "\n" not in script.text[said.start : said.end] else 0,
        message=f"{said.num_workers} workers{shared}, and {cpus} CPU{'s' * (cpus > 1)} for all of them",
        next_step=f"at most {max(1, cpus // ranks - 1)} workers, or --cpus-per-task={(said.num_workers + 1) * ranks}",
        severity=None if said.num_workers > cpus else "info",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    step: Launch | None
    num_ranks: int | None
    """Processes of one task that each have loaders."""


def _start_of_ranks(script: Script) -> _Start | None:
    """How the only training of a script starts its ranks; None: there are several, or none that is understood."""
    found = [work for work in work_commands(script) if not work.command.origin]
    if len(found) != 1 or not found[0].is_foreground or found[0].command.within.loops:
        return None
    inner = [launch for launch in script.launched(*DISTRIBUTED, "python", "mpirun") if not launch.command.origin]
    busy = [launch for launch in inner if launch.tool != "python"] or inner
    if len(busy) != 1 or busy[0].tool == "mpirun":
        return None
    ranks = 1 if busy[0].tool == "python" else ranks_per_launcher(script, busy[0])
    return _Start(step=found[0].step, num_ranks=ranks)


def _cpus(script: Script, context: Context, step: Launch | None) -> int | None:
    """CPUs that one task has: of its step, or of the whole job on its node where nothing but the shell starts it."""
    per_task = number(script, step.value("cpus-per-task")) if step is not None and step.has("cpus-per-task") else None
    per_task = per_task or script.number("cpus-per-task")
    per_gpu, gpus = script.number("cpus-per-gpu"), script.gpus_per_node
    tasks = step_tasks_per_node(script, step) if step is not None else script.tasks_per_node
    if tasks is None or (step is None and runs_whole_nodes(script, context.site)):
        return None
    if per_task is None:
        return per_gpu * gpus // tasks if per_gpu is not None and gpus is not None and tasks else None
    return per_task if step is not None else per_task * tasks
