"""Rules about the model: whether it fits the requested GPUs, and whether its layout fits the nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from scalewright import units
from scalewright.errors import ScalewrightError
from scalewright.lint.job_facts import GIB_PER_UNIT, GUIDE, code_of, cpus_of_gpu, number
from scalewright.lint.rule import Context, Hit, at, at_header, at_span, rule
from scalewright.lint.script import Script

_TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"
_NOT_FULL_TRAINING = (
    r"lora|qlora|peft|adapter|offload|quantiz|4bit|8bit|int8|inference|generate|\beval|vllm|sglang|frozen|freeze"
)
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


def _degree(script: Script, which: str) -> tuple[int, int] | None:
    """A parallel degree that the script passes to its program, and its offset; None: not set, or unknown."""
    if "parallel" not in script.text:
        return None
    names = "|".join(re.escape(name) for name in _DEGREES[which])
    option = rf"(?:--|\b)(?:{names})(?:[= ]{{1,9}}|\s{{1,9}}\\?\s{{0,40}})[\"']?(\$?\{{?\w+\}}?|\d+)"
    matches = list(re.finditer(option, code_of(script)))
    values = {number(script, match.group(1)) for match in matches}
    if len(values) != 1 or None in values:
        return None
    value = values.pop()
    return (value, matches[0].start()) if value is not None else None


@rule(
    id="tensor-parallel-spans-nodes",
    severity="warning",
    title="Tensor parallelism crosses the network",
    why="Every layer waits for several collectives between its tensor-parallel ranks. Over the network they take "
    "longer than the layer itself.",
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
    yield at_span(
        script,
        degree[1],
        None,
        f"tensor parallelism {degree[0]} is more than the {gpus} GPUs of a node",
        next_step=f"use at most {gpus}, and pipeline or data parallelism between nodes",
    )


@rule(
    id="world-size-indivisible",
    severity="error",
    title="The parallel degrees do not divide the number of GPUs",
    why="Megatron stops at the start if the number of ranks is not a multiple of tensor x pipeline x context "
    "parallelism.",
    source="Megatron-LM, parallel_state.initialize_model_parallel",
    before=_TWO + "srun python pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 3\n",
    after=_TWO + "srun python pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2\n",
)
def world_size_indivisible(script: Script, context: Context) -> Iterator[Hit]:
    world = script.num_gpus
    if world is None or "parallel" not in script.text or not re.search(_MEGATRON, code_of(script)):
        return
    degrees = {which: _degree(script, which) for which in _DEGREES}
    known_degrees = {which: degree for which, degree in degrees.items() if degree is not None}
    product = math.prod(value for value, _ in known_degrees.values())
    set_degrees = {which for which in _DEGREES if re.search("|".join(_DEGREES[which]), code_of(script))}
    if not known_degrees or product < 1 or set_degrees != set(known_degrees) or world % product == 0:
        return
    factors = " x ".join(f"{which} {value}" for which, (value, _) in known_degrees.items())
    yield at_span(
        script,
        next(iter(known_degrees.values()))[1],
        None,
        f"{factors}{f' = {product}' if len(known_degrees) > 1 else ''} does not divide {world} GPUs",
        next_step="choose degrees whose product divides the number of GPUs, or request another number of nodes",
    )


@rule(
    id="model-does-not-fit",
    severity="error",
    title="The model needs more GPUs than the job requests",
    why="Weights, gradients and optimizer state of full training do not fit. The job runs out of memory in its "
    "first step.",
    source="the planner: fewest GPUs on which any layout fits; scalewright plan",
    before="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --gpus-per-node=4\nsrun python train.py\n",
)
def model_does_not_fit(script: Script, context: Context) -> Iterator[Hit]:
    needs, requested_gpus = context.needs, script.num_gpus
    if needs is None or requested_gpus is None or requested_gpus >= needs.num_gpus:
        return
    needs_less = re.search(_NOT_FULL_TRAINING, code_of(script), re.IGNORECASE) is not None
    yield at_header(
        script,
        f"{needs.model} needs {needs.num_gpus} GPUs {'in the plan' if needs.is_planned else 'for full training'}, "
        f"and the job requests {requested_gpus}",
        next_step=f"request {needs.num_gpus} GPUs, or train adapters or offload the optimizer",
        severity="info" if needs_less else None,
    )


@rule(
    id="plan-not-followed",
    severity="warning",
    title="The job differs from the plan",
    why="A plan is valid for its number of GPUs and its layout. With others, its times and its memory are wrong.",
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
        message = f"the plan is for {needs.num_gpus} GPUs, and the job requests {script.num_gpus}"
        yield at_header(script, message, next_step=f"request {needs.num_gpus} GPUs, or plan for {script.num_gpus}")
    for which, planned in (("tp", needs.tp), ("pp", needs.pp)):
        degree = _degree(script, which)
        if degree is not None and degree[0] != planned:
            message = f"{which} is {degree[0]} here and {planned} in the plan"
            yield at_span(script, degree[1], None, message, next_step=f"write {planned}, or plan again")


@rule(
    id="host-memory-too-small",
    severity="error",
    title="--mem is less than the plan needs",
    why="Data loaders, pinned buffers and offloaded state use host memory. When a job exceeds --mem, the kernel "
    "kills its processes.",
    source="the planner: host memory of a node",
    before="#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --gpus-per-node=4\n#SBATCH --mem=16G\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --gpus-per-node=4\n#SBATCH --mem=400G\nsrun python train.py\n",
)
def host_memory_too_small(script: Script, context: Context) -> Iterator[Hit]:
    needs, directive = context.needs, script.directive("mem")
    match = re.fullmatch(r"(\d{1,9})([KMGT]?)B?", (directive.value or "").upper()) if directive else None
    if needs is None or not needs.host_bytes_per_node or directive is None or match is None or match.group(1) == "0":
        return
    requested_bytes = int(match.group(1)) * GIB_PER_UNIT[match.group(2)] * units.GIB
    if requested_bytes < needs.host_bytes_per_node:
        recommended_gib = int(-(-needs.host_bytes_per_node * 1.2 // units.GIB))
        yield at(
            script,
            directive,
            f"{needs.model} needs {needs.host_bytes_per_node / units.GIB:.0f} GiB of host memory per node",
            next_step=f"write --mem={recommended_gib}G: the need plus 20 %",
        )


@rule(
    id="cpus-unused",
    severity="info",
    title="Far more CPUs than the data loaders use",
    why="Unused CPUs are billed and keep other jobs off the node.",
    source=f"{GUIDE} 2.4.4: loader workers plus a few",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --cpus-per-task=64\npython train.py --num_workers 4\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --cpus-per-task=8\npython train.py --num_workers 4\n",
)
def cpus_unused(script: Script, context: Context) -> Iterator[Hit]:
    directive, gpus, tasks = script.directive("cpus-per-task"), script.gpus_per_node, script.tasks_per_node
    match = re.search(r"--(?:num[-_]workers|dataloader[-_]num[-_]workers|workers)[= ]+(\d{1,3})\b", code_of(script))
    if directive is None or match is None or not gpus or tasks is None or script.has("exclusive"):
        return
    share = cpus_of_gpu(context.site) or 0
    per_gpu = (script.number("cpus-per-task") or 0) * tasks / gpus
    if per_gpu > max(4 * (int(match.group(1)) + 4), share):
        yield at(
            script,
            directive,
            f"the job requests {per_gpu:.0f} CPUs per GPU, and the data loader has {match.group(1)} workers",
            next_step="request one CPU per worker and a few more",
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
    title="The model in the command does not fit the requested GPUs",
    why="Weights, gradients and Adam's state take 16 bytes per parameter, however they are sharded. If all GPUs "
    "together have less memory, the job runs out of memory in its first step.",
    source="rajbhandari2020 (ZeRO, arXiv:1910.02054), section 3.1: 2 + 2 + 12 bytes per parameter",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\ntorchrun train.py --model_name_or_path meta-llama/Llama-3.1-70B\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\ntorchrun train.py --model_name_or_path meta-llama/Llama-3.1-8B\n",
)
def named_model_too_large(script: Script, context: Context) -> Iterator[Hit]:
    system, gpus = context.site.system if context.site is not None else None, script.num_gpus
    if system is None or not gpus or context.needs is not None:
        return
    code = code_of(script)
    match = _NAMES_MODEL.search(code)
    if match is None or not re.search(_TRAINS, code, re.IGNORECASE):
        return
    if re.search(_NOT_FULL_TRAINING, code, re.IGNORECASE):
        return
    name = _VARIANT.sub("", match.group(1).rpartition("/")[2])
    state_bytes, memory_bytes = _state_bytes(name), _memory_bytes(system)
    if state_bytes is None or memory_bytes is None or state_bytes <= gpus * memory_bytes:
        return
    fewest = int(-(-state_bytes // memory_bytes))
    yield at_span(
        script,
        match.start(1),
        match.end(1),
        f"full training of {name} needs {state_bytes / units.GIGA:.0f} GB for its state, and {gpus} GPUs have "
        f"{gpus * memory_bytes / units.GIGA:.0f} GB",
        next_step=f"request {fewest} GPUs or more, or train adapters; scalewright plan finds a layout",
    )


def _state_bytes(model: str) -> float | None:
    """bf16 weights and gradients, fp32 copy and two moments of a model; None: it is not in the catalogue."""
    from scalewright.catalog.library import open_catalog
    from scalewright.workload.model import from_catalog

    try:
        return 16.0 * from_catalog(open_catalog(None).model(model)).num_params
    except ScalewrightError:
        return None


def _memory_bytes(system: str) -> float | None:
    """Usable memory of one device of a system; None: it is not in the catalogue."""
    from scalewright.catalog.library import open_catalog
    from scalewright.here.place import place_of

    try:
        return float(place_of(open_catalog(None), system).machine.memory_bytes)
    except ScalewrightError:
        return None
