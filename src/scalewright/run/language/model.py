"""A decoder of the GPT or Llama family, whole or one pipeline chunk of it, built from its shape.

Tensors carry their dimensions in capitals: B batch, L tokens on this rank, D hidden, H heads, G key-value heads,
Q query heads of a key-value head, E head size, F feed-forward, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from scalewright.catalog.types import TransformerShape
from scalewright.run.language.recompute import keep_every_second_product
from scalewright.run.language.rotary import LayerConstants, rotary_table, rotate
from scalewright.run.language.rows import Segments, TokenRows, attend_inside
from scalewright.workload.layout import Recompute

INIT_STD = 0.02
TOKEN_TABLE = "embedding.tokens.weight"
TIED_HEAD = "head.output.weight"

LinearClass = type[nn.Linear]
GatherKeys = Callable[[Tensor], Tensor]
"""Keys or values of a rank's tokens to those of the whole sequence."""
Mask = Tensor | Segments | None
"""Which keys a query sees; None: those before it."""
Score = Callable[["Head", Tensor], Any]
"""What to compute from the output of the last layer, in place of all scores."""


def norm(shape: TransformerShape, constants: LayerConstants) -> nn.Module:
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(shape.hidden, eps=constants.norm_epsilon)
    return nn.LayerNorm(shape.hidden, eps=constants.norm_epsilon, bias=shape.norm_bias)


def _table(num_rows: int, width: int) -> nn.Embedding:
    """An embedding without start values. To draw PyTorch's own on the meta device would import its compiler."""
    return nn.Embedding(num_rows, width, _weight=torch.empty(num_rows, width))


class Embedding(nn.Module):
    """Token ids to vectors, with learned positions where the shape has them."""

    positions_1L: Tensor

    def __init__(self, shape: TransformerShape, constants: LayerConstants, positions_L: Tensor) -> None:
        super().__init__()
        self.tokens = _table(shape.vocab, shape.hidden)
        self.positions = _table(shape.num_positions, shape.hidden) if shape.positions == "learned" else None
        self.norm = norm(shape, constants) if shape.embedding_norm else None
        self.register_buffer("positions_1L", positions_L[None], persistent=False)

    def forward(self, tokens_BL: Tensor, positions_BL: Tensor | None = None) -> Tensor:
        """Without positions, the tokens are those that the model was built for."""
        x_BLD: Tensor = self.tokens(tokens_BL)
        if self.positions is not None:
            x_BLD = x_BLD + self.positions(self.positions_1L if positions_BL is None else positions_BL)
        return x_BLD if self.norm is None else self.norm(x_BLD)


class Attention(nn.Module):
    """Causal self-attention. The rows of `qkv` go key-value head by key-value head: its queries, its key, its value,
    so that a slice of the rows is a whole number of heads and tensor parallelism may cut anywhere between them."""

    def __init__(self, shape: TransformerShape, constants: LayerConstants, linear: LinearClass) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.queries_per_key = shape.heads // shape.kv_heads
        width = shape.heads * shape.head_dim
        self.qkv = linear(shape.hidden, width + 2 * shape.kv_heads * shape.head_dim, bias=shape.qkv_bias)
        self.out = linear(width, shape.hidden, bias=shape.out_bias)
        self.query_norm = nn.RMSNorm(shape.head_dim, eps=constants.norm_epsilon) if shape.qk_norm else None
        self.key_norm = nn.RMSNorm(shape.head_dim, eps=constants.norm_epsilon) if shape.qk_norm else None
        self.gather_keys: GatherKeys | None = None
        """Set under context parallelism where PyTorch has no ring attention for the device."""
        self.recompute_scores = False

    def project(self, x_BLD: Tensor, rotary_2LE: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, L, H, E), keys and values (B, L, G, E), with their norms and positions."""
        fused = self.qkv(x_BLD)
        per_group = self.queries_per_key + 2
        qkv_BLGPE = fused.unflatten(-1, (-1, per_group, self.head_dim))
        q_BLGQE, k_BLGE, v_BLGE = qkv_BLGPE.split([self.queries_per_key, 1, 1], dim=3)
        q_BLHE, k_BLGE, v_BLGE = q_BLGQE.flatten(2, 3), k_BLGE.squeeze(3), v_BLGE.squeeze(3)
        if self.query_norm is not None and self.key_norm is not None:
            q_BLHE, k_BLGE = self.query_norm(q_BLHE), self.key_norm(k_BLGE)
        if rotary_2LE is not None:
            q_BLHE, k_BLGE = rotate(q_BLHE, rotary_2LE), rotate(k_BLGE, rotary_2LE)
        return q_BLHE, k_BLGE, v_BLGE

    def forward(self, x_BLD: Tensor, rotary_2LE: Tensor | None, mask_LK: Mask) -> Tensor:
        q_BLHE, k_BLGE, v_BLGE = self.project(x_BLD, rotary_2LE)
        if self.gather_keys is not None:
            k_BLGE, v_BLGE = self.gather_keys(k_BLGE), self.gather_keys(v_BLGE)
        if self.recompute_scores:
            attended = checkpoint(attend, q_BLHE, k_BLGE, v_BLGE, mask_LK, use_reentrant=False)
        else:
            attended = attend(q_BLHE, k_BLGE, v_BLGE, mask_LK)
        out: Tensor = self.out(attended)
        return out


def attend(q_BLHE: Tensor, k_BKGE: Tensor, v_BKGE: Tensor, mask_LK: Mask) -> Tensor:
    """Scaled-dot-product attention; without a mask the tokens are whole and in order, and it is causal."""
    if isinstance(mask_LK, Segments):
        return attend_inside(q_BLHE, k_BKGE, v_BKGE, mask_LK)
    o_BHLE = functional.scaled_dot_product_attention(
        q_BLHE.transpose(1, 2),
        k_BKGE.transpose(1, 2),
        v_BKGE.transpose(1, 2),
        attn_mask=mask_LK,
        is_causal=mask_LK is None,
        enable_gqa=q_BLHE.shape[2] != k_BKGE.shape[2],
    )
    return o_BHLE.transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    """GELU of one product, or SwiGLU of two."""

    def __init__(self, shape: TransformerShape, linear: LinearClass) -> None:
        super().__init__()
        bias = shape.ffn_bias
        self.gate = linear(shape.hidden, shape.ffn_hidden, bias=bias) if shape.gated else None
        self.up = linear(shape.hidden, shape.ffn_hidden, bias=bias)
        self.down = linear(shape.ffn_hidden, shape.hidden, bias=bias)

    def forward(self, x_BLD: Tensor) -> Tensor:
        wide_BLF: Tensor = self.up(x_BLD)
        if self.gate is not None:
            wide_BLF = functional.silu(self.gate(x_BLD)) * wide_BLF
        else:
            wide_BLF = functional.gelu(wide_BLF, approximate="tanh")
        out: Tensor = self.down(wide_BLF)
        return out


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, shape: TransformerShape, constants: LayerConstants, linear: LinearClass) -> None:
        super().__init__()
        self.norm_1, self.attention = norm(shape, constants), Attention(shape, constants, linear)
        self.norm_2, self.feed_forward = norm(shape, constants), FeedForward(shape, linear)

    def forward(self, x_BLD: Tensor, rotary_2LE: Tensor | None, mask_LK: Mask) -> Tensor:
        x_BLD = x_BLD + self.attention(self.norm_1(x_BLD), rotary_2LE, mask_LK)
        out: Tensor = x_BLD + self.feed_forward(self.norm_2(x_BLD))
        return out


class Head(nn.Module):
    """Final norm and the scores of every token of the vocabulary."""

    def __init__(self, shape: TransformerShape, constants: LayerConstants) -> None:
        super().__init__()
        self.norm = norm(shape, constants)
        self.output = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, x_BLD: Tensor) -> Tensor:
        logits_BLV: Tensor = self.output(self.norm(x_BLD))
        return logits_BLV


class Transformer(nn.Module):
    """A pipeline chunk: some consecutive layers of the model. The first chunk embeds, the last one has the head.

    Parameters keep their names of the whole model, so a checkpoint does not depend on the pipeline.
    """

    rotary_2LE: Tensor | None
    mask_LK: Tensor | None

    def __init__(
        self,
        shape: TransformerShape,
        *,
        layers: range,
        positions_L: Tensor,
        mask_LK: Tensor | None = None,
        recompute: Recompute = "none",
        linear: LinearClass = nn.Linear,
        constants: LayerConstants | None = None,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        constants = constants or LayerConstants()
        is_first, is_last = layers.start == 0, layers.stop == shape.layers
        self.embedding = Embedding(shape, constants, positions_L) if is_first else None
        self.layers = nn.ModuleDict({str(index): Block(shape, constants, linear) for index in layers})
        self.head = Head(shape, constants) if is_last else None
        rotary_2LE = rotary_table(positions_L, shape.head_dim, constants) if shape.positions == "rotary" else None
        self.register_buffer("rotary_2LE", rotary_2LE, persistent=False)
        self.register_buffer("mask_LK", mask_LK, persistent=False)
        self.tied = shape.tied_embeddings
        self.tie()
        for block in self.blocks():
            block.attention.recompute_scores = recompute == "selective"

    def tie(self) -> None:
        """Let the head use the table of the embedding, where both are in this chunk."""
        if self.tied and self.embedding is not None and self.head is not None:
            self.head.output.weight = self.embedding.tokens.weight

    def blocks(self) -> list[Block]:
        return [block for block in self.layers.values() if isinstance(block, Block)]

    def forward(self, x: Tensor, rows: TokenRows | None = None, score: Score | None = None) -> Any:
        """From token ids, or the output of the chunk before, to scores, or the input of the chunk after.

        `rows` are tokens of other lengths or positions than the model was built for. `score` takes the place of the
        head's product: it runs inside the forward pass, where the weights of the head are gathered.
        """
        mask_LK: Mask = self.mask_LK
        rotary_2LE = self.rotary_2LE
        if rows is not None:
            rotary_2LE, mask_LK = rows.rotary(rotary_2LE), rows.mask
        if self.embedding is not None:
            x = self.embedding(x) if rows is None else self.embedding(x, rows.positions_BL)
        for block in self.layers.values():
            x = self._block(block, (x, rotary_2LE, mask_LK))
        if self.head is None:
            return x
        return self.head(x) if score is None else score(self.head, x)

    def _block(self, block: nn.Module, inputs: tuple[Tensor, Tensor | None, Mask]) -> Tensor:
        if self.recompute == "full":
            kept = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
        elif self.recompute == "operators":
            contexts = partial(create_selective_checkpoint_contexts, keep_every_second_product())
            kept = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
        else:
            kept = block(*inputs)
        out: Tensor = kept
        return out

    def whole_model_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by the name they have in the whole model: a tied head in a chunk of its own is the token table."""
        return {TOKEN_TABLE if self.tied and n == TIED_HEAD else n: p for n, p in self.named_parameters()}

    def materialise(self, module: nn.Module, prefix: str, *, seed: int, layers: int, device: torch.device) -> None:
        """Give the parameters of a part, built without storage, their initial values."""
        for name, param in list(module.named_parameters(prefix=prefix)):
            whole_name = TOKEN_TABLE if self.tied and name == TIED_HEAD else name
            empty = torch.empty_like(param, device=device, dtype=torch.float32, requires_grad=False)
            owner = self.get_submodule(name.rpartition(".")[0])
            filled = fill_initial(whole_name, empty, seed=seed, layers=layers)
            owner.register_parameter(name.rpartition(".")[2], nn.Parameter(filled, requires_grad=param.requires_grad))


def fill_initial(name: str, param: Tensor, *, seed: int, layers: int) -> Tensor:
    """Initial values of a parameter. Its name and the seed decide them, so every layout starts from the same model.

    Normal with deviation 0.02; products that feed the residual stream with 0.02 / sqrt(2 layers) (radford2019). An
    adapter starts as nothing: its second matrix is 0 (hu2021).
    """
    if name.endswith(("bias", "lora_b")):
        return param.zero_()
    if param.dim() == 1:
        return param.fill_(1.0)
    text = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator(device=param.device).manual_seed(int.from_bytes(text[:8], "big") >> 1)
    feeds_residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
    std = INIT_STD / math.sqrt(2 * layers) if feeds_residual else INIT_STD
    return param.normal_(0.0, std, generator=generator)
