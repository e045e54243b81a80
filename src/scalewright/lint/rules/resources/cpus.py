"""Rules about the CPUs of a GPU job."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.lint.job_facts import runs_whole_nodes, work_commands
from scalewright.lint.rule import Context, Hit, at, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch

_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --time=12:00:00\n"


@rule(
    id="one-cpu-per-gpu",
    severity="warning",
    title="One CPU for a GPU",
    why="The program, its data loader workers and the threads that launch kernels share one CPU. The GPU waits for "
    "data.",
    source="PyTorch, DataLoader: suggested max number of worker in current system; Slurm, sbatch(1), --cpus-per-task",
    before=_HEAD + "#SBATCH --cpus-per-task=1\npython train.py\n",
    after=_HEAD + "#SBATCH --cpus-per-task=8\npython train.py\n",
)
def one_cpu_per_gpu(script: Script, context: Context) -> Iterator[Hit]:
    directive, tasks, gpus = script.directive("cpus-per-task"), script.tasks_per_node, script.gpus_per_node
    per_task = script.number("cpus-per-task")
    if directive is None or not per_task or tasks is None or not gpus or tasks > gpus or per_task * tasks > gpus:
        return
    if runs_whole_nodes(script, context.site) or script.header.num_components > 1 or not work_commands(script):
        return
    if any(launch.has("cpus-per-task", "cpus-per-gpu") for launch in script.launched("srun")):
        return
    yield at(
        script,
        directive,
        f"{per_task * tasks} CPU{'s' * (per_task * tasks > 1)} on a node for {gpus} GPU{'s' * (gpus > 1)}",
        next_step="request the CPUs that the data loaders need, such as --cpus-per-task=8 for each GPU",
        severity="info" if per_task > 1 else None,  # a launcher with all GPUs may do with one each
    )


@rule(
    id="per-gpu-without-gpus",
    severity="warning",
    title="A request per GPU without GPUs",
    why="Slurm multiplies --cpus-per-gpu and --mem-per-gpu by the GPUs that the job requests. Without such a request "
    "each task gets one CPU, and the default memory.",
    source="Slurm, sbatch(1), --cpus-per-gpu: the number of CPUs per allocated GPU",
    before="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --cpus-per-gpu=6\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n#SBATCH --cpus-per-gpu=6\nsrun python train.py\n",
)
def per_gpu_without_gpus(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("cpus-per-gpu", "mem-per-gpu")
    if directive is None or script.asks_for_gpus or script.has("gres", "tres-per-task", "ntasks-per-gpu"):
        return
    if script.header.num_components > 1 or any(_asks_for_gpus(launch) for launch in script.launched("srun")):
        return
    yield at(
        script,
        directive,
        f"--{directive.name} has no effect: the job requests no GPUs",
        next_step="add the GPUs, such as #SBATCH --gpus-per-node=8",
    )


def _asks_for_gpus(launch: Launch) -> bool:
    return launch.has("gres", "gpus", "gpus-per-node", "gpus-per-task", "G")
