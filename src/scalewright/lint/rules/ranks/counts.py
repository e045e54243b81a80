"""Rules about the number of ranks: how many processes start, on which nodes and on which GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import (
    DISTRIBUTED,
    GUIDE,
    PER_NODE,
    SURVEY,
    add_option,
    code_of,
    has_unknown_options,
    number,
    python_does_work,
    ranks_per_launcher,
    step_nodes,
    step_of,
    step_tasks_per_node,
    step_total,
    work_commands,
)
from scalewright.lint.rule import Context, Hit, at, remove_line, replace_span, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch
from scalewright.lint.shell.syntax import Command

_HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n"
_ONE_EACH = _HEAD + "#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=8\n"
_ONE_NODE = _HEAD + "#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=32\n"


@rule(
    id="launcher-per-task",
    severity="error",
    title="Every task starts a launcher",
    why="srun starts its program once per task, and torchrun starts one process per GPU. With 8 tasks on a node "
    "with 8 GPUs there are 64 processes, 8 per GPU. They wait for each other or run out of memory.",
    source="PyTorch, torchrun: one agent per node; a common mistake in published recipes",
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
                    f"{total} tasks start {launch.tool} each, and each of these starts the ranks of all hosts",
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
            # --ntasks-per-node=1 alone has no effect: SLURM_NTASKS of the allocation still requests all tasks.
            text = f"--ntasks=$SLURM_NNODES --ntasks-per-node=1{_all_cpus(script, step, tasks)}"
            fix = add_option(script, step, text, title="start one task on each node", is_safe=False)
        yield at(
            script,
            launch,
            f"{tasks} tasks per node start {launch.tool} each, and each of these starts {ranks or 'several'} processes",
            next_step="start one task per node: srun --ntasks=$SLURM_NNODES --ntasks-per-node=1, or start python in "
            "every task",
            fix=fix,
        )


def _all_cpus(script: Script, step: Launch, tasks: int) -> str:
    """The option that gives one task the CPUs of all tasks, because it starts the ranks of all."""
    cpus_per_task = script.value("cpus-per-task") or ""
    if step.has("cpus-per-task") or not cpus_per_task.isdigit():
        return ""
    return f" --cpus-per-task={int(cpus_per_task) * tasks}"


@rule(
    id="nproc-over-gpus",
    severity="error",
    title="More processes than GPUs",
    why="A process without a GPU of its own fails with an invalid device, or shares a GPU and runs out of memory.",
    source="PyTorch, torchrun: nproc-per-node is the number of GPUs",
    before=_ONE_NODE + "srun torchrun --nnodes=2 --nproc_per_node=8 train.py\n",
    after=_ONE_NODE + "srun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
)
def nproc_over_gpus(script: Script, context: Context) -> Iterator[Hit]:
    for launch, ranks, gpus in _counted_launchers(script):
        if ranks > gpus:
            yield at(
                script,
                launch.option(*PER_NODE, "num-processes") or launch,
                f"{launch.tool} starts {ranks} processes on a node with {gpus} GPU{'s' * (gpus > 1)}",
                next_step=f"start {gpus} processes, or request {ranks} GPUs",
            )


@rule(
    id="nproc-under-gpus",
    severity="warning",
    title="Fewer processes than GPUs",
    why="GPUs that no process uses idle and are billed.",
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
    for launch, ranks, gpus in _counted_launchers(script):
        if ranks < gpus and launch.option(*PER_NODE, "num-processes") and launch.command.within.loops == ():
            if launch.tool == "accelerate" and ranks == 1:
                continue  # one process that spreads its model over all GPUs
            yield at(
                script,
                launch.option(*PER_NODE, "num-processes") or launch,
                f"{launch.tool} starts {ranks} process{'es' * (ranks > 1)} on a node with {gpus} GPUs",
                next_step=f"start {gpus} processes, or request {ranks} GPU{'s' * (ranks > 1)}",
            )


def _counted_launchers(script: Script) -> Iterator[tuple[Launch, int, int]]:
    """Launchers with their processes and GPUs per node, if both numbers are known."""
    gpus = script.gpus_per_node
    if gpus is None or script.header.num_components > 1:
        return
    for launch in script.launched(*DISTRIBUTED):
        ranks = ranks_per_launcher(script, launch)
        is_uncertain = has_unknown_options(launch) or any(
            name.endswith("VISIBLE_DEVICES") for name, _ in launch.command.environment
        )
        if ranks is not None and not is_uncertain and not launch.has("include", "hostfile"):
            yield launch, ranks, gpus


@rule(
    id="nnodes-mismatch",
    severity="error",
    title="The launcher expects another number of nodes than the job has",
    why="torchrun waits until all its nodes have joined. If it expects too many, it waits until its timeout. If "
    "it expects too few, some nodes idle.",
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
        expected_nodes = number(script, option.value) if option else None
        if option is None or expected_nodes is None:
            continue
        step = step_of(launch)
        nodes_of_step = step_nodes(script, step) if step else None
        agents = step_total(script, step) if step else None
        has_agent_per_task = agents is not None and agents > nodes and ranks_per_launcher(script, launch) == 1
        if has_agent_per_task and expected_nodes == nodes:
            yield at(
                script,
                option,
                f"{launch.tool} expects {expected_nodes} agents, but srun starts {agents}, one in every task",
                next_step=f"write --{option.name}=$SLURM_NTASKS, or start one task per node",
            )
            continue
        if expected_nodes in (nodes, nodes_of_step, agents):
            continue
        if step is None and nodes > 1 and expected_nodes == 1:
            continue  # other commands may use the other nodes; nodes-idle covers the rest
        yield at(
            script,
            option,
            f"{launch.tool} expects {expected_nodes} node{'s' * (expected_nodes > 1)}, but the job has {nodes}",
            next_step="write $SLURM_NNODES",
        )


def _is_set_up(command: Command) -> bool:
    """Whether a sourced file only sets up the environment: conda, a venv, the user's shell."""
    return re.search(r"activate$|conda\.sh$|\.bashrc$|profile$|\.env$", " ".join(command.texts[1:2])) is not None


_REACHES = (
    r"\b(srun|mpirun|mpiexec|ibrun|aprun|ssh|pdsh|clush|hostfile|ray|dask|charmrun|jsrun|prun|horovodrun|"
    r"parallel|blaunch)\b"
)
"""Programs that start something on other nodes."""


@rule(
    id="nodes-idle",
    severity="warning",
    title="Nothing runs on the other nodes",
    why="The script itself runs on the first node only. Without srun, mpirun or the like all other nodes idle and "
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
    trainings = [
        work for work in work_commands(script) if work.chain and work.chain[-1].tool in (*DISTRIBUTED, "python")
    ]
    calls_others = any(
        c.name in ("bash", "sh", "exec", "") or (c.name in ("source", ".") and not _is_set_up(c))
        for c in script.commands
    )
    directive = script.directive("nodes") or script.directive("ntasks")
    if not trainings or calls_others or directive is None:
        return
    last = trainings[0].chain[-1]
    # A program that does not train may start its own steps.
    if not script.asks_for_gpus and not re.search(r"train|tun", " ".join(word.text for word in last.program[:3])):
        return
    option = last.option("nnodes", "num-machines") if last.tool in DISTRIBUTED else None
    waits = (number(script, option.value) or 1) > 1 if option is not None else False
    srun = "srun --ntasks-per-node=1" if last.tool in DISTRIBUTED and script.tasks_per_node != 1 else "srun"
    idle = f"the job requests {script.num_nodes} nodes, and everything runs on the first"
    yield at(
        script,
        directive,
        f"{idle}: {last.tool} waits forever for the others" if waits else idle,
        next_step=f"start line {trainings[0].command.line} with {srun}, or request one node",
        severity="error" if waits else None,
    )


@rule(
    id="tasks-without-srun",
    severity="info",
    title="Several tasks are requested, but one process starts",
    why="Only srun starts tasks. A program without srun runs once, however many tasks the job has.",
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
                f"the job requests {script.num_tasks} tasks, and this starts one process",
                next_step="put srun before it, or request one task with more CPUs",
                severity="warning" if script.tasks_per_node == script.gpus_per_node else None,
            )
            return


@rule(
    id="ranks-per-gpu",
    severity="warning",
    title="Several ranks share a GPU",
    why="Two ranks on one GPU compete for its memory and its time, and collectives may hang.",
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
        if step is None or last is None or last.tool != "python" or not python_does_work(last.program):
            continue
        tasks = step_tasks_per_node(script, step)
        if tasks is not None and tasks > gpus and not script.has("gpus-per-task"):
            yield at(
                script,
                step,
                f"{tasks} tasks on a node share {gpus} GPU{'s' * (gpus > 1)}",
                next_step=f"start one task per GPU: --ntasks-per-node={gpus}",
            )


@rule(
    id="mpirun-in-srun",
    severity="error",
    title="srun starts mpirun",
    why="Every task starts an mpirun, and each of them starts all ranks. Ranks multiply, and binding and signals "
    "are lost.",
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
            "srun starts mpirun, so ranks start twice",
            next_step="remove mpirun, and give the number of tasks to srun",
            severity="warning" if alone else None,
        )


@rule(
    id="visible-devices-set",
    severity="warning",
    title="The script overrides Slurm's choice of GPUs",
    why="Slurm sets the visible devices of a job. Other numbers may mean another job's GPUs, or hide GPUs that "
    "this job pays for.",
    source=f"{GUIDE} 2.4.8, pitfalls; 4.2 % of {SURVEY}; on Perlmutter a documented order of devices",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\nexport CUDA_VISIBLE_DEVICES=0,1\npython train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\npython train.py\n",
)
def visible_devices_set(script: Script, context: Context) -> Iterator[Hit]:
    if not script.asks_for_gpus:
        return
    allowed = {env.value for env in context.site.env if env.name in _DEVICE_VARIABLES} if context.site else set()
    yield from _assigned_devices(script, allowed)
    yield from _devices_of_commands(script)


_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def _assigned_devices(script: Script, allowed: set[str]) -> Iterator[Hit]:
    """`export CUDA_VISIBLE_DEVICES=0,1`; `allowed` holds values that the site recommends."""
    for assignment in script.assignments:
        value = assignment.value.text
        if (
            assignment.name not in _DEVICE_VARIABLES
            or assignment.within.is_heredoc
            or not re.fullmatch(r"\d+(?:,\s*\d+)*,?", value)
        ):
            continue
        if value in allowed or value == "3,2,1,0" or assignment.within.loops or assignment.within.is_subshell:
            continue
        is_all = value.split(",") == [str(n) for n in range(script.gpus_per_node or 0)]
        alone = script.lines[assignment.line - 1].strip() in (
            f"export {assignment.name}={value}",
            f"{assignment.name}={value}",
        )
        # If Slurm hides other jobs' devices, the visible ones count from 0: all of them in order is Slurm's own value.
        repeats = "repeats Slurm's value, and is wrong if the job gets other devices"
        yield at(
            script,
            assignment,
            f"{assignment.name}={value} {repeats if is_all else 'replaces the value that Slurm set for this job'}",
            next_step="remove it",
            severity="info" if is_all else None,
            fix=remove_line(script, assignment.line, title="remove it", is_safe=False)
            if alone and not is_all and not assignment.origin
            else None,
        )


def _devices_of_commands(script: Script) -> Iterator[Hit]:
    """`CUDA_VISIBLE_DEVICES=0,1 python train.py`"""
    for command in script.commands:
        for name, word in command.environment:
            if (
                name in _DEVICE_VARIABLES
                and re.fullmatch(r"\d+(?:,\d+)+", word.text)
                and not command.within.is_background
            ):
                start = word.start - len(name) - 1
                fix = replace_span(start, word.end + 1, "", title="remove it", is_safe=False)
                is_plain = not command.origin and script.text[start : word.end + 1] == f"{name}={word.text} "
                is_all = word.text.split(",") == [str(n) for n in range(script.gpus_per_node or 0)]
                message = f"{name}={word.text} replaces the value that Slurm set for this job"
                yield at(
                    script,
                    command,
                    message,
                    next_step="remove it",
                    severity="info" if is_all else None,
                    fix=fix if is_plain and not is_all else None,
                )
