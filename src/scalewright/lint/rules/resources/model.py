"""Rules about the model: whether it fits what is asked for, and whether its layout fits the nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from scalewright import units
from scalewright.errors import ScalewrightError
from scalewright.lint.job_facts import GUIDE, code_of, number
from scalewright.lint.rule import Context, Hit, at, at_header, rule
from scalewright.lint.script import Script

_TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"
_LIGHT = r"lora|qlora|peft|adapter|offload|quantiz|4bit|8bit|int8|inference|generate|\beval|vllm|sglang|frozen|freeze"
_DEGREES = {
    "tp": (
        "tensor-model-parallel-size",
        "tensor-parallel-size",
        "tensor_parallel_size",
        "tensor_model_parallel_size",
        "tp-size",
    ),
    "pp": (
        "pipeline-model-parallel-size",
        "pipeline-parallel-size",
        "pipeline_parallel_size",
        "pipeline_model_parallel_size",
    ),
    "cp": ("context-parallel-size", "context_parallel_size"),
}
_MEGATRON = r"pretrain_\w+\.py|megatron|--tensor-model-parallel-size|--pipeline-model-parallel-size"
_GIGABYTES = {"K": units.KIB, "M": units.MIB, "G": units.GIB, "T": units.KIB * units.GIB}


def _degree(script: Script, which: str) -> tuple[int, int] | None:
    """A degree of parallelism as the script hands it to its program, and where; None: not there, or not known here."""
    if "parallel" not in script.text:
        return None
    names = "|".join(re.escape(name) for name in _DEGREES[which])
    given = rf"(?:--|\b)(?:{names})(?:[= ]{{1,9}}|\s{{1,9}}\\?\s{{0,40}})[\"']?(\$?\{{?\w+\}}?|\d+)"
    found = list(re.finditer(given, code_of(script)))
    values = {number(script, match.group(1)) for match in found}
    if len(values) != 1 or None in values:
        return None
    value = values.pop()
    return (value, found[0].start()) if value is not None else None


@rule(
    id="tensor-parallel-spans-nodes",
    severity="warning",
    title="Tensor parallelism goes over the network",
    why="Every layer waits for several collectives between its tensor-parallel ranks: over the network these "
    "take longer than "
    "the layer itself.",
    source=f"{GUIDE} 2.4.8: keep TP within NVLink islands; Megatron-LM: tensor parallel within a node",
    before=_TWO + "srun python pretrain_gpt.py --tensor-model-parallel-size 8\n",
    after=_TWO + "srun python pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2\n",
)
def tensor_parallel_spans_nodes(script: Script, context: Context) -> Iterator[Hit]:
    degree = _degree(script, "tp")
    gpus = script.gpus_per_node
    if (
        gpus is None
        and context.site is not None
        and context.site.gpus_per_node is not None
        and not script.asks_for_gpus
    ):
        gpus = context.site.gpus_per_node.value
    if degree is None or gpus is None or degree[0] <= gpus or not script.is_multi_node:
        return
    line, column = script.place(degree[1])
    yield Hit(
        line=line,
        column=column,
        message=f"tensor parallelism of {degree[0]} does not fit the {gpus} GPUs of a node",
        next_step=f"use at most {gpus}, and pipeline or data parallelism between nodes",
    )


@rule(
    id="world-size-indivisible",
    severity="error",
    title="The degrees of parallelism do not divide the number of GPUs",
    why="Megatron stops at once when the number of ranks is no multiple of tensor x pipeline x context parallelism.",
    source="Megatron-LM, parallel_state.initialize_model_parallel",
    before=_TWO + "srun python pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 3\n",
    after=_TWO + "srun python pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2\n",
)
def world_size_indivisible(script: Script, context: Context) -> Iterator[Hit]:
    world = script.num_gpus
    if world is None or "parallel" not in script.text or not re.search(_MEGATRON, code_of(script)):
        return
    degrees = {which: _degree(script, which) for which in _DEGREES}
    known = {which: found for which, found in degrees.items() if found is not None}
    needed = 1
    for value, _ in known.values():
        needed *= value
    written = {w for w in _DEGREES if re.search("|".join(_DEGREES[w]), code_of(script))}
    if not known or needed < 1 or written != set(known) or world % needed == 0:
        return
    line, column = script.place(next(iter(known.values()))[1])
    shown = " x ".join(f"{which} {found[0]}" for which, found in known.items())
    yield Hit(
        line=line,
        column=column,
        message=f"{shown} = {needed} does not divide {world} GPUs",
        next_step="choose degrees whose product divides the number of GPUs, or ask for other nodes",
    )


@rule(
    id="model-does-not-fit",
    severity="error",
    title="The model needs more GPUs than are asked for",
    why="Weights, gradients and the optimizer's state of a full training do not fit: the job ends out of memory "
    "in its first "
    "step.",
    source="the planner: fewest GPUs on which any layout fits; scalewright plan",
    before="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --gpus-per-node=4\nsrun python train.py\n",
)
def model_does_not_fit(script: Script, context: Context) -> Iterator[Hit]:
    needs, asked = context.needs, script.num_gpus
    if needs is None or asked is None or asked >= needs.num_gpus:
        return
    light = re.search(_LIGHT, code_of(script), re.IGNORECASE) is not None
    yield at_header(
        script,
        f"{needs.model} needs {needs.num_gpus} GPUs {'in the plan' if needs.is_planned else 'for a full training'}, "
        f"the job asks for {asked}",
        next_step=f"ask for {needs.num_gpus} GPUs, or train adapters or offload the optimizer",
        severity="info" if light else None,
    )


@rule(
    id="plan-not-followed",
    severity="warning",
    title="The job does not ask for what was planned",
    why="A plan holds for its number of GPUs and its layout; with others its times and its memory do not.",
    source="the plan that lint was given",
    before=_TWO + "srun python pretrain_gpt.py --tensor-model-parallel-size 2\n",
    after="#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --gpus-per-node=4\nsrun python pretrain_gpt.py "
    "--tensor-model-parallel-size 4\n",
)
def plan_not_followed(script: Script, context: Context) -> Iterator[Hit]:
    needs = context.needs
    if needs is None or not needs.is_planned:
        return
    if script.num_gpus is not None and script.num_gpus > needs.num_gpus:
        message = f"the plan is for {needs.num_gpus} GPUs, the job asks for {script.num_gpus}"
        yield at_header(script, message, next_step="plan for these, or ask for those of the plan")
    for which, planned in (("tp", needs.tp), ("pp", needs.pp)):
        degree = _degree(script, which)
        if degree is not None and degree[0] != planned:
            line, column = script.place(degree[1])
            yield Hit(
                line=line,
                column=column,
                message=f"{which} is {degree[0]} here and {planned} in the plan",
                next_step=f"write {planned}, or plan again",
            )


@rule(
    id="host-memory-too-small",
    severity="error",
    title="The node's memory is less than the plan needs",
    why="Loaders, pinned buffers and offloaded state live in host memory: beyond --mem the kernel ends the processes.",
    source="the planner: host memory of a node",
    before="#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --gpus-per-node=4\n#SBATCH --mem=16G\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --gpus-per-node=4\n#SBATCH --mem=400G\nsrun python train.py\n",
)
def host_memory_too_small(script: Script, context: Context) -> Iterator[Hit]:
    needs, found = context.needs, script.directive("mem")
    match = re.fullmatch(r"(\d{1,9})([KMGT]?)B?", (found.value or "").upper()) if found else None
    if needs is None or not needs.host_bytes_per_node or found is None or match is None or match.group(1) == "0":
        return
    asked_bytes = int(match.group(1)) * _GIGABYTES[match.group(2) or "M"]
    if asked_bytes < needs.host_bytes_per_node:
        wanted = int(-(-needs.host_bytes_per_node * 1.2 // units.GIB))
        yield at(
            script,
            found,
            f"{needs.model} needs {needs.host_bytes_per_node / units.GIB:.0f} GiB of host memory on a node",
            next_step=f"ask for --mem={wanted}G: what is needed and 20 %",
        )


@rule(
    id="cpus-unused",
    severity="info",
    title="Far more CPUs than the loaders use",
    why="CPUs that nothing uses are billed, and keep other jobs off the node.",
    source=f"{GUIDE} 2.4.4: loader workers plus a few",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --cpus-per-task=64\npython train.py --num_workers 4\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --cpus-per-task=8\npython train.py --num_workers 4\n",
)
def cpus_unused(script: Script, context: Context) -> Iterator[Hit]:
    found, gpus, tasks = script.directive("cpus-per-task"), script.gpus_per_node, script.tasks_per_node
    match = re.search(r"--(?:num[-_]workers|dataloader[-_]num[-_]workers|workers)[= ]+(\d{1,3})\b", code_of(script))
    if found is None or match is None or not gpus or tasks is None or script.has("exclusive"):
        return
    share = context.site.cpus_per_gpu.value if context.site and context.site.cpus_per_gpu else 0
    per_gpu = (script.number("cpus-per-task") or 0) * tasks / gpus
    if per_gpu > max(4 * (int(match.group(1)) + 4), share):
        yield at(
            script,
            found,
            f"{per_gpu:.0f} CPUs for each GPU, and loaders with {match.group(1)} workers",
            next_step="ask for the workers and a few more",
        )


_NAMES_MODEL = re.compile(
    r"(?:--?|\b)(?:model|base|pretrained)[\w.-]{0,40}(?:[= ]{1,9}|[ ]{0,9}\\\n\s{0,40})[\"']?"
    r"((?:[\w.-]{1,60}/)?[A-Za-z][\w.-]{0,60}\d{1,4}(?:\.\d{1,2})?B[\w.-]{0,60})",
    re.IGNORECASE,
)
_VARIANT = re.compile(r"(?:-(?:instruct|chat|base|hf|it|v\d+(?:\.\d+)?|\d{4}|bf16|fp16))+$", re.IGNORECASE)
_TRAINS = r"train|fine-?tun|sft|pretrain|dpo|grpo|ppo"


@rule(
    id="named-model-too-large",
    severity="warning",
    title="The model that the command names does not fit what is asked for",
    why="Weights, gradients and Adam's state take 16 bytes of every parameter, however they are spread: with less "
    "memory than that on all GPUs together the job ends in its first step.",
    source="rajbhandari2020 (ZeRO, arXiv:1910.02054), section 3.1: 2 + 2 + 12 bytes per parameter",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\ntorchrun train.py --model_name_or_path meta-llama/Llama-3.1-70B\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\ntorchrun train.py --model_name_or_path meta-llama/Llama-3.1-8B\n",
)
def named_model_too_large(script: Script, context: Context) -> Iterator[Hit]:
    system, asked = context.site.system if context.site is not None else None, script.num_gpus
    if system is None or not asked or context.needs is not None:
        return
    code = code_of(script)
    match = _NAMES_MODEL.search(code)
    if match is None or not re.search(_TRAINS, code, re.IGNORECASE) or re.search(_LIGHT, code, re.IGNORECASE):
        return
    name = _VARIANT.sub("", match.group(1).rpartition("/")[2])
    state_bytes, memory_bytes = _state_bytes(name), _memory_bytes(system)
    if state_bytes is None or memory_bytes is None or state_bytes <= asked * memory_bytes:
        return
    line, column = script.place(match.start(1))
    fewest = int(-(-state_bytes // memory_bytes))
    yield Hit(
        line=line,
        column=column,
        end_column=column + len(match.group(1)),
        message=f"a full training of {name} holds {state_bytes / units.GIGA:.0f} GB of state, {asked} GPUs have "
        f"{asked * memory_bytes / units.GIGA:.0f} GB",
        next_step=f"ask for {fewest} GPUs or more, or train adapters; scalewright plan says how",
    )


@cache
def _state_bytes(model: str) -> float | None:
    """Of a catalogued model: bf16 weights and gradients, fp32 copy and two moments; None: nobody knows it."""
    from scalewright.catalog.library import open_catalog
    from scalewright.workload.model import from_catalog

    try:
        return 16.0 * from_catalog(open_catalog(None).model(model)).num_params
    except ScalewrightError:
        return None


@cache
def _memory_bytes(system: str) -> float | None:
    """Usable memory of one device of a catalogued system."""
    from scalewright.catalog.library import open_catalog
    from scalewright.here.place import place_of

    try:
        return float(place_of(open_catalog(None), system).machine.memory_bytes)
    except ScalewrightError:
        return None
