"""A rule about one process on a node with several GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from scalewright.errors import ScalewrightError
from scalewright.lint.job_facts import DISTRIBUTED, GUIDE, code_of, work_commands
from scalewright.lint.rule import Context, Hit, at, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch
from scalewright.records.plain_file import read_plain

_SPREADS = re.compile(
    r"devices|num[-_]?gpus|n[-_]?gpus?\b|--gpus?\b|ngpu|parallel|world[-_]size|multi[-_ ]?(?:gpu|node|proc)|"
    r"distribut|ddp|fsdp|vllm|sglang|lightning|\bray\b|device_map|VISIBLE_DEVICES|mirrored|spawn|hydra|trainer\.|&\s*$|lm_eval|"
    r"jax|tensorflow|--tp\b|tensor[-_]|deepspeed|accelerate|launcher|strategy|nnUNet|yolo",
    re.IGNORECASE | re.MULTILINE,
)
"""Words of programs that use several GPUs themselves."""
_SPREADS_IN_PYTHON = re.compile(
    r"DataParallel|distributed|lightning|Trainer\b|accelerate|deepspeed|device_map|vllm|sglang|MirroredStrategy|jax|"
    r"\bray\b|multiprocessing|mp\.spawn|horovod|fsdp|device_count|cuda:[1-9]|devices|submitit|subprocess",
    re.IGNORECASE,
)
_MAX_PROGRAM_BYTES = 200_000


@rule(
    id="one-process-many-gpus",
    severity="warning",
    title="One process for several GPUs",
    why="A plain python process uses one GPU, unless the program itself uses more. The other GPUs idle.",
    source=f"{GUIDE} 2.4.4: one process to one GPU",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=32\npython train.py --epochs 3\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=32\ntorchrun --standalone "
    "--nproc_per_node=4 train.py --epochs 3\n",
)
def one_process_many_gpus(script: Script, context: Context) -> Iterator[Hit]:
    gpus, works = script.gpus_per_node, work_commands(script)
    if gpus is None or gpus < 2 or (script.num_tasks or 2) > 1 or script.launched(*DISTRIBUTED, "mpirun"):
        return
    if not works or any(not w.chain or w.chain[-1].tool != "python" for w in works):
        return
    if _SPREADS.search(code_of(script)):
        return
    program = works[-1].chain[-1]
    if _SPREADS_IN_PYTHON.search(_text_of_program(script, program)):
        return
    is_known = not _UNKNOWN.search(_arguments(program)) and not script.is_template
    yield at(
        script,
        program,
        f"one process starts, and the node has {gpus} GPUs",
        next_step=f"start one process per GPU: torchrun --standalone --nproc_per_node={gpus}, unless the program "
        "uses all GPUs itself",
        # What a configuration or an unknown argument says may be several GPUs.
        severity=None if is_known and not _CONFIGURED.search(_arguments(program)) else "info",
    )


_UNKNOWN = re.compile(r"^\$|\$\{?(?:[@*]|\w*(?:ARGS|FLAGS|OPTS|OPTIONS|CMD|COMMAND|CONFIG)\b)", re.IGNORECASE)
"""A program or options that the script does not name: in a variable, or from the command line of sbatch."""
_CONFIGURED = re.compile(r"\.(?:ya?ml|json|toml|cfg|ini)\b|--config|--cfg|-m ", re.IGNORECASE)


def _arguments(launch: Launch) -> str:
    return " ".join(word.text for word in launch.program)


def _text_of_program(script: Script, launch: Launch) -> str:
    """The program, if it is beside the script or in a folder that the script is in; empty: it is not here."""
    names = [word.text for word in launch.program if word.is_static and word.text.endswith(".py")]
    if not names or names[0].startswith("/") or script.path in ("-", "") or not Path(script.path).is_file():
        return ""
    for parent in Path(script.path).absolute().parents[:3]:
        try:
            return read_plain(parent / names[0], most_bytes=_MAX_PROGRAM_BYTES).decode("utf-8", "replace")
        except (OSError, ScalewrightError):
            continue
    return ""
