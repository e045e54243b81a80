"""Reads and decodes with PyTorch's operators, on any device. Tokens of all sequences form one row of tokens.

Tensors carry their dimensions in capitals, as in the model: T tokens of a step, R sequences that decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from scalewright.run.generate.cache import PagedCache
from scalewright.run.generate.decode_batch import ON_DEVICE, DecodeBatch
from scalewright.run.generate.sampler import SamplerRows, sample
from scalewright.run.generate.scheduler import Chunk
from scalewright.run.generate.served_model import ServedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What a decode step gives for each row; perhaps still being computed."""

    tokens_R: Tensor
    log_probs_R: Tensor

    def fetch(self) -> tuple[list[int], list[float]]:
        return self.tokens_R.tolist(), self.log_probs_R.tolist()


class PlainRunner:
    """Runs one rank's layers over the cache."""

    num_behind = 0
    """Steps that the host may be behind the device."""

    def __init__(self, model: ServedModel, cache: PagedCache, *, max_running: int) -> None:
        self.model, self.cache, self.device = model, cache, model.device
        self.latest_S = torch.zeros(max_running + 1, dtype=torch.int64, device=self.device)
        """The latest token of each slot; the last slot is of rows that only pad a batch."""

    @torch.inference_mode()
    def copy(self, copies: list[tuple[int, int]]) -> None:
        self.cache.copy(copies)

    @torch.inference_mode()
    def prefill(self, chunks: list[Chunk]) -> None:
        """Put the keys and values of these tokens into the cache."""
        if not chunks:
            return
        positions_T = _on(self.device, np.concatenate([np.arange(c.start, c.start + len(c.tokens)) for c in chunks]))
        tokens_T = _on(self.device, np.concatenate([c.tokens for c in chunks]))
        offsets = np.cumsum([0, *(len(c.tokens) for c in chunks)])
        pages = [_on(self.device, np.array(c.pages)) for c in chunks]
        ends = [c.start + len(c.tokens) for c in chunks]
        self._layers(tokens_T, positions_T, list(pairwise(offsets.tolist())), pages, ends, needs_output=False)

    @torch.inference_mode()
    def decode(self, batch: DecodeBatch) -> Decoded:
        """The next token of every row."""
        slots_R = _on(self.device, batch.slots)
        known_R = _on(self.device, batch.tokens)
        tokens_R = torch.where(known_R == ON_DEVICE, self.latest_S[slots_R], known_R)
        pages = [_on(self.device, np.array(cached.pages)) for cached in batch.cached]
        rows = [(row, row + 1) for row in range(len(pages))]
        ends = (batch.positions + 1).tolist()
        x_RD = self._layers(tokens_R, _on(self.device, batch.positions), rows, pages, ends)
        tokens_R, log_probs_R = sample(self.scores(x_RD), self._sampler_rows(batch), batch.kind)
        self.latest_S[slots_R] = tokens_R
        return Decoded(tokens_R=tokens_R, log_probs_R=log_probs_R)

    def scores(self, x_RD: Tensor) -> Tensor:
        """Scores of the whole vocabulary."""
        head = self.model.transformer.head
        assert head is not None
        return self.model.ranks.all_scores(head(x_RD).float(), self.model.whole_shape.vocab)

    def _sampler_rows(self, batch: DecodeBatch) -> SamplerRows:
        columns = (batch.temperature, batch.top_p, batch.top_k, batch.uniform)
        return SamplerRows(*(_on(self.device, column) for column in columns))

    def _layers(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        rows: list[tuple[int, int]],
        pages: list[Tensor],
        ends: list[int],
        *,
        needs_output: bool = True,
    ) -> Tensor:
        """The output of the last layer. Sequence i has the tokens `rows[i]`, which end at position `ends[i]`."""
        model, size = self.model.transformer, self.cache.page_tokens
        assert model.embedding is not None
        x_1TD: Tensor = model.embedding(tokens_T[None], positions_T[None])
        rotary_2TE = None if model.rotary_2LE is None else model.rotary_2LE[:, positions_T]
        pages_T = torch.cat([p[positions_T[a:b] // size] for p, (a, b) in zip(pages, rows, strict=True)])
        offsets_T, total = positions_T % size, self.model.ranks.sum
        blocks = model.blocks()
        for layer, block in enumerate(blocks):
            q_1THE, k_1TGE, v_1TGE = block.attention.project(block.norm_1(x_1TD), rotary_2TE)
            self.cache.write(layer, k_1TGE[0], v_1TGE[0], pages_T, offsets_T)
            if not needs_output and layer == len(blocks) - 1:
                break  # the cache has all it needs
            parts = [
                attend_to(q_1THE[0, a:b], *self.cache.read(layer, p, end))
                for p, (a, b), end in zip(pages, rows, ends, strict=True)
            ]
            x_1TD = x_1TD + total(block.attention.out(torch.cat(parts)[None]))
            x_1TD = x_1TD + total(block.feed_forward(block.norm_2(x_1TD)))
        return x_1TD[0]


def attend_to(q_LHE: Tensor, k_KGE: Tensor, v_KGE: Tensor) -> Tensor:
    """Attention of the last L tokens of a sequence to all K of it, heads joined."""
    num_queries, num_keys = q_LHE.shape[0], k_KGE.shape[0]
    mask_LK = None
    if 1 < num_queries < num_keys:
        mask_LK = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q_LHE.device)
        mask_LK = mask_LK.tril(num_keys - num_queries)
    o_HLE = functional.scaled_dot_product_attention(
        q_LHE.transpose(0, 1)[None],
        k_KGE.transpose(0, 1)[None],
        v_KGE.transpose(0, 1)[None],
        attn_mask=mask_LK,
        is_causal=num_queries == num_keys and num_queries > 1,
        enable_gqa=q_LHE.shape[1] != k_KGE.shape[1],
    )[0]
    return o_HLE.transpose(0, 1).flatten(1)


def _on(device: torch.device, array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
