"""torchtitan: a TOML file for `--job.config_file`, read by the last release that has one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from scalewright.catalog.types import TransformerShape
from scalewright.engines.types import Emitted, EngineRequest, refusal

NAME = "torchtitan"
VERSION = "0.2.2"
"""From 0.3.0 on a configuration is a Python function; 0.2.2 is the last release that reads TOML."""
FILENAME = "torchtitan.toml"

Value = str | int | bool | list[str]
Sections = dict[str, dict[str, Value]]
Signature = tuple[int, ...]

FLAVOURS: dict[Signature, tuple[str, str]] = {
    # layers, hidden, heads, key-value heads, feed-forward, vocabulary, experts, top k, width of an expert
    (32, 4096, 32, 8, 14336, 128256, 0, 0, 0): ("llama3", "8B"),
    (80, 8192, 64, 8, 28672, 128256, 0, 0, 0): ("llama3", "70B"),
    (126, 16384, 128, 8, 53248, 128256, 0, 0, 0): ("llama3", "405B"),
    (28, 1024, 16, 8, 3072, 151936, 0, 0, 0): ("qwen3", "0.6B"),
    (28, 2048, 16, 8, 6144, 151936, 0, 0, 0): ("qwen3", "1.7B"),
    (36, 2560, 32, 8, 9728, 151936, 0, 0, 0): ("qwen3", "4B"),
    (36, 4096, 32, 8, 12288, 151936, 0, 0, 0): ("qwen3", "8B"),
    (40, 5120, 40, 8, 17408, 151936, 0, 0, 0): ("qwen3", "14B"),
    (64, 5120, 64, 8, 25600, 151936, 0, 0, 0): ("qwen3", "32B"),
    (48, 2048, 32, 4, 6144, 151936, 128, 8, 768): ("qwen3", "30B-A3B"),
    (94, 4096, 64, 4, 12288, 151936, 128, 8, 1536): ("qwen3", "235B-A22B"),
    (27, 2048, 16, 16, 10944, 102400, 64, 6, 1408): ("deepseek_v3", "16B"),
    (61, 7168, 128, 128, 18432, 129280, 256, 8, 2048): ("deepseek_v3", "671B"),
    (24, 2880, 64, 8, 2880, 201088, 32, 4, 2880): ("gpt_oss", "20b"),
    (36, 2880, 64, 8, 2880, 201088, 128, 4, 2880): ("gpt_oss", "120b"),
}
"""A TOML file names a model of torchtitan's own list; it cannot describe another."""
MODELS_WITHOUT_CONTEXT_PARALLEL = ("gpt_oss", "deepseek_v3")
MODES = {"none": "none", "operators": "selective", "full": "full"}
RESHARD = {2: "never", 3: "always"}
PRECISIONS = ("fp32", "bf16", "bf16-pure", "fp8", "mxfp8")


def emit(request: EngineRequest) -> Emitted:
    refuse_what_it_lacks(request)
    known = flavour(request.shape)
    assert known is not None
    text = toml_text(request, sections_of(request, known))
    return Emitted(framework="torchtitan", version=VERSION, filename=FILENAME, text=text, notes=_notes(request))


def sections_of(request: EngineRequest, model: tuple[str, str]) -> Sections:
    """The sections that a layout decides, for a model by name and flavor."""
    return {
        "model": model_section(request, model),
        "training": training_section(request),
        "parallelism": parallelism_section(request),
        "activation_checkpoint": checkpoint_section(request),
        **precision_sections(request),
    }


def toml_text(request: EngineRequest, sections: Mapping[str, Mapping[str, Any]]) -> str:
    head = [f"# {line}" for line in (f"torchtitan {VERSION} configuration.", *request.header)]
    blocks = ["\n".join([f"[{table_name(name)}]", *(f"{key} = {toml(value)}" for key, value in keys.items())])
              for name, keys in sections.items()]  # fmt: skip
    return "\n".join(head) + "\n\n" + "\n\n".join(blocks) + "\n"


def table_name(name: str) -> str:
    """A table's name; one that is no bare key is quoted part by part."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part) for part in name.split("."))


def flavour(shape: TransformerShape) -> tuple[str, str] | None:
    moe = shape.moe
    experts = (moe.num_experts, moe.top_k, moe.expert_ffn) if moe else (0, 0, 0)
    sizes = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn_hidden, shape.vocab, *experts)
    return FLAVOURS.get(sizes)


def refuse_what_it_lacks(request: EngineRequest) -> None:
    known = flavour(request.shape)
    if known is None:
        names = ", ".join(" ".join(pair) for pair in FLAVOURS.values())
        why = f"its configuration names one of its own models ({names})"
        raise refusal(NAME, f"model {request.spec.id}", why, "choose --emit megatron, or add the model to torchtitan")
    refuse_layout(request, known[0])


def refuse_layout(request: EngineRequest, family: str) -> None:
    """What of a layout it cannot be told for a model of this family."""
    shape, layout = request.shape, request.layout
    if shape.num_mtp_layers:
        raise refusal(NAME, "multi-token prediction", "its models have none", "choose --emit megatron")
    if request.recipe.name not in PRECISIONS:
        raise refusal(NAME, f"precision {request.recipe.name}", "it has no key for it", f"use {', '.join(PRECISIONS)}")
    if request.mode.name != "full":
        why = "it trains all weights, and its offload takes weights and gradients along"
        raise refusal(NAME, f"mode {request.mode}", why, "use mode full, or --emit deepspeed")
    if layout.recompute not in MODES:
        why = "its fused attention keeps no scores that could be recomputed alone"
        if layout.recompute == "modules":
            why = "it recomputes operators or whole layers, not norms and activation functions alone"
        instead = "use recompute=none, operators or full, or --emit megatron"
        raise refusal(NAME, f"recompute={layout.recompute}", why, instead)
    if int(layout.tp) > 1 and not layout.sp:
        why = "its tensor parallelism always splits the sequence between products"
        raise refusal(NAME, f"tp={layout.tp},sp=0", why, "set sp=1")
    if int(layout.cp) > 1 and family in MODELS_WITHOUT_CONTEXT_PARALLEL:
        why = f"its {family} attends through FlexAttention, which that release does not split"
        raise refusal(NAME, f"cp={layout.cp} for {family}", why, "use cp=1, or --emit megatron")
    _refuse_sharding(request)
    _refuse_splits(request)


def _refuse_sharding(request: EngineRequest) -> None:
    layout = request.layout
    dp, others = int(layout.dp), int(layout.tp) * int(layout.pp) * int(layout.cp)
    if layout.zero == 1:
        why = "its data parallelism replicates everything or shards gradients too"
        raise refusal(NAME, "zero=1", why, "use zero=2 (weights gathered once per step), or --emit megatron")
    if layout.zero == 0 and int(layout.cp) > 1:
        why = "context parallel ranks always share the weights"
        raise refusal(NAME, f"zero=0 with cp={layout.cp}", why, "use zero=2 or zero=3")
    if layout.zero == 0 and dp > 1 and others > 1:
        why = "it cannot combine replicated data parallelism with other splits"
        raise refusal(NAME, f"zero=0 with tp={layout.tp},pp={layout.pp}", why, "use zero=2 or zero=3")
    if layout.zero == 0 and int(layout.ep) > 1:
        raise refusal(NAME, f"zero=0 with ep={layout.ep}", "experts are sharded where they are spread", "use zero=2")


def _refuse_splits(request: EngineRequest) -> None:
    layout, shape = request.layout, request.shape
    tp, cp, ep = int(layout.tp), int(layout.cp), int(layout.ep)
    if shape.tied_embeddings and int(layout.pp) > 1:
        why = "embedding and head are one tensor and would be on two stages"
        raise refusal(NAME, f"pp={layout.pp} with tied embeddings", why, "use pp=1, or --emit megatron")
    if request.seq_len % (tp * (2 * cp if cp > 1 else 1)):
        why = f"sequences of {request.seq_len} do not divide by tp, and by 2 cp where cp is above 1"
        raise refusal(NAME, f"tp={tp},cp={cp}", why, "change tp, cp or the sequence length")
    if ep > 1 and ep % tp:
        why = "it spreads experts over whole tensor-parallel groups"
        raise refusal(NAME, f"ep={ep} with tp={tp}", why, "make ep a multiple of tp, or use --emit megatron")
    chunks = request.layers_of_chunks()
    if int(layout.vpp) > 1 and -(-shape.layers // max(chunks)) != len(chunks):
        why = f"its file gives the layers of a chunk; with {max(chunks)} each, {shape.layers} make fewer chunks"
        raise refusal(NAME, f"pp={layout.pp},vpp={layout.vpp}", why, "use another pp or vpp, or --emit megatron")


def model_section(request: EngineRequest, model: tuple[str, str]) -> dict[str, Value]:
    section: dict[str, Value] = {"name": model[0], "flavor": model[1]}
    kind = {"fp8": "float8", "mxfp8": "mx"}.get(request.recipe.name)
    if kind is not None:
        converters = [f"quantize.linear.{kind}"]
        section["converters"] = [*converters, *([f"quantize.grouped_mm.{kind}"] if request.shape.moe else [])]
    return section


def training_section(request: EngineRequest) -> dict[str, Value]:
    layout = request.layout
    # A pipeline takes all its micro-batches in one batch; without one, batches accumulate.
    local = int(layout.gbs) // int(layout.dp) if int(layout.pp) > 1 else int(layout.mbs)
    return {
        "local_batch_size": local,
        "global_batch_size": int(layout.gbs),
        "seq_len": request.seq_len,
        "dtype": "bfloat16" if request.recipe.name == "bf16-pure" else "float32",
        "mixed_precision_param": "float32" if request.recipe.name == "fp32" else "bfloat16",
    }


def parallelism_section(request: EngineRequest) -> dict[str, Value]:
    layout, shape = request.layout, request.shape
    dp, pp = int(layout.dp), int(layout.pp)
    section: dict[str, Value] = {
        "data_parallel_replicate_degree": dp if layout.zero == 0 else 1,
        "data_parallel_shard_degree": 1 if layout.zero == 0 else dp,
        "tensor_parallel_degree": int(layout.tp),
        "pipeline_parallel_degree": pp,
        "context_parallel_degree": int(layout.cp),
    }
    if layout.zero in RESHARD:
        section["fsdp_reshard_after_forward"] = RESHARD[layout.zero]
    if pp > 1:
        section |= {
            "pipeline_parallel_schedule": "Interleaved1F1B" if int(layout.vpp) > 1 else "1F1B",
            "pipeline_parallel_microbatch_size": int(layout.mbs),
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    if int(layout.vpp) > 1:
        section["pipeline_parallel_layers_per_stage"] = max(request.layers_of_chunks())
    if shape.moe is not None:
        section["expert_parallel_degree"] = int(layout.ep)
        section["expert_tensor_parallel_degree"] = 1
    return section


def checkpoint_section(request: EngineRequest) -> dict[str, Value]:
    section: dict[str, Value] = {"mode": MODES[request.layout.recompute]}
    if request.layout.recompute == "operators":
        section["selective_ac_option"] = "op"
    return section


def precision_sections(request: EngineRequest) -> Sections:
    kind, recipe = {"fp8": ("float8", "rowwise"), "mxfp8": ("mx", "mxfp8_cublas")}.get(request.recipe.name, ("", ""))
    if not kind:
        return {}
    sections: Sections = {
        "compile": {"enable": True},
        f"quantize.linear.{kind}": {"recipe_name": recipe, "filter_fqns": ["output"]},
    }
    if request.shape.moe is not None:
        sections[f"quantize.grouped_mm.{kind}"] = {"fqns": ["experts"]}
    return sections


def toml(value: Any) -> str:
    """A TOML value; JSON's strings, numbers, booleans and lists are TOML's."""
    return json.dumps(value)


def _notes(request: EngineRequest) -> tuple[str, ...]:
    layout = request.layout
    notes = [
        f"{request.torchrun} -m torchtitan.train --job.config_file {FILENAME}",
        "set training.dataset, training.steps, model.hf_assets_path and the optimizer: they are not part of a layout",
        f"each step accumulates {request.num_micro_batches} micro-batches of {layout.mbs}",
    ]
    if request.recipe.name not in ("fp32", "bf16-pure"):
        notes.append("torchtitan keeps weights in fp32 and casts them as they are gathered; no second copy is kept")
    if request.recipe.is_narrow:
        notes.append("8-bit products need torchao, and torch.compile to be fast")
    return tuple(notes)
