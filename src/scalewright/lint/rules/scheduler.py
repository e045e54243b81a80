"""Rules about the load on the scheduler: submissions, polling, dependencies."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import GUIDE, SURVEY, code_of, number
from scalewright.lint.rule import Context, Hit, add_directive, at, insert_text, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.syntax import Command

POLL_S = 30
"""Seconds between two queries of the scheduler that operators accept."""
MAX_SUBMISSIONS = 5
"""Submissions in a loop that are not worth an array."""
_QUERIES = ("squeue", "sacct", "sinfo", "scontrol", "sstat", "sprio")
_HEAD = "#!/bin/bash\n#SBATCH --time=01:00:00\n"


@rule(
    id="sbatch-in-loop",
    severity="warning",
    title="A loop submits jobs one by one",
    why="Every submission locks the scheduler, and a hundred jobs take a hundred places in the queue. An array "
    "takes one.",
    source=f"{GUIDE} 2.4.7, scheduler scalability",
    before="#!/bin/bash\nfor seed in $(seq 1 100); do\n  sbatch train.sbatch $seed\ndone\n",
    after="#!/bin/bash\nsbatch --array=1-100%20 train.sbatch\n",
    needs_header=False,
)
def sbatch_in_loop(script: Script, context: Context) -> Iterator[Hit]:
    submissions = [command for command in script.called("sbatch") if command.within.loops]
    chains = {c.within.loop_starts[-1] for c in submissions if any(re.match(r"-d|--depend", t) for t in c.texts[1:])}
    for command in submissions:
        if command.within.loop_starts[-1] in chains or _is_short_loop(script, command):
            continue
        yield at(
            script,
            command,
            "sbatch runs in a loop",
            next_step="submit one array, and choose the work by SLURM_ARRAY_TASK_ID: sbatch --array=0-99%20",
        )


def _is_short_loop(script: Script, command: Command) -> bool:
    """`for x in a b c`, with a short list of literal words."""
    if command.within.loops[-1] != "for" or not command.within.loop_starts:
        return False
    head = script.text[command.within.loop_starts[-1] : command.start]
    match = re.match(r"for\s+\w+\s+in\s+([^\n;$`*{]{1,300}?)\s{0,9}(?:;|\n)", head)
    return match is not None and len(match.group(1).split()) <= MAX_SUBMISSIONS and len(command.within.loops) == 1


@rule(
    id="sbatch-in-job",
    severity="info",
    title="The job submits other jobs",
    why="A job that submits its successor repeats forever if it fails early, and compute nodes of some sites "
    "cannot submit. A dependency does the same and ends.",
    source=f"{GUIDE} 2.4.12: use dependencies, not loops; 10.8 % of {SURVEY}",
    before=_HEAD + "srun python train.py\nsbatch eval.sbatch\n",
    after=_HEAD + "srun python train.py\n",
)
def sbatch_in_job(script: Script, context: Context) -> Iterator[Hit]:
    if not any(d.is_effective for d in script.directives):
        return
    for command in script.called("sbatch"):
        if command.within.loops or _is_outside(script, command):
            continue
        is_itself = any(re.search(r"^\$0$|BASH_SOURCE|\$\{?SLURM_JOB_NAME", text) for text in command.texts[1:])
        is_itself = is_itself or any(
            text.endswith(script.path.rpartition("/")[2]) for text in command.texts[1:] if script.path != "-"
        )
        guarded = command.within.is_branch or command.within.is_condition or command.within.functions
        endless = is_itself and not guarded
        yield at(
            script,
            command,
            "the job always submits itself again, even after a failure" if endless else "the job submits another job",
            next_step="submit both jobs at once: sbatch --dependency=afterok:JOBID",
            severity="warning" if endless else None,
        )


def _is_outside(script: Script, command: Command) -> bool:
    """Whether it runs before the job: scripts that submit themselves first check whether they are a job already."""
    before = code_of(script)[: command.start]
    return command.within.is_branch and re.search(r"-z\s+\"?\$\{?SLURM_JOB_?ID", before) is not None


@rule(
    id="squeue-tight-loop",
    severity="warning",
    title="A loop queries the scheduler too often",
    why="Queries in a tight loop keep slurmctld from scheduling, for everybody. Sites block users for it.",
    source=f"{GUIDE} 2.4.7: avoid tight loops that call squeue or sbatch",
    before='#!/bin/bash\nwhile squeue -j "$id" | grep -q R; do\n  sleep 1\ndone\n',
    after='#!/bin/bash\nwhile squeue -j "$id" | grep -q R; do\n  sleep 60\ndone\n',
    needs_header=False,
)
def squeue_tight_loop(script: Script, context: Context) -> Iterator[Hit]:
    for command in script.called(*_QUERIES):
        loops = command.within.loop_starts
        if (
            not loops
            or command.within.loops[-1] == "for"
            or "hostnames" in command.texts
            or "hostname" in command.texts
        ):
            continue
        sleeps = [c for c in script.called("sleep") if c.within.loop_starts[: len(loops)] == loops]
        waits = [_seconds(script, c) for c in sleeps]
        if any(wait is None or wait >= POLL_S for wait in waits):
            continue
        longest_s = max((w for w in waits if w is not None), default=0)
        yield at(
            script,
            command,
            f"{command.name} is called every {longest_s} s",
            next_step=f"sleep {POLL_S} s or more between queries, or use sbatch --dependency or --wait",
        )
    for command in script.called("watch"):
        if any(text in _QUERIES for text in command.texts[1:]) and "-n" not in command.texts:
            message = "watch queries the scheduler every 2 s"
            yield at(script, command, message, next_step=f"write watch -n {POLL_S}")


def _seconds(script: Script, command: Command) -> int | None:
    """Duration of a sleep; None: unknown."""
    text = script.resolve(command.texts[1]) if len(command.texts) > 1 else ""
    match = re.fullmatch(r"(\d{1,6})(?:\.\d+)?([smhd]?)", text)
    if match:
        return int(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match.group(2)]
    return number(script, text)


@rule(
    id="dependency-never-ends",
    severity="info",
    title="A job waits forever after its dependency has failed",
    why="With afterok a job that can no longer start stays in the queue as DependencyNeverSatisfied until "
    "somebody cancels it.",
    source=f"Slurm, sbatch(1), --kill-on-invalid-dep; {GUIDE} 2.4.12",
    before="#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --dependency=afterok:4711\nsrun python eval.py\n",
    after="#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --dependency=afterok:4711\n#SBATCH "
    "--kill-on-invalid-dep=yes\nsrun python eval.py\n",
    needs_header=False,
)
def dependency_never_ends(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("dependency")
    if directive is not None and "afterok" in (directive.value or "") and not script.has("kill-on-invalid-dep"):
        yield at(
            script,
            directive,
            "if that job fails, this one waits forever",
            next_step="add #SBATCH --kill-on-invalid-dep=yes",
            fix=add_directive(script, "--kill-on-invalid-dep=yes", is_safe=False),
        )
    for command in script.called("sbatch"):
        text = " ".join(command.texts)
        if "afterok" not in text or "kill-on-invalid-dep" in text:
            continue
        first = command.words[0]
        is_plain = not first.is_expanded and script.text[first.start : first.end] == "sbatch"
        flag = " --kill-on-invalid-dep=yes"
        yield at(
            script,
            command,
            "if the job it depends on fails, this one waits forever",
            next_step="add --kill-on-invalid-dep=yes",
            fix=insert_text(first.end, flag, title="cancel the job if it can no longer start", is_safe=False)
            if is_plain
            else None,
        )


@rule(
    id="dependency-written-down",
    severity="info",
    title="The header depends on a fixed job id",
    why="A job id in the header is right once. Later that job is long gone, and Slurm refuses the dependency or "
    "treats it as fulfilled.",
    source="Slurm, sbatch(1), --dependency",
    before="#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --dependency=afterany:15437042\nsrun python eval.py\n",
    after="#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --dependency=singleton\nsrun python eval.py\n",
)
def dependency_written_down(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("dependency")
    if directive is not None and re.search(r"after\w*:\d{2,}", directive.value or ""):
        yield at(
            script,
            directive,
            f"--dependency={directive.value} names a job that is gone when the script is used again",
            next_step="set it on the sbatch command line",
        )
