"""Rules about torchrun, accelerate and Lightning: whether their processes on several nodes find each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import (
    DISTRIBUTED,
    code_of,
    has_unknown_options,
    mentions,
    number,
    own_words,
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
    title="The nodes have no rendezvous address",
    why="Without an address torchrun uses localhost, which is a different host on every node. The nodes wait for "
    "each other until the timeout. torchrun does not read MASTER_ADDR, and with c10d it ignores "
    "--master_addr.",
    source="PyTorch, torchrun: rdzv-endpoint, master-addr (default 127.0.0.1); accelerate launch: main_process_ip",
    before=_TWO + "export MASTER_ADDR=$(hostname)\nsrun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
    after=_TWO
    + "export MASTER_ADDR=$(hostname)\n"
    + "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$PORT train.py\n",
)
def no_rendezvous(script: Script, context: Context) -> Iterator[Hit]:
    for launch in script.launched("torchrun", "accelerate"):
        if not _spans_nodes(script, launch) or has_unknown_options(launch):
            continue
        static = launch.value("rdzv-backend") in (None, "static")
        meets = launch.has("rdzv-endpoint") or (static and launch.has("master-addr"))
        if launch.tool == "accelerate":
            meets = launch.has(*_ACCELERATE_ADDRESS)
        by_etcd = (launch.value("rdzv-backend") or "").startswith("etcd")
        if meets or by_etcd or launch.has("standalone") or re.search(r"\bPET_|ACCELERATE_", code_of(script)):
            continue
        rendezvous = "--rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT"
        yield at(
            script,
            launch,
            f"{launch.tool} has no rendezvous address, so every node connects to itself",
            next_step=f"add {rendezvous if launch.tool == 'torchrun' else '--main_process_ip=$MASTER_ADDR'}",
        )


_ACCELERATE_ADDRESS = ("main-process-ip", "config-file", "config_file", "rdzv-backend", "deepspeed-hostfile")


@rule(
    id="nodes-train-apart",
    severity="error",
    title="Every node runs a training of its own",
    why="A launcher without options for other nodes uses the GPUs of its own node only. On several nodes it "
    "starts independent trainings of the same data, which overwrite each other's checkpoints.",
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
        if step is None or (nodes or 1) < 2 or has_unknown_options(launch) or launch.has(*_NODE_OPTIONS[launch.tool]):
            continue
        outermost = launch.command.parent or launch.command
        if mentions(script, _NODES_IN_ENVIRONMENT):
            continue
        if re.search(_WORK_BY_NODE, script.text[outermost.start : outermost.end]):
            continue
        yield at(
            script,
            launch,
            f"{launch.tool} starts on {nodes} nodes without options for several nodes, so each node trains on its own",
            next_step=_ADD_OPTIONS[launch.tool],
        )


_NODE_OPTIONS = {
    "torchrun": ("nnodes", "standalone"),
    "accelerate": ("num-machines", "config-file", "deepspeed-hostfile"),
    "deepspeed": ("hostfile", "num-nodes", "node-rank", "no-ssh", "include", "launcher"),
}
"""Options about other nodes, or that rule them out on purpose."""
_ADD_OPTIONS = {
    "torchrun": "add --nnodes=$SLURM_NNODES --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT",
    "accelerate": "add --num_machines=$SLURM_NNODES --machine_rank and --main_process_ip",
    "deepspeed": "call it once, without srun, with --hostfile, or start python in every task",
}
_NODES_IN_ENVIRONMENT = r"\bPET_NNODES|ACCELERATE_|DLTS_HOSTFILE"
"""Variables that tell a launcher about other nodes."""
_WORK_BY_NODE = r"SLURM_(?:NODEID|PROCID)|NODE_RANK"
"""Variables that give every node work of its own."""


def _spans_nodes(script: Script, launch: Launch) -> bool:
    """Whether the launcher starts on several nodes that work together."""
    option = launch.option("nnodes", "num-machines")
    expected_nodes = number(script, option.value) if option is not None else None
    step = step_of(launch)
    nodes = step_nodes(script, step) if step is not None else None
    if option is not None and expected_nodes is None and _COUNTS_NODES.search(_definition(script, option.value or "")):
        expected_nodes = script.num_nodes  # the number of nodes of the job, as a command counts them
    return (expected_nodes or 1) > 1 and (nodes is None or nodes > 1) and script.is_multi_node


_COUNTS_NODES = re.compile(r"scontrol\s+show\s+hostnames?\b.*\bwc\s+-l|SLURM_(?:NNODES|JOB_NUM_NODES)", re.DOTALL)


def _definition(script: Script, text: str) -> str:
    """What a variable is set to, as it is written; the text itself if it is no variable of the script."""
    name = text.strip('${}"')
    values = [a for a in script.assignments if a.name == name]
    return script.text[values[-1].start : values[-1].end] if text.startswith("$") and values else text


@rule(
    id="mpirun-over-tasks",
    severity="warning",
    title="mpirun starts more ranks than the job has tasks",
    why="Open MPI takes the tasks of the job as its slots: There are not enough slots available in the system.",
    source="Open MPI, mpirun(1): slots come from the resource manager",
    before=_TWO + "mpirun -np 8 python train.py\n",
    after=_TWO.replace("ntasks-per-node=1", "ntasks-per-node=4") + "mpirun -np 8 python train.py\n",
)
def mpirun_over_tasks(script: Script, context: Context) -> Iterator[Hit]:
    tasks = script.num_tasks
    if tasks is None or script.header.num_components > 1:
        return
    for launch in script.launched("mpirun"):
        option = launch.option("n", "np")
        ranks = number(script, option.value) if option is not None else None
        words = " ".join(word.text for word in own_words(launch))
        if ranks is None or ranks <= tasks or step_of(launch) is not None or _FREE_SLOTS.search(words):
            continue
        yield at(
            script,
            launch,
            f"mpirun starts {ranks} ranks, and the job has {tasks} task{'s' * (tasks > 1)}",
            next_step=f"write #SBATCH --ntasks={ranks}, or --ntasks-per-node",
        )


_FREE_SLOTS = re.compile(r"oversubscribe|host|ppr:|map-by|rmaps|-N\b|npernode|ppn|machinefile")


@rule(
    id="lightning-mismatch",
    severity="error",
    title="Lightning and Slurm disagree on devices or nodes",
    why="Under srun Lightning expects one task per device. With other numbers it stops at the start, or uses part "
    "of the GPUs only.",
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
            argument = number(script, match.group(2)) if match else None
            actual = tasks if match and match.group(1) == "devices" else nodes
            if match is None or argument is None or argument < 1 or actual is None or argument == actual:
                continue
            where = f"task{'s' * (actual > 1)} per node" if match.group(1) == "devices" else f"node{'s' * (actual > 1)}"
            yield at(
                script,
                word,
                f"Lightning gets {match.group(1)}={argument}, but srun uses {actual} {where}",
                next_step="set --ntasks-per-node to devices, and --nodes to num_nodes",
            )


@rule(
    id="launcher-outdated",
    severity="info",
    title="torchrun has replaced this launcher",
    why="torch.distributed.launch is deprecated and passes the local rank as an argument. torchrun sets "
    "LOCAL_RANK instead.",
    source="PyTorch, torch.distributed.launch: deprecated in favour of torchrun",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\npython -m torch.distributed.launch --nproc_per_node=4 train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\ntorchrun --standalone --nproc_per_node=4 train.py\n",
)
def launcher_outdated(script: Script, context: Context) -> Iterator[Hit]:
    for launch in script.launched("torchrun"):
        old = next((w for w in own_words(launch) if w.text == "torch.distributed.launch"), None)
        if old is not None:
            yield at(script, old, "torch.distributed.launch is deprecated", next_step="write torchrun")
