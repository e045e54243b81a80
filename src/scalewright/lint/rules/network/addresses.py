"""Rules about the address that ranks meet at."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import DISTRIBUTED, step_of
from scalewright.lint.rule import Context, Hit, at, replace_text, rule
from scalewright.lint.script import Script

_TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
_FIRST_NODE = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'


@rule(
    id="master-addr-local",
    severity="error",
    title="Ranks of several nodes connect to localhost",
    why="localhost is a different host on every node. Ranks of the other nodes wait for a host that never answers.",
    source="PyTorch, torch.distributed: MASTER_ADDR is that of the host of rank 0",
    before=_TWO + "export MASTER_ADDR=localhost\nsrun python train.py\n",
    after=_TWO
    + 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\nsrun python train.py\n',
)
def master_addr_local(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_multi_node:
        return
    local = re.compile(r"^(?:localhost|127\.0\.0\.1|\$\{MASTER_ADDR:-(?:localhost|127\.0\.0\.1)\})(?::\S+)?$")
    for assignment in script.assignments:
        if assignment.name in ("MASTER_ADDR", "master_addr", "head_node", "HEAD_NODE_ADDR") and local.match(
            assignment.value.text
        ):
            yield at(
                script,
                assignment,
                f"{assignment.name} is {assignment.value.text} on {script.num_nodes} nodes",
                next_step=f"use the name of the first node: {_FIRST_NODE}",
                fix=replace_text(assignment.value, _FIRST_NODE, title="use the name of the first node", is_safe=False),
            )
    for launch in script.launched(*DISTRIBUTED):
        option = launch.option("master-addr", "rdzv-endpoint", "main-process-ip")
        if option is not None and local.match(option.value or "") and step_of(launch) is not None:
            yield at(
                script,
                option,
                f"ranks of all nodes connect to {option.value}",
                next_step=f"use the name of the first node: {_FIRST_NODE}",
            )


@rule(
    id="master-addr-per-task",
    severity="error",
    title="Every task uses its own host as the master",
    why="$(hostname) inside a task gives a different name on every node, so the ranks never meet.",
    source="PyTorch, torch.distributed: MASTER_ADDR is that of the host of rank 0",
    before=_TWO + "srun bash -c 'MASTER_ADDR=$(hostname) python train.py'\n",
    after=_TWO + "export MASTER_ADDR=$(hostname)\nsrun python train.py\n",
)
def master_addr_per_task(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_multi_node:
        return
    wrong = re.compile(
        r"\bMASTER_ADDR=\"?(?:\$\(hostname\b[^)]*\)|`hostname\b[^`]*`|\$\{?HOSTNAME\}?|\$\{?SLURMD_NODENAME\}?)"
    )
    for launch in script.launched("srun"):
        if launch.command.parent is not None or launch.command.origin:
            continue
        for word in launch.program:
            raw = script.text[word.start : word.end]
            match = wrong.search(raw) if raw.startswith("'") else None
            if match is not None:
                yield at(
                    script,
                    word,
                    "every task sets MASTER_ADDR to its own host",
                    next_step="set it once, before srun: export MASTER_ADDR=$(scontrol show hostnames ... | head -n1)",
                )


@rule(
    id="master-addr-literal",
    severity="warning",
    title="The address of the first rank is hard-coded",
    why="Slurm chooses the nodes of every job. The address from an earlier run is another job's node.",
    source="Slurm, scontrol(1), show hostnames; PyTorch, torch.distributed",
    before=_TWO + "export MASTER_ADDR=10.20.30.7\nsrun python train.py\n",
    after=_TWO
    + 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\nsrun python train.py\n',
)
def master_addr_literal(script: Script, context: Context) -> Iterator[Hit]:
    address = re.compile(r"^(?!127\.|0\.0\.0\.0)(?:\d{1,3}(?:\.\d{1,3}){3}|[a-z]+[a-z-]*\d+[a-z0-9.-]*)$")
    for assignment in script.assignments:
        if (
            assignment.name == "MASTER_ADDR"
            and address.match(assignment.value.text)
            and assignment.value.text != "localhost"
        ):
            yield at(
                script,
                assignment,
                f"MASTER_ADDR is always {assignment.value.text}",
                next_step=f"use the name of the first node: {_FIRST_NODE}",
                fix=replace_text(assignment.value, _FIRST_NODE, title="use the name of the first node", is_safe=False),
            )


@rule(
    id="nodes-in-one-element",
    severity="error",
    title="The list of nodes is one element",
    why='In A=("$nodes") the quotes keep all names together. ${A[0]} is then the list of all nodes, with line ends, '
    "and ${A[1]} is empty: steps for one node fail, or run on the wrong one.",
    source="bash(1), Arrays: name=(value1 ... valuen), and Word Splitting",
    before=_TWO
    + 'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")\nA=("$nodes")\nsrun -N1 -n1 -w "${A[1]}" python a.py\n',
    after=_TWO
    + 'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")\nA=($nodes)\nsrun -N1 -n1 -w "${A[1]}" python a.py\n',
)
def nodes_in_one_element(script: Script, context: Context) -> Iterator[Hit]:
    if script.num_nodes == 1:
        return
    lists = {
        a.name for a in script.assignments
        if not a.is_array and re.match(r"[\"']?(?:\$\(|`)\s*scontrol\s+show\s+hostname", a.value.text)
        and "head" not in a.value.text
    }  # fmt: skip
    for assignment in script.assignments:
        text = script.text[assignment.value.start : assignment.value.end]
        quoted = re.fullmatch(r'\(\s*"\$\{?(\w+)\}?"\s*\)', text) if assignment.is_array else None
        if quoted is None or quoted.group(1) not in lists or f"{{{assignment.name}[" not in script.text:
            continue
        yield at(
            script,
            assignment,
            f"{assignment.name} has one element with the names of all nodes",
            next_step=f"leave out the quotes: {assignment.name}=(${quoted.group(1)})",
        )
