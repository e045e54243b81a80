"""ModelSpec: what is trained, and its parameters counted part by part from the shape alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date

from scalewright import units
from scalewright.catalog.facts import Source
from scalewright.catalog.model_details import ModelDetails
from scalewright.catalog.types import ConvShape, MlaShape, Model, MoeShape, TransformerShape
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.workload.convolutions import resnet_params
from scalewright.workload.grammar import MAX_SIZE, assignments, whole_number

Shape = TransformerShape | ConvShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model by name and shape."""

    id: str
    name: str
    shape: Shape
    num_training_tokens: float | None = None
    """Tokens of the published pretraining run, where one is catalogued."""
    details: ModelDetails | None = None
    """What of a transformer is no size, where it is known; engines need it, predictions do not."""
    assumed: tuple[tuple[str, str], ...] = ()
    """What nobody said of the model and was filled in: how to say it, and what was taken."""
    unread: tuple[str, ...] = ()
    """What the model's file says and no prediction follows."""

    @property
    def transformer(self) -> TransformerShape:
        """The transformer's shape; a vision model has none and says so."""
        if isinstance(self.shape, TransformerShape):
            return self.shape
        raise NotExpressedError(f"{self.id} is not a transformer: the language cost models do not cover it yet")

    @property
    def is_vision(self) -> bool:
        return isinstance(self.shape, ConvShape)

    @property
    def num_params(self) -> int:
        return sum(self.params_by_part().values())

    def params_by_part(self) -> dict[str, int]:
        if isinstance(self.shape, ConvShape):
            return resnet_params(self.shape)
        return transformer_params(self.shape)

    @property
    def num_active_params(self) -> int:
        """Parameters a token meets: all, less the routed experts it is not sent to."""
        if isinstance(self.shape, ConvShape) or self.shape.moe is None:
            return self.num_params
        moe = self.shape.moe
        idle = (moe.num_experts - moe.top_k) * expert_params(self.shape, moe.expert_ffn)
        return self.num_params - idle * num_moe_layers(self.shape)

    def assumptions(self, *, uses_seq: bool = True) -> tuple[str, ...]:
        """What was filled in, each with the key that says it; `uses_seq`: the model's own sequence length counts."""
        return tuple(
            f"{taken} ({key})" if key else taken for key, taken in self.assumed if uses_seq or key not in SEQ_KEYS
        )

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """What is known of the model and no prediction follows."""
        window = 0 if self.details is None else self.details.sliding_window
        windows = (f"attention windows of {window} tokens (all earlier tokens are attended to)",) if window else ()
        return (*windows, *self.unread)

    def words(self, *, uses_seq: bool = True) -> str:
        """One line: how large the model is, what was assumed of it, and what of it is not modelled."""
        size = f"{units.format(self.num_params, units.COUNT)} parameters"
        if self.num_active_params != self.num_params:
            size += f", {units.format(self.num_active_params, units.COUNT)} active"
        num_ahead = 0 if isinstance(self.shape, ConvShape) else self.shape.num_mtp_layers
        if num_ahead:
            size += f", with {num_ahead} multi-token prediction layer{'s' if num_ahead > 1 else ''}"
        assumed, beside = self.assumptions(uses_seq=uses_seq), self.not_modelled
        return (
            size
            + (f"; assumed: {', '.join(assumed)}" if assumed else "")
            + (f"; not modelled: {', '.join(beside)}" if beside else "")
        )

    @property
    def generating(self) -> ModelSpec:
        """The model as an engine loads it: without multi-token prediction, which only drafts tokens there."""
        if isinstance(self.shape, ConvShape) or not self.shape.num_mtp_layers:
            return self
        unread = (*self.unread, "drafts by multi-token prediction")
        return replace(self, shape=self.shape.model_copy(update={"num_mtp_layers": 0}), unread=unread)

    def with_seq(self, seq: int) -> ModelSpec:
        if seq <= 0:
            raise ConfigError(f"sequence length {seq} must be positive: give the tokens per sample, such as 2048")
        if seq > MAX_SIZE:
            raise ConfigError(f"sequence length {seq} is above {MAX_SIZE}: give the tokens per sample, such as 2048")
        others = tuple((key, taken) for key, taken in self.assumed if key not in SEQ_KEYS)
        return replace(self, shape=self.transformer.model_copy(update={"seq": seq}), assumed=others)


SEQ_KEYS = ("seq=", "--seq")
"""How a sequence length is said, in a shape and as an option."""


def from_catalog(entry: Model) -> ModelSpec:
    shape = entry.transformer or entry.conv
    assert shape is not None
    tokens = entry.published.training_tokens
    return ModelSpec(
        id=entry.id, name=entry.name, shape=shape, num_training_tokens=None if tokens is None else tokens.value,
        details=entry.details,
    )  # fmt: skip


_SHAPE_KEYS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "seq", "gated")


def from_shape(text: str) -> ModelSpec:
    """A dense GPT-2 written as `layers=24,hidden=1024,heads=16[,kv_heads=,head_dim=,ffn=,vocab=,seq=,gated=]`."""
    written = assignments(text, allowed=_SHAPE_KEYS, what="model shape")
    values = {k: whole_number(v, key=k, what="model shape", least=0 if k == "gated" else 1) for k, v in written.items()}
    missing = [key for key in ("layers", "hidden", "heads") if key not in values]
    if missing:
        raise ConfigError(f"model shape {text!r} lacks {', '.join(missing)}: write layers=24,hidden=1024,heads=16")
    hidden, heads = values["hidden"], values["heads"]
    if "head_dim" not in values and hidden % heads:
        raise ConfigError(f"hidden {hidden} does not divide by heads {heads}: change one or give head_dim")
    head_dim = values.get("head_dim", hidden // heads)
    seq = values.get("seq", 2048)
    shape = TransformerShape(
        source=Source(kind="assumed", text="given by shape by the user", checked=date.today()),
        layers=values["layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=values.get("kv_heads", heads),
        head_dim=head_dim,
        ffn_hidden=values.get("ffn", 4 * hidden),
        vocab=values.get("vocab", 50257),
        seq=seq,
        gated=bool(values.get("gated", 0)),
        num_positions=seq,
    )
    usual = {
        "gated": "no gate",
        "ffn": f"feed-forward {shape.ffn_hidden}",
        "kv_heads": f"{shape.kv_heads} key and value heads",
        "vocab": f"vocabulary {shape.vocab}",
        "seq": f"sequences of {shape.seq} tokens",
    }
    taken = tuple((f"{key}=", what) for key, what in usual.items() if key not in values)
    return ModelSpec(id="custom", name=text, shape=shape, assumed=(("", GPT2_STYLE), *taken))


GPT2_STYLE = "learned positions, LayerNorm, biases and tied embeddings as in GPT-2"


def transformer_params(shape: TransformerShape) -> dict[str, int]:
    """Parameters by part.

    Equation  token, position and segment tables; per layer attention + feed-forward + norms; head if untied
    Source    vaswani2017 (arXiv:1706.03762); deepseek2024 (arXiv:2405.04434) for latent attention
    Assumes   no vocabulary padding; rotary and ALiBi positions carry no parameters
    Checked   published counts of every catalogued model (tests/workload/test_published_counts.py)
    """
    h = shape.hidden
    norm = h * (2 if shape.norm == "layernorm" and shape.norm_bias else 1)
    layers, encoder = shape.layers, shape.encoder_layers
    cross_attention = attention_params(shape) * (1 if encoder else 0)
    norms_per_decoder_layer = 3 if encoder else 2
    dense_layers = layers if shape.moe is None else min(shape.moe.num_dense_layers, layers)
    moe_layers = layers - dense_layers
    parts = {
        "embedding": (shape.vocab + shape.num_token_types) * h,
        "positions": position_params(shape),
        "attention": (layers + encoder) * attention_params(shape) + layers * cross_attention,
        "feed_forward": (dense_layers + encoder) * expert_params(shape, shape.ffn_hidden),
        "experts": moe_layers * moe_params(shape) if shape.moe else 0,
        "router": moe_layers * router_params(shape) if shape.moe else 0,
        "norms": norm * (layers * norms_per_decoder_layer + 2 * encoder + shape.embedding_norm)
        + norm * shape.final_norm * (2 if encoder else 1),
        "head": head_params(shape),
        "mtp": shape.num_mtp_layers * mtp_layer_params(shape, norm),
    }
    return {name: count for name, count in parts.items() if count}


def num_moe_layers(shape: TransformerShape) -> int:
    return 0 if shape.moe is None else max(shape.layers - shape.moe.num_dense_layers, 0) + shape.num_mtp_layers


def position_params(shape: TransformerShape) -> int:
    if shape.positions == "learned":
        return shape.num_positions * shape.hidden
    if shape.positions == "relative":
        return shape.num_positions * shape.heads * (2 if shape.encoder_layers else 1)
    return 0


def attention_params(shape: TransformerShape) -> int:
    """One attention block: projections, their biases and the query and key norms."""
    if shape.mla is not None:
        return mla_params(shape, shape.mla)
    h, a, kv, d = shape.hidden, shape.heads, shape.kv_heads, shape.head_dim
    weights = h * d * (a + 2 * kv) + a * d * h
    biases = (d * (a + 2 * kv) if shape.qkv_bias else 0) + (h if shape.out_bias else 0)
    return weights + biases + (2 * d if shape.qk_norm else 0)


def mla_params(shape: TransformerShape, mla: MlaShape) -> int:
    h, a = shape.hidden, shape.heads
    query_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    query = h * a * query_dim
    if mla.q_lora_rank:
        query = h * mla.q_lora_rank + mla.q_lora_rank + mla.q_lora_rank * a * query_dim
    latent = h * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
    expand = mla.kv_lora_rank * a * (mla.qk_nope_head_dim + mla.v_head_dim)
    return query + latent + expand + a * mla.v_head_dim * h


def expert_params(shape: TransformerShape, width: int) -> int:
    """One feed-forward of the given width: two matrices, or three when gated."""
    matrices = 3 if shape.gated else 2
    biases = (width * (matrices - 1) + shape.hidden) if shape.ffn_bias else 0
    return matrices * shape.hidden * width + biases


def moe_params(shape: TransformerShape) -> int:
    assert shape.moe is not None
    moe: MoeShape = shape.moe
    shared = moe.num_shared * expert_params(shape, moe.shared_ffn or moe.expert_ffn)
    return moe.num_experts * expert_params(shape, moe.expert_ffn) + shared


def router_params(shape: TransformerShape) -> int:
    assert shape.moe is not None
    extra = (shape.moe.num_experts if shape.moe.router_bias else 0) + (shape.hidden if shape.moe.shared_gate else 0)
    return shape.hidden * shape.moe.num_experts + extra


def head_params(shape: TransformerShape) -> int:
    h = shape.hidden
    untied = 0 if shape.tied_embeddings else shape.vocab * h
    mlm = (h * h + h + 2 * h + shape.vocab) if shape.mlm_head else 0
    return untied + mlm + (h * h + h if shape.pooler else 0)


def mtp_layer_params(shape: TransformerShape, norm: int) -> int:
    ffn = expert_params(shape, shape.ffn_hidden) if shape.moe is None else moe_params(shape) + router_params(shape)
    return attention_params(shape) + ffn + 5 * norm + 2 * shape.hidden * shape.hidden
