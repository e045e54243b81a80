"""Rules about variables that are empty when the script uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import code_of
from scalewright.lint.rule import Context, Hit, at, at_span, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.syntax import Command
from scalewright.records.types import Severity

_HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\n"
_SET_BY: dict[str, tuple[str, ...]] = {
    "SLURM_GPUS": ("gpus",),
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",),
    "SLURM_CPUS_PER_TASK": ("cpus-per-task",),
    "SLURM_CPUS_PER_GPU": ("cpus-per-gpu",),
    "SLURM_MEM_PER_NODE": ("mem",),
    "SLURM_MEM_PER_CPU": ("mem-per-cpu",),
    "SLURM_ARRAY_TASK_ID": ("array",),
    "SLURM_ARRAY_JOB_ID": ("array",),
    "SLURM_ARRAY_TASK_COUNT": ("array",),
}
"""Variables that Slurm sets only if the job was submitted with the option: sbatch(1), OUTPUT ENVIRONMENT VARIABLES."""
_USED = re.compile(
    r"(?<!\\)\$(?:\{(SLURM_\w+)\}|(SLURM_\w+)\b)|\(\([^()\n]{0,60}?\b(SLURM_(?:GPUS|NTASKS|CPUS|MEM)\w*)"
)
_OTHERS = {
    "SLURM_GPUS": "SLURM_GPUS_ON_NODE counts the GPUs of a node",
    "SLURM_GPUS_PER_NODE": "SLURM_GPUS_ON_NODE is always set",
    "SLURM_NTASKS_PER_NODE": "SLURM_TASKS_PER_NODE is always set",
    "SLURM_CPUS_PER_TASK": "write ${SLURM_CPUS_PER_TASK:-1}",
}
_PRINTS = ("echo", "printf", "print")


@rule(
    id="slurm-variable-unset",
    severity="warning",
    title="Slurm does not set this variable for these options",
    why="Slurm sets SLURM_GPUS, SLURM_NTASKS_PER_NODE, SLURM_CPUS_PER_TASK and others only if the job has the option "
    "of that name. With --gres=gpu:4 SLURM_GPUS is empty, and so is every number that is made from it.",
    source="Slurm, sbatch(1), OUTPUT ENVIRONMENT VARIABLES: set only if the option is specified",
    before=_HEAD + "srun torchrun --nproc_per_node=$SLURM_GPUS train.py\n",
    after=_HEAD + "srun torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE train.py\n",
)
def slurm_variable_unset(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_shell or script.is_template or not any(d.is_effective for d in script.directives):
        return
    code = code_of(script)
    assigned = {a.name for a in script.assignments} | {n for c in script.commands for n, _ in c.environment}
    on_steps = {option.name for launch in script.launched("srun") for option in launch.options}
    seen: set[str] = set()
    for match in _USED.finditer(code):
        name = match.group(1) or match.group(2) or match.group(3)
        options = _SET_BY.get(name)
        if options is None or name in seen or name in assigned or script.has(*options) or set(options) & on_steps:
            continue
        if _is_tested(code, name) or _is_in_written_script(script, match.start()):
            continue
        seen.add(name)
        yield at_span(
            script,
            match.start(match.lastindex or 0) - 1,
            match.end(match.lastindex or 0),
            f"{name} is empty: Slurm sets it only with --{options[0]}",
            next_step=f"add #SBATCH --{options[0]}=N, or use another variable: {_OTHERS.get(name, 'see sbatch(1)')}",
            severity=_weight(script, name, match.start()),
        )


def _is_tested(code: str, name: str) -> bool:
    """Whether the script gives a default, or tests whether the variable is set."""
    return re.search(rf"\$\{{{name}:?[-=+?]|-[zn]\s+\"?\$\{{?{name}|-v\s+{name}|{name}\+x", code) is not None


def _is_in_written_script(script: Script, offset: int) -> bool:
    """Whether the text belongs to another job script or program, in a heredoc."""
    return any(doc.start <= offset < doc.end for doc in script.heredocs)


def _weight(script: Script, name: str, offset: int) -> Severity | None:
    """Info if the value is only printed; the rule's severity if something depends on it."""
    commands = [c for c in script.commands if not c.origin and c.parent is None]
    users = [c for c in commands if _names(script, c, name)]
    values = [a for a in script.assignments if re.search(rf"\b{name}\b", a.value.text)]
    return "info" if users and not values and all(c.name in _PRINTS for c in users) else None


def _names(script: Script, command: Command, name: str) -> bool:
    return any(re.search(rf"\b{name}\b", word.text) for word in command.words)


@rule(
    id="self-assignment",
    severity="error",
    title="A variable gets its own value, which is not set",
    why="NAME=$NAME changes nothing. Names of variables are case-sensitive: the value that the script has computed is "
    "in another variable, and NAME stays empty.",
    source="bash(1), PARAMETERS: names are case-sensitive",
    before=_HEAD + "master_addr=$(hostname)\nexport MASTER_ADDR=$MASTER_ADDR\nsrun python train.py\n",
    after=_HEAD + "master_addr=$(hostname)\nexport MASTER_ADDR=$master_addr\nsrun python train.py\n",
    needs_header=False,
)
def self_assignment(script: Script, context: Context) -> Iterator[Hit]:
    for place, assignment in enumerate(script.assignments):
        name = assignment.name
        if assignment.value.text not in (f"${name}", f"${{{name}}}") or assignment.origin:
            continue
        earlier = [a.name for a in script.assignments[:place]]
        twin = next((other for other in earlier if other != name and other.lower() == name.lower()), None)
        if twin is not None and name not in earlier:
            yield at(
                script,
                assignment,
                f"{name} keeps its value, which is not set here: the script has set {twin}",
                next_step=f"write {name}=${twin}",
            )


_JOB_VARIABLE = re.compile(r"(?<!\\)\$\{?(SLURM_\w+)")


@rule(
    id="heredoc-expands-early",
    severity="error",
    title="A variable of the job is expanded before the job exists",
    why="Without quotes around its mark the shell that submits expands the text of a heredoc. SLURM_JOB_ID and the "
    "like are empty there, and so they are in the job script.",
    source="bash(1), Here Documents: if any part of word is quoted, the lines are not expanded",
    before="#!/bin/bash\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py --run $SLURM_JOB_ID\nEOF\n",
    after="#!/bin/bash\nsbatch <<'EOF'\n#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py --run $SLURM_JOB_ID\nEOF\n",
    needs_header=False,
)
def heredoc_expands_early(script: Script, context: Context) -> Iterator[Hit]:
    if script.has_header and any(d.is_effective for d in script.directives):
        return  # inside a job these variables are set
    assigned = {a.name for a in script.assignments}
    for doc in script.heredocs:
        is_job = doc.command is not None and doc.command.name in ("sbatch", "cat", "tee") and "#SBATCH" in doc.text
        match = _JOB_VARIABLE.search(doc.text) if is_job and not doc.is_quoted else None
        if match is not None and match.group(1) not in assigned:
            yield at_span(
                script,
                doc.start + match.start(),
                doc.start + match.end(),
                f"{match.group(1)} is expanded when the script is written, where it is empty",
                next_step=f"write \\${match.group(1)}, or quote the mark of the heredoc: <<'EOF'",
            )


@rule(
    id="set-is-no-assignment",
    severity="error",
    title="set NAME=value sets no variable",
    why="In sh and bash, set replaces the arguments $1, $2 and so on. The variable stays as it was. This is the syntax "
    "of Windows and of csh.",
    source="bash(1), set: any arguments that remain after option processing are values for the positional parameters",
    before=_HEAD + "set CUDA_VISIBLE_DEVICES=0\npython train.py\n",
    after=_HEAD + "export CUDA_VISIBLE_DEVICES=0\npython train.py\n",
    needs_header=False,
)
def set_is_no_assignment(script: Script, context: Context) -> Iterator[Hit]:
    for command in script.called("set"):
        word = command.words[1] if len(command.words) == 2 else None
        match = re.match(r"([A-Za-z_]\w*)=", word.text) if word is not None and not command.origin else None
        if match is not None:
            yield at(
                script,
                command,
                f"this sets $1, and {match.group(1)} stays as it was",
                next_step=f"write export {match.group(1)}=...",
            )


_OF_MANUALS = re.compile(r"\$\{?(HOST_NODE_ADDR|NUM_TRAINERS|NUM_ALLOWED_FAILURES|NUM_NODES_TOTAL)\}?\b")


@rule(
    id="manual-variable-unset",
    severity="warning",
    title="A variable of the manual is never set",
    why="The manual of torchrun writes $HOST_NODE_ADDR, $NUM_TRAINERS and the like for values that you choose. Nothing "
    "sets them, so that the option is empty.",
    source="PyTorch, torchrun: usage",
    before=_HEAD + "torchrun --nnodes=2 --rdzv_endpoint=$HOST_NODE_ADDR train.py\n",
    after=_HEAD + "HOST_NODE_ADDR=$HEAD:29500\ntorchrun --nnodes=2 --rdzv_endpoint=$HOST_NODE_ADDR train.py\n",
    needs_header=False,
)
def manual_variable_unset(script: Script, context: Context) -> Iterator[Hit]:
    assigned = {a.name for a in script.assignments} | {n for c in script.commands for n, _ in c.environment}
    for match in _OF_MANUALS.finditer(code_of(script)):
        if match.group(1) not in assigned:
            message = f"{match.group(1)} is the manual's name for a value, and nothing sets it"
            yield at_span(script, match.start(), match.end(), message, next_step=f"set {match.group(1)} before")
            return


_QUOTED_DEFAULT = re.compile(r"\"[^\"'\n]{0,100}(\$\{\w+:?[-=]'[^'{}\n]{0,200}'\})")


@rule(
    id="quotes-in-default",
    severity="warning",
    title="Single quotes inside double quotes are part of the value",
    why="Within double quotes the shell does not remove single quotes from a default: the value begins and ends with "
    "one. A file or a model of that name does not exist.",
    source="bash(1), Parameter Expansion and QUOTING",
    before=_HEAD + "MODEL=\"${1:-'Qwen/Qwen2.5-0.5B'}\"\npython train.py --model $MODEL\n",
    after=_HEAD + 'MODEL="${1:-Qwen/Qwen2.5-0.5B}"\npython train.py --model $MODEL\n',
    needs_header=False,
)
def quotes_in_default(script: Script, context: Context) -> Iterator[Hit]:
    for assignment in script.assignments:
        text = script.text[assignment.value.start : assignment.value.end]
        match = None if assignment.origin or not text.startswith('"') else _QUOTED_DEFAULT.match(text)
        if match is not None:
            yield at(
                script,
                assignment,
                f"{assignment.name} gets the quotes as well: {match.group(1)}",
                next_step="remove the single quotes",
            )
