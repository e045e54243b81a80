"""Rules about ranks: how many are started, and on which GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import (
    DISTRIBUTED,
    GUIDE,
    PER_NODE,
    SURVEY,
    code_of,
    has_unknown_options,
    join_options,
    number,
    python_takes_time,
    ranks_per_launcher,
    step_nodes,
    step_of,
    step_tasks_per_node,
    step_total,
    work_commands,
)
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, at, remove_line, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch
from scalewright.lint.shell.syntax import Command

_HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n"
_ONE_EACH = _HEAD + "#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=8\n"
_ONE_NODE = _HEAD + "#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=32\n"


@rule(
    id="launcher-per-task",
    severity="error",
    title="A launcher of ranks is started by every task",
    why="srun starts its program once per task, and torchrun starts one process per GPU: with 8 tasks on a node "
    "there are "
    "64 processes, eight to a GPU, which wait for each other or run out of memory.",
    source="PyTorch, torchrun: one agent per node; a slip that published recipes make",
    before=_ONE_EACH + "srun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
    after=_ONE_NODE + "srun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
    needs_header=False,
)
def launcher_per_task(script: Script, context: Context) -> Iterator[Hit]:
    for launch in script.launched(*DISTRIBUTED):
        step = step_of(launch)
        tasks = step_tasks_per_node(script, step) if step else None
        ranks = ranks_per_launcher(script, launch)
        option = launch.option(*PER_NODE)
        several = (ranks or 0) > 1 or (option is not None and "NTASKS_PER_NODE" in (option.value or ""))
        if step is not None and launch.has("hostfile") and not launch.has("no-ssh", "node-rank"):
            total = step_total(script, step) or 1
            if total > 1:
                yield at(
                    script,
                    launch,
                    f"{total} tasks start {launch.tool} each, and each starts the ranks of all hosts",
                    next_step=f"call it once, without srun: {launch.tool} --hostfile ... train.py",
                )
            continue
        if step is None or tasks is None or tasks < 2 or not several:
            continue
        one_gpu_each = step.value("gpus-per-task") == "1" or script.value("gpus-per-task") == "1"
        if one_gpu_each and option is not None and option.value in ("gpu", "auto"):
            continue
        fix = None
        if not step.has("ntasks", "ntasks-per-node") and not script.has("gpus-per-task"):
            # Alone, --ntasks-per-node=1 is not honoured: SLURM_NTASKS of the allocation still asks for all tasks.
            text = f"--ntasks=$SLURM_NNODES --ntasks-per-node=1{_all_cpus(script, step, tasks)}"
            fix = join_options(script, step, text, title="start one task on each node", is_safe=False)
        yield at(
            script,
            launch,
            f"{tasks} tasks on a node start {launch.tool} each, and each starts {ranks or 'several'} processes",
            next_step="start one task a node: srun --ntasks=$SLURM_NNODES --ntasks-per-node=1, or python in every task",
            fix=fix,
        )


def _all_cpus(script: Script, step: Launch, tasks: int) -> str:
    """The option that gives one task the CPUs of all: else the ranks of its launcher would share those of one."""
    each = script.value("cpus-per-task") or ""
    if step.has("cpus-per-task") or not each.isdigit():
        return ""
    return f" --cpus-per-task={int(each) * tasks}"


@rule(
    id="nproc-over-gpus",
    severity="error",
    title="More processes than GPUs",
    why="A process without a GPU of its own fails with an invalid device, or shares one and runs out of memory.",
    source="PyTorch, torchrun: nproc-per-node is the number of GPUs",
    before=_ONE_NODE + "srun torchrun --nnodes=2 --nproc_per_node=8 train.py\n",
    after=_ONE_NODE + "srun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
)
def nproc_over_gpus(script: Script, context: Context) -> Iterator[Hit]:
    for launch, ranks, gpus in _counted(script):
        if ranks > gpus:
            yield at(
                script,
                launch.option(*PER_NODE, "num-processes") or launch,
                f"{launch.tool} starts {ranks} processes on a node with {gpus} GPU{'s' * (gpus > 1)}",
                next_step=f"start {gpus}, or ask for {ranks} GPUs",
            )


@rule(
    id="nproc-under-gpus",
    severity="warning",
    title="Fewer processes than GPUs",
    why="GPUs that no process uses are billed and idle.",
    source="PyTorch, torchrun: nproc-per-node is the number of GPUs",
    before=_ONE_NODE + "srun torchrun --nnodes=2 --nproc_per_node=2 train.py\n",
    after=_ONE_NODE + "srun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
)
def nproc_under_gpus(script: Script, context: Context) -> Iterator[Hit]:
    # Several launchers, in the background or one after the other, may share the GPUs on purpose.
    if len(script.launched(*DISTRIBUTED)) > 1 or any(
        work.command.within.is_background for work in work_commands(script)
    ):
        return
    for launch, ranks, gpus in _counted(script):
        if ranks < gpus and launch.option(*PER_NODE, "num-processes") and launch.command.within.loops == ():
            if launch.tool == "accelerate" and ranks == 1:
                continue  # one process that spreads its model over all GPUs
            yield at(
                script,
                launch.option(*PER_NODE, "num-processes") or launch,
                f"{launch.tool} starts {ranks} process{'es' * (ranks > 1)} on a node with {gpus} GPUs",
                next_step=f"start {gpus}, or ask for {ranks} GPU{'s' * (ranks > 1)}",
            )


def _counted(script: Script) -> Iterator[tuple[Launch, int, int]]:
    """Launchers whose processes and GPUs on a node are both known."""
    gpus = script.gpus_per_node
    if gpus is None or script.header.num_components > 1:
        return
    for launch in script.launched(*DISTRIBUTED):
        ranks = ranks_per_launcher(script, launch)
        hidden = has_unknown_options(launch) or any(
            name.endswith("VISIBLE_DEVICES") for name, _ in launch.command.environment
        )
        if ranks is not None and not hidden and not launch.has("include", "hostfile"):
            yield launch, ranks, gpus


@rule(
    id="nnodes-mismatch",
    severity="error",
    title="The launcher waits for another number of nodes than the job has",
    why="torchrun waits for all its nodes to meet: with more than the job has it waits until its time-out, with fewer "
    "some nodes idle.",
    source="PyTorch, torchrun: nnodes",
    before=_ONE_NODE + "srun torchrun --nnodes=4 --nproc_per_node=4 --rdzv_endpoint=$HEAD:$PORT train.py\n",
    after=_ONE_NODE + "srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 --rdzv_endpoint=$HEAD:$PORT train.py\n",
)
def nnodes_mismatch(script: Script, context: Context) -> Iterator[Hit]:
    nodes = script.number("nodes")
    if nodes is None or "-" in (script.value("nodes") or "") or script.header.num_components > 1:
        return
    for launch in script.launched(*DISTRIBUTED):
        option = launch.option("nnodes", "num-machines", "num-nodes")
        asked = number(script, option.value) if option else None
        step = step_of(launch)
        on = step_nodes(script, step) if step else None
        if option is None or asked is None:
            continue
        agents = step_total(script, step) if step else None
        if agents is not None and agents > nodes and asked == nodes and ranks_per_launcher(script, launch) == 1:
            yield at(
                script,
                option,
                f"{launch.tool} waits for {asked} agents, srun starts {agents}: one in every task",
                next_step=f"write --{option.name}=$SLURM_NTASKS, or start one task a node",
            )
            continue
        if asked in (nodes, on, agents):
            continue
        if step is None and nodes > 1 and asked == 1:
            continue  # other nodes may be used by other commands; nodes-idle speaks of those that are not
        yield at(
            script,
            option,
            f"{launch.tool} waits for {asked} node{'s' * (asked > 1)}, the job has {nodes}",
            next_step="write $SLURM_NNODES",
        )


def _is_set_up(command: Command) -> bool:
    """Whether a sourced file only sets the environment up: one of conda, of venv, of the user's shell."""
    return re.search(r"activate$|conda\.sh$|\.bashrc$|profile$|\.env$", " ".join(command.texts[1:2])) is not None


_REACHES = (
    r"\b(srun|mpirun|mpiexec|ibrun|aprun|ssh|pdsh|clush|hostfile|ray|dask|charmrun|jsrun|prun|horovodrun|"
    r"parallel|blaunch)\b"
)
"""What starts something on other nodes."""


@rule(
    id="nodes-idle",
    severity="warning",
    title="Nothing is started on the other nodes",
    why="The script itself runs on the first node only; without srun, mpirun or the like all others idle and "
    "are billed.",
    source="Slurm, sbatch(1): the script runs on the first allocated node",
    before=_ONE_NODE + "torchrun --nproc_per_node=4 train.py\n",
    after=_ONE_NODE + "srun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
)
def nodes_idle(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_multi_node or not script.is_shell:
        return
    if re.search(_REACHES, code_of(script)):
        return
    busy = [work for work in work_commands(script) if work.chain and work.chain[-1].tool in (*DISTRIBUTED, "python")]
    calls_others = any(
        c.name in ("bash", "sh", "exec", "") or (c.name in ("source", ".") and not _is_set_up(c))
        for c in script.commands
    )
    found = script.directive("nodes") or script.directive("ntasks")
    if not busy or calls_others or found is None:
        return
    last = busy[0].chain[-1]
    # A program that trains nothing may start its own steps.
    if not script.asks_for_gpus and not re.search(r"train|tun", " ".join(word.text for word in last.program[:3])):
        return
    option = last.option("nnodes", "num-machines") if last.tool in DISTRIBUTED else None
    waits = (number(script, option.value) or 1) > 1 if option is not None else False
    how = "srun --ntasks-per-node=1" if last.tool in DISTRIBUTED and script.tasks_per_node != 1 else "srun"
    idle = f"{script.num_nodes} nodes are asked for, and everything is started on the first"
    yield at(
        script,
        found,
        f"{idle}: {last.tool} waits for the others for ever" if waits else idle,
        next_step=f"start it with {how}, or ask for one node (see line {busy[0].command.line})",
        severity="error" if waits else None,
    )


@rule(
    id="tasks-without-srun",
    severity="info",
    title="Several tasks are asked for and one process is started",
    why="Tasks are what srun starts; a program without srun runs once, however many tasks the job has.",
    source="Slurm, sbatch(1), --ntasks: sbatch does not launch tasks",
    before=_ONE_EACH.replace("--nodes=2", "--nodes=1") + "python train.py\n",
    after=_ONE_EACH.replace("--nodes=2", "--nodes=1") + "srun python train.py\n",
)
def tasks_without_srun(script: Script, context: Context) -> Iterator[Hit]:
    if (script.num_tasks or 1) < 2 or not script.asks_for_gpus or script.is_multi_node:
        return
    if re.search(
        r"\b(srun|mpirun|mpiexec|ibrun|parallel|hostfile)\b|SLURM_NTASKS|SLURM_NPROCS|&\s*$",
        code_of(script),
        re.MULTILINE,
    ):
        return
    for work in work_commands(script):
        if work.chain and work.chain[-1].tool == "python" and not work.command.within.functions:
            yield at(
                script,
                work.command,
                f"{script.num_tasks} tasks are asked for, and this starts one process",
                next_step="put srun before it, or ask for one task with more CPUs",
            )
            return


_SPREADS = (
    r"devices|num[-_]?gpus|n[-_]?gpus?\b|--gpus?\b|ngpu|parallel|world[-_]size|multi|distribut|ddp|fsdp|vllm|sglang|lightning|"
    r"\bray\b|device_map|VISIBLE_DEVICES|mirrored|spawn|hydra|trainer\.|&\s*$|lm_eval|jax|tensorflow"
)


@rule(
    id="one-process-many-gpus",
    severity="info",
    title="Several GPUs and one process",
    why="A plain python process uses one GPU unless its program spreads itself; the others idle.",
    source=f"{GUIDE} 2.4.4: one process to one GPU",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=32\npython train.py --epochs 3\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=32\ntorchrun --standalone "
    "--nproc_per_node=4 train.py --epochs 3\n",
)
def one_process_many_gpus(script: Script, context: Context) -> Iterator[Hit]:
    gpus, found = script.gpus_per_node, work_commands(script)
    if gpus is None or gpus < 2 or (script.num_tasks or 2) > 1 or script.launched(*DISTRIBUTED, "mpirun"):
        return
    if not found or any(not w.chain or w.chain[-1].tool != "python" for w in found) or len(found) > 2:
        return
    if re.search(_SPREADS, code_of(script), re.IGNORECASE | re.MULTILINE):
        return
    yield at(
        script,
        found[-1].chain[-1],
        f"one process is started for {gpus} GPUs",
        next_step=f"start one for each: torchrun --standalone --nproc_per_node={gpus}, unless the program "
        "spreads itself",
    )


@rule(
    id="ranks-per-gpu",
    severity="warning",
    title="Several ranks share a GPU",
    why="Two ranks on one GPU compete for its memory and its time; collectives may hang.",
    source=f"{GUIDE} 2.4.4: one process to one GPU",
    before=_ONE_NODE.replace("--ntasks-per-node=1", "--ntasks-per-node=8") + "srun python train.py\n",
    after=_ONE_EACH + "srun python train.py\n",
)
def ranks_per_gpu(script: Script, context: Context) -> Iterator[Hit]:
    gpus = script.gpus_per_node
    if not gpus or script.header.num_components > 1:
        return
    for work in work_commands(script):
        step, last = work.step, work.chain[-1] if work.chain else None
        if step is None or last is None or last.tool != "python" or not python_takes_time(last.program):
            continue
        tasks = step_tasks_per_node(script, step)
        if tasks is not None and tasks > gpus and not script.has("gpus-per-task"):
            yield at(
                script,
                step,
                f"{tasks} tasks share {gpus} GPU{'s' * (gpus > 1)} of a node",
                next_step=f"start one task per GPU: --ntasks-per-node={gpus}",
            )


@rule(
    id="mpirun-in-srun",
    severity="error",
    title="srun starts mpirun",
    why="Every task starts an mpirun, and each of them starts all ranks: ranks multiply, and bindings and "
    "signals are lost.",
    source=f"{GUIDE} 2.4.8 and 2.4.13: never mix mpirun with srun",
    before=_ONE_EACH + "srun mpirun -np 8 python train.py\n",
    after=_ONE_EACH + "srun python train.py\n",
    needs_header=False,
)
def mpirun_in_srun(script: Script, context: Context) -> Iterator[Hit]:
    for launch in script.launched("mpirun"):
        step = step_of(launch)
        if step is None:
            continue
        tasks, nodes = step_tasks_per_node(script, step), step_nodes(script, step)
        alone = tasks == 1 and nodes == 1
        yield at(
            script,
            launch,
            "mpirun is started by srun: ranks are launched twice",
            next_step="leave mpirun away, and give srun the number of tasks",
            severity="warning" if alone else None,
        )


@rule(
    id="visible-devices-set",
    severity="warning",
    title="The script chooses GPUs that Slurm has already chosen",
    why="Slurm sets the visible devices of a job; numbers written over them may be those of somebody else's "
    "job, or hide "
    "GPUs that were paid for.",
    source=f"{GUIDE} 2.4.8, pitfalls; 4.2 % of {SURVEY}; on Perlmutter a documented order of devices",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\nexport CUDA_VISIBLE_DEVICES=0,1\npython train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\npython train.py\n",
)
def visible_devices_set(script: Script, context: Context) -> Iterator[Hit]:
    if not script.asks_for_gpus:
        return
    names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    allowed = {env.value for env in context.site.env if env.name in names} if context.site else set()
    for assigned in script.assignments:
        value = assigned.value.text
        if assigned.name not in names or assigned.within.is_heredoc or not re.fullmatch(r"\d+(?:,\s*\d+)*,?", value):
            continue
        if value in allowed or value == "3,2,1,0" or assigned.within.loops or assigned.within.is_subshell:
            continue
        everything = value.split(",") == [str(n) for n in range(script.gpus_per_node or 0)]
        alone = script.lines[assigned.line - 1].strip() in (
            f"export {assigned.name}={value}",
            f"{assigned.name}={value}",
        )
        # Where Slurm hides other devices, a job's own count from 0: all of them in order is what it set already.
        repeats = "repeats what Slurm set, and is wrong where it gives other devices"
        yield at(
            script,
            assigned,
            f"{assigned.name}={value} {repeats if everything else 'replaces what Slurm set for this job'}",
            next_step="remove it",
            severity="info" if everything else None,
            fix=remove_line(script, assigned.line, title="remove it", is_safe=False)
            if alone and not everything and not assigned.origin
            else None,
        )
    for command in script.commands:
        for name, word in command.environment:
            if name in names and re.fullmatch(r"\d+(?:,\d+)+", word.text) and not command.within.is_background:
                start = word.start - len(name) - 1
                fix = ScriptFix(edits=(Edit(start=start, end=word.end + 1, text=""),), title="remove it", is_safe=False)
                is_plain = not command.origin and script.text[start : word.end + 1] == f"{name}={word.text} "
                message = f"{name}={word.text} replaces what Slurm set for this job"
                yield at(script, command, message, next_step="remove it", fix=fix if is_plain else None)
