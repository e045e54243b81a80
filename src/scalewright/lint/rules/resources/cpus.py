"""Rules about the CPUs of a GPU job."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.lint.job_facts import runs_whole_nodes, work_commands
from scalewright.lint.rule import Context, Hit, at, rule
from scalewright.lint.script import Script

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
    if directive is None or script.number("cpus-per-task") != 1 or tasks is None or not gpus or tasks > gpus:
        return
    if runs_whole_nodes(script, context.site) or script.header.num_components > 1 or not work_commands(script):
        return
    if any(launch.has("cpus-per-task", "cpus-per-gpu") for launch in script.launched("srun")):
        return
    yield at(
        script,
        directive,
        f"{tasks} CPU{'s' * (tasks > 1)} on a node for {gpus} GPU{'s' * (gpus > 1)}",
        next_step="request the CPUs that the data loaders need, such as --cpus-per-task=8 for each GPU",
    )
