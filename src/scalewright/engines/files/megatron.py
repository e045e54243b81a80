"""Megatron-LM: an array of command-line arguments for `pretrain_gpt.py`, as its own example scripts keep them."""

from __future__ import annotations

import shlex

from scalewright.engines.files.megatron_details import (
    activation_arguments,
    norm_arguments,
    rotary_arguments,
    router_arguments,
    unknown_details,
)
from scalewright.engines.types import Emitted, EngineRequest, refusal

NAME = "Megatron-LM"
VERSION = "core 0.16.1"
"""Tag core_v0.16.1, whose own parser read the arguments; no wheel carries that parser."""
FILENAME = "megatron_args.sh"
ARRAY = "MEGATRON_ARGS"
VOCAB_MULTIPLE = 128
"""Megatron-LM's own default of --make-vocab-size-divisible-by."""
LEAST_VOCAB_MULTIPLE = 8
"""A table whose rows are no multiple of this leaves the matrix units."""

Arguments = list[tuple[str, ...]]

PRECISIONS: dict[str, Arguments] = {
    "fp32": [],
    "fp16": [("--fp16",)],
    "bf16": [("--bf16",)],
    "bf16-lean": [("--bf16",), ("--grad-reduce-in-bf16",)],
    "fp8": [("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")],
    "mxfp8": [("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")],
    "nvfp4": [("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")],
}
RECOMPUTE: dict[str, Arguments] = {
    "none": [],
    "selective": [("--recompute-granularity", "selective"), ("--recompute-modules", "core_attn")],
    "modules": [
        ("--recompute-granularity", "selective"),
        ("--recompute-modules", "layernorm", "moe_act", "mla_up_proj"),
    ],
    "full": [
        ("--recompute-granularity", "full"),
        ("--recompute-method", "uniform"),
        ("--recompute-num-layers", "1"),
    ],
}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
"""Megatron FSDP's strategies; ZeRO-1 is the distributed optimizer."""


def layout_arguments(request: EngineRequest) -> Arguments:
    """Every argument that follows from the model, the layout and the precision."""
    return [
        *model_arguments(request),
        *parallel_arguments(request),
        *sharding_arguments(request),
        *RECOMPUTE[request.layout.recompute],
        *PRECISIONS[request.recipe.name],
    ]


def emit(request: EngineRequest) -> Emitted:
    refuse_what_it_lacks(request)
    arguments = [*layout_arguments(request), ("--vocab-size", str(request.shape.vocab))]
    lines = [f"# {line}" for line in [f"{NAME} arguments ({VERSION}); source this file in a bash job script.",
                                      *request.header]]  # fmt: skip
    lines += [*_environment(request), f"{ARRAY}=("]
    lines += [f"    {shlex.join(argument)}" for argument in arguments]
    lines += [")", f'# {request.torchrun} pretrain_gpt.py "${{{ARRAY}[@]}}"']
    return Emitted(
        framework="megatron", version=VERSION, filename=FILENAME, text="\n".join(lines) + "\n", notes=_notes(request)
    )


def refuse_what_it_lacks(request: EngineRequest) -> None:
    shape, layout = request.shape, request.layout
    if not shape.causal or shape.encoder_layers:
        why = "pretrain_gpt.py trains decoders"
        raise refusal(NAME, f"model {request.spec.id}", why, "choose --emit deepspeed or --emit fsdp for an encoder")
    if shape.positions not in ("learned", "rotary"):
        why = "its position embeddings are learned, rope and relative"
        raise refusal(NAME, f"{shape.positions} positions", why, "choose a model with rotary or learned positions")
    if shape.embedding_norm or not shape.final_norm:
        why = "it puts a norm after the last layer and none after the embedding"
        raise refusal(NAME, "the norms of this model", why, "choose --emit deepspeed or --emit fsdp")
    if shape.norm == "layernorm" and not shape.norm_bias:
        raise refusal(NAME, "LayerNorm without bias", "its LayerNorm has one", "choose --emit deepspeed or --emit fsdp")
    if request.recipe.name not in PRECISIONS:
        why = "its weights are fp32, or 16 bit with an fp32 master copy, and no argument rounds 32-bit products"
        raise refusal(NAME, f"precision {request.recipe.name}", why, f"choose {', '.join(PRECISIONS)}")
    if layout.recompute not in RECOMPUTE:
        why = "it recomputes attention or whole layers, not every second product"
        instead = "use recompute=selective or recompute=full, or --emit torchtitan"
        raise refusal(NAME, f"recompute={layout.recompute}", why, instead)
    if layout.sp and request.seq_len % (int(layout.tp) * int(layout.cp)):
        why = f"sequences of {request.seq_len} do not divide by tp x cp"
        raise refusal(NAME, f"sp=1 with tp={layout.tp},cp={layout.cp}", why, "change tp, cp or the sequence length")
    if request.mode.is_lora:
        instead = "choose --emit deepspeed or --emit fsdp with adapters in the training script"
        raise refusal(NAME, str(request.mode), "pretrain_gpt.py trains all weights", instead)
    if request.mode.is_offload and layout.zero != 1:
        why = "the optimizer it moves to the host is the distributed one"
        raise refusal(NAME, f"optimizer offload with zero={layout.zero}", why, "use zero=1, or --emit deepspeed")
    if layout.zero >= 2 and int(layout.pp) > 1:
        why = "Megatron FSDP is documented for tensor, context and expert parallelism only"
        raise refusal(NAME, f"zero={layout.zero} with pp={layout.pp}", why, "use zero=1, or pp=1")
    if shape.moe is not None:
        _refuse_experts(request)
    bias_arguments(request)


def _refuse_experts(request: EngineRequest) -> None:
    layout = request.layout
    if int(layout.tp) > 1 and not layout.sp:
        why = "its experts need sequence parallelism beside tensor parallelism"
        raise refusal(NAME, f"tp={layout.tp},sp=0 with experts", why, "set sp=1")
    if int(layout.ep) > 1 and request.recipe.name == "fp16":
        raise refusal(NAME, f"ep={layout.ep} in fp16", "its expert parallelism needs bf16", "use --precision bf16")


def model_arguments(request: EngineRequest) -> Arguments:
    shape = request.shape
    arguments: Arguments = [
        ("--num-layers", str(shape.layers)),
        ("--hidden-size", str(shape.hidden)),
        ("--ffn-hidden-size", str(shape.ffn_hidden)),
        ("--num-attention-heads", str(shape.heads)),
        *attention_arguments(request),
        ("--seq-length", str(request.seq_len)),
        ("--max-position-embeddings", str(max(shape.num_positions, request.seq_len))),
        ("--position-embedding-type", "rope" if shape.positions == "rotary" else "learned_absolute"),
        *rotary_arguments(request),
        ("--normalization", "RMSNorm" if shape.norm == "rmsnorm" else "LayerNorm"),
        *norm_arguments(request),
        *bias_arguments(request),
        # The prediction keeps no dropout masks; Megatron-LM's default of 0.1 would.
        ("--attention-dropout", "0.0"),
        ("--hidden-dropout", "0.0"),
        ("--make-vocab-size-divisible-by", str(vocab_multiple(request))),
    ]
    arguments += activation_arguments(request)
    if not shape.tied_embeddings:
        arguments.append(("--untie-embeddings-and-output-weights",))
    if shape.num_mtp_layers:
        arguments.append(("--mtp-num-layers", str(shape.num_mtp_layers)))
    return [*arguments, *expert_arguments(request)]


def attention_arguments(request: EngineRequest) -> Arguments:
    shape, mla = request.shape, request.shape.mla
    if mla is not None:
        return [
            ("--multi-latent-attention",),
            *([("--q-lora-rank", str(mla.q_lora_rank))] if mla.q_lora_rank else []),
            ("--kv-lora-rank", str(mla.kv_lora_rank)),
            ("--qk-head-dim", str(mla.qk_nope_head_dim)),
            ("--qk-pos-emb-head-dim", str(mla.qk_rope_head_dim)),
            ("--v-head-dim", str(mla.v_head_dim)),
            ("--qk-layernorm",),  # the norms of the latents
        ]
    grouped: Arguments = [("--group-query-attention",), ("--num-query-groups", str(shape.kv_heads))]
    return [
        ("--kv-channels", str(shape.head_dim)),
        *(grouped if shape.kv_heads < shape.heads else []),
        *([("--qk-layernorm",)] if shape.qk_norm else []),
    ]


def bias_arguments(request: EngineRequest) -> Arguments:
    shape = request.shape
    biases = shape.qkv_bias, shape.out_bias, shape.ffn_bias
    known: dict[tuple[bool, bool, bool], Arguments] = {
        (True, True, True): [],
        (False, False, False): [("--disable-bias-linear",)],
        (True, False, False): [("--disable-bias-linear",), ("--add-qkv-bias",)],
    }
    if biases not in known:
        why = "it has them everywhere, nowhere, or on query, key and value only"
        raise refusal(NAME, "the biases of this model", why, "choose --emit deepspeed or --emit fsdp")
    return known[biases]


def expert_arguments(request: EngineRequest) -> Arguments:
    shape, layout, moe = request.shape, request.layout, request.shape.moe
    if moe is None:
        return []
    arguments: Arguments = [
        ("--num-experts", str(moe.num_experts)),
        ("--moe-ffn-hidden-size", str(moe.expert_ffn)),
        ("--moe-router-topk", str(moe.top_k)),
        ("--moe-token-dispatcher-type", "alltoall"),
        ("--expert-model-parallel-size", str(layout.ep)),
        # Whole experts once they are spread; else split like every other matrix.
        ("--expert-tensor-parallel-size", str(1 if int(layout.ep) > 1 else layout.tp)),
    ]
    if moe.num_dense_layers:
        dense, routed = moe.num_dense_layers, shape.layers - moe.num_dense_layers
        arguments.append(("--moe-layer-freq", f"([0]*{dense}+[1]*{routed})"))
    if moe.num_shared:
        width = moe.num_shared * (moe.shared_ffn or moe.expert_ffn)
        arguments.append(("--moe-shared-expert-intermediate-size", str(width)))
        if moe.shared_gate:
            arguments.append(("--moe-shared-expert-gate",))
    arguments += router_arguments(request, moe)
    if request.recipe.name not in ("fp32", "fp16"):
        arguments.append(("--moe-grouped-gemm",))
    return arguments


def parallel_arguments(request: EngineRequest) -> Arguments:
    layout = request.layout
    arguments: Arguments = [
        ("--tensor-model-parallel-size", str(layout.tp)),
        ("--pipeline-model-parallel-size", str(layout.pp)),
    ]
    if request.shape.layers % int(layout.pp):
        arguments.append(("--pipeline-model-parallel-layout", uneven_stages(request)))  # it gives the chunks as well
    elif int(layout.vpp) > 1:
        arguments.append(("--num-virtual-stages-per-pipeline-rank", str(layout.vpp)))
    if int(layout.cp) > 1:
        arguments.append(("--context-parallel-size", str(layout.cp)))
    if layout.sp:
        arguments.append(("--sequence-parallel",))
    return [*arguments, ("--micro-batch-size", str(layout.mbs)), ("--global-batch-size", str(layout.gbs))]


def uneven_stages(request: EngineRequest) -> str:
    """Embedding, layers, extra prediction layers and loss per chunk, in Megatron-LM's own notation."""
    stages = [f"t*{layers}" for layers in request.layers_of_chunks()]
    extra = f"m*{request.shape.num_mtp_layers}" if request.shape.num_mtp_layers else ""
    return f"E{'|'.join(stages)}{extra}L"


def sharding_arguments(request: EngineRequest) -> Arguments:
    layout = request.layout
    reduces = int(layout.dp) * int(layout.cp) > 1
    arguments: Arguments = [("--overlap-grad-reduce",)] if reduces else []
    if layout.zero >= 1:
        arguments.append(("--use-distributed-optimizer",))
        arguments += [("--overlap-param-gather",)] if reduces else []
    if layout.zero >= 2:
        arguments += [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", SHARDING[layout.zero]),
            ("--no-gradient-accumulation-fusion",),
            ("--ckpt-format", "fsdp_dtensor"),
        ]
    if request.mode.is_offload:
        arguments += [("--optimizer-cpu-offload",), ("--use-precision-aware-optimizer",)]
    return arguments


def vocab_multiple(request: EngineRequest) -> int:
    """The largest power of two that pads nothing, as the prediction assumes; else Megatron-LM's default."""
    power, tp = VOCAB_MULTIPLE, int(request.layout.tp)
    while power >= LEAST_VOCAB_MULTIPLE:
        if request.shape.vocab % (power * tp) == 0:
            return power
        power //= 2
    return VOCAB_MULTIPLE


def needs_one_connection(request: EngineRequest) -> bool:
    """Whether kernels must be queued in order: with tensor or context parallelism, but not with Megatron FSDP."""
    layout = request.layout
    return layout.zero < 2 and (int(layout.tp) > 1 or int(layout.cp) > 1)


def _environment(request: EngineRequest) -> list[str]:
    if request.layout.zero >= 2:
        return ["unset CUDA_DEVICE_MAX_CONNECTIONS  # Megatron FSDP refuses 1"]
    if needs_one_connection(request):
        return ["export CUDA_DEVICE_MAX_CONNECTIONS=1  # asked for with tensor or context parallelism"]
    return []


def _notes(request: EngineRequest) -> tuple[str, ...]:
    layout = request.layout
    notes = [
        "add data, tokenizer, learning rate, length of training and checkpoints: they are not part of a layout",
        *unknown_details(request),
        f"data parallelism is no argument: {request.num_gpus} processes make dp={layout.dp}, "
        f"{request.num_micro_batches} micro-batches of {layout.mbs}",
    ]
    return (*notes, *padding_notes(request))


def padded_vocab(request: EngineRequest) -> int:
    step = vocab_multiple(request) * int(request.layout.tp)
    return -(-request.shape.vocab // step) * step


def padding_notes(request: EngineRequest) -> list[str]:
    padded, vocab = padded_vocab(request), request.shape.vocab
    if padded == vocab:
        return []
    return [f"the vocabulary of {vocab} is padded to {padded}; the prediction has no padding"]
