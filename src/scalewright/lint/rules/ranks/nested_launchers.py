"""Rules about launchers inside launchers, and about components of a heterogeneous job that nothing runs in."""

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
    why="Every process that the outer launcher starts becomes a launcher itself. Ranks multiply and compete for "
    "the same GPUs and port. An srun inside a step waits for resources that its own step holds.",
    source="PyTorch, torchrun: one agent per node; Slurm, srun(1), --overlap: a step waits for what another holds",
    before=_HEAD + f"torchrun {_MEET} --no-python srun python train.py\n",
    after=_HEAD + f"srun torchrun {_MEET} train.py\n",
    needs_header=False,
)
def launcher_in_launcher(script: Script, context: Context) -> Iterator[Hit]:
    for launch in script.launched(*DISTRIBUTED, "srun", "mpirun"):
        outer = next((outer for outer in reversed(launch.outer) if _multiplies(script, outer, launch)), None)
        if outer is None:
            continue
        better = f"srun {outer.tool}" if launch.tool == "srun" and outer.tool != "srun" else launch.tool
        yield at(
            script,
            launch,
            f"every process that {outer.tool} starts is another {launch.tool}",
            next_step=f"keep one launcher: {better} ... train.py",
        )


def _multiplies(script: Script, outer: Launch, inner: Launch) -> bool:
    """Whether the outer launcher starts the inner one several times."""
    if outer.tool in DISTRIBUTED:
        return True
    if outer.tool != "srun" or inner.tool != "srun" or inner.has("overlap", "jobid", "external"):
        return False
    return (step_total(script, outer) or 1) > 1


@rule(
    id="hetjob-part-unused",
    severity="warning",
    title="Nothing runs in a component of a heterogeneous job",
    why="Without --het-group srun uses the first component only. The other components idle and are billed.",
    source="Slurm, heterogeneous job support: by default the applications are launched only on the first component",
    before=_PARTS + "srun python train.py\n",
    after=_PARTS + "srun --het-group=0,1 python train.py\n",
)
def hetjob_part_unused(script: Script, context: Context) -> Iterator[Hit]:
    num_components = script.header.num_components
    if num_components < 2 or not script.is_shell or re.search(_USES_ALL, code_of(script), re.IGNORECASE):
        return
    used = _components_used(script, num_components)
    if used is None:
        return
    for component in range(num_components):
        first = next((d for d in script.directives if d.component == component and d.is_effective), None)
        if component and component not in used and first is not None:
            yield at(
                script,
                first,
                f"no srun uses component {component} of the job, which begins here",
                next_step=f"start something there with srun --het-group={component} ..., or request one component only",
            )


_USES_ALL = r"\b(?:mpirun|mpiexec|ibrun|ray|dask|hostfile|ssh|pdsh)\b|HET_SIZE|HET_GROUP_|PACK_GROUP_|pack-group"
"""Programs and variables that use all components without naming them."""


def _components_used(script: Script, num_components: int) -> set[int] | None:
    """Components that some srun names, or the first if none is named; None: unknown."""
    used: set[int] = set()
    groups = re.findall(r"--het-group[= ]([^\s:;]+)", code_of(script))
    for value in [script.resolve(text) for text in groups] or ["0"]:
        if not re.fullmatch(r"[\d,-]+", value):
            return None
        for piece in filter(None, value.split(",")):
            first, _, last = piece.partition("-")
            if not first.isdigit() or (last and not last.isdigit()):
                return None
            used.update(range(int(first[:4]), min(int((last or first)[:4]), num_components) + 1))
    return used


@rule(
    id="hetjob-part-unknown",
    severity="error",
    title="srun names a component that the job does not have",
    why="Components of a heterogeneous job count from 0. srun refuses a number that does not exist.",
    source="Slurm, srun(1), --het-group; heterogeneous job support: offsets begin at 0",
    before=_PARTS + "srun --het-group=1,2 python train.py\n",
    after=_PARTS + "srun --het-group=0,1 python train.py\n",
)
def hetjob_part_unknown(script: Script, context: Context) -> Iterator[Hit]:
    num_components = script.header.num_components
    for launch in script.launched("srun"):
        option = launch.option("het-group")
        numbers = re.findall(r"\d{1,4}", script.resolve(option.value or "")) if option is not None else []
        if option is None or "$" in script.resolve(option.value or "") or script.overrides:
            continue
        beyond = [int(number) for number in numbers if int(number) >= num_components]
        if beyond:
            has = "has one component" if num_components == 1 else f"has components 0 to {num_components - 1}"
            yield at(
                script,
                option,
                f"component {beyond[0]} does not exist: the job {has}",
                next_step="count components from 0, or add #SBATCH hetjob and the options of another component",
            )
