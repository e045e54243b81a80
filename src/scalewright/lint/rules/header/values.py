"""Rules about values in the header that sbatch refuses, or reads in another way than people expect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.header.directives import Directive
from scalewright.lint.job_facts import is_fill_in
from scalewright.lint.rule import Context, Hit, ScriptFix, at, replace_text, rule
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


_FILL_IN = re.compile(r"^<[^<>]+>|<[^<>]*(?:your|project|account|name|id)[^<>]*>|your_|YOUR|CHANGE_?ME|X{3}|^-{1,3}$")
_NAMES = ("account", "partition", "qos", "reservation", "nodelist", "constraint", "time", "nodes", "gres")


@rule(
    id="placeholder-value",
    severity="warning",
    title="A value is still to be filled in",
    why="sbatch takes the placeholder as the name: Invalid account or account/partition combination specified.",
    source="Slurm, sbatch(1), --account and --partition",
    before="#!/bin/bash\n#SBATCH --account=<your_project>\n#SBATCH --gres=gpu:1\npython train.py\n",
    after="#!/bin/bash\n#SBATCH --account=project_42\n#SBATCH --gres=gpu:1\npython train.py\n",
)
def placeholder_value(script: Script, context: Context) -> Iterator[Hit]:
    if script.is_template:
        return
    for name in _NAMES:
        directive, value = script.directive(name), script.value(name)
        if directive is None or not value or not _FILL_IN.search(value):
            continue
        yield at(
            script,
            directive,
            f"--{name}={value} is a placeholder",
            next_step=f"write the {name} to use",
            severity="info" if re.fullmatch(r"<[^<>]*>", value) else None,  # the mark of a recipe for everybody
        )


@rule(
    id="time-min-alone",
    severity="warning",
    title="--time-min without --time",
    why="--time-min is the shortest time that the job accepts. Without --time the job requests the partition's "
    "default, and sbatch refuses a smaller one than --time-min.",
    source="Slurm, sbatch(1), --time-min",
    before="#!/bin/bash\n#SBATCH --time-min=04:00:00\n#SBATCH --gres=gpu:1\npython train.py\n",
    after="#!/bin/bash\n#SBATCH --time=12:00:00\n#SBATCH --time-min=04:00:00\n#SBATCH --gres=gpu:1\npython train.py\n",
)
def time_min_alone(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("time-min")
    if directive is not None and not script.has("time"):
        yield at(
            script,
            directive,
            "the job requests no --time, so its limit is the default of the partition",
            next_step=f"add #SBATCH --time=..., at least {directive.value}",
        )


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


_EXPECTED_FORMS = {
    "time": _time, "time-min": _time, "mem": _memory, "mem-per-cpu": _memory, "mem-per-gpu": _memory, "nodes": _nodes,
    "array": _array, "signal": _signal, **dict.fromkeys(_COUNTS, _count),
}  # fmt: skip


@rule(
    id="value-invalid",
    severity="error",
    title="sbatch refuses the value",
    why="sbatch refuses a job with a value that it cannot read, such as 1h for a time or 1.5G for memory.",
    source="Slurm 22.05.8: sbatch: error: Invalid --time specification",
    before="#!/bin/bash\n#SBATCH --time=1h\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --time=01:00:00\nsrun hostname\n",
)
def value_invalid(script: Script, context: Context) -> Iterator[Hit]:
    for directive in script.directives:
        check_form = _EXPECTED_FORMS.get(directive.name)
        if check_form is None or not directive.is_effective or directive.value is None or _is_unknown(directive.value):
            continue
        expected_form = check_form(directive.value)
        if expected_form:
            is_equals_sign = directive.value == "="
            if not directive.value:
                message = f"--{directive.name} has no value, and sbatch refuses the script"
                yield at(script, directive, message, next_step=f"write {expected_form}, or remove the line")
                continue
            yield at(
                script,
                directive,
                f"the value of --{directive.name} is '=': sbatch does not allow blanks around the sign"
                if is_equals_sign
                else f"--{directive.name}={directive.value} is not a value that sbatch can read",
                next_step=f"write {expected_form}" + (f", right after --{directive.name}=" if is_equals_sign else ""),
                fix=_rewritten(script, directive),
            )


def _is_unknown(value: str) -> bool:
    """Whether the value is a placeholder, or depends on a variable."""
    return is_fill_in(value) or re.search(r"[$`{]", value) is not None


def _rewritten(script: Script, directive: Directive) -> ScriptFix | None:
    """Safe: sbatch refuses the value as it is."""
    value = directive.value or ""
    hours = re.fullmatch(r"(\d+)\s*(h|hr|hrs|hours?|d|days?|m|min|mins|minutes?)", value, re.IGNORECASE)
    if directive.name not in ("time", "time-min") or hours is None:
        return None
    amount, unit = int(hours.group(1)), hours.group(2)[0].lower()
    if amount > 9999:
        return None
    text = {"h": f"{amount:02d}:00:00", "d": f"{amount}-00:00:00", "m": f"{amount}"}[unit]
    raw = script.text[directive.start : directive.end]
    return replace_text(directive, raw.replace(value, text, 1), title=f"write {text}", is_safe=True)


@rule(
    id="time-zero",
    severity="warning",
    title="A time limit of zero means no limit",
    why="--time=0 requests a job without a time limit. Where the partition has one, the job waits forever with "
    "PartitionTimeLimit or is refused. It never starts early in a gap of the schedule.",
    source="Slurm, sbatch(1), --time: a time limit of zero requests that no time limit be imposed",
    before="#!/bin/bash\n#SBATCH --time=0\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --time=12:00:00\nsrun python train.py\n",
)
def time_zero(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("time")
    if directive is not None and re.fullmatch(r"0+(?:[:-]0+)*", directive.value or ""):
        yield at(
            script,
            directive,
            f"--time={directive.value} requests no time limit, which most partitions do not allow",
            next_step="write the time that the job needs, such as --time=12:00:00",
        )


@rule(
    id="time-in-minutes",
    severity="warning",
    title="A time with two parts is minutes and seconds",
    why="--time=48:00 is 48 minutes, not 48 hours. Slurm ends the job after 48 minutes.",
    source="Slurm, sbatch(1), --time: minutes:seconds",
    before="#!/bin/bash\n#SBATCH --time=48:00\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --time=48:00:00\nsrun python train.py\n",
)
def time_in_minutes(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("time")
    match = re.fullmatch(r"(\d+):00", directive.value or "") if directive else None
    # Multiples of 12 are probably hours; 20:00 or 30:00 may well be minutes.
    if directive is None or match is None or int(match.group(1)) == 0 or int(match.group(1)) % 12:
        return
    in_hours = script.text[directive.start : directive.end].replace(":00", ":00:00")
    yield at(
        script,
        directive,
        f"--time={directive.value} is {match.group(1)} minutes, not hours",
        next_step=f"write {match.group(1)}:00:00 for hours, 00:{match.group(1)}:00 for minutes",
        fix=replace_text(directive, in_hours, title="make it hours", is_safe=False),
    )


@rule(
    id="memory-options-mixed",
    severity="error",
    title="Two memory options that exclude each other",
    why="sbatch refuses a script with more than one of --mem, --mem-per-cpu and --mem-per-gpu.",
    source="Slurm 22.05.8: sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive",
    before="#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --mem=64G\n#SBATCH --mem-per-cpu=4G\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --mem=64G\nsrun python train.py\n",
)
def memory_options_mixed(script: Script, context: Context) -> Iterator[Hit]:
    names = [name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if script.directive(name)]
    if len(names) > 1:
        directive = script.directive(names[1])
        if directive is not None:
            options = " and ".join(f"--{name}" for name in names)
            yield at(
                script,
                directive,
                f"{options} exclude each other, and sbatch refuses the script",
                next_step="keep one of them",
            )


@rule(
    id="cpus-options-mixed",
    severity="warning",
    title="--cpus-per-gpu and --cpus-per-task exclude each other",
    why="Since Slurm 23.11 sbatch refuses the two together. Before that, it is not documented which of them counts.",
    source="Slurm, sbatch(1), --cpus-per-gpu: not compatible with --cpus-per-task; release notes of 23.11",
    before="#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --cpus-per-gpu=8\n#SBATCH --cpus-per-task=16\nsrun "
    "python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --cpus-per-task=16\nsrun python train.py\n",
)
def cpus_options_mixed(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("cpus-per-gpu")
    if directive is not None and script.has("cpus-per-task"):
        refused = context.slurm is not None and context.slurm >= (23, 11)
        yield at(
            script,
            directive,
            "--cpus-per-gpu and --cpus-per-task exclude each other",
            next_step="keep --cpus-per-task",
            severity="error" if refused else None,
        )
