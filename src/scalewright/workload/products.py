"""The matrix products of a transformer's layer by shape: what a benchmark of products measures for a model."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """C[m,n] = A[m,k] B[k,n]."""

    m: int
    n: int
    k: int
    name: str = ""

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1:
            raise ConfigError(f"product {self.m},{self.n},{self.k} has an empty side: give M,N,K of 1 or more")

    @property
    def flop(self) -> float:
        return 2.0 * self.m * self.n * self.k


def model_products(shape: TransformerShape, *, num_tokens: int) -> tuple[Product, ...]:
    """Products of a layer and of the head, forward and backward, of a micro-batch of so many tokens on one device.

    Each weight [n, k] multiplies in three shapes: forward (tokens, n, k), the gradient of its input (tokens, k, n) and
    its own gradient (n, k, tokens). Shapes that come twice are measured once.
    """
    products: dict[tuple[int, int, int], Product] = {}
    for name, (rows, n, k) in _weights(shape, num_tokens).items():
        for suffix, sides in (("", (rows, n, k)), ("_grad_input", (rows, k, n)), ("_grad_weight", (n, k, rows))):
            products.setdefault(sides, Product(m=sides[0], n=sides[1], k=sides[2], name=f"{name}{suffix}"))
    return tuple(products.values())


def _weights(shape: TransformerShape, num_tokens: int) -> dict[str, tuple[int, int, int]]:
    """Rows that meet it, columns and depth of each weight."""
    h, t = shape.hidden, num_tokens
    fan = 2 if shape.gated else 1
    weights = {name: (t, n, k) for name, (n, k) in _attention(shape).items()}
    moe = shape.moe
    if moe is None or moe.num_dense_layers:
        weights |= {"ffn_up": (t, fan * shape.ffn_hidden, h), "ffn_down": (t, h, shape.ffn_hidden)}
    if moe is not None:
        rows = max(1, t * moe.top_k // moe.num_experts)
        weights |= {"expert_up": (rows, fan * moe.expert_ffn, h), "expert_down": (rows, h, moe.expert_ffn)}
    return weights | {"head": (t, shape.vocab, h)}


def _attention(shape: TransformerShape) -> dict[str, tuple[int, int]]:
    h, a = shape.hidden, shape.heads
    if shape.mla is None:
        return {
            "qkv": ((a + 2 * shape.kv_heads) * shape.head_dim, h),
            "attention_out": (h, a * shape.head_dim),
        }
    mla = shape.mla
    return {
        "latent_down": (mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim, h),
        "query_up": (a * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), mla.q_lora_rank or h),
        "key_value_up": (a * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        "attention_out": (h, a * mla.v_head_dim),
    }
