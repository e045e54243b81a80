"""FLOP and bytes of the work of a stage, counted from the shape and from the tokens that were really computed."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.catalog.types import TransformerShape
from scalewright.workload.flop import attention_matrix_params

ADAM_BYTES_PER_PARAM = 28
"""An AdamW update reads weight, gradient and two moments and writes weight and moments, each in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """Work of one dense decoder, by what its tokens need."""

    num_layer_params: int
    """Matrix parameters that every token meets, without the head."""
    num_head_params: int
    score_flop_per_pair: int
    """Of one query and one key, over all layers and heads."""
    num_params: int

    @classmethod
    def of(cls, shape: TransformerShape, *, num_params: int) -> ModelWork:
        matrices = 3 if shape.gated else 2
        layer = attention_matrix_params(shape) + matrices * shape.hidden * shape.ffn_hidden
        return cls(
            num_layer_params=shape.layers * layer,
            num_head_params=shape.hidden * shape.vocab,
            score_flop_per_pair=4 * shape.layers * shape.heads * shape.head_dim,
            num_params=num_params,
        )

    def forward_flop(self, *, num_tokens: float, num_scored: float, num_pairs: float) -> float:
        """Work of a forward pass.

        Equation  2 t P + 2 u P_head + 4 l a d p;  t tokens, u of them scored, p pairs of a query and a key
        Source    narayanan2021 (arXiv:2104.04473), appendix, with the tokens of a pass counted apart
        Assumes   norms, softmax, biases and activation functions are not counted
        Checked   tests/workload/test_stage_run.py: equals training_flop_per_sample / 3 for whole sequences
        """
        t, u, p = num_tokens, num_scored, num_pairs
        return 2.0 * t * self.num_layer_params + 2.0 * u * self.num_head_params + self.score_flop_per_pair * p

    def training_flop(self, *, num_tokens: float, num_scored: float, num_pairs: float) -> float:
        """Forward and backward pass: three times the forward pass; recompute is not counted."""
        return 3.0 * self.forward_flop(num_tokens=num_tokens, num_scored=num_scored, num_pairs=num_pairs)

    def training_bytes(self, *, num_passes: int, num_updates: int, width_bytes: int) -> float:
        """Least traffic of the parameters: read forward and backward, gradients added to, and the update.

        Activations are not counted: how far they stay in caches depends on the kernels.
        """
        return self.num_params * float(3 * width_bytes * num_passes + ADAM_BYTES_PER_PARAM * num_updates)
