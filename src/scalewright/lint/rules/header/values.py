"""Rules about values in the header that sbatch refuses, or reads otherwise than a person."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.header.directives import Directive
from scalewright.lint.job_facts import is_fill_in
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, at, rule
from scalewright.lint.script import Script

_TIME = re.compile(
    r"^(?:\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+|\d+-\d+:\d+|\d+-\d+:\d+:\d+|unlimited|infinite|UNLIMITED|INFINITE|-1)$"
)
_MEMORY = re.compile(r"^\d+(?:[KMGTP]i?B?|B)?$", re.IGNORECASE)
_COUNTS = (
    "ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "ntasks-per-socket", "ntasks-per-core",
    "ntasks-per-gpu", "sockets-per-node", "cores-per-socket", "mincpus",
)  # fmt: skip
_NODES = re.compile(r"^(?:\d+[kKmM]?(?:-\d+[kKmM]?)?|[\d,:/-]+)$")
_ARRAY = re.compile(r"^\d+(?:-\d+(?::\d+)?)?(?:,\d+(?:-\d+(?::\d+)?)?)*(?:%\d+)?$")
_SIGNAL = re.compile(r"^(?:[RB]{1,2}:)?(?:SIG)?[A-Z0-9+-]+(?:@\d+)?$", re.IGNORECASE)
_SIGNALS = "HUP INT QUIT KILL TERM USR1 USR2 CONT STOP TSTP TTIN TTOU URG XCPU ABRT ALRM ILL FPE SEGV PIPE BUS"


def _time(value: str) -> str:
    return "" if _TIME.match(value) else "minutes, HH:MM:SS or D-HH:MM:SS"


def _memory(value: str) -> str:
    return "" if _MEMORY.match(value) else "a whole number with K, M, G or T, such as 64G"


def _count(value: str) -> str:
    return "" if re.fullmatch(r"\d+", value) else "a whole number"


def _nodes(value: str) -> str:
    return "" if _NODES.match(value) else "a whole number or a range such as 2-4"


def _array(value: str) -> str:
    return "" if _ARRAY.match(value.strip("[]")) else "indices such as 0-99%20"


def _signal(value: str) -> str:
    name = re.sub(r"^(?:[RB]{1,2}:)?(?:SIG)?|@.*$", "", value.upper())
    known = name.isdigit() or name in _SIGNALS.split()
    return "" if _SIGNAL.match(value) and known else "[B:]SIGNAL[@SECONDS], such as B:USR1@120"


_FORMS = {
    "time": _time, "time-min": _time, "mem": _memory, "mem-per-cpu": _memory, "mem-per-gpu": _memory, "nodes": _nodes,
    "array": _array, "signal": _signal, **dict.fromkeys(_COUNTS, _count),
}  # fmt: skip


@rule(
    id="value-invalid",
    severity="error",
    title="sbatch refuses the value",
    why="A value that Slurm cannot read, such as 1h for a time or 1.5G for memory, ends the submission.",
    source="Slurm 22.05.8: sbatch: error: Invalid --time specification",
    before="#!/bin/bash\n#SBATCH --time=1h\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --time=01:00:00\nsrun hostname\n",
)
def value_invalid(script: Script, context: Context) -> Iterator[Hit]:
    for found in script.directives:
        form = _FORMS.get(found.name)
        if form is None or not found.is_effective or not found.value or _is_open(found.value):
            continue
        wanted = form(found.value)
        if wanted:
            alone = found.value == "="
            yield at(
                script,
                found,
                f"--{found.name} gets '=' for its value: blanks around it are not read over"
                if alone
                else f"--{found.name}={found.value} is not a value that sbatch reads",
                next_step=f"write {wanted}" + (f", right behind --{found.name}=" if alone else ""),
                fix=_rewritten(script, found),
            )


def _is_open(value: str) -> bool:
    return is_fill_in(value) or re.search(r"[$`{]", value) is not None


def _rewritten(script: Script, found: Directive) -> ScriptFix | None:
    """Safe: nothing is submitted with the value as it is."""
    value = found.value or ""
    hours = re.fullmatch(r"(\d+)\s*(h|hr|hrs|hours?|d|days?|m|min|mins|minutes?)", value, re.IGNORECASE)
    if found.name not in ("time", "time-min") or hours is None:
        return None
    amount, unit = int(hours.group(1)), hours.group(2)[0].lower()
    if amount > 9999:
        return None
    text = {"h": f"{amount:02d}:00:00", "d": f"{amount}-00:00:00", "m": f"{amount}"}[unit]
    raw = script.text[found.start : found.end]
    edit = Edit(start=found.start, end=found.end, text=raw.replace(value, text, 1))
    return ScriptFix(edits=(edit,), title=f"write {text}", is_safe=True)


@rule(
    id="time-in-minutes",
    severity="warning",
    title="A time of two parts is minutes and seconds",
    why="--time=48:00 is 48 minutes, not 48 hours: Slurm ends the job there.",
    source="Slurm, sbatch(1), --time: minutes:seconds",
    before="#!/bin/bash\n#SBATCH --time=48:00\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --time=48:00:00\nsrun python train.py\n",
)
def time_in_minutes(script: Script, context: Context) -> Iterator[Hit]:
    found = script.directive("time")
    match = re.fullmatch(r"(\d+):00", found.value or "") if found else None
    # Whole days and half days are what people ask for in hours; 20:00 or 30:00 may well be minutes.
    if found is None or match is None or int(match.group(1)) == 0 or int(match.group(1)) % 12:
        return
    edit = Edit(start=found.start, end=found.end, text=script.text[found.start : found.end].replace(":00", ":00:00"))
    yield at(
        script,
        found,
        f"--time={found.value} is {match.group(1)} minutes, not hours",
        next_step=f"write {match.group(1)}:00:00 for hours, 00:{match.group(1)}:00 for minutes",
        fix=ScriptFix(edits=(edit,), title="make it hours", is_safe=False),
    )


@rule(
    id="memory-options-mixed",
    severity="error",
    title="Two options for memory exclude each other",
    why="--mem, --mem-per-cpu and --mem-per-gpu are mutually exclusive: sbatch refuses two of them.",
    source="Slurm 22.05.8: sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive",
    before="#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --mem=64G\n#SBATCH --mem-per-cpu=4G\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --mem=64G\nsrun python train.py\n",
)
def memory_options_mixed(script: Script, context: Context) -> Iterator[Hit]:
    names = [name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if script.directive(name)]
    if len(names) > 1:
        found = script.directive(names[1])
        if found is not None:
            others = " and ".join(f"--{name}" for name in names)
            yield at(
                script, found, f"{others} exclude each other: sbatch refuses the script", next_step="keep one of them"
            )


@rule(
    id="cpus-options-mixed",
    severity="warning",
    title="--cpus-per-gpu and --cpus-per-task exclude each other",
    why="From Slurm 23.11 on sbatch refuses the two together; before that, which of them counts is not documented.",
    source="Slurm, sbatch(1), --cpus-per-gpu: not compatible with --cpus-per-task; release notes of 23.11",
    before="#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --cpus-per-gpu=8\n#SBATCH --cpus-per-task=16\nsrun "
    "python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --cpus-per-task=16\nsrun python train.py\n",
)
def cpus_options_mixed(script: Script, context: Context) -> Iterator[Hit]:
    found = script.directive("cpus-per-gpu")
    if found is not None and script.has("cpus-per-task"):
        refused = context.slurm is not None and context.slurm >= (23, 11)
        yield at(
            script,
            found,
            "--cpus-per-gpu and --cpus-per-task exclude each other",
            next_step="keep --cpus-per-task",
            severity="error" if refused else None,
        )
