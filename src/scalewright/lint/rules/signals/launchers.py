"""Rules about signals that reach a launcher instead of its ranks, and traps for signals that nothing sends."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import DISTRIBUTED, code_of, step_of
from scalewright.lint.rule import Context, Hit, at, rule
from scalewright.lint.rules.signals.job_end import signal_request
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch
from scalewright.lint.shell.syntax import Trap

_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --time=12:00:00\n"
_TRAINS = "srun torchrun --standalone --nproc_per_node=4 train.py"
_DEADLY = ("USR1", "USR2", "ALRM", "XCPU")
"""Signals that end a Python program without a handler; launchers have no handler for them."""
_SENDS = re.compile(
    r"(?:\bkill\s+-(?:s\s+)?|\bscancel\b[^\n;]{0,80}?(?:--signal[= ]|-s\s+))(?:SIG)?(USR1|USR2|10|12)\b[^\n;&|]{0,120}"
)
_PAST_LAUNCHER = re.compile(r"pgrep|pkill|pidof|children|/proc/|\bps\b")
"""The trap looks for the ranks and sends the signal to them."""
_NUMBERED = {"10": "USR1", "12": "USR2"}


@rule(
    id="signal-ends-launcher",
    severity="error",
    title="The signal ends torchrun instead of reaching the ranks",
    why="torchrun, accelerate and deepspeed pass TERM and INT on to their ranks. USR1 ends the launcher at once, "
    "the step ends with it, and the ranks are killed while they save, or before.",
    source="PyTorch, torch.distributed.elastic.multiprocessing: SIGTERM, SIGINT, SIGHUP and SIGQUIT are handled "
    "(pytorch/pytorch issue 154849); tried with PyTorch 2.13: torchrun ends with User defined signal 1",
    before=_HEAD + "#SBATCH --signal=USR1@120\n" + _TRAINS + "\n",
    after=_HEAD
    + "#SBATCH --signal=B:USR1@120\ntrap 'kill -TERM $pid; wait $pid' USR1\n"
    + f"{_TRAINS} &\npid=$!\nwait $pid\n",
)
def signal_ends_launcher(script: Script, context: Context) -> Iterator[Hit]:
    signal, directive = signal_request(script), script.directive("signal")
    launchers = [launch for launch in script.launched(*DISTRIBUTED) if not _handles(script, launch)]
    if signal is None or directive is None or not launchers or signal.name not in _DEADLY:
        return
    if not signal.to_shell:
        inside = next((launch for launch in launchers if step_of(launch) is not None), None)
        if inside is not None:
            message = f"{signal.name} ends {inside.tool} on line {inside.line}"
            yield at(script, directive, message, next_step=_SEND_TERM)
        return
    for trap in script.traps:
        sent = _deadly_signal(script, trap) if signal.name in trap.signals else None
        if sent is not None:
            yield at(
                script,
                trap.command,
                f"this sends {sent} to {launchers[0].tool}, which ends it",
                next_step="send TERM, which it passes on to its ranks: kill -TERM $pid; wait $pid",
            )
            return


_SEND_TERM = (
    "send TERM, which it passes on: --signal=B:USR1@120 and trap 'kill -TERM $pid; wait $pid' USR1, "
    "or start one task per rank with srun and no launcher"
)


def _deadly_signal(script: Script, trap: Trap) -> str | None:
    """The deadly signal that a trap sends to the launcher; None: another signal, none, or one for the ranks."""
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
    """Whether the launcher has a list of signals to pass on. PyTorch 2.9 and later support that."""
    return launch.has("signals-to-handle") or "TORCHELASTIC_SIGNALS_TO_HANDLE" in code_of(script)


@rule(
    id="trap-without-signal",
    severity="info",
    title="A trap for a signal that nothing sends",
    why="Slurm sends USR1 only if --signal requests it. Without it the trap never runs: at its time limit the job "
    "gets TERM, and seconds later KILL.",
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
            f"this trap never runs: --signal does not request {name}",
            next_step=f"add #SBATCH --signal=B:{name}@120",
        )
        return
