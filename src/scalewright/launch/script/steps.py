"""The steps of a job script: what srun is given, what it runs from the outside in, the check before and the spares."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scalewright.errors import ConfigError
from scalewright.launch.script import parts
from scalewright.launch.script.containers import InImage
from scalewright.launch.script.preflight import preflight_step, take_good_nodes
from scalewright.launch.script.quoting import argument, quote
from scalewright.launch.script.resolve import Settled

GPU_FLAGS = ("--gpus", "--gpus-per-node", "--gpus-per-task", "--gres", "--gpu-bind")
_PYTHON = re.compile(r"^(?:.*/)?python[0-9.]*$")
_CALL = 'bash -c "$(declare -f NAME); NAME \\"\\$@\\"" NAME'


def filled(flag: str, settled: Settled, num_nodes: int) -> str:
    """A profile's flag with its numbers, for so many nodes."""
    memory = settled.site.memory_gb_per_gpu
    values = {
        "nodes": num_nodes,
        "gpus": settled.gpus,
        "total_gpus": settled.gpus * num_nodes,
        "cpus": settled.cpus,
        "node_cpus": settled.cpus * settled.gpus,
        "memory_gb": 0 if memory is None else memory.value * settled.gpus,
    }
    out = flag
    for name, value in values.items():
        if f"{{{name}}}" in out:
            if not value:
                raise ConfigError(f"the profile of {settled.site.id} uses {{{name}}} in {flag!r} but does not give it")
            out = out.replace(f"{{{name}}}", str(value))
    return out


def srun_flags(settled: Settled, num_nodes: int) -> list[str]:
    """Flags of a step over so many nodes; --cpus-per-task is repeated because srun does not always inherit it."""
    tasks = settled.tasks_per_node
    flags = [f"--nodes={num_nodes}", f"--ntasks={tasks * num_nodes}", f"--ntasks-per-node={tasks}"]
    if settled.cpus:
        flags.append(f"--cpus-per-task={settled.cpus_per_task}")
    flags.append("--kill-on-bad-exit=1")
    if settled.cpu_bind:
        flags.append(f"--cpu-bind={settled.cpu_bind}")
    layout = [filled(flag, settled, num_nodes) for flag in settled.layout.srun]
    return flags + [f for f in layout if not (settled.request.mig and f.partition("=")[0] in GPU_FLAGS)]


def steps(settled: Settled, image: InImage, on_rank: str) -> str:
    """The command, the check of all nodes, and the run on as many as it needs."""
    request = settled.request
    outer = [_CALL.replace("NAME", "on_rank")] if on_rank else []
    outer += [" ".join(image.words)] if image.words else []
    if settled.launcher == "torchrun":
        outer += [_CALL.replace("NAME", "on_node"), '"${torchrun[@]}"']
    sections = [f"command=({' '.join(_command_words(settled))})\n" + _step_arrays(settled, image, request.all_nodes)]
    # Tasks and slices do not talk to each other, unless whoever made the request says that they do.
    alone = request.mig or (request.array is not None and not request.checks_nodes)
    if not alone:
        sections.append(preflight_step(outer, _python(settled), num_spares=request.num_spares))
    if request.num_spares:
        again = _step_arrays(settled, image, request.num_nodes, more=('--nodelist="$node_list"',))
        sections.append(take_good_nodes(request.num_nodes, parts.RENDEZVOUS[settled.site.rendezvous], again))
    words = [*outer, _CALL.replace("NAME", "shield") + ' "$hold_s" "$exit_requeue"', '"${command[@]}"']
    run = " \\\n    ".join(['run_step "${step_flags[@]}"', *words])
    lost = ""
    if request.all_nodes > 1:
        sections.append(parts.LOST_NODES.strip("\n"))
        lost = parts.IF_LOST
    return "\n\n".join([*sections, parts.FINISH.strip("\n").replace("@LOST@", lost).replace("@RUN@", run)])


def _command_words(settled: Settled) -> list[str]:
    request = settled.request
    known = {"run_dir": "run_dir"}
    known |= {"stage": "stage_dir"} if request.stage else {}
    known |= {"item": "item"} if request.array is not None else {}
    return [argument(word, known) for word in request.command]


def _step_arrays(settled: Settled, image: InImage, num_nodes: int, more: Sequence[str] = ()) -> str:
    """The flags of a step, and torchrun's own: both count nodes."""
    lines: list[str] = []
    if settled.launcher == "torchrun":
        python = _python(settled)
        extra = " ".join(filled(flag, settled, num_nodes) for flag in settled.layout.torchrun)
        lines += [
            "torchrun=(",
            f"    {python} -m torch.distributed.run --nnodes={num_nodes} --nproc-per-node={settled.gpus}",
            '    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"',
            f"    --max-restarts=0 {extra + ' ' if extra else ''}--no-python",
            f"    {python} -c {quote(parts.UNIGNORE)}",
            ")",
        ]
    flags = (*map(quote, srun_flags(settled, num_nodes)), *image.srun, *more)
    return "\n".join([*lines, "step_flags=(", *(f"    {word}" for word in flags), ")"])


def _python(settled: Settled) -> str:
    """The interpreter that the command runs with, as a shell word."""
    first = settled.request.command[0]
    return argument(first, {}) if _PYTHON.match(first) else "python"
