"""Rules about being kind to the scheduler: submissions, polling, dependencies."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import GUIDE, SURVEY, code_of, number
from scalewright.lint.rule import Context, Hit, add_directive, at, insert_text, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.syntax import Command

POLL_S = 30
"""Seconds between questions to the scheduler that operators do not mind."""
SECONDS = 10
"""Below this the guide speaks of a tight loop."""
FEW = 5
"""Submissions in a loop that are not worth an array."""
_ASKS = ("squeue", "sacct", "sinfo", "scontrol", "sstat", "sprio")
_HEAD = "#!/bin/bash\n#SBATCH --time=01:00:00\n"


@rule(
    id="sbatch-in-loop",
    severity="warning",
    title="Jobs are submitted one by one in a loop",
    why="Every submission locks the scheduler, and a hundred jobs take a hundred places in the queue; an array "
    "takes one.",
    source=f"{GUIDE} 2.4.7, scheduler scalability",
    before="#!/bin/bash\nfor seed in $(seq 1 100); do\n  sbatch train.sbatch $seed\ndone\n",
    after="#!/bin/bash\nsbatch --array=1-100%20 train.sbatch\n",
    needs_header=False,
)
def sbatch_in_loop(script: Script, context: Context) -> Iterator[Hit]:
    for command in script.called("sbatch"):
        chained = any(re.match(r"-d|--depend", text) for text in command.texts[1:])
        if not command.within.loops or chained or _is_short_loop(script, command):
            continue
        yield at(
            script,
            command,
            "sbatch runs in a loop",
            next_step="submit one array, and pick the work by SLURM_ARRAY_TASK_ID: sbatch --array=0-99%20",
        )


def _is_short_loop(script: Script, command: Command) -> bool:
    """`for x in a b c`, with few words that are all written out."""
    if command.within.loops[-1] != "for" or not command.within.loop_starts:
        return False
    head = script.text[command.within.loop_starts[-1] : command.start]
    match = re.match(r"for\s+\w+\s+in\s+([^\n;$`*{]{1,300}?)\s{0,9}(?:;|\n)", head)
    return match is not None and len(match.group(1).split()) <= FEW and len(command.within.loops) == 1


@rule(
    id="sbatch-in-job",
    severity="info",
    title="The job submits jobs",
    why="A job that submits its successor goes on for ever when it fails early, and compute nodes of some sites "
    "cannot submit; "
    "a dependency says the same and ends.",
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
        own = any(re.search(r"^\$0$|BASH_SOURCE|\$\{?SLURM_JOB_NAME", text) for text in command.texts[1:])
        own = own or any(
            text.endswith(script.path.rpartition("/")[2]) for text in command.texts[1:] if script.path != "-"
        )
        guarded = command.within.is_branch or command.within.is_condition or command.within.functions
        endless = own and not guarded
        yield at(
            script,
            command,
            "the job submits itself again, whatever happened" if endless else "the job submits another job",
            next_step="submit both at once: sbatch --dependency=afterok:JOBID",
            severity="warning" if endless else None,
        )


def _is_outside(script: Script, command: Command) -> bool:
    """Whether it is run before the job: scripts that submit themselves first ask whether they are a job already."""
    before = code_of(script)[: command.start]
    return command.within.is_branch and re.search(r"-z\s+\"?\$\{?SLURM_JOB_?ID", before) is not None


@rule(
    id="squeue-tight-loop",
    severity="warning",
    title="The scheduler is asked again and again",
    why="Questions in a tight loop keep slurmctld from scheduling, for everybody; sites block users for it.",
    source=f"{GUIDE} 2.4.7: avoid tight loops that call squeue or sbatch",
    before='#!/bin/bash\nwhile squeue -j "$id" | grep -q R; do\n  sleep 1\ndone\n',
    after='#!/bin/bash\nwhile squeue -j "$id" | grep -q R; do\n  sleep 60\ndone\n',
    needs_header=False,
)
def squeue_tight_loop(script: Script, context: Context) -> Iterator[Hit]:
    for command in script.called(*_ASKS):
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
            next_step=f"sleep {POLL_S} s or more between questions, or let sbatch --dependency or --wait do the "
            "waiting",
        )
    for command in script.called("watch"):
        if any(text in _ASKS for text in command.texts[1:]) and "-n" not in command.texts:
            yield at(script, command, "watch asks every 2 s", next_step=f"watch -n {POLL_S}")


def _seconds(script: Script, command: Command) -> int | None:
    text = script.resolve(command.texts[1]) if len(command.texts) > 1 else ""
    match = re.fullmatch(r"(\d{1,6})(?:\.\d+)?([smhd]?)", text)
    if match:
        return int(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match.group(2)]
    return number(script, text)


@rule(
    id="dependency-never-ends",
    severity="info",
    title="A job whose dependency failed waits for ever",
    why="With afterok a job that can no longer start stays in the queue as DependencyNeverSatisfied until "
    "somebody cancels it.",
    source=f"Slurm, sbatch(1), --kill-on-invalid-dep; {GUIDE} 2.4.12",
    before="#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --dependency=afterok:4711\nsrun python eval.py\n",
    after="#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --dependency=afterok:4711\n#SBATCH "
    "--kill-on-invalid-dep=yes\nsrun python eval.py\n",
    needs_header=False,
)
def dependency_never_ends(script: Script, context: Context) -> Iterator[Hit]:
    found = script.directive("dependency")
    if found is not None and "afterok" in (found.value or "") and not script.has("kill-on-invalid-dep"):
        yield at(
            script,
            found,
            "if that job fails, this one waits for ever",
            next_step="add #SBATCH --kill-on-invalid-dep=yes",
            fix=add_directive(script, "--kill-on-invalid-dep=yes", is_safe=True),
        )
    for command in script.called("sbatch"):
        text = " ".join(command.texts)
        if "afterok" not in text or "kill-on-invalid-dep" in text:
            continue
        first = command.words[0]
        plain = not first.is_expanded and script.text[first.start : first.end] == "sbatch"
        flag = " --kill-on-invalid-dep=yes"
        yield at(
            script,
            command,
            "if the job it depends on fails, this one waits for ever",
            next_step="add --kill-on-invalid-dep=yes",
            fix=insert_text(first.end, flag, title="cancel the job if it can no longer start", is_safe=True)
            if plain
            else None,
        )


@rule(
    id="dependency-written-down",
    severity="info",
    title="The header depends on the number of an old job",
    why="A job's id in the header is right once: later the job it names is long gone, and the dependency is "
    "refused or at "
    "once fulfilled.",
    source="Slurm, sbatch(1), --dependency",
    before="#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --dependency=afterany:15437042\nsrun python eval.py\n",
    after="#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --dependency=singleton\nsrun python eval.py\n",
)
def dependency_written_down(script: Script, context: Context) -> Iterator[Hit]:
    found = script.directive("dependency")
    if found is not None and re.search(r"after\w*:\d{2,}", found.value or ""):
        yield at(
            script,
            found,
            f"--dependency={found.value} names a job that is gone when the script is used again",
            next_step="give it on sbatch's command line",
        )
