"""Rules about rank numbers: whether they are set, and whether the shell expands them too early."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import DISTRIBUTED, code_of, started_by, step_total, work_commands
from scalewright.lint.rule import Context, Hit, at, at_span, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch
from scalewright.lint.shell.syntax import Assignment

_HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n"
_ONE_EACH = _HEAD + "#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=8\n"
_ONE_NODE = _HEAD + "#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=32\n"
_PER_TASK = r"SLURM_(?:PROCID|NODEID|LOCALID)|PMI_RANK|SLURM_TASK_PID"
_EARLY = re.compile(rf"(?<!\\)\$\{{?(?:{_PER_TASK})\b")


@rule(
    id="rank-expanded-early",
    severity="error",
    title="A task's number is expanded before the tasks start",
    why="The script's shell expands $SLURM_PROCID and $SLURM_NODEID once, to 0, before srun starts the tasks. "
    "Every node believes that it is the first, and the ranks never meet.",
    source="Slurm, srun(1): SLURM_PROCID and SLURM_NODEID are set for each task",
    before=_ONE_NODE
    + "srun torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr=$HEAD train.py\n",
    after=_ONE_NODE
    + "srun bash -c 'torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr=$HEAD train.py'\n",
)
def rank_expanded_early(script: Script, context: Context) -> Iterator[Hit]:
    yield from _early_heredocs(script)
    yield from _early_exports(script)
    early = _early_names(script)
    for launch in script.launched("srun"):
        if launch.command.parent is not None or launch.command.origin or step_total(script, launch) == 1:
            continue
        inner = [other for other in started_by(script, launch) if other.tool in DISTRIBUTED]
        if any(_meets_by_itself(other) for other in inner):
            continue
        by_itself = _BY_ITSELF.search(script.resolve(" ".join(word.text for word in launch.program))) is not None
        for word in launch.program:
            raw = script.text[word.start : word.end]
            name = None if raw.startswith("'") else early.search(_without_single(raw))
            if name is None:
                continue
            yield at(
                script,
                word,
                f"the script's shell expands {name.group()} once, not in every task",
                next_step="expand it in every task: srun bash -c '...', in single quotes",
                severity="info" if by_itself else None,
            )
            break


def _set_early(script: Script) -> list[Assignment]:
    """Assignments that the script's own shell makes from a task's number, which is always 0 there."""
    return [
        a
        for a in script.assignments
        if not (a.within.is_heredoc or a.within.functions or a.origin)
        and _EARLY.search(script.text[a.value.start : a.value.end])
        and not script.text[a.value.start : a.value.end].startswith("'")
        and re.fullmatch(r"(?:NODE_|LOCAL_|GROUP_|GLOBAL_)?RANK|machine_rank|node_rank|rank|NODEID|PROCID", a.name)
    ]


def _early_names(script: Script) -> re.Pattern[str]:
    """Matches a reference to a task's number, or to a variable that was set from one too early."""
    names = "|".join(sorted({re.escape(a.name) for a in _set_early(script)}))
    return re.compile(rf"(?<!\\)\$\{{?(?:{_PER_TASK}{'|' + names if names else ''})\b")


def _early_exports(script: Script) -> Iterator[Hit]:
    """`export RANK=$SLURM_PROCID` before srun: every task inherits rank 0."""
    for assignment in _set_early(script):
        if not assignment.is_exported or assignment.name not in ("RANK", "LOCAL_RANK"):
            continue
        for work in work_commands(script):
            step, last = work.step, work.chain[-1] if work.chain else None
            if step is None or last is None or last.tool != "python" or work.command.start < assignment.start:
                continue
            if (step_total(script, step) or 1) > 1 and not any(launch.tool in DISTRIBUTED for launch in work.chain):
                yield at(
                    script,
                    assignment,
                    f"{assignment.name} is set once, to 0, and every task on line {work.command.line} inherits it",
                    next_step=f"set it in every task: srun bash -c 'export {assignment.name}=...; python train.py'",
                )
                break


def _early_heredocs(script: Script) -> Iterator[Hit]:
    """`srun bash <<EOF`: without quotes around EOF the script's shell expands all variables."""
    for doc in script.heredocs:
        reader = doc.command
        if doc.is_quoted or reader is None or reader.name != "srun" or reader.origin:
            continue
        match = _EARLY.search(doc.text)
        if match is not None:
            yield at_span(
                script,
                doc.start + match.start(),
                doc.start + match.end(),
                f"the script's shell expands {match.group()} once, not in every task",
                next_step="quote the mark of the heredoc: <<'EOF'",
            )


_BY_ITSELF = re.compile(r"rdzv[-_]backend[= ]+[\"']?(?:c10d|etcd)")
"""torchrun numbers the nodes itself, in text that was not taken apart."""


def _meets_by_itself(launch: Launch) -> bool:
    """Whether a launcher assigns node numbers itself: torchrun with a c10d or etcd rendezvous."""
    backend = launch.value("rdzv-backend")
    return launch.tool == "torchrun" and backend not in (None, "static")


def _without_single(raw: str) -> str:
    """A word without its parts in single quotes, unless these are inside double quotes."""
    return raw if raw.startswith('"') else re.sub(r"'[^']*'", "", raw)


@rule(
    id="rank-unset",
    severity="error",
    title="RANK is not set under srun",
    why="srun sets SLURM_PROCID, but not RANK. Only torchrun and other launchers set RANK, LOCAL_RANK and WORLD_SIZE.",
    source="PyTorch, torch.distributed: environment variable initialization; Slurm, srun(1); a common mistake "
    "in published recipes",
    before=_ONE_EACH + "srun python -c \"import os; print(os.environ['RANK'])\"\n",
    after=_ONE_EACH + "srun bash -c 'RANK=$SLURM_PROCID exec python train.py'\n",
    needs_header=False,
)
def rank_unset(script: Script, context: Context) -> Iterator[Hit]:
    code = code_of(script)
    if not _USES_RANK.search(code) or script.launched(*DISTRIBUTED, "mpirun") or script.called("source", "."):
        return
    names = {assignment.name for assignment in script.assignments}
    names |= {name for command in script.commands for name, _ in command.environment}
    names |= set(
        re.findall(r"(?:^|[;&|({'\",]|\bexport|\benv|--env|-x)\s*((?:LOCAL_)?RANK|WORLD_SIZE)=", code, re.MULTILINE)
    )
    seen: set[str] = set()
    for match in _USES_RANK.finditer(code):
        name = match.group(1) or match.group(2)
        if name in names or name in seen or re.search(rf"environ\[['\"]{name}['\"]\]\s*=[^=]", code):
            continue
        seen.add(name)
        yield at_span(
            script,
            match.start(),
            match.end(),
            f"nothing sets {name}: srun does not (torchrun does)",
            next_step=f"set it in every task: export {name}=${_SLURM_NAME[name]}",
        )


_USES_RANK = re.compile(
    r"\$\{?((?:LOCAL_)?RANK|WORLD_SIZE)\b(?!:?[-=?+])|"
    r"environ\[\s*['\"]((?:LOCAL_)?RANK|WORLD_SIZE)['\"]\s*\](?!\s*=[^=])"
)
_SLURM_NAME = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}
