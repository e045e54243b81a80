"""Rules about notices that reach a launcher of ranks, and not the ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import DISTRIBUTED, code_of, step_of
from scalewright.lint.rule import Context, Hit, at, rule
from scalewright.lint.rules.signals.job_end import notice
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch
from scalewright.lint.shell.syntax import Trap

_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --time=12:00:00\n"
_TRAINS = "srun torchrun --standalone --nproc_per_node=4 train.py"
_DEADLY = ("USR1", "USR2", "ALRM", "XCPU")
"""Signals that end a Python program that does not ask for them, and that no launcher asks for."""
_SENDS = re.compile(
    r"(?:\bkill\s+-(?:s\s+)?|\bscancel\b[^\n;]{0,80}?(?:--signal[= ]|-s\s+))(?:SIG)?(USR1|USR2|10|12)\b[^\n;&|]{0,120}"
)
_PAST_LAUNCHER = re.compile(r"pgrep|pkill|pidof|children|/proc/|\bps\b")
"""The signal goes to ranks that are looked for."""
_NUMBERED = {"10": "USR1", "12": "USR2"}


@rule(
    id="signal-ends-launcher",
    severity="error",
    title="The notice ends torchrun instead of reaching the ranks",
    why="torchrun, accelerate and deepspeed hand TERM and INT on to their ranks; of USR1 they die at once, the step "
    "ends with them, and the ranks are killed while they save, or before.",
    source="PyTorch, torch.distributed.elastic.multiprocessing: SIGTERM, SIGINT, SIGHUP and SIGQUIT are handled "
    "(pytorch/pytorch issue 154849); tried with PyTorch 2.13: torchrun ends with User defined signal 1",
    before=_HEAD + "#SBATCH --signal=USR1@120\n" + _TRAINS + "\n",
    after=_HEAD
    + "#SBATCH --signal=B:USR1@120\ntrap 'kill -TERM $pid; wait $pid' USR1\n"
    + f"{_TRAINS} &\npid=$!\nwait $pid\n",
)
def signal_ends_launcher(script: Script, context: Context) -> Iterator[Hit]:
    asked, found = notice(script), script.directive("signal")
    launched = [launch for launch in script.launched(*DISTRIBUTED) if not _handles(script, launch)]
    if asked is None or found is None or not launched or asked[0] not in _DEADLY:
        return
    name, to_shell = asked
    step = (
        "send TERM, which it hands on: --signal=B:USR1@120 and trap 'kill -TERM $pid; wait $pid' USR1, "
        "or start one task per rank with srun and no launcher"
    )
    if not to_shell:
        inside = next((launch for launch in launched if step_of(launch) is not None), None)
        if inside is not None:
            yield at(script, found, f"{inside.tool} of line {inside.line} dies of {name}", next_step=step)
        return
    for trap in script.traps:
        sent = _sent(script, trap) if name in trap.signals else None
        if sent is not None:
            yield at(
                script,
                trap.command,
                f"this sends {sent} to {launched[0].tool}, which dies of it",
                next_step="send TERM, which it hands on to its ranks: kill -TERM $pid; wait $pid",
            )
            return


def _sent(script: Script, trap: Trap) -> str | None:
    """The deadly signal that a trap sends to what runs; None: another, none, or to ranks that it looks for."""
    action = trap.action
    name = action.split()[0] if action.split() else ""
    text = action
    if name in script.body.functions:
        inside = [c for c in script.commands if c.within.functions[-1:] == (name,)]
        text += "\n" + "\n".join(script.text[c.start : c.end] for c in inside)
    match = _SENDS.search(text)
    if match is None or _PAST_LAUNCHER.search(text):
        return None
    return _NUMBERED.get(match.group(1), match.group(1))


def _handles(script: Script, launch: Launch) -> bool:
    """Whether the launcher is told which signals to hand on, as PyTorch 2.9 and later can be."""
    return launch.has("signals-to-handle") or "TORCHELASTIC_SIGNALS_TO_HANDLE" in code_of(script)


@rule(
    id="trap-without-signal",
    severity="info",
    title="A trap for a notice that nobody sends",
    why="Slurm sends USR1 only where --signal asks for it: without, the trap never runs, and at its limit the job gets "
    "TERM and seconds later KILL.",
    source="Slurm, sbatch(1), --signal; slurm.conf(5), KillWait",
    before=_HEAD + "trap 'kill -USR1 $pid; wait $pid' USR1\nsrun python train.py &\npid=$!\nwait $pid\n",
    after=_HEAD
    + "#SBATCH --signal=B:USR1@120\ntrap 'kill -USR1 $pid; wait $pid' USR1\nsrun python train.py &\npid=$!\n"
    + "wait $pid\n",
)
def trap_without_signal(script: Script, context: Context) -> Iterator[Hit]:
    if script.has("signal") or "kill" in {c.name for c in script.commands if not c.within.functions}:
        return  # the script itself may send it
    for trap in script.traps:
        name = next((signal for signal in trap.signals if signal in ("USR1", "USR2")), None)
        within = trap.command.within
        if name is None or trap.action in ("", "-") or within.is_heredoc or trap.command.parent or trap.command.origin:
            continue
        yield at(
            script,
            trap.command,
            f"nothing asks Slurm to send {name}: this trap never runs",
            next_step=f"add #SBATCH --signal=B:{name}@120",
        )
        return
