"""Rules about folders that are not where they seem to be: the copy of the script, and disks of single nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import code_of, work_commands
from scalewright.lint.rule import Context, Hit, at, at_span, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.syntax import Command

_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"
_TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
_OWN_PATH = re.compile(
    r"\$\(\s*dirname\s+(?:--\s+)?(?:\"?\$\(\s*(?:readlink|realpath)(?:\s+-\w+)*\s+)?\"?\$(?:0|\{0\}|\{?BASH_SOURCE(?:\[0\])?\}?)"
    r"|`dirname\s+\"?\$(?:0|\{0\}|\{?BASH_SOURCE(?:\[0\])?\}?)|\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}"
)
_LOCAL = (
    r"(?:/tmp|/dev/shm|/local(?:_?scratch)?|\$\{?(?:TMPDIR|SLURM_TMPDIR|LOCAL_?SCRATCH|LOCALSCRATCH|JOBFS|SNIC_TMP)\}?)"
)
_COPIES = ("cp", "rsync", "tar", "unzip", "scp", "sbcast", "pv", "squashfuse", "unsquashfs", "rclone")


@rule(
    id="script-folder",
    severity="error",
    title="The script looks for files beside itself",
    why="sbatch copies the script, and slurmd runs the copy from its spool folder on the node. $0 and BASH_SOURCE name "
    "that folder, where nothing else is.",
    source="Slurm, sbatch(1): the script is copied; slurm.conf(5), SlurmdSpoolDir",
    before=_HEAD + 'cd "$(dirname "$0")"\npython train.py\n',
    after=_HEAD + 'cd "$SLURM_SUBMIT_DIR"\npython train.py\n',
)
def script_folder(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_shell or not any(d.is_effective for d in script.directives):
        return
    code = code_of(script)
    if "$0" not in code and "${0" not in code and "BASH_SOURCE" not in code:
        return
    if re.search(r"scontrol\s+show\s+job|\bsbatch\b|SLURM_JOB_?ID:?[-+]|-[zn]\s+\"?\$\{?SLURM_|-v\s+SLURM_", code):
        return  # the script asks Slurm for its path, or also runs outside of a job
    for match in _OWN_PATH.finditer(code):
        line = code.rfind("\n", 0, match.start()) + 1
        if re.match(r"\s*(?:echo|printf)\b", code[line : match.start()]):
            continue  # it is only printed
        if "SLURM_SUBMIT_DIR" in code[line : match.end() + 40] or any(
            doc.start <= match.start() < doc.end for doc in script.heredocs
        ):
            continue
        yield at_span(
            script,
            match.start(),
            match.end(),
            "in a job this is the spool folder of slurmd, which holds only a copy of the script",
            next_step="use $SLURM_SUBMIT_DIR, the folder in which sbatch was called, or an absolute path",
        )
        return


@rule(
    id="staged-on-first-node",
    severity="error",
    title="Data is copied to the first node only",
    why="The script runs on the first node. A copy to its local disk is not on the other nodes, whose ranks do not "
    "find the files.",
    source="Slurm, sbatch(1): the script runs on the first allocated node; sbcast(1)",
    before=_TWO + 'cp -r "$WORK/data" /tmp/data\nsrun python train.py --data /tmp/data\n',
    after=_TWO + 'srun --ntasks-per-node=1 cp -r "$WORK/data" /tmp/data\nsrun python train.py --data /tmp/data\n',
)
def staged_on_first_node(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_multi_node or not script.is_shell:
        return
    users = [work for work in work_commands(script) if work.step is not None]
    for command in script.called(*_COPIES):
        target = _local_target(script, command)
        if target is None or command.parent is not None or command.within.functions or command.within.is_condition:
            continue
        after = [work for work in users if work.command.start > command.end]
        names = [target, *(f"${a.name}" for a in script.assignments if _is_path(script, a.value.text, target))]
        text = " ".join(script.text[work.command.start : work.command.end].replace("{", "") for work in after)
        if any(name in text or script.resolve(name) in text for name in names):
            yield at(
                script,
                command,
                f"this copies to {target} on the first node only, and a step on {script.num_nodes} nodes uses it",
                next_step="copy on every node: srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 "
                f"{command.name} ..., or use sbcast",
            )
            return


def _is_path(script: Script, value: str, target: str) -> bool:
    return len(value) > 4 and script.resolve(value).startswith(target)


def _local_target(script: Script, command: Command) -> str | None:
    """Folder of a node's own disk that a command copies to; None: another target."""
    if command.name == "sbcast" or len(command.words) < 3:
        return None
    texts = [script.resolve(text) for text in command.texts[1:]]
    if command.name == "tar":
        place = next((i for i, text in enumerate(texts) if text in ("-C", "--directory")), None)
        target = texts[place + 1] if place is not None and place + 1 < len(texts) else ""
        is_read = any(re.match(r"-?\w*x", text) for text in texts[:2])
        return target if is_read and re.match(_LOCAL, target) else None
    if command.name == "unzip":
        place = next((i for i, text in enumerate(texts) if text == "-d"), None)
        target = texts[place + 1] if place is not None and place + 1 < len(texts) else ""
    else:
        target = texts[-1]
    return target.rstrip("/") if re.match(_LOCAL, target) else None


_RESULTS = re.compile(
    r"(?:\$\{?(?:TMPDIR|SLURM_TMPDIR|LOCAL_?SCRATCH|LOCALSCRATCH|SNIC_TMP)\}?|/dev/shm|/tmp)[\"']?/"
    r"[^\s\"';|&]{0,100}(?:results?|outputs?|checkpoints?|ckpts?|saved?|weights|runs)\b",
    re.IGNORECASE,
)


@rule(
    id="results-on-node",
    severity="warning",
    title="Results stay on the node",
    why="The job's temporary folder is emptied when the job ends. What the program writes there is lost unless the "
    "script copies it to a shared file system.",
    source="Slurm, job_container/tmpfs; sites empty $TMPDIR after every job",
    before=_HEAD + 'mkdir -p "$TMPDIR/results"\npython train.py\n',
    after=_HEAD + 'mkdir -p "$TMPDIR/results"\npython train.py\ncp -r "$TMPDIR/results" "$WORK/$SLURM_JOB_ID"\n',
)
def results_on_node(script: Script, context: Context) -> Iterator[Hit]:
    works = [work for work in work_commands(script) if not work.command.within.functions]
    if not works or script.is_template:
        return
    code = code_of(script)
    if re.search(r"\b(?:cp|rsync|mv|tar|scp|sgather|zip|rclone|gsutil|aws)\b", code[works[-1].command.end :]):
        return
    if any(
        trap.action in script.body.functions or "cp" in trap.action or "rsync" in trap.action for trap in script.traps
    ):
        return
    for command in script.called("mkdir"):
        folder = command.words[-1]
        path = f"{_current_folder(script, command)}/{script.resolve(folder.text)}"
        if len(command.words) < 2 or command.start > works[-1].command.start or not _RESULTS.search(path):
            continue
        yield at(
            script,
            folder,
            f"{folder.text} is on the node, and nothing copies it back after the work",
            next_step="copy it to the shared file system at the end, and in a trap for the time limit",
        )
        return


def _current_folder(script: Script, command: Command) -> str:
    """The folder that the script changed to last before a command, as it is written; empty: none."""
    changes = [c for c in script.called("cd", "pushd") if c.start < command.start and len(c.words) > 1 and not c.parent]
    is_absolute = script.resolve(command.words[-1].text).startswith(("/", "$"))
    return "" if is_absolute or not changes else script.resolve(changes[-1].words[-1].text)
