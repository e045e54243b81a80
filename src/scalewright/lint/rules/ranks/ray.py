"""Rules about Ray inside a job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from scalewright.lint.job_facts import code_of, number, work_commands
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, at, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.syntax import Command

_TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"


_CHECKS_RAY = re.compile(r"health-check|symmetric.run|nodes\(\)|/dev/tcp|nc -z|cluster_resources\(")
_ASKS_RAY = re.compile(r"(?:^|[\s/])ray\s+(?:status|list\s+nodes)\b")
_WAITS = re.compile(r"\b(?:until|while|if|for)\b[^\n]{0,200}(?:\n[^\n]{0,200}){0,3}\bray\s+(?:status|list\s+nodes)")


def _checks_ray(script: Script) -> bool:
    """Whether the script waits until Ray answers: a loop or a condition asks for its status."""
    code = code_of(script)
    if _CHECKS_RAY.search(code) or _WAITS.search(code):
        return True
    for command in script.commands:
        within = command.within
        if (within.loops or within.is_condition or within.functions) and _ASKS_RAY.search(" ".join(command.texts)):
            return True
    return False


@lru_cache(maxsize=16)
def _ray_starts(script: Script) -> tuple[Command, ...]:
    """Commands with `ray start`."""
    if not _RAY.search(script.text):
        return ()
    starting = [command for command in script.commands if any(word.text == "start" for word in command.words)]
    return tuple(c for c in starting if re.search(r"(?:^|[\s/])ray\s+start\b", " ".join(c.texts[:40])))


_RAY = re.compile(r"\bray\b")


@rule(
    id="ray-step-ends",
    severity="error",
    title="Ray's processes end with the step that starts them",
    why="ray start returns at once. The step then ends, and Slurm kills the processes that it has started. The "
    "Ray cluster is gone before it is used.",
    source="Ray, ray start --block; Slurm: processes of a step end with it; a common mistake in published recipes",
    before=_TWO + "srun ray start --address=$HEAD:6379\npython driver.py\n",
    after=_TWO + "srun ray start --address=$HEAD:6379 --block &\npython driver.py\n",
    needs_header=False,
)
def ray_step_ends(script: Script, context: Context) -> Iterator[Hit]:
    for command in _ray_starts(script):
        in_step = command.name == "srun" or _is_inside(command, "srun")
        text = " ".join(command.texts)
        if not in_step or "--block" in text or re.search(r"\$\{?\w*(?:ARGS|FLAGS|OPTS|BLOCK)", text):
            continue
        scope = command.parent or command
        following = script.text[command.start : scope.end + 200] if command.parent else ""
        if re.search(r"\bsleep\s+(?:inf|\d{3,}|\$)|\bwait\b|tail -f|while\s", following):
            continue
        # A program that runs after it in the same step keeps the step alive.
        siblings = [
            c
            for c in script.commands
            if command.parent is not None and c.parent is command.parent and c.start > command.start
        ]
        if any(c.name in ("python", "python3", "vllm") for c in siblings):
            continue
        yield at(
            script,
            command,
            "the step ends when ray start returns, and Ray's processes end with it",
            next_step="add --block and run the step in the background: srun ... ray start --block ... &",
            fix=_with_block(script, command),
        )


def _is_inside(command: Command, name: str) -> bool:
    """Whether a command of this name passes the command to its shell."""
    parent = command.parent
    while parent is not None:
        if parent.name == name:
            return True
        parent = parent.parent
    return False


def _with_block(script: Script, command: Command) -> ScriptFix | None:
    """Unsafe: the step stays, so the script must go on beside it."""
    word = next((w for w in command.words if w.text == "start" and not w.is_expanded), None)
    outer = command
    while outer.parent is not None:
        outer = outer.parent
    if word is None or script.text[word.start : word.end] != "start":
        return None
    edits = [Edit(start=word.end, end=word.end, text=" --block")]
    if not outer.within.is_background:
        rest_of_line = script.text[outer.end : script.line_end(script.place(outer.end)[0])]
        if rest_of_line.strip() or command.parent is not None:
            return None
        edits.append(Edit(start=outer.end, end=outer.end, text=" &"))
    return ScriptFix(edits=tuple(edits), title="keep the step alive with --block", is_safe=False)


@rule(
    id="sleep-for-ray",
    severity="warning",
    title="A fixed sleep instead of a check that Ray is up",
    why="On a busy file system Ray may take longer than any fixed time. Workers then find no head node, and the "
    "job fails or runs on part of its nodes.",
    source="Ray, ray status and ray health-check",
    before=_TWO
    + "srun -N1 ray start --head --block &\nsleep 20\nsrun -N1 ray start --address=$HEAD:6379 --block &\npython "
    "driver.py\n",
    after=_TWO + "srun -N1 ray start --head --block &\nuntil ray status --address=$HEAD:6379; do sleep 2; done\n"
    "srun -N1 ray start --address=$HEAD:6379 --block &\npython driver.py\n",
    needs_header=False,
)
def sleep_for_ray(script: Script, context: Context) -> Iterator[Hit]:
    starts = _ray_starts(script)
    if not starts or _checks_ray(script):
        return
    for command in script.called("sleep"):
        seconds = number(script, command.texts[1] if len(command.texts) > 1 else None)
        if "while" in command.within.loops or "until" in command.within.loops or seconds is None or seconds > 600:
            continue
        if command.start > starts[0].start:
            yield at(
                script,
                command,
                f"Ray may need more than {seconds} s to start",
                next_step='wait until Ray answers: until ray status --address="$head:$port"; do sleep 2; done',
            )
            return


@rule(
    id="wait-for-ray",
    severity="error",
    title="wait never returns, because Ray does not end",
    why="ray start --block runs until somebody stops Ray. A wait without a process id waits for it too, so the job "
    "occupies its nodes until its time limit after the work is done.",
    source="bash(1), wait: without arguments it waits for all background processes; Ray, ray start --block",
    before=_TWO + "srun ray start --head --block &\nuntil ray status; do sleep 5; done\npython driver.py\nwait\n",
    after=_TWO + "srun ray start --head --block &\nuntil ray status; do sleep 5; done\npython driver.py\nray stop\n",
    needs_header=False,
)
def wait_for_ray(script: Script, context: Context) -> Iterator[Hit]:
    blocking = [c for c in _ray_starts(script) if "--block" in c.texts and _outermost(c).within.is_background]
    if not blocking:
        return
    for command in script.called("wait"):
        if len(command.words) > 1 or command.start < blocking[0].start or command.within.functions or command.parent:
            continue
        drivers = [
            work
            for work in work_commands(script)
            if work.is_foreground
            and blocking[-1].end < work.command.start < command.start
            and not _is_ray(work.command)
        ]
        last = drivers[-1].command.end if drivers else 0
        if drivers and not _ENDS_RAY.search(code_of(script)[last : command.start]):
            yield at(
                script,
                command,
                f"Ray never ends by itself, so the job waits here after line {drivers[-1].command.line} has ended",
                next_step="remove it, or stop Ray before it: ray stop on every node, or scancel the steps",
            )
            return


@rule(
    id="ray-blocks-step",
    severity="warning",
    title="The program waits for the resources that Ray's step holds",
    why="A step has its CPUs and GPUs for itself. While srun ray start --block runs, the next srun on the same node "
    "waits: Job step creation temporarily disabled, Requested nodes are busy.",
    source="Slurm, srun(1), --overlap: since 20.11 steps do not share resources",
    before=_TWO + "srun ray start --head --block &\nuntil ray status; do sleep 5; done\nsrun python driver.py\n",
    after=_TWO
    + "srun ray start --head --block &\nuntil ray status; do sleep 5; done\nsrun --overlap python driver.py\n",
    needs_header=False,
)
def ray_blocks_step(script: Script, context: Context) -> Iterator[Hit]:
    blocking = [
        command
        for command in _ray_starts(script)
        if command.name == "srun" and "--block" in command.texts and _outermost(command).within.is_background
    ]
    if not blocking or re.search(r"SLURM_OVERLAP|--overlap|--exact|-s\s", code_of(script)):
        return
    for work in work_commands(script):
        step = work.step
        if step is None or work.command.start < blocking[0].end or _is_ray(work.command) or step.command.parent:
            continue
        if step.has("nodelist", "relative", "ntasks", "cpus-per-task", "exclude", "nodes", "het-group"):
            continue  # it may fit beside Ray
        yield at(
            script,
            step,
            f"this step waits until Ray's step of line {blocking[0].line} ends, which it never does",
            next_step="add --overlap to srun, or start the program without srun",
        )
        return


_ENDS_RAY = re.compile(r"ray\s+stop|\bkill\b|\bscancel\b|\bexit\b|pkill")


def _outermost(command: Command) -> Command:
    while command.parent is not None:
        command = command.parent
    return command


def _is_ray(command: Command) -> bool:
    return re.search(r"(?:^|[\s/])ray\s+(?:start|status|list)", " ".join(command.texts[:40])) is not None
