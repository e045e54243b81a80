"""Operations of the decode steps of a batch: the points of a roofline."""

from __future__ import annotations

from scalewright.costs.breakdown import FloatLike
from scalewright.costs.generation.iteration import (
    cache_bytes_per_token,
    cached_attention_time_s,
    expert_product_time_s,
    head_time_s,
    layer_gemms,
    num_experts_touched,
    product_time_s,
)
from scalewright.costs.generation.serving import Serving
from scalewright.costs.roofline import Kind, Operation, product_cache_bytes
from scalewright.workload.model import expert_params


def decode_operations(
    serving: Serving, *, num_sequences: float, num_context: float, num_steps: float
) -> list[Operation]:
    """What a device does in the decode steps of a batch."""
    layers, context, moe = float(serving.shape.layers), num_sequences * num_context, serving.shape.moe
    points = [
        _product(serving, name, size, num_tokens=num_sequences, calls=share * layers * num_steps)
        for share, gemms in layer_gemms(serving)
        for name, size in gemms.items()
    ]
    head = serving.shape.vocab / serving.tp, float(serving.shape.hidden)
    points.append(_product(serving, "head", head, num_tokens=num_sequences, calls=num_steps, kind="head"))
    moved = context * cache_bytes_per_token(shape=serving.shape, tp=serving.tp, width_bytes=serving.cache_bytes)
    time = float(cached_attention_time_s(serving=serving, num_sequences=num_sequences, num_context=num_context))
    work = context * layers * 4.0 * serving.shape.heads * serving.shape.head_dim / serving.tp
    points.append(_decode("cache", "attention", work, moved, time, calls=num_steps))
    if moe is not None:
        time = float(expert_product_time_s(serving=serving, num_tokens=num_sequences))
        devices = max(serving.tp, serving.ep)
        expert = expert_params(serving.shape, moe.expert_ffn) / devices * (layers - moe.num_dense_layers)
        tokens = num_sequences * serving.num_expert_copies
        touched = float(num_experts_touched(num_experts=moe.num_experts, top_k=moe.top_k, num_tokens=tokens))
        work, moved = 2.0 * tokens * moe.top_k * expert, touched * expert * serving.weight_bytes
        points.append(_decode("experts", "matmul", work, moved, time, calls=num_steps))
    return [op for op in points if op.time_s > 0.0]


def _product(
    serving: Serving, name: str, size: tuple[FloatLike, FloatLike], *, num_tokens: float, calls: float,
    kind: Kind = "matmul",
) -> Operation:  # fmt: skip
    m, n, k, w = num_tokens, float(size[0]), float(size[1]), serving.weight_bytes
    through = product_cache_bytes(num_rows=m, num_columns=n, num_depth=k, width_bytes=w)
    if kind == "head":
        time = float(head_time_s(serving=serving, num_sequences=m))
    else:
        time = float(
            product_time_s(
                serving=serving, num_tokens=m, gemms={name: (n, k)}, precision=serving.products, width_bytes=w
            )
        )
    return Operation(
        name=name, phase="decode", kind=kind, flop=2.0 * m * n * k, traffic_bytes=w * (m * k + k * n + m * n),
        fresh_bytes=w * k * n, cache_bytes=through, time_s=time, num_per_step=calls,
    )  # fmt: skip


def _decode(name: str, kind: Kind, work: float, moved_bytes: float, time_s: float, *, calls: float) -> Operation:
    return Operation(
        name=name, phase="decode", kind=kind, flop=work, traffic_bytes=moved_bytes, fresh_bytes=moved_bytes,
        cache_bytes=moved_bytes, time_s=time_s, num_per_step=calls,
    )  # fmt: skip
