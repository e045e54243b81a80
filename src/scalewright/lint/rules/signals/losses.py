"""Rules about work or failures that are lost: a status that is hidden, and checkpoints that are too rare."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import code_of, number, trains, work_commands
from scalewright.lint.rule import Context, Hit, at, at_span, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.syntax import Command
from scalewright.sites.walltime import HOUR_S

_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --time=12:00:00\n"
_FEW = {"steps": 500, "epochs": 5}
"""Steps and epochs below which a run is only a test."""
_QUICK_NAMES = """echo printf date hostname sleep rm cp mv cd ls cat true : conda deactivate module ml df du nvidia-smi
wait export unset set sacct seff sstat squeue scontrol mkdir touch rsync tar chmod pwd sed sort head tail gzip zip wc"""
_QUICK = frozenset(_QUICK_NAMES.split())
"""Commands that end quickly and say nothing about the training."""
_STEPS = (
    r"(?:train[-_]iters|max[-_]steps|total[-_]steps|num[-_](?:train(?:ing)?[-_])?steps|max[-_]train[-_]steps|"
    r"max[-_]iters|iters)"
)
_SAVE_STEPS = (
    r"(?:save[-_]interval|save[-_]steps|save[-_]every(?:[-_]n[-_]steps)?|save[-_]freq|"
    r"checkpoint(?:ing)?[-_](?:steps|interval|every|freq))"
)
_EPOCHS = r"(?:epochs|max[-_]epochs|num[-_](?:train[-_])?epochs|n[-_]epochs)"
_SAVE_EPOCHS = (
    r"(?:save[-_]every[-_](?:n[-_])?epochs?|save[-_]epochs?(?:[-_]interval|[-_]freq)?|save[-_]ckpt[-_]freq|"
    r"checkpoint[-_]every[-_]n[-_]epochs?)"
)


@rule(
    id="exit-status-hidden",
    severity="warning",
    title="The last command hides that the training failed",
    why="Slurm takes the exit code of the script's last command. After a final echo a failed training is COMPLETED: "
    "nobody is notified, and jobs that depend on it start.",
    source="Slurm, sbatch(1): the exit code of the job is that of the script; bash(1), EXIT STATUS",
    before=_HEAD + "srun python train.py\necho done\n",
    after=_HEAD + "set -e\nsrun python train.py\necho done\n",
)
def exit_status_hidden(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_shell or not script.has_header:
        return
    yield from _waits_without_status(script)
    if "errexit" in script.shell_options:
        return
    works = [
        work
        for work in work_commands(script)
        if work.is_foreground and not work.command.within.functions and not work.command.origin
    ]
    if any("ERR" in trap.signals or "EXIT" in trap.signals for trap in script.traps):
        return
    if not works:
        yield from _ends_well_anyway(script)
        return
    last = works[-1].command
    rest = code_of(script)[last.end :]
    swallowed = re.match(r"\s*(?:\\\n\s*)?\|\|\s*(true|:|echo|printf)\b(?![^\n]*(?:exit|return|fail=|rc=|\+=))", rest)
    if swallowed is not None:
        message = f"the job succeeds even if this fails: || {swallowed.group(1)} ends it well"
        yield at(script, last, message, next_step="end with the status: || { status=$?; echo failed; exit $status; }")
        return
    if last.within.is_condition or last.within.is_pipeline:
        return
    later = [c for c in script.commands if c.start >= last.end and c.parent is None and not c.within.functions]
    if not later or any(not _is_quick(c, script) for c in later) or re.search(_KEEPS_STATUS, rest):
        return
    if later[-1].within.is_condition or later[-1].within.is_branch:
        return
    yield at(
        script,
        later[-1],
        f"the job succeeds even if line {last.line} fails: {later[-1].name} is the last command",
        next_step="begin with set -e, or end with the status: status=$?; ...; exit $status",
    )


def _waits_without_status(script: Script) -> Iterator[Hit]:
    """A final `wait` without process ids returns 0, whatever became of the one training in the background."""
    own = [c for c in script.commands if c.parent is None and not (c.within.functions or c.origin)]
    waits = [c for c in own if c.name == "wait"]
    if not waits or len(waits[-1].words) > 1 or waits[-1].within.is_branch or script.traps:
        return
    later = [c for c in own if c.start > waits[-1].end]
    trainings = [
        work.command for work in work_commands(script)
        if work.command.within.is_background and not work.command.within.loops and not _serves(work.command)
    ]  # fmt: skip
    if len(trainings) != 1 or not trains(script) or any(not _is_quick(c, script) for c in later):
        return
    if re.search(_KEEPS_STATUS, code_of(script)[trainings[0].end :]):
        return
    yield at(
        script,
        waits[-1],
        f"the job succeeds even if line {trainings[0].line} fails: wait without a process id returns 0",
        next_step="wait for the training: pid=$! after it, and wait $pid",
    )


_SERVER = re.compile(
    r"\bvllm[- ]serve\b|vllm\.entrypoints|sglang\.launch_server|api_server|text-generation-launcher|\btensorboard\b"
    r"|\bray start\b|\bjupyter\b|llama-server|tritonserver"
)
"""Programs that run until somebody stops them."""


def _serves(command: Command) -> bool:
    return _SERVER.search(" ".join(command.texts[:40])) is not None


@rule(
    id="wait-for-server",
    severity="error",
    title="wait never returns, because the server does not end",
    why="A server runs until somebody stops it. A wait without a process id waits for it too, so the job occupies its "
    "nodes until its time limit after the training is done.",
    source="bash(1), wait: without arguments it waits for all background processes",
    before=_HEAD + "srun -N1 -n1 vllm serve model &\nsrun -N1 -n1 python train.py &\nwait\n",
    after=_HEAD + "srun -N1 -n1 vllm serve model &\nsrun -N1 -n1 python train.py &\npid=$!\nwait $pid\n",
)
def wait_for_server(script: Script, context: Context) -> Iterator[Hit]:
    if (
        not script.called("wait")
        or not _SERVER.search(script.text)
        or re.search(r"\b(?:kill|pkill|scancel|killall|timeout)\b", code_of(script))
    ):
        return
    works = [work.command for work in work_commands(script)]
    servers = [c for c in script.commands if c.parent is None and c.within.is_background and _serves(c)]
    servers = [c for c in servers if "ray start" not in " ".join(c.texts)]  # wait-for-ray has these
    others = [c for c in works if not _serves(c) and not c.within.functions and c.parent is None]
    for command in script.called("wait"):
        if len(command.words) > 1 or command.within.functions or command.parent or not servers:
            continue
        if servers[0].end < command.start and any(c.start < command.start for c in others):
            yield at(
                script,
                command,
                f"the server of line {servers[0].line} never ends, so the job waits here until its time limit",
                next_step="wait for the training only (pid=$! after it, wait $pid): the server ends with the job",
            )
            return


def _ends_well_anyway(script: Script) -> Iterator[Hit]:
    """`eval COMMAND` and a final `exit 0`: what the command was is unknown, but its status is lost."""
    own = [
        c for c in script.commands if c.parent is None and not (c.within.functions or c.within.is_branch or c.origin)
    ]
    evals = [c for c in own if c.name == "eval" and not re.search(r"hook|ssh-agent|init|activate", " ".join(c.texts))]
    if not evals or own[-1].texts != ("exit", "0") or "$?" in code_of(script)[evals[-1].end :]:
        return
    message = f"the job succeeds even if line {evals[-1].line} fails: exit 0 is the last command"
    yield at(script, own[-1], message, next_step="end with the status: exit $?")


_KEEPS_STATUS = r"\$\?|\bexit\b(?!\s+0\s*(?:#.*)?\s*$)|PIPESTATUS|\bwait[ \t]+[-\w$%\"]"
"""The script takes the status of the training, or ends with another one than 0."""


def _is_quick(command: Command, script: Script) -> bool:
    """Whether a command ends quickly, also as a step: `srun rm -rf $DIR`."""
    if command.name in _QUICK or command.name == "exit":
        return True
    if command.name != "srun":
        return False
    inner = [c for c in script.commands if c.parent is command]
    program = script.chain(command)[0].program if script.chain(command) else ()
    return all(c.name in _QUICK for c in inner) if inner else bool(program) and program[0].text in _QUICK


@rule(
    id="save-interval-long",
    severity="warning",
    title="More than half of the job can be lost",
    why="Checkpoints are so far apart that a failure, or the time limit, can cost more than half of all steps.",
    source="checkpoint intervals: the loss of a failure is half of the interval on average, and all of it at worst",
    before=_HEAD + "srun python train.py --max_steps 10000 --save_steps 10000\n",
    after=_HEAD + "srun python train.py --max_steps 10000 --save_steps 1000\n",
)
def save_interval_long(script: Script, context: Context) -> Iterator[Hit]:
    if not trains(script) or (script.time_s is not None and script.time_s < HOUR_S):
        return
    code = code_of(script)
    for total_name, save_name, unit in ((_STEPS, _SAVE_STEPS, "steps"), (_EPOCHS, _SAVE_EPOCHS, "epochs")):
        totals, saves = _values(script, code, total_name), _values(script, code, save_name)
        if len(totals) != 1 or len(saves) != 1:
            continue
        (total, _), (save, place) = totals[0], saves[0]
        if total >= _FEW[unit] and 2 * save > total:
            yield at_span(
                script,
                place.start(),
                place.end(),
                f"a checkpoint every {save:,} of {total:,} {unit}",
                next_step="save at least every hour of the run",
            )


def _values(script: Script, code: str, name: str) -> list[tuple[int, re.Match[str]]]:
    """Values of an option whose number is known, with their places."""
    pattern = re.compile(
        rf"(?<![\w-])(?:--|\+{{0,2}}(?:\w+\.){{0,4}}){name}(?:=|\s{{1,4}})[\"']?(\d{{1,9}}\b|\$\{{?\w+\}}?)"
    )
    values = [(number(script, match.group(1)), match) for match in pattern.finditer(code)]
    return [(value, match) for value, match in values if value is not None]
