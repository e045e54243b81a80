"""The srun steps of a job script: flags, command, pre-flight check, choice of good nodes, and the run."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scalewright.errors import ConfigError
from scalewright.launch.script import parts
from scalewright.launch.script.containers import InImage
from scalewright.launch.script.preflight import preflight_step, take_good_nodes
from scalewright.launch.script.quoting import argument, quote
from scalewright.launch.script.resolved_job import ResolvedJob

GPU_FLAGS = ("--gpus", "--gpus-per-node", "--gpus-per-task", "--gres", "--gpu-bind")
_PYTHON = re.compile(r"^(?:.*/)?python[0-9.]*$")
CALL = 'bash -c "$(declare -f NAME); NAME \\"\\$@\\"" NAME'
CALL_ASKING = CALL.replace("declare -f NAME", "declare -f catches_usr1 NAME")


def filled(flag: str, job: ResolvedJob, num_nodes: int) -> str:
    """A flag of the profile with its placeholders replaced by numbers."""
    memory = job.site.memory_gb_per_gpu
    values = {
        "nodes": num_nodes,
        "gpus": job.gpus,
        "total_gpus": job.gpus * num_nodes,
        "cpus": job.cpus,
        "node_cpus": job.cpus * job.gpus,
        "memory_gb": 0 if memory is None else memory.value * job.gpus,
    }
    text = flag
    for name, value in values.items():
        if f"{{{name}}}" in text:
            if not value:
                raise ConfigError(
                    f"profile {job.site.id}: {flag!r} uses {{{name}}}, but the profile has no value for it"
                )
            text = text.replace(f"{{{name}}}", str(value))
    return text


def srun_flags(job: ResolvedJob, num_nodes: int) -> list[str]:
    """Flags of a step over `num_nodes` nodes. --cpus-per-task is repeated, because srun does not always inherit it."""
    tasks = job.tasks_per_node
    flags = [f"--nodes={num_nodes}", f"--ntasks={tasks * num_nodes}", f"--ntasks-per-node={tasks}"]
    if job.cpus:
        flags.append(f"--cpus-per-task={job.cpus_per_task}")
    flags.append("--kill-on-bad-exit=1")
    if job.cpu_bind:
        flags.append(f"--cpu-bind={job.cpu_bind}")
    layout = [filled(flag, job, num_nodes) for flag in job.layout.srun]
    return flags + [f for f in layout if not (job.request.mig and f.partition("=")[0] in GPU_FLAGS)]


def steps(job: ResolvedJob, image: InImage, on_rank: str) -> str:
    """The command, the pre-flight check on all nodes, and the run on as many nodes as it needs."""
    request = job.request
    outer = [CALL.replace("NAME", "on_rank")] if on_rank else []
    outer += [" ".join(image.words)] if image.words else []
    inner = outer
    if job.launcher == "torchrun":
        outer = [*outer, CALL_ASKING.replace("NAME", "on_node"), '"${torchrun[@]}"']
    if not request.once_per_node:
        inner = outer
    sections = [f"command=({' '.join(command_words(job))})\n" + _step_arrays(job, image, request.all_nodes)]
    # Array tasks and MIG slices do not communicate, unless the request says so (`checks_nodes`).
    is_independent = request.mig or (request.array is not None and not request.checks_nodes)
    if not is_independent:
        sections.append(preflight_step(outer, python_of(job), num_spares=request.num_spares))
    if request.num_spares:
        again = _step_arrays(job, image, request.num_nodes, more=('--nodelist="$node_list"',))
        sections.append(take_good_nodes(request.num_nodes, parts.RENDEZVOUS[job.site.rendezvous], again))
    words = [*inner, CALL_ASKING.replace("NAME", "shield") + ' "$hold_s" "$exit_requeue"', '"${command[@]}"']
    run = " \\\n    ".join(['run_step "${step_flags[@]}"', *words])
    lost = ""
    if request.all_nodes > 1:
        sections.append(parts.LOST_NODES.strip("\n"))
        lost = parts.IF_LOST
    sections.append(parts.CAUSE.strip("\n"))
    finish = parts.FINISH.strip("\n").replace("@LOST@", lost).replace("@RUN@", run)
    if request.saves_with_zero:
        finish = finish.replace("if ((status == 0)); then", "if ((status == 0 && noticed == 0)); then")
    return "\n\n".join([*sections, finish])


def command_words(job: ResolvedJob) -> list[str]:
    request = job.request
    placeholders = {"run_dir": "run_dir"}
    placeholders |= {"copy": "copy_dir"} if request.copied_paths else {}
    placeholders |= {"item": "item"} if request.array is not None else {}
    return [argument(word, placeholders) for word in request.command]


def _step_arrays(job: ResolvedJob, image: InImage, num_nodes: int, more: Sequence[str] = ()) -> str:
    """The bash arrays with the flags of srun and of torchrun; both contain the number of nodes."""
    lines: list[str] = []
    if job.launcher == "torchrun":
        python = python_of(job)
        extra = " ".join(filled(flag, job, num_nodes) for flag in job.layout.torchrun)
        lines += [
            "torchrun=(",
            f"    {python} -m torch.distributed.run --nnodes={num_nodes} --nproc-per-node={job.gpus}",
            '    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"',
            f"    --max-restarts=0 {extra + ' ' if extra else ''}--no-python",
            f"    {python} -c {quote(parts.UNIGNORE)}",
            ")",
        ]
    flags = (*map(quote, srun_flags(job, num_nodes)), *image.srun, *more)
    return "\n".join([*lines, "step_flags=(", *(f"    {word}" for word in flags), ")"])


def python_of(job: ResolvedJob) -> str:
    """The Python interpreter of the command, as a shell word."""
    first = job.request.command[0]
    return argument(first, {}) if _PYTHON.match(first) else "python"
