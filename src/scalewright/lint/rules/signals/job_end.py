"""Rules about the end of a job: the signal before it, traps, requeueing, background work and exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from scalewright.lint.job_facts import DISTRIBUTED, GUIDE, SURVEY, WorkCommand, code_of, mentions, trains, work_commands
from scalewright.lint.rule import Context, Hit, ScriptFix, add_directive, at, at_header, at_span, insert_text, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.syntax import Command
from scalewright.records.types import Severity
from scalewright.sites.walltime import HOUR_S

_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --time=12:00:00\n"
_NOTICE = _HEAD + "#SBATCH --signal=B:USR1@120\n"
_SAVES = "trap 'kill -USR1 $pid; wait $pid' USR1\n"
_RESUMES = r"resum|checkpoint|ckpt|restart|latest|--load\b|reload|continue|snapshot|RESTART_COUNT|last\.pt|autosave"

_RESUMES_SURELY = r"resum|restart|--load\b|RESTART_COUNT|auto[-_]?load|load[-_]latest|continue[-_](?:from|train)"
"""Words that show a resume. Checkpoints alone do not: a program may save and still start from the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRequest:
    """The signal that --signal requests before the end of the job."""

    name: str
    """Without SIG: `USR1`."""
    to_shell: bool
    """True: `B:`, the signal goes to the script's shell. False: it goes to the steps."""


def signal_request(script: Script) -> SignalRequest | None:
    """The value of --signal; None: not set, or not readable."""
    value = script.value("signal")
    match = re.fullmatch(r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z0-9]+)(?:@\d+)?", (value or "").upper())
    if match is None:
        return None
    numbered = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP"}
    return SignalRequest(
        name=numbered.get(match.group(2), match.group(2)),
        to_shell="B" in (match.group(1) or ""),
    )


@rule(
    id="no-signal",
    severity="info",
    title="No signal before the end of the job",
    why="At its time limit, or when it is preempted, a job is ended within seconds. The work since the last "
    "checkpoint is lost. --signal gives the job time to save.",
    source=f"{GUIDE} 2.4.4, advance notice; 97.6 % of {SURVEY}",
    before=_HEAD + "srun python train.py\n",
    after=_HEAD + "#SBATCH --signal=USR1@120\nsrun python train.py\n",
)
def no_signal(script: Script, context: Context) -> Iterator[Hit]:
    short = script.time_s is not None and script.time_s < HOUR_S
    if script.has("signal") or not trains(script) or short:
        return
    trap = "sends TERM to the launcher" if script.launched(*DISTRIBUTED) else "passes it on"
    yield at_header(
        script,
        "the job gets no signal before its end",
        next_step=f"add #SBATCH --signal=B:USR1@120 and a trap that {trap}, and save in the program",
    )


@rule(
    id="signal-without-trap",
    severity="error",
    title="The warning signal itself ends the job",
    why="B: sends the signal to the script's shell, and a shell without a trap for USR1 ends at once. The job "
    "dies early and saves nothing.",
    source=f"bash(1), SIGNALS; half of those of {SURVEY} that use B: set no trap",
    before=_NOTICE + "srun python train.py\n",
    after=_NOTICE + _SAVES + "srun python train.py &\npid=$!\nwait $pid\n",
)
def signal_without_trap(script: Script, context: Context) -> Iterator[Hit]:
    signal, directive = signal_request(script), script.directive("signal")
    if signal is None or not signal.to_shell or directive is None or not script.is_shell:
        return
    name = signal.name
    if any(name in trap.signals for trap in script.traps) or any(
        command.arguments for command in script.called("exec")
    ):
        return  # exec PROGRAM replaces the shell and gets the signal; exec > FILE only redirects output
    if mentions(script, rf"\b(?:SIG)?{name}\b"):
        return  # a tool of the site may set the trap
    fatal = name not in ("TERM", "CONT", "URG", "WINCH", "CHLD")
    # USR1 ends torchrun and other launchers, while they pass TERM on: see signal-ends-launcher.
    sent = "TERM" if script.launched(*DISTRIBUTED) else name
    yield at(
        script,
        directive,
        f"the script's shell gets {name} and has no trap for it"
        + (", so the signal ends the job" if fatal else ", so nothing is saved"),
        next_step=f"add trap 'kill -{sent} $pid; wait $pid' {name}, run the work in the background, and wait for it",
    )


@rule(
    id="signal-reaches-nobody",
    severity="warning",
    title="The signal goes to srun steps, and there are none",
    why="Without B: only steps that srun started get the signal. A program that the script starts without srun "
    "never gets it.",
    source="Slurm, sbatch(1), --signal: by default all job steps will be signalled, but not the batch shell itself",
    before=_HEAD + "#SBATCH --signal=USR1@120\npython train.py\n",
    after=_HEAD + "#SBATCH --signal=USR1@120\nsrun python train.py\n",
)
def signal_reaches_nobody(script: Script, context: Context) -> Iterator[Hit]:
    signal, directive = signal_request(script), script.directive("signal")
    if signal is None or signal.to_shell or directive is None or not script.is_shell:
        return
    if mentions(script, r"\b(srun|mpirun|mpiexec|submitit)\b") or not work_commands(script):
        return
    if any(c.name in ("bash", "sh", "source", ".", "") for c in script.commands):
        return
    yield at(
        script,
        directive,
        f"Slurm sends {signal.name} to srun steps, and the script starts none",
        next_step="start the program with srun, or write B: and pass the signal on with a trap",
    )


@rule(
    id="trap-blocked-by-srun",
    severity="error",
    title="The trap cannot run while a command is in the foreground",
    why="bash runs a trap only after the command in the foreground has ended. With srun or python there, the trap "
    "runs when everything is over.",
    source="bash(1), SIGNALS: the trap will not be executed until the command completes; a common mistake in published "
    "recipes",
    before=_NOTICE + _SAVES + "srun python train.py\n",
    after=_NOTICE + _SAVES + "srun python train.py &\npid=$!\nwait $pid\n",
)
def trap_blocked_by_srun(script: Script, context: Context) -> Iterator[Hit]:
    signal = signal_request(script)
    if signal is None or not signal.to_shell or not script.is_shell:
        return
    traps = [trap for trap in script.traps if signal.name in trap.signals and trap.action not in ("", "-")]
    own_traps = [trap for trap in traps if not trap.command.within.is_heredoc and trap.command.parent is None]
    if not own_traps:
        return
    for work in work_commands(script):
        if not work.is_foreground or work.command.start < own_traps[0].command.start or work.command.within.functions:
            continue
        if _replaces_shell(work) or work.command.within.is_subshell:
            continue
        yield at(
            script,
            work.chain[0] if work.chain else work.command,
            f"the trap for {signal.name} cannot run before this command ends",
            next_step="run it in the background and wait: COMMAND & pid=$!; wait $pid",
            fix=_in_background(script, work),
        )
        return


def _replaces_shell(work: WorkCommand) -> bool:
    """Whether the program replaces the shell and gets the signal itself."""
    return work.command.texts[0] == "exec"


def _in_background(script: Script, work: WorkCommand) -> ScriptFix | None:
    """Unsafe: a signal makes wait return early, and then the commands after it run."""
    within = work.command.within
    end = max([work.command.end, *(redirect.end for redirect in work.command.redirects)])
    rest_of_line = script.text[end : script.line_end(script.place(end)[0])]
    if (
        within.is_pipeline
        or within.is_condition
        or within.is_branch
        or within.loops
        or work.command.origin
        or rest_of_line.strip()
    ):
        return None
    text = f" &{script.newline}pid=$!{script.newline}wait $pid"
    return insert_text(end, text, title="run it in the background and wait", is_safe=False)


@rule(
    id="trap-replaced",
    severity="warning",
    title="A second trap replaces the first",
    why="A shell has one trap per signal. What the first trap should do never happens.",
    source="bash(1), trap; a common mistake in published recipes",
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
            if before is not None and before[0] != trap.action and not _includes(trap.action, before[0]):
                yield at(
                    script,
                    trap.command,
                    f"this replaces the trap for {name} on line {before[1]}, which then never runs",
                    next_step="write one trap that does both",
                )
            last[name] = (trap.action, trap.command.line)


def _includes(action: str, earlier: str) -> bool:
    """Whether an action does all that an earlier one did."""
    return earlier.strip().rstrip(";") in action


@rule(
    id="no-requeue",
    severity="info",
    title="Neither --requeue nor --no-requeue is given",
    why="After a node failure or a preemption, the site's default decides whether a job is requeued. The script "
    "should say which one it is written for.",
    source=f"Slurm, sbatch(1), --requeue; slurm.conf(5), JobRequeue; 95.5 % of {SURVEY}",
    before=_HEAD + "srun python train.py\n",
    after=_HEAD + "#SBATCH --no-requeue\nsrun python train.py\n",
)
def no_requeue(script: Script, context: Context) -> Iterator[Hit]:
    if trains(script) and not script.has("requeue", "no-requeue"):
        resumes = mentions(script, _RESUMES_SURELY)
        flag = "--requeue" if resumes else "--no-requeue"
        if _is_preemptible(script) and not resumes:
            return  # preemptible-unprepared covers it
        yield at_header(
            script,
            "the script does not say whether the job may be requeued",
            next_step=f"add #SBATCH {flag}" + ("" if resumes else ", or --requeue once the program resumes by itself"),
            # --no-requeue is no fix: on a preemptible queue, or after a node failure, the job would be gone.
            fix=add_directive(script, flag, is_safe=False) if resumes else None,
        )


def _is_preemptible(script: Script) -> bool:
    """Whether the partition or the QOS has the name of one whose jobs are preempted."""
    names = f"{script.value('partition') or ''} {script.value('qos') or ''}"
    return re.search(r"preempt|scaveng|spot\b|requeue", names, re.IGNORECASE) is not None


@rule(
    id="requeue-without-resume",
    severity="warning",
    title="The job is requeued and starts from the beginning",
    why="A job that starts from the beginning after every interruption repeats its work, and may overwrite "
    "earlier results.",
    source=f"{GUIDE} 2.4.12, requeue by design",
    before=_HEAD + "#SBATCH --requeue\nsrun python train.py --epochs 10\n",
    after=_HEAD + "#SBATCH --requeue\nsrun python train.py --epochs 10 --resume auto\n",
)
def requeue_without_resume(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("requeue")
    call = re.search(r"\bscontrol\s+requeue\b", code_of(script))
    if (directive is None and call is None) or not trains(script) or not work_commands(script) or script.is_template:
        return
    if re.search(_RESUMES, _with_comments(script), re.IGNORECASE):
        return
    passed_on = any(re.search(r"\bkill\s+-", trap.action) for trap in script.traps)
    # A task of an array is often short enough to run again. A program that gets a signal is written to save. Arguments
    # from the sbatch command line are unknown.
    is_minor = script.has("array") or passed_on or all(_has_unknown_arguments(work) for work in work_commands(script))
    message = "the job is requeued, and nothing in the script resumes"
    advice = "pass the last checkpoint to the program, for example with --resume or --load"
    severity: Severity | None = "info" if is_minor else None
    if directive is not None:
        yield at(script, directive, message, next_step=advice, severity=severity)
    elif call is not None:
        yield at_span(script, call.start(), None, message, next_step=advice, severity=severity)


def _has_unknown_arguments(work: WorkCommand) -> bool:
    """Whether the program or its arguments come from the sbatch command line."""
    if work.command.name in ("bash", "sh") and work.command.words[1].text.startswith("$"):
        return True
    return any(re.match(r"\$(?:[@*]|\{[@*])", word.text) for word in work.command.words) or (
        work.step is not None and bool(work.step.program) and work.step.program[0].text.startswith("$")
    )


def _with_comments(script: Script) -> str:
    """The code and the comments: a comment that mentions resuming is enough."""
    return code_of(script) + "".join(
        comment.text for comment in script.comments if not comment.text.startswith("#SBATCH")
    )


@rule(
    id="requeue-truncates-log",
    severity="info",
    title="A requeued job overwrites its log",
    why="A requeued job keeps its id, so %j gives the same file. Without --open-mode=append Slurm empties it.",
    source="Slurm, sbatch(1), --open-mode; slurm.conf(5), JobFileAppend",
    before=_HEAD + "#SBATCH --requeue\nsrun python train.py --resume\n",
    after=_HEAD + "#SBATCH --requeue\n#SBATCH --open-mode=append\nsrun python train.py --resume\n",
)
def requeue_truncates_log(script: Script, context: Context) -> Iterator[Hit]:
    requeues = script.has("requeue") or any("requeue" in c.texts for c in script.called("scontrol"))
    if requeues and not script.has("open-mode") and not script.has("no-requeue"):
        yield at_header(
            script,
            "Slurm empties the log when the job is requeued",
            next_step="add #SBATCH --open-mode=append",
            fix=add_directive(script, "--open-mode=append", is_safe=_has_log_of_its_own(script)),
        )


def _has_log_of_its_own(script: Script) -> bool:
    """Whether no other job writes the same log, so that appending only matters to a requeued job."""
    return all(not script.has(name) or re.search(r"%\d*[jJ]", script.value(name) or "") for name in ("output", "error"))


@rule(
    id="background-without-wait",
    severity="error",
    title="The script ends while its work still runs",
    why="When the script's shell ends, Slurm ends the job and kills everything that runs in the background.",
    source="Slurm, sbatch(1): the job ends with its batch script; bash(1), wait",
    before=_HEAD + "srun -n1 python a.py &\nsrun -n1 python b.py &\n",
    after=_HEAD + "srun -n1 python a.py &\nsrun -n1 python b.py &\nwait\n",
)
def background_without_wait(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_shell:
        return
    background = [w for w in work_commands(script) if w.command.within.is_background and not w.command.within.functions]
    if not background:
        return
    last = background[-1]
    if re.search(
        r"\bwait\b|kill -0|--pid|\bsleep\s+(?:inf|\d{4,})|\bfg\b|\btail -f", code_of(script)[last.command.start :]
    ):
        return
    later = [c for c in script.commands if c.start > last.command.end and not c.within.functions]
    if any(_keeps_script_alive(c) for c in later) or last.command.within.is_subshell:
        return
    lead = "" if script.text.endswith("\n") else script.newline
    yield at(
        script,
        last.chain[0] if last.chain else last.command,
        "this runs in the background, and nothing waits for it",
        next_step="end the script with wait",
        fix=insert_text(len(script.text), f"{lead}wait{script.newline}", title="wait for it", is_safe=False),
    )


_QUICK = frozenset(
    ["echo", "export", "cd", "date", "mkdir", "printf", "module", "set", "source", "unset", "rm", "cp", "test", "sleep"]
)


def _keeps_script_alive(command: Command) -> bool:
    """Whether a command after the background work may run for long."""
    waits_in_loop = command.name == "sleep" and bool({"while", "until"} & set(command.within.loops))
    return not command.within.is_background and (command.name not in _QUICK or waits_in_loop)


@rule(
    id="exit-status-lost",
    severity="warning",
    title="A failed training looks like a finished one",
    why="A pipeline returns the exit code of its last command. After | tee a failure counts as success: Slurm "
    "reports COMPLETED, and dependent jobs start.",
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
        following = script.text[work.command.end : work.command.end + 300]
        filters = r"[^|\n]*(?:\\\n[^|\n]*)*\|&?\s*(?:\\\n\s*)?(tee|ts|grep|sed|awk|stdbuf|tail|cat)\b"
        if not re.match(filters, following):
            continue
        launcher = work.chain[-1].tool if work.chain else work.command.name
        if launcher not in (*DISTRIBUTED, "python", "srun", "apptainer", "mpirun", "bash"):
            continue
        yield at(
            script,
            work.chain[0] if work.chain else work.command,
            "if this fails, the pipeline and the job still succeed",
            next_step="add set -o pipefail at the top",
        )
        return


@rule(
    id="no-errexit",
    severity="info",
    title="The script continues after an error",
    why="Without set -e the script continues when a module does not load or a folder is missing. The job wastes "
    "its GPU-hours, or ends as if it had succeeded.",
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
        message="the script continues when one of its commands fails",
        next_step="begin with set -euo pipefail (without u if the script sets up modules or conda)",
    )
