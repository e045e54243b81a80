"""Rules about torchrun, accelerate and Lightning: whether their processes can find each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import (
    DISTRIBUTED,
    code_of,
    has_unknown_options,
    number,
    step_nodes,
    step_of,
    step_tasks_per_node,
    work_commands,
)
from scalewright.lint.rule import Context, Hit, at, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch

_TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"


@rule(
    id="no-rendezvous",
    severity="error",
    title="Nodes are not told where to meet",
    why="Without an address torchrun meets at localhost, on every node another: they wait for each other until the "
    "time-out. It does not read MASTER_ADDR, and with c10d not --master_addr.",
    source="PyTorch, torchrun: rdzv-endpoint, master-addr (default 127.0.0.1); accelerate launch: main_process_ip",
    before=_TWO + "export MASTER_ADDR=$(hostname)\nsrun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
    after=_TWO
    + "export MASTER_ADDR=$(hostname)\n"
    + "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$PORT train.py\n",
)
def no_rendezvous(script: Script, context: Context) -> Iterator[Hit]:
    for launch in script.launched("torchrun", "accelerate"):
        if not _spans_nodes(script, launch) or has_unknown_options(launch) or launch.command.origin:
            continue
        static = launch.value("rdzv-backend") in (None, "static")
        meets = launch.has("rdzv-endpoint") or (static and launch.has("master-addr"))
        if launch.tool == "accelerate":
            meets = launch.has(*_ACCELERATE)
        by_etcd = (launch.value("rdzv-backend") or "").startswith("etcd")
        if meets or by_etcd or launch.has("standalone") or re.search(r"\bPET_|ACCELERATE_", code_of(script)):
            continue
        wanted = "--rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT"
        yield at(
            script,
            launch,
            f"{launch.tool} is told no address: every node waits on itself",
            next_step=f"add {wanted if launch.tool == 'torchrun' else '--main_process_ip=$MASTER_ADDR'}",
        )


_ACCELERATE = ("main-process-ip", "config-file", "config_file", "rdzv-backend", "deepspeed-hostfile")


@rule(
    id="nodes-train-apart",
    severity="error",
    title="Every node trains for itself",
    why="A launcher that is not told of other nodes makes a world of the GPUs it sees: started on several nodes there "
    "are as many trainings, all of the same data, and they overwrite each other's checkpoints.",
    source="PyTorch, torchrun: nnodes (default 1:1); DeepSpeed, launcher: without a hostfile only local GPUs are used",
    before=_TWO + "srun torchrun --nproc_per_node=4 train.py\n",
    after=_TWO
    + "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$PORT train.py\n",
)
def nodes_train_apart(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_multi_node:
        return
    for launch in script.launched(*DISTRIBUTED):
        step = step_of(launch)
        nodes = step_nodes(script, step) if step is not None else None
        if step is None or (nodes or 1) < 2 or has_unknown_options(launch) or launch.has(*_TELLS[launch.tool]):
            continue
        around = launch.command.parent or launch.command
        if launch.command.origin or re.search(_TOLD, code_of(script)):
            continue
        if re.search(_OWN_SHARE, script.text[around.start : around.end]):
            continue
        yield at(
            script,
            launch,
            f"{launch.tool} is started on {nodes} nodes and told of none: each trains for itself",
            next_step=_TOGETHER[launch.tool],
        )


_TELLS = {
    "torchrun": ("nnodes", "standalone"),
    "accelerate": ("num-machines", "config-file", "deepspeed-hostfile"),
    "deepspeed": ("hostfile", "num-nodes", "node-rank", "no-ssh", "include", "launcher"),
}
"""Options that say something of other nodes, or that there are none on purpose."""
_TOGETHER = {
    "torchrun": "add --nnodes=$SLURM_NNODES --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT",
    "accelerate": "add --num_machines=$SLURM_NNODES --machine_rank and --main_process_ip",
    "deepspeed": "call it once, without srun, with --hostfile, or start python in every task",
}
_TOLD = r"\bPET_NNODES|ACCELERATE_|DLTS_HOSTFILE"
"""The environment tells a launcher of other nodes."""
_OWN_SHARE = r"SLURM_(?:NODEID|PROCID)|NODE_RANK"
"""Every node has work of its own."""


def _spans_nodes(script: Script, launch: Launch) -> bool:
    """Whether the launcher is started on several nodes that are meant to work together."""
    option = launch.option("nnodes", "num-machines")
    asked = number(script, option.value) if option is not None else None
    step = step_of(launch)
    nodes = step_nodes(script, step) if step is not None else None
    return asked is not None and asked > 1 and (nodes is None or nodes > 1) and script.is_multi_node


@rule(
    id="lightning-mismatch",
    severity="error",
    title="Lightning and Slurm count differently",
    why="Under srun Lightning takes one task for one device: with other numbers it stops at once, or uses part "
    "of the GPUs.",
    source="PyTorch Lightning, SLURMEnvironment: devices must be --ntasks-per-node, num_nodes must be --nodes",
    before=_TWO + "srun python train.py trainer.devices=4 trainer.num_nodes=2\n",
    after=_TWO.replace("ntasks-per-node=1", "ntasks-per-node=4")
    + "srun python train.py trainer.devices=4 trainer.num_nodes=2\n",
)
def lightning_mismatch(script: Script, context: Context) -> Iterator[Hit]:
    if "trainer." not in script.text:
        return
    for work in work_commands(script):
        if work.step is None or not work.chain or work.chain[-1].tool != "python" or script.has("gpus-per-task"):
            continue
        tasks, nodes = step_tasks_per_node(script, work.step), step_nodes(script, work.step)
        for word in work.chain[-1].program:
            match = re.fullmatch(r"(?:--|\+{0,2})trainer\.(devices|num_nodes)=(\S+)", word.text)
            said = number(script, match.group(2)) if match else None
            real = tasks if match and match.group(1) == "devices" else nodes
            if match is None or said is None or said < 1 or real is None or said == real:
                continue
            what = "tasks on a node" if match.group(1) == "devices" else "nodes"
            yield at(
                script,
                word,
                f"Lightning is told {match.group(1)}={said}, and srun starts {real} {what}",
                next_step="ask for --ntasks-per-node as many as devices, and --nodes as many as num_nodes",
            )


@rule(
    id="launcher-outdated",
    severity="info",
    title="A launcher that torchrun has replaced",
    why="torch.distributed.launch is deprecated and hands the local rank over as an argument; torchrun sets "
    "LOCAL_RANK.",
    source="PyTorch, torch.distributed.launch: deprecated in favour of torchrun",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\npython -m torch.distributed.launch --nproc_per_node=4 train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\ntorchrun --standalone --nproc_per_node=4 train.py\n",
)
def launcher_outdated(script: Script, context: Context) -> Iterator[Hit]:
    for launch in script.launched("torchrun"):
        words = [w for w in launch.command.words if launch.start <= w.start and w.end <= launch.end]
        old = next((w for w in words if w.text == "torch.distributed.launch"), None)
        if old is not None:
            yield at(script, old, "torch.distributed.launch is deprecated", next_step="write torchrun")
