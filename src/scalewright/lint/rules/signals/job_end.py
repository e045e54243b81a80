"""Rules about a job's end: notices, traps, requeueing and what is left when it comes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import DISTRIBUTED, GUIDE, SURVEY, WorkCommand, code_of, mentions, trains, work_commands
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, add_directive, at, at_header, rule
from scalewright.lint.script import Script
from scalewright.sites.walltime import HOUR_S

_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --time=12:00:00\n"
_NOTICE = _HEAD + "#SBATCH --signal=B:USR1@120\n"
_SAVES = "trap 'kill -USR1 $pid; wait $pid' USR1\n"
_RESUMES = r"resum|checkpoint|ckpt|restart|latest|--load\b|reload|continue|snapshot|RESTART_COUNT|last\.pt|autosave"

_RESUMES_SURELY = r"resum|restart|--load\b|RESTART_COUNT|auto[-_]?load|load[-_]latest|continue[-_](?:from|train)"
"""Saving is not resuming: a program that only writes checkpoints starts anew when it is queued again."""


def notice(script: Script) -> tuple[str, bool] | None:
    """The signal that is asked for, without SIG, and whether it goes to the script's shell; None: none."""
    value = script.value("signal")
    match = re.fullmatch(r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z0-9]+)(?:@\d+)?", (value or "").upper())
    if match is None:
        return None
    numbered = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP"}
    return numbered.get(match.group(2), match.group(2)), "B" in (match.group(1) or "")


@rule(
    id="no-signal",
    severity="info",
    title="No notice before the end",
    why="At its limit, or when preempted, a job is ended within seconds: what was done since the last "
    "checkpoint is lost. "
    "--signal gives it time to save.",
    source=f"{GUIDE} 2.4.4, advance notice; 97.6 % of {SURVEY}",
    before=_HEAD + "srun python train.py\n",
    after=_HEAD + "#SBATCH --signal=USR1@120\nsrun python train.py\n",
)
def no_signal(script: Script, context: Context) -> Iterator[Hit]:
    short = script.time_s is not None and script.time_s < HOUR_S
    if script.has("signal") or not trains(script) or short:
        return
    on = ", a trap that sends TERM to the launcher," if script.launched(*DISTRIBUTED) else ", a trap that passes it on,"
    yield at_header(
        script,
        "the job gets no notice before its end",
        next_step=f"add #SBATCH --signal=B:USR1@120{on} and save in the program",
    )


@rule(
    id="signal-without-trap",
    severity="error",
    title="The notice itself ends the job",
    why="B: sends the signal to the script's shell, and a shell without a trap for USR1 ends at once: the job "
    "dies early, "
    "and nothing is saved.",
    source=f"bash(1), SIGNALS; half of those of {SURVEY} that use B: set no trap",
    before=_NOTICE + "srun python train.py\n",
    after=_NOTICE + _SAVES + "srun python train.py &\npid=$!\nwait $pid\n",
)
def signal_without_trap(script: Script, context: Context) -> Iterator[Hit]:
    asked, found = notice(script), script.directive("signal")
    if asked is None or not asked[1] or found is None or not script.is_shell:
        return
    name = asked[0]
    if any(name in trap.signals for trap in script.traps) or any(
        command.arguments for command in script.called("exec")
    ):
        return  # a program that takes the shell's place gets the signal itself; exec > FILE only sends output there
    if mentions(script, rf"\b(?:SIG)?{name}\b"):
        return  # a tool of the site may set the trap
    fatal = name not in ("TERM", "CONT", "URG", "WINCH", "CHLD")
    # torchrun and its like die of USR1 and hand TERM on: see signal-ends-launcher.
    sent = "TERM" if script.launched(*DISTRIBUTED) else name
    yield at(
        script,
        found,
        f"the script's shell gets {name} and has no trap for it"
        + (": the signal ends the job" if fatal else ": nothing is saved"),
        next_step=f"add: trap 'kill -{sent} $pid; wait $pid' {name}, with the work in the background and wait",
    )


@rule(
    id="signal-reaches-nobody",
    severity="warning",
    title="The notice goes to steps, and there is none",
    why="Without B: only steps that srun started get the signal; a program that the script starts itself never "
    "hears of it.",
    source="Slurm, sbatch(1), --signal: by default all job steps will be signalled, but not the batch shell itself",
    before=_HEAD + "#SBATCH --signal=USR1@120\npython train.py\n",
    after=_HEAD + "#SBATCH --signal=USR1@120\nsrun python train.py\n",
)
def signal_reaches_nobody(script: Script, context: Context) -> Iterator[Hit]:
    asked, found = notice(script), script.directive("signal")
    if asked is None or asked[1] or found is None or not script.is_shell:
        return
    if mentions(script, r"\b(srun|mpirun|mpiexec|submitit)\b") or not work_commands(script):
        return
    if any(c.name in ("bash", "sh", "source", ".", "") for c in script.commands):
        return
    yield at(
        script,
        found,
        f"{asked[0]} is sent to steps, and the script starts none",
        next_step="start the program with srun, or write B: and pass the signal on with a trap",
    )


@rule(
    id="trap-blocked-by-srun",
    severity="error",
    title="The trap cannot run while the shell waits",
    why="bash runs a trap only when the command in the foreground has ended: with srun or python there the notice is "
    "handled when everything is over.",
    source="bash(1), SIGNALS: the trap will not be executed until the command completes; a slip that published "
    "recipes make",
    before=_NOTICE + _SAVES + "srun python train.py\n",
    after=_NOTICE + _SAVES + "srun python train.py &\npid=$!\nwait $pid\n",
)
def trap_blocked_by_srun(script: Script, context: Context) -> Iterator[Hit]:
    asked = notice(script)
    if asked is None or not asked[1] or not script.is_shell:
        return
    traps = [trap for trap in script.traps if asked[0] in trap.signals and trap.action not in ("", "-")]
    own = [trap for trap in traps if not trap.command.within.is_heredoc and trap.command.parent is None]
    if not own:
        return
    for work in work_commands(script):
        if not work.is_foreground or work.command.start < own[0].command.start or work.command.within.functions:
            continue
        if _hands_over(work) or work.command.within.is_subshell:
            continue
        yield at(
            script,
            work.chain[0] if work.chain else work.command,
            f"the trap of {asked[0]} waits for this to end",
            next_step="run it in the background and wait: COMMAND & pid=$!; wait $pid",
            fix=_in_background(script, work),
        )
        return


def _hands_over(work: WorkCommand) -> bool:
    """Whether the program takes the shell's place and gets the signal itself."""
    return work.command.texts[0] == "exec"


def _in_background(script: Script, work: WorkCommand) -> ScriptFix | None:
    """Unsafe: what follows runs when wait returns, which a signal makes it do early."""
    within, end = work.command.within, work.command.end
    redirects = [redirect.end for redirect in work.command.redirects]
    end = max([end, *redirects])
    rest = script.text[end : script.line_end(script.place(end)[0])]
    if (
        within.is_pipeline
        or within.is_condition
        or within.is_branch
        or within.loops
        or work.command.origin
        or rest.strip()
    ):
        return None
    edits = (Edit(start=end, end=end, text=f" &{script.newline}pid=$!{script.newline}wait $pid"),)
    return ScriptFix(edits=edits, title="run it in the background and wait", is_safe=False)


@rule(
    id="trap-replaced",
    severity="warning",
    title="A second trap replaces the first",
    why="A shell has one trap for each signal: what the first was to do, it never does.",
    source="bash(1), trap; a slip that published recipes make",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\ntrap 'rm -rf \"$scratch\"' EXIT\ntrap 'echo done' EXIT\npython "
    "train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\ntrap 'rm -rf \"$scratch\"; echo done' EXIT\npython train.py\n",
    needs_header=False,
)
def trap_replaced(script: Script, context: Context) -> Iterator[Hit]:
    last: dict[str, tuple[str, int]] = {}
    for trap in script.traps:
        within = trap.command.within
        if within.functions or within.is_subshell or within.is_branch or within.is_substitution or trap.command.parent:
            continue
        for name in trap.signals:
            before = last.get(name)
            if trap.action in ("", "-"):
                last.pop(name, None)
                continue
            if before is not None and before[0] != trap.action and not _is_repeated(before[0], trap.action):
                yield at(
                    script,
                    trap.command,
                    f"this replaces the trap of {name} on line {before[1]}, which then never runs",
                    next_step="write one trap that does both",
                )
            last[name] = (trap.action, trap.command.line)


def _is_repeated(first: str, second: str) -> bool:
    """Whether the second trap does what the first did, and more."""
    return first.strip().rstrip(";") in second


@rule(
    id="no-requeue",
    severity="info",
    title="Whether the job may be queued again is not said",
    why="After a node fails, or when it is preempted, a job is queued again or not as the site has set it; a "
    "script should "
    "say which it is made for.",
    source=f"Slurm, sbatch(1), --requeue; slurm.conf(5), JobRequeue; 95.5 % of {SURVEY}",
    before=_HEAD + "srun python train.py\n",
    after=_HEAD + "#SBATCH --no-requeue\nsrun python train.py\n",
)
def no_requeue(script: Script, context: Context) -> Iterator[Hit]:
    if trains(script) and not script.has("requeue", "no-requeue"):
        resumes = mentions(script, _RESUMES_SURELY)
        flag = "--requeue" if resumes else "--no-requeue"
        yield at_header(
            script,
            "neither --requeue nor --no-requeue is given",
            next_step=f"add #SBATCH {flag}" + ("" if resumes else ", or --requeue once the program resumes by itself"),
            fix=add_directive(script, flag, is_safe=False),
        )


@rule(
    id="requeue-without-resume",
    severity="warning",
    title="The job is queued again and starts from nothing",
    why="A job that starts anew after every interruption repeats its work, and may overwrite what it had.",
    source=f"{GUIDE} 2.4.12, requeue by design",
    before=_HEAD + "#SBATCH --requeue\nsrun python train.py --epochs 10\n",
    after=_HEAD + "#SBATCH --requeue\nsrun python train.py --epochs 10 --resume auto\n",
)
def requeue_without_resume(script: Script, context: Context) -> Iterator[Hit]:
    found = script.directive("requeue")
    call = re.search(r"\bscontrol\s+requeue\b", code_of(script))
    if (found is None and call is None) or not trains(script) or not work_commands(script) or script.is_template:
        return
    if re.search(_RESUMES, _with_comments(script), re.IGNORECASE):
        return
    passed_on = any(re.search(r"\bkill\s+-", trap.action) for trap in script.traps)
    mild = script.has("array") or passed_on or all(_is_open(work) for work in work_commands(script))
    message = "the job is queued again, and nothing in the script resumes"
    step = "hand the program its last checkpoint: --resume, --load or whatever it calls it"
    if found is not None:
        # A task of an array is often short enough to be done again; a program that is told of the end is made for it;
        # what sbatch's command line adds nobody knows here.
        yield at(script, found, message, next_step=step, severity="info" if mild else None)
    elif call is not None:
        line, column = script.place(call.start())
        yield Hit(line=line, column=column, message=message, next_step=step, severity="info" if mild else None)


def _is_open(work: WorkCommand) -> bool:
    """Whether the program, or what it is told, comes with the call of the script."""
    if work.command.name in ("bash", "sh") and work.command.words[1].text.startswith("$"):
        return True
    return any(re.match(r"\$(?:[@*]|\{[@*])", word.text) for word in work.command.words) or (
        work.step is not None and bool(work.step.program) and work.step.program[0].text.startswith("$")
    )


def _with_comments(script: Script) -> str:
    """The code, and the comments: that somebody wrote how it resumes is good enough."""
    return code_of(script) + "".join(
        comment.text for comment in script.comments if not comment.text.startswith("#SBATCH")
    )


@rule(
    id="requeue-truncates-log",
    severity="info",
    title="The next attempt overwrites the log of the last",
    why="A job keeps its id when it is queued again, so %j is the same file: without --open-mode=append it is emptied.",
    source="Slurm, sbatch(1), --open-mode; slurm.conf(5), JobFileAppend",
    before=_HEAD + "#SBATCH --requeue\nsrun python train.py --resume\n",
    after=_HEAD + "#SBATCH --requeue\n#SBATCH --open-mode=append\nsrun python train.py --resume\n",
)
def requeue_truncates_log(script: Script, context: Context) -> Iterator[Hit]:
    requeues = script.has("requeue") or any("requeue" in c.texts for c in script.called("scontrol"))
    if requeues and not script.has("open-mode") and not script.has("no-requeue"):
        yield at_header(
            script,
            "the log is emptied when the job is queued again",
            next_step="add #SBATCH --open-mode=append",
            fix=add_directive(script, "--open-mode=append", is_safe=True),
        )


@rule(
    id="background-without-wait",
    severity="error",
    title="The script ends while its work still runs",
    why="When the script's shell ends, Slurm ends the job and kills what runs in the background.",
    source="Slurm, sbatch(1): the job ends with its batch script; bash(1), wait",
    before=_HEAD + "srun -n1 python a.py &\nsrun -n1 python b.py &\n",
    after=_HEAD + "srun -n1 python a.py &\nsrun -n1 python b.py &\nwait\n",
)
def background_without_wait(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_shell:
        return
    behind = [w for w in work_commands(script) if w.command.within.is_background and not w.command.within.functions]
    if not behind:
        return
    last = behind[-1]
    if re.search(
        r"\bwait\b|kill -0|--pid|\bsleep\s+(?:inf|\d{4,})|\bfg\b|\btail -f", code_of(script)[last.command.start :]
    ):
        return
    later = [c for c in script.commands if c.start > last.command.end and not c.within.functions]
    if any(_holds_on(c.name, c.within.is_background) for c in later) or last.command.within.is_subshell:
        return
    fix = None
    if not last.command.within.functions:
        lead = "" if script.text.endswith("\n") else script.newline
        place = len(script.text)
        fix = ScriptFix(
            edits=(Edit(start=place, end=place, text=f"{lead}wait{script.newline}"),), title="wait for it", is_safe=True
        )
    yield at(
        script,
        last.chain[0] if last.chain else last.command,
        "this runs in the background, and nothing waits for it",
        next_step="end the script with wait",
        fix=fix,
    )


def _holds_on(name: str, is_background: bool) -> bool:
    """Whether a later command keeps the script alive, or may."""
    quick = (
        "echo",
        "export",
        "cd",
        "date",
        "mkdir",
        "printf",
        "module",
        "set",
        "source",
        "unset",
        "rm",
        "cp",
        "test",
        "sleep",
    )
    return not is_background and name not in quick


@rule(
    id="exit-status-lost",
    severity="warning",
    title="A failed training looks like a finished one",
    why="A pipeline ends as its last command does: behind | tee a failure is success, Slurm reports COMPLETED, "
    "and jobs that "
    "depend on it start.",
    source=f"bash(1), pipefail; {GUIDE} 2.4.12: set -euo pipefail",
    before=_HEAD + "srun python train.py | tee train-$SLURM_JOB_ID.log\n",
    after=_HEAD + "set -o pipefail\nsrun python train.py | tee train-$SLURM_JOB_ID.log\n",
)
def exit_status_lost(script: Script, context: Context) -> Iterator[Hit]:
    if "pipefail" in script.shell_options or mentions(script, r"PIPESTATUS|pipestatus"):
        return
    for work in work_commands(script):
        within = work.command.within
        if not within.is_pipeline or within.is_substitution or within.is_condition or within.is_background:
            continue
        rest = script.text[work.command.end : work.command.end + 300]
        if not re.match(r"[^|\n]*(?:\\\n[^|\n]*)*\|&?\s*(?:\\\n\s*)?(tee|ts|grep|sed|awk|stdbuf|tail|cat)\b", rest):
            continue
        launcher = work.chain[-1].tool if work.chain else work.command.name
        if launcher not in (*DISTRIBUTED, "python", "srun", "apptainer", "mpirun", "bash"):
            continue
        yield at(
            script,
            work.chain[0] if work.chain else work.command,
            "if this fails, the pipeline and the job still succeed",
            next_step="set -o pipefail at the top",
        )
        return


@rule(
    id="no-errexit",
    severity="info",
    title="The script goes on after a failure",
    why="Without set -e a module that does not load, or a folder that is missing, is passed over, and the job "
    "burns its "
    "hours, or ends as if all were well.",
    source=f"bash(1), set; {GUIDE} 2.4.12: set -euo pipefail; 66.9 % of {SURVEY}",
    before=_HEAD + "module load cuda/12.4\nsrun python train.py\n",
    after=_HEAD + "set -euo pipefail\nmodule load cuda/12.4\nsrun python train.py\n",
)
def no_errexit(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_shell or "errexit" in script.shell_options or len(script.commands) < 2:
        return
    if not work_commands(script) or any(trap.signals == ("ERR",) for trap in script.traps):
        return
    line = min(script.header.end_line, len(script.lines))
    yield Hit(
        line=line,
        message="the script goes on when one of its commands fails",
        next_step="begin with set -euo pipefail (without u where modules or conda are set up)",
    )
