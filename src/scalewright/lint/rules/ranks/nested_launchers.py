"""Rules about launchers inside launchers, and about parts of a job that nothing is started in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import DISTRIBUTED, code_of, step_total
from scalewright.lint.rule import Context, Hit, at, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch

_HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"
_MEET = "--nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:$PORT"
_PARTS = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1\n#SBATCH hetjob\n#SBATCH --nodes=2 --gpus-per-node=4\n"


@rule(
    id="launcher-in-launcher",
    severity="error",
    title="A launcher starts another launcher in every rank",
    why="Every process that the outer one starts becomes a launcher of its own: ranks multiply, fight for the same "
    "GPUs and port, and steps inside a step wait for resources that their own step holds.",
    source="PyTorch, torchrun: one agent per node; Slurm, srun(1), --overlap: a step waits for what another holds",
    before=_HEAD + f"torchrun {_MEET} --no-python srun python train.py\n",
    after=_HEAD + f"srun torchrun {_MEET} train.py\n",
    needs_header=False,
)
def launcher_in_launcher(script: Script, context: Context) -> Iterator[Hit]:
    for launch in script.launched(*DISTRIBUTED, "srun", "mpirun"):
        around = next((outer for outer in reversed(launch.outer) if _multiplies(script, outer, launch)), None)
        if around is None:
            continue
        better = f"srun {around.tool}" if launch.tool == "srun" and around.tool != "srun" else launch.tool
        yield at(
            script,
            launch,
            f"every process that {around.tool} starts is a {launch.tool} of its own",
            next_step=f"keep one of them: {better} ... train.py",
        )


def _multiplies(script: Script, outer: Launch, inner: Launch) -> bool:
    if outer.tool in DISTRIBUTED:
        return True
    if outer.tool != "srun" or inner.tool != "srun" or inner.has("overlap", "jobid", "external"):
        return False
    return (step_total(script, outer) or 1) > 1


@rule(
    id="hetjob-part-unused",
    severity="warning",
    title="Nothing is started in a part of a heterogeneous job",
    why="Without --het-group srun starts in the first part only: what the other parts hold is billed and idle.",
    source="Slurm, heterogeneous job support: by default the applications are launched only on the first component",
    before=_PARTS + "srun python train.py\n",
    after=_PARTS + "srun --het-group=0,1 python train.py\n",
)
def hetjob_part_unused(script: Script, context: Context) -> Iterator[Hit]:
    num_parts = script.header.num_components
    if num_parts < 2 or not script.is_shell or re.search(_SPANS, code_of(script), re.IGNORECASE):
        return
    used = _parts_used(script, num_parts)
    if used is None:
        return
    for part in range(num_parts):
        first = next((d for d in script.directives if d.component == part and d.is_effective), None)
        if part and part not in used and first is not None:
            yield at(
                script,
                first,
                f"no srun starts anything in part {part} of the job, which begins here",
                next_step=f"start there: srun --het-group={part} ..., or ask for one part only",
            )


_SPANS = r"\b(?:mpirun|mpiexec|ibrun|ray|dask|hostfile|ssh|pdsh)\b|HET_SIZE|HET_GROUP_|PACK_GROUP_|pack-group"
"""Means of starting something in every part that name none."""


def _parts_used(script: Script, num_parts: int) -> set[int] | None:
    """Parts that some srun names, the first for those that name none; None: not known here."""
    used: set[int] = set()
    written = re.findall(r"--het-group[= ]([^\s:;]+)", code_of(script))
    for value in [script.resolve(text) for text in written] or ["0"]:
        if not re.fullmatch(r"[\d,-]+", value):
            return None
        for piece in filter(None, value.split(",")):
            first, _, last = piece.partition("-")
            if not first.isdigit() or (last and not last.isdigit()):
                return None
            used.update(range(int(first[:4]), min(int((last or first)[:4]), num_parts) + 1))
    return used


@rule(
    id="hetjob-part-unknown",
    severity="error",
    title="srun names a part that the job does not have",
    why="Parts of a heterogeneous job count from 0; srun refuses one that is not there.",
    source="Slurm, srun(1), --het-group; heterogeneous job support: offsets begin at 0",
    before=_PARTS + "srun --het-group=1,2 python train.py\n",
    after=_PARTS + "srun --het-group=0,1 python train.py\n",
)
def hetjob_part_unknown(script: Script, context: Context) -> Iterator[Hit]:
    num_parts = script.header.num_components
    for launch in script.launched("srun"):
        option = launch.option("het-group")
        numbers = re.findall(r"\d{1,4}", script.resolve(option.value or "")) if option is not None else []
        if option is None or "$" in script.resolve(option.value or "") or script.overrides:
            continue
        beyond = [int(number) for number in numbers if int(number) >= num_parts]
        if beyond:
            has = "has one part" if num_parts == 1 else f"has parts 0 to {num_parts - 1}"
            yield at(
                script,
                option,
                f"part {beyond[0]} does not exist: the job {has}",
                next_step="count parts from 0, or add #SBATCH hetjob and the options of another part",
            )
