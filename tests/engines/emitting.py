"""Emitted text read back into a layout, for the tests of the emitters."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import yaml

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.engines.emit import Framework, emit
from scalewright.engines.files.deepspeed import SCRIPT_ARGUMENTS
from scalewright.engines.types import Emitted
from scalewright.workload.layout import Layout, Recompute, parse_layout
from scalewright.workload.model import ModelSpec, from_catalog
from scalewright.workload.precision import recipe
from scalewright.workload.training import training_mode

CATALOG = Catalog((packaged_data(),))
ARGUMENTS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "megatron_arguments.toml").read_text())
SEQ_LEN = 4096
EXPRESSED: list[tuple[Framework, str, str, str]] = [
    ("megatron", "gpt3-175b", "tp=8,pp=8,vpp=2,dp=8,mbs=1,gbs=512,zero=1,sp=1,recompute=full", "bf16"),
    ("megatron", "llama3-405b", "tp=8,pp=16,cp=2,dp=4,mbs=1,gbs=256,zero=1,sp=1", "mxfp8"),
    ("megatron", "deepseek-v3", "tp=2,pp=16,ep=64,dp=32,mbs=1,gbs=4096,zero=1,sp=1,recompute=selective", "fp8"),
    ("megatron", "llama3-405b", "tp=8,pp=16,vpp=4,dp=4,mbs=1,gbs=256,zero=1,sp=1", "bf16"),
    ("megatron", "deepseek-v3", "pp=16,vpp=2,ep=64,dp=64,mbs=1,gbs=4096,zero=1", "fp8"),
    ("megatron", "llama3-8b", "dp=8,mbs=1,gbs=64,zero=3", "bf16"),
    ("megatron", "llama3-8b", "dp=8,mbs=1,gbs=64,zero=1", "bf16-lean"),
    ("megatron", "llama3-8b", "dp=8,mbs=1,gbs=64,zero=2", "nvfp4"),
    ("torchtitan", "llama3-70b", "tp=8,pp=4,vpp=2,dp=4,mbs=1,gbs=64,zero=2,sp=1,recompute=operators", "bf16"),
    ("torchtitan", "qwen3-235b-a22b", "pp=8,vpp=2,dp=8,ep=8,mbs=1,gbs=64,zero=2", "bf16"),
    ("torchtitan", "llama3-8b", "dp=8,mbs=2,gbs=64,zero=3,recompute=full", "fp8"),
    ("torchtitan", "qwen3-30b-a3b", "tp=2,dp=8,ep=8,mbs=1,gbs=64,zero=3,sp=1", "mxfp8"),
    ("torchtitan", "llama3-8b", "dp=8,mbs=2,gbs=64,zero=0", "fp32"),
    ("torchtitan", "llama3-8b", "dp=8,mbs=2,gbs=64,zero=3", "bf16-pure"),
    ("deepspeed", "gpt3-175b", "tp=4,pp=16,dp=2,mbs=1,gbs=640,zero=1,recompute=full", "fp16"),
    ("deepspeed", "llama3-8b", "tp=2,dp=8,mbs=2,gbs=64,zero=3", "bf16"),
    ("deepspeed", "llama3-8b", "dp=8,mbs=2,gbs=64,zero=2", "bf16-pure"),
    ("deepspeed", "llama3-8b", "dp=8,mbs=2,gbs=64,zero=0", "bf16-lean"),
    ("deepspeed", "qwen3-30b-a3b", "tp=2,dp=8,ep=4,mbs=1,gbs=64,zero=2", "bf16"),
    ("fsdp", "llama3-8b", "tp=2,cp=2,dp=8,mbs=1,gbs=64,zero=3,recompute=full", "bf16"),
    ("fsdp", "llama2-70b", "dp=64,mbs=1,gbs=128,zero=2", "fp8"),
    ("fsdp", "bert-large", "dp=8,mbs=4,gbs=64,zero=3", "fp16"),
]  # fmt: skip
"""Layouts that a framework must take: framework, model, layout and precision."""
TYPES = {"int": int, "float": float, "str": str}


def model(name: str) -> ModelSpec:
    return from_catalog(CATALOG.model(name))


def emitted(
    framework: Framework,
    name: str,
    layout: str | Layout,
    *,
    precision: str = "bf16",
    seq_len: int = SEQ_LEN,
    mode: str = "full",
) -> Emitted:
    chosen = parse_layout(layout) if isinstance(layout, str) else layout
    num_gpus = int(chosen.num_gpus)
    return emit(
        framework=framework, spec=model(name), layout=chosen, recipe=recipe(precision), seq_len=seq_len,
        gpus_per_node=8, num_gpus=num_gpus, mode=training_mode(mode),
    )  # fmt: skip


def megatron_parser() -> argparse.ArgumentParser:
    """Megatron-LM's parser, as far as it was written down from its source."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name, kind in ARGUMENTS["arguments"].items():
        if kind == "flag":
            parser.add_argument(name, action="store_true")
        elif kind == "list":
            parser.add_argument(name, nargs="*")
        elif isinstance(kind, list):
            parser.add_argument(name, choices=kind)
        else:
            parser.add_argument(name, type=TYPES[kind])
    return parser


def megatron_arguments(text: str) -> dict[str, Any]:
    """The parsed array of a Megatron-LM file; an argument that its parser does not know raises."""
    inside = text[text.index("MEGATRON_ARGS=(") + len("MEGATRON_ARGS=(") : text.rindex("\n)")]
    return vars(megatron_parser().parse_args(shlex.split(inside)))


def layout_of(emitted_file: Emitted, num_gpus: int) -> Layout:
    """The layout that a framework would make of its file on so many devices."""
    return {"megatron": _megatron, "torchtitan": _torchtitan, "deepspeed": _deepspeed, "fsdp": _fsdp}[
        emitted_file.framework
    ](emitted_file, num_gpus)


def _megatron(emitted_file: Emitted, num_gpus: int) -> Layout:
    args = megatron_arguments(emitted_file.text)
    tp, pp = args["tensor_model_parallel_size"], args["pipeline_model_parallel_size"]
    cp = args["context_parallel_size"] or 1
    strategy = {"optim_grads": 2, "optim_grads_params": 3}.get(args["data_parallel_sharding_strategy"], 0)
    assert bool(strategy) == args["use_megatron_fsdp"]
    return Layout(
        tp=tp, pp=pp, cp=cp, dp=num_gpus // (tp * pp * cp),
        vpp=_megatron_chunks(args),
        ep=args["expert_model_parallel_size"] or 1,
        mbs=args["micro_batch_size"], gbs=args["global_batch_size"],
        zero=strategy or int(args["use_distributed_optimizer"]),
        sp=args["sequence_parallel"], recompute=_megatron_recompute(args),
    )  # fmt: skip


def _megatron_recompute(args: dict[str, Any]) -> Recompute:
    """Granularity and modules as a level: scores alone, or what is cheap beside them."""
    level: Recompute = args["recompute_granularity"] or "none"
    return "modules" if level == "selective" and "core_attn" not in args["recompute_modules"] else level


def _megatron_chunks(args: dict[str, Any]) -> int:
    """Chunks on each stage: told as a number, or by a layout with one part for each of them; never by both."""
    parts, num_chunks = args["pipeline_model_parallel_layout"], args["num_virtual_stages_per_pipeline_rank"]
    if parts is None:
        return num_chunks or 1
    assert num_chunks is None
    num, rest = divmod(parts.count("|") + 1, args["pipeline_model_parallel_size"])
    assert rest == 0
    return num


def _torchtitan(emitted_file: Emitted, num_gpus: int) -> Layout:
    doc = tomllib.loads(emitted_file.text)
    split, batch = doc["parallelism"], doc["training"]
    tp, pp, cp = (split[f"{kind}_parallel_degree"] for kind in ("tensor", "pipeline", "context"))
    dp = split["data_parallel_replicate_degree"] * split["data_parallel_shard_degree"]
    assert dp * tp * pp * cp == num_gpus
    assert doc["training"]["global_batch_size"] % (batch["local_batch_size"] * dp) == 0
    vpp = 1
    if split.get("pipeline_parallel_schedule") == "Interleaved1F1B":
        layers = next(k[0] for k, v in _flavours().items() if v == (doc["model"]["name"], doc["model"]["flavor"]))
        num_chunks = -(-layers // split["pipeline_parallel_layers_per_stage"])
        assert num_chunks % pp == 0
        vpp = num_chunks // pp
    checkpoint = doc["activation_checkpoint"]
    assert (checkpoint["mode"] == "selective") == (checkpoint.get("selective_ac_option") == "op")
    return Layout(
        tp=tp, pp=pp, cp=cp, dp=dp, vpp=vpp, ep=split.get("expert_parallel_degree", 1),
        mbs=split["pipeline_parallel_microbatch_size"] if pp > 1 else batch["local_batch_size"],
        gbs=batch["global_batch_size"],
        zero={"always": 3, "never": 2, None: 0}[split.get("fsdp_reshard_after_forward")],
        sp=tp > 1, recompute={"none": "none", "selective": "operators", "full": "full"}[checkpoint["mode"]],
    )  # fmt: skip


def _flavours() -> dict[tuple[int, ...], tuple[str, str]]:
    from scalewright.engines.files.torchtitan import FLAVOURS

    return FLAVOURS


def _deepspeed(emitted_file: Emitted, num_gpus: int) -> Layout:
    doc = json.loads(emitted_file.text)
    script = [note.removeprefix(SCRIPT_ARGUMENTS) for note in emitted_file.notes if note.startswith(SCRIPT_ARGUMENTS)]
    words = shlex.split(script[0]) if script else []

    def of(name: str) -> int:
        return int(words[words.index(name) + 1]) if name in words else 1

    tp = doc.get("tensor_parallel", {}).get("autotp_size", of("--tensor-model-parallel-size"))
    pp = of("--pipeline-model-parallel-size")
    dp = num_gpus // (tp * pp)
    assert doc["train_batch_size"] == doc["train_micro_batch_size_per_gpu"] * doc["gradient_accumulation_steps"] * dp
    return Layout(
        tp=tp, pp=pp, dp=dp, ep=doc.get("expert_parallel", {}).get("autoep_size", 1),
        mbs=doc["train_micro_batch_size_per_gpu"], gbs=doc["train_batch_size"],
        zero=doc["zero_optimization"]["stage"], sp="--sequence-parallel" in words,
        recompute="full" if "activation_checkpointing" in doc else "none",
    )  # fmt: skip


def _fsdp(emitted_file: Emitted, num_gpus: int) -> Layout:
    doc = yaml.safe_load(emitted_file.text)
    assert doc["num_processes"] == num_gpus
    split = doc.get("parallelism_config", {})
    tp, cp = split.get("parallelism_config_tp_size", 1), split.get("parallelism_config_cp_size", 1)
    dp = split.get("parallelism_config_dp_shard_size", num_gpus)
    assert dp * tp * cp == num_gpus
    batch = re.search(
        r"per_device_train_batch_size=(\d+), gradient_accumulation_steps=(\d+)", " ".join(emitted_file.notes)
    )
    assert batch is not None
    mbs, steps = int(batch[1]), int(batch[2])
    sharding = doc["fsdp_config"]
    return Layout(
        tp=tp, cp=cp, dp=dp, mbs=mbs, gbs=mbs * steps * dp,
        zero=3 if sharding["fsdp_reshard_after_forward"] else 2,
        recompute="full" if sharding["fsdp_activation_checkpointing"] else "none",
    )  # fmt: skip
