"""Rules about srun: what its tasks inherit, how they are bound, and how the step ends."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.lint.job_facts import (
    DISTRIBUTED,
    GUIDE,
    SURVEY,
    add_option,
    has_unknown_options,
    mentions,
    number,
    runs_whole_nodes,
    started_by,
    step_nodes,
    step_tasks_per_node,
    work_commands,
)
from scalewright.lint.rule import Context, Hit, at, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch

_TASKS = "#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=8\n"
_HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n" + _TASKS


def _steps(script: Script) -> Iterator[Launch]:
    """The sruns that start the work of the job, if all their options are known."""
    for work in work_commands(script):
        step = work.step
        if step is None or has_unknown_options(step) or work.command.origin or step.has("pty", "het-group"):
            continue
        yield step


def _packed(script: Script) -> Iterator[tuple[Launch, int]]:
    """Steps of a GPU job with several tasks on a node, and the number of these tasks."""
    if not script.asks_for_gpus or script.header.num_components > 1:
        return
    for step in _steps(script):
        tasks = step_tasks_per_node(script, step)
        if tasks is None or tasks < 2 or any(inner.tool in DISTRIBUTED for inner in started_by(script, step)):
            continue  # a launcher binds its ranks itself; one per task is the subject of launcher-per-task
        yield step, tasks


@rule(
    id="no-kill-on-bad-exit",
    severity="info",
    title="A multi-node step continues after a rank has failed",
    why="When one rank fails, the others wait in a collective until the library's timeout or the time limit of "
    "the job. --kill-on-bad-exit ends them at once.",
    source=f"Slurm, srun(1), --kill-on-bad-exit; 83 % of the multi-node jobs of {SURVEY}",
    before=_HEAD + "srun python train.py\n",
    after=_HEAD + "srun --kill-on-bad-exit=1 python train.py\n",
)
def no_kill_on_bad_exit(script: Script, context: Context) -> Iterator[Hit]:
    if script.setting("SLURM_KILL_BAD_EXIT") is not None:
        return
    for step in _steps(script):
        if (step_nodes(script, step) or 1) > 1 and not step.has("kill-on-bad-exit"):
            yield at(
                script,
                step,
                "when one rank fails, the others keep waiting",
                next_step="add --kill-on-bad-exit=1 to srun",
                fix=add_option(
                    script, step, "--kill-on-bad-exit=1", title="end the step when a rank fails", is_safe=False
                ),
            )


_GPU_OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")


@rule(
    id="gpus-only-on-srun",
    severity="warning",
    title="srun requests GPUs that the job does not have",
    why="A step takes its GPUs from the job. If the header requests none, srun refuses the step: Invalid generic "
    "resource (gres) specification.",
    source="Slurm, srun(1): a step uses the resources of the job's allocation",
    before="#!/bin/bash\n#SBATCH --ntasks=4\n#SBATCH --mem=64G\nsrun --gpus-per-task=1 python train.py\n",
    after="#!/bin/bash\n#SBATCH --ntasks=4\n#SBATCH --mem=64G\n#SBATCH --gpus-per-task=1\nsrun python train.py\n",
)
def gpus_only_on_srun(script: Script, context: Context) -> Iterator[Hit]:
    is_whole = script.has("exclusive") or script.has("tres-per-task") or context.site is not None
    if script.asks_for_gpus or script.is_template or is_whole or not any(d.is_effective for d in script.directives):
        return
    for launch in script.launched("srun"):
        option = launch.option(*_GPU_OPTIONS)
        is_gpu = option is not None and (option.name != "gres" or "gpu" in (option.value or ""))
        if option is None or not is_gpu or launch.has("jobid", "partition", "account") or option.value in ("0", "none"):
            continue
        yield at(
            script,
            option,
            f"the step requests GPUs with --{option.name}, and the job has none",
            next_step=f"request them for the job: #SBATCH --{option.name}={option.value}",
            # Where jobs get whole nodes, with all GPUs, a step may take them.
            severity=None if script.has("mem", "mem-per-cpu", "mem-per-gpu") else "info",
        )
        return


@rule(
    id="step-over-nodes",
    severity="error",
    title="A step requests more nodes than the job has",
    why="srun refuses the step: Requested node configuration is not available, or more nodes requested than allocated.",
    source="Slurm, srun(1), --nodes: within an allocation at most its nodes can be used",
    before="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\nsrun --nodes=2 python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\nsrun --nodes=2 python train.py\n",
)
def step_over_nodes(script: Script, context: Context) -> Iterator[Hit]:
    nodes = script.number("nodes")
    if nodes is None or "-" in (script.value("nodes") or "") or script.header.num_components > 1:
        return
    for launch in script.launched("srun"):
        option = launch.option("nodes")
        of_step = number(script, option.value) if option is not None else None
        if option is None or of_step is None or of_step <= nodes or launch.has("jobid", "partition"):
            continue
        yield at(
            script,
            option,
            f"the step requests {of_step} nodes, and the job has {nodes}",
            next_step=f"write #SBATCH --nodes={of_step}, or --nodes=$SLURM_NNODES",
        )


@rule(
    id="step-over-cpus",
    severity="error",
    title="A step requests more CPUs than the job has",
    why="srun refuses the step, or waits for CPUs that never come: Requested node configuration is not available.",
    source="Slurm, srun(1), --cpus-per-task: within an allocation at most its CPUs can be used",
    before="#!/bin/bash\n#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=8\nsrun --cpus-per-task=32 python train.py\n",
    after="#!/bin/bash\n#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=32\nsrun --cpus-per-task=32 python train.py\n",
)
def step_over_cpus(script: Script, context: Context) -> Iterator[Hit]:
    per_task, tasks = script.number("cpus-per-task"), script.tasks_per_node
    if per_task is None or tasks is None or script.has("exclusive", "cpus-per-gpu", "mincpus") or script.is_template:
        return
    if runs_whole_nodes(script, context.site) or script.header.num_components > 1:
        return
    for launch in script.launched("srun"):
        option, tasks_of_step = launch.option("cpus-per-task"), step_tasks_per_node(script, launch)
        cpus = number(script, option.value) if option is not None else None
        if option is None or cpus is None or tasks_of_step is None or launch.has("jobid", "partition", "overcommit"):
            continue
        if cpus * tasks_of_step > per_task * tasks:
            yield at(
                script,
                option,
                f"the step requests {cpus * tasks_of_step} CPUs on a node, and the job has {per_task * tasks}",
                next_step=f"write #SBATCH --cpus-per-task={-(-cpus * tasks_of_step // tasks)}, or fewer for the step",
            )


@rule(
    id="pty-in-batch",
    severity="warning",
    title="srun --pty in a batch job",
    why="A batch job has no terminal. Only the first task runs with a terminal, and the step may stop when it reads.",
    source="Slurm, srun(1), --pty: execute task zero in pseudo terminal mode",
    before="#!/bin/bash\n#SBATCH --ntasks=1\nsrun --pty python train.py\n",
    after="#!/bin/bash\n#SBATCH --ntasks=1\nsrun python train.py\n",
)
def pty_in_batch(script: Script, context: Context) -> Iterator[Hit]:
    if not any(directive.is_effective for directive in script.directives):
        return
    for launch in script.launched("srun"):
        option = launch.option("pty")
        if option is None or launch.command.parent is not None or launch.command.within.functions:
            continue
        if launch.program and launch.program[0].text in ("bash", "/bin/bash", "$SHELL", "sh", "zsh"):
            continue  # a wrapper that people also call by hand
        yield at(script, option, "a batch job has no terminal for --pty", next_step="remove --pty")


_OF_THE_SHELL = ("cd", "export", "source", ".", "module", "ml", "conda", "unset", "alias", "set", "ulimit", "pushd")
_OF_CONDA = ("activate", "deactivate", "init")


@rule(
    id="step-without-effect",
    severity="error",
    title="A step cannot change the shell of the script",
    why="srun starts a process of its own. When it ends, its folder, variables, modules and environment are gone, and "
    "the commands after it do not see them.",
    source="Slurm, srun(1); bash(1), COMMAND EXECUTION ENVIRONMENT",
    before="#!/bin/bash\n#SBATCH --ntasks=1\nsrun conda activate train\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --ntasks=1\nconda activate train\nsrun python train.py\n",
)
def step_without_effect(script: Script, context: Context) -> Iterator[Hit]:
    for launch in script.launched("srun"):
        inner = [command for command in script.commands if command.parent is launch.command]
        if inner:
            commands = [command.texts for command in inner]
        elif launch.program and launch.program[0].is_static:
            commands = [tuple(word.text for word in launch.program)]
        else:
            continue
        if launch.outer or not all(_is_of_the_shell(texts) for texts in commands):
            continue
        name = " ".join(commands[-1][:2])
        yield at(
            script,
            launch,
            f"{name} changes only this step, which ends at once",
            next_step=f"write it without srun: {name}",
        )


def _is_of_the_shell(texts: tuple[str, ...]) -> bool:
    if not texts or texts[0] not in _OF_THE_SHELL:
        return False
    return texts[0] != "conda" or (len(texts) > 1 and texts[1] in _OF_CONDA)


@rule(
    id="step-fewer-cpus",
    severity="warning",
    title="A step takes fewer CPUs than the job has",
    why="The tasks are bound to the CPUs that srun requests. The rest of the job's CPUs idle, and data loaders share "
    "the few that are left.",
    source="Slurm, srun(1), --cpus-per-task",
    before=_HEAD + "srun --cpus-per-task=1 python train.py\n",
    after=_HEAD + 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python train.py\n',
)
def step_fewer_cpus(script: Script, context: Context) -> Iterator[Hit]:
    per_task, tasks = script.number("cpus-per-task"), script.tasks_per_node
    steps = list(_steps(script))
    if per_task is None or tasks is None or len(steps) != 1 or not script.asks_for_gpus:
        return
    step = steps[0]
    option = step.option("cpus-per-task")
    cpus = number(script, option.value) if option is not None else None
    tasks_of_step = step_tasks_per_node(script, step)
    if option is None or cpus is None or tasks_of_step is None or step.command.within.is_background:
        return
    if 2 * cpus * tasks_of_step <= per_task * tasks:
        yield at(
            script,
            option,
            f"the step uses {cpus * tasks_of_step} of {per_task * tasks} CPUs of each node",
            next_step=f"write --cpus-per-task={per_task * tasks // tasks_of_step}",
        )


@rule(
    id="cpus-not-inherited",
    severity="warning",
    title="srun does not inherit --cpus-per-task",
    why="From Slurm 22.05 to 23.02 srun does not read the job's --cpus-per-task. Each task is bound to one CPU.",
    source=f"Slurm, release notes of 22.05 and 23.11; 19.9 % of {SURVEY}, wrong on these versions only",
    before=_HEAD + "srun python train.py\n",
    after=_HEAD + 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python train.py\n',
    slurm=">=22.05,<23.11",
)
def cpus_not_inherited(script: Script, context: Context) -> Iterator[Hit]:
    if (script.number("cpus-per-task") or 1) < 2 or script.setting("SRUN_CPUS_PER_TASK") is not None:
        return
    for step in _steps(script):
        if not step.has("cpus-per-task", "cpus-per-gpu", "exclusive", "cpu-bind"):
            text = '--cpus-per-task="$SLURM_CPUS_PER_TASK"'
            yield at(
                script,
                step,
                "each task of this step is bound to one CPU, because srun does not inherit --cpus-per-task",
                next_step=f"add {text}, or export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
                fix=add_option(script, step, text, title="repeat --cpus-per-task", is_safe=False),
            )


@rule(
    id="no-cpu-bind",
    severity="info",
    title="Ranks are not bound to cores",
    why="Ranks that move between the cores of a node disturb each other, and their memory ends up on the wrong socket.",
    source=f"{GUIDE} 2.4.8, deterministic binding",
    before=_HEAD + "srun python train.py\n",
    after=_HEAD + "srun --cpu-bind=cores python train.py\n",
)
def no_cpu_bind(script: Script, context: Context) -> Iterator[Hit]:
    if script.setting("SLURM_CPU_BIND") is not None:
        return
    for step, tasks in _packed(script):
        if not step.has("cpu-bind") and (script.number("cpus-per-task") or 1) > 1:
            if mentions(script, r"\bnumactl\b|\btaskset\b|GOMP_CPU_AFFINITY"):
                return
            yield at(
                script,
                step,
                f"{tasks} ranks on a node are not bound to cores",
                next_step="add --cpu-bind=cores or the site's masks to srun",
                fix=add_option(script, step, "--cpu-bind=cores", title="bind ranks to cores", is_safe=False),
            )


@rule(
    id="numa-memory-unbound",
    severity="info",
    title="Ranks are bound to cores, but their memory is not",
    why="Memory on the other socket has more latency and less bandwidth: losses of 10 to 30 % are common.",
    source=f"{GUIDE} 2.4.8, NUMA and sockets",
    before=_HEAD + "srun --cpu-bind=cores python train.py\n",
    after=_HEAD + "srun --cpu-bind=cores --mem-bind=local python train.py\n",
)
def numa_memory_unbound(script: Script, context: Context) -> Iterator[Hit]:
    if script.has("mem-bind"):
        return
    for step, tasks in _packed(script):
        bound = step.value("cpu-bind") or ""
        if step.has("cpu-bind") and "none" not in bound and not step.has("mem-bind"):
            if mentions(script, r"\bnumactl\b|numa.binding|SLURM_MEM_BIND"):
                return
            yield at(
                script,
                step,
                f"{tasks} ranks on a node may allocate memory on any socket",
                next_step="add --mem-bind=local to srun, or start the program with numactl --localalloc",
                fix=add_option(
                    script, step, "--mem-bind=local", title="keep memory on the rank's socket", is_safe=False
                ),
            )


@rule(
    id="no-gpu-bind",
    severity="info",
    title="Every rank sees all GPUs of its node",
    why="The program must then choose a GPU for each rank. If it always takes the first one, all ranks share it.",
    source=f"{GUIDE} 2.4.8, deterministic binding; sites whose collectives need to see all devices say so",
    before=_HEAD + "srun python train.py\n",
    after=_HEAD + "srun --gpu-bind=single:1 python train.py\n",
)
def no_gpu_bind(script: Script, context: Context) -> Iterator[Hit]:
    if context.site is not None and any(f.flag == "--gpu-bind" for f in context.site.forbidden):
        return
    if script.has("gpu-bind", "gpus-per-task", "ntasks-per-gpu", "tres-bind"):
        return
    packed = list(_packed(script))
    if not packed or mentions(script, r"SLURM_LOCALID|LOCAL_RANK|VISIBLE_DEVICES|local.rank"):
        return
    for step, tasks in packed:
        if (
            not step.has("gpu-bind", "gpus-per-task", "ntasks-per-gpu", "accel-bind")
            and (script.gpus_per_node or 1) > 1
        ):
            yield at(
                script,
                step,
                f"{tasks} ranks on a node all see {script.gpus_per_node} GPUs",
                next_step="choose the device from SLURM_LOCALID in the program, or add --gpu-bind=single:1 to srun",
            )


@rule(
    id="no-omp-threads",
    severity="info",
    title="The number of threads per rank is not set",
    why="Without OMP_NUM_THREADS every rank may start as many threads as the node has cores.",
    source=f"{GUIDE} 2.4.4: export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK",
    before=_HEAD + "srun python train.py\n",
    after=_HEAD + "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun python train.py\n",
)
def no_omp_threads(script: Script, context: Context) -> Iterator[Hit]:
    packed = list(_packed(script))
    if not packed or mentions(script, r"OMP_NUM_THREADS|set_num_threads"):
        return
    for step, _ in packed:
        if any(launch.tool == "python" for launch in started_by(script, step)):
            yield at(
                script,
                step,
                "OMP_NUM_THREADS is not set",
                next_step="export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK before srun",
            )
            return


@rule(
    id="export-none-in-steps",
    severity="warning",
    title="Tasks do not get the variables that the script exports",
    why="--export=NONE also applies to srun. Variables that the script sets, such as MASTER_ADDR or "
    "OMP_NUM_THREADS, do not reach the tasks.",
    source="Slurm, sbatch(1), --export: NONE sets SLURM_EXPORT_ENV; srun(1), --export",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --export=NONE\nexport MASTER_PORT=$PORT\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --export=NONE\nexport MASTER_PORT=$PORT\n"
    "srun --export=ALL python train.py\n",
)
def export_none_in_steps(script: Script, context: Context) -> Iterator[Hit]:
    if (script.value("export") or "").upper() not in ("NONE", "NIL") or not script.exports:
        return
    if mentions(script, r"SLURM_EXPORT_ENV"):
        return
    for step in _steps(script):
        if not step.has("export", "export-file"):
            yield at(
                script,
                step,
                "variables that the script exports do not reach these tasks: the job has --export=NONE",
                next_step="add --export=ALL to srun, or unset SLURM_EXPORT_ENV before it",
                fix=add_option(script, step, "--export=ALL", title="pass the environment on", is_safe=False),
            )
