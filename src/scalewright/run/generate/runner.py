"""Reads and decodes with PyTorch's operators, on any device. Tokens of all sequences form one row of tokens.

Tensors carry their dimensions in capitals, as in the model: T tokens of a step, R sequences that decode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from scalewright.run.device import attention_of_any_length
from scalewright.run.generate.cache import PagedCache
from scalewright.run.generate.decode_batch import ON_DEVICE, DecodeBatch
from scalewright.run.generate.sampler import SamplerKind, SamplerRows, sample
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

    def prepare(self, kind: SamplerKind, on_size: Callable[[int, int], None]) -> None:
        """Get ready to decode batches of every size, as far as this device needs it; report each one before it."""

    def forget_steps(self) -> None:
        """Drop what was recorded with addresses of the cache."""

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
        with attention_of_any_length(self.device):
            self._layers(tokens_T, positions_T, _ReadChunks.of(chunks, self.cache, self.device), needs_output=False)

    @torch.inference_mode()
    def decode(self, batch: DecodeBatch) -> Decoded:
        """The next token of every row."""
        slots_R = _on(self.device, batch.slots)
        known_R = _on(self.device, batch.tokens)
        tokens_R = torch.where(known_R == ON_DEVICE, self.latest_S[slots_R], known_R)
        with attention_of_any_length(self.device):
            x_RD = self._layers(
                tokens_R, _on(self.device, batch.positions), _DecodedRows.of(batch, self.cache, self.device)
            )
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
        self, tokens_T: Tensor, positions_T: Tensor, sequences: _ReadChunks | _DecodedRows, *, needs_output: bool = True
    ) -> Tensor:
        """The output of the last layer for the tokens of these sequences."""
        model, size = self.model.transformer, self.cache.page_tokens
        assert model.embedding is not None
        x_1TD: Tensor = model.embedding(tokens_T[None], positions_T[None])
        rotary_2TE = None if model.rotary_2LE is None else model.rotary_2LE[:, positions_T]
        pages_T = sequences.pages_of(positions_T // size)
        offsets_T, total = positions_T % size, self.model.ranks.sum
        blocks = model.blocks()
        for layer, block in enumerate(blocks):
            q_1THE, k_1TGE, v_1TGE = block.attention.project(block.norm_1(x_1TD), rotary_2TE)
            self.cache.write(layer, k_1TGE[0], v_1TGE[0], pages_T, offsets_T)
            if not needs_output and layer == len(blocks) - 1:
                break  # the cache has all it needs
            attended_TD = sequences.attend(layer, q_1THE[0], k_1TGE[0], v_1TGE[0])
            x_1TD = x_1TD + total(block.attention.out(attended_TD[None]))
            x_1TD = x_1TD + total(block.feed_forward(block.norm_2(x_1TD)))
        return x_1TD[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _WholeChunks:
    """Pieces of like length that begin their prompts, padded to the longest of them. Each sees itself alone."""

    cells_BL: Tensor
    """Which token of the step each cell is; padding repeats the first token of its piece."""
    rows_C: Tensor
    """The tokens of these pieces, and where they are among the cells."""
    cells_C: Tensor

    @classmethod
    def of(cls, begins: np.ndarray, lengths: np.ndarray, device: torch.device) -> _WholeChunks:
        columns_L = np.arange(lengths.max())
        is_token_BL = columns_L < lengths[:, None]
        cells_BL = begins[:, None] + np.where(is_token_BL, columns_L, 0)
        (cells_C,) = np.nonzero(is_token_BL.ravel())
        return cls(
            cells_BL=_on(device, cells_BL),
            rows_C=_on(device, cells_BL.ravel()[cells_C]),
            cells_C=_on(device, cells_C),
        )

    def attend(self, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        """(C, D): padding is at the end, where the causal mask hides it."""
        q, k, v = (whole[self.cells_BL].transpose(1, 2) for whole in (q_THE, k_TGE, v_TGE))
        o_BHLE = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return o_BHLE.transpose(1, 2).flatten(2).flatten(0, 1)[self.cells_C]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LaterChunk:
    """A piece that goes on from cached tokens: the tokens `rows` of the step, which end at position `end`."""

    rows: slice
    pages_N: Tensor
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadChunks:
    """Pieces of prompts. Those that begin one are attended to together, the others one by one over the cache."""

    cache: PagedCache
    pages_T: Tensor
    batches: list[_WholeChunks]
    later: list[_LaterChunk]

    @classmethod
    def of(cls, chunks: list[Chunk], cache: PagedCache, device: torch.device) -> _ReadChunks:
        lengths = np.array([len(c.tokens) for c in chunks])
        begins = np.cumsum(lengths) - lengths
        pages = [
            np.array(c.pages)[np.arange(c.start, c.start + length) // cache.page_tokens]
            for c, length in zip(chunks, lengths, strict=True)
        ]
        whole = np.array([index for index, c in enumerate(chunks) if c.start == 0], dtype=np.int64)
        batches = [whole[part] for part in _of_like_length(lengths[whole])] if len(whole) else []
        return cls(
            cache=cache,
            pages_T=_on(device, np.concatenate(pages)),
            batches=[_WholeChunks.of(begins[part], lengths[part], device) for part in batches],
            later=[
                _LaterChunk(
                    rows=slice(begin, begin + length), pages_N=_on(device, np.array(c.pages)), end=c.start + length
                )
                for c, begin, length in zip(chunks, begins.tolist(), lengths.tolist(), strict=True)
                if c.start
            ],
        )

    def pages_of(self, numbers_T: Tensor) -> Tensor:
        del numbers_T
        return self.pages_T

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        attended_TD = torch.empty_like(q_THE.flatten(1))
        for batch in self.batches:
            attended_TD[batch.rows_C] = batch.attend(q_THE, k_TGE, v_TGE)
        for chunk in self.later:
            cached = self.cache.read(layer, chunk.pages_N, chunk.end)
            attended_TD[chunk.rows] = attend_to(q_THE[chunk.rows], *cached)
        return attended_TD


MOST_PADDING = 2
"""Rows are attended to together as long as the longest is at most this many times as long as the shortest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LikeRows:
    """Rows of like length, padded to the longest of them."""

    rows_B: Tensor
    pages_BN: Tensor
    visible_B11K: Tensor
    """Which keys each row sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodedRows:
    """One token of each sequence. Sequences of like length are attended to in one call."""

    cache: PagedCache
    pages_RN: Tensor
    batches: list[_LikeRows]

    @classmethod
    def of(cls, batch: DecodeBatch, cache: PagedCache, device: torch.device) -> _DecodedRows:
        num_pages = np.array([len(cached.pages) for cached in batch.cached])
        pages = np.zeros((len(num_pages), num_pages.max()), dtype=np.int64)
        for row, cached in enumerate(batch.cached):
            pages[row, : num_pages[row]] = cached.pages
        batches = []
        for rows in _of_like_length(num_pages):
            width = int(num_pages[rows].max())
            visible = np.arange(width * cache.page_tokens) <= batch.positions[rows][:, None]
            batches.append(
                _LikeRows(
                    rows_B=_on(device, rows),
                    pages_BN=_on(device, pages[rows, :width]),
                    visible_B11K=_on(device, visible)[:, None, None],
                )
            )
        return cls(cache=cache, pages_RN=_on(device, pages), batches=batches)

    def pages_of(self, numbers_R: Tensor) -> Tensor:
        return self.pages_RN.gather(1, numbers_R[:, None])[:, 0]

    def attend(self, layer: int, q_RHE: Tensor, k_RGE: Tensor, v_RGE: Tensor) -> Tensor:
        del k_RGE, v_RGE  # they are in the cache
        if len(self.batches) == 1:  # its rows are all rows, in order
            return self._attend(layer, q_RHE, self.batches[0])
        attended_RD = torch.empty_like(q_RHE.flatten(1))
        for like in self.batches:
            attended_RD[like.rows_B] = self._attend(layer, q_RHE[like.rows_B], like)
        return attended_RD

    def _pages(self, layer: int, like: _LikeRows) -> tuple[Tensor, Tensor]:
        pages = like.pages_BN.flatten()
        keys, values = self.cache.keys_LNPGE[layer], self.cache.values_LNPGE[layer]
        return keys.index_select(0, pages), values.index_select(0, pages)

    def _attend(self, layer: int, q_BHE: Tensor, like: _LikeRows) -> Tensor:
        num_rows, num_pages = like.pages_BN.shape
        k_BKGE, v_BKGE = (
            whole.view(num_rows, num_pages * self.cache.page_tokens, *whole.shape[2:])
            for whole in self._pages(layer, like)
        )
        o_BH1E = functional.scaled_dot_product_attention(
            q_BHE[:, :, None],
            k_BKGE.transpose(1, 2),
            v_BKGE.transpose(1, 2),
            attn_mask=like.visible_B11K,
            enable_gqa=q_BHE.shape[1] != k_BKGE.shape[2],
        )
        return o_BH1E.flatten(1)


def _of_like_length(lengths: np.ndarray) -> list[np.ndarray]:
    """Rows in parts: in each, the longest is at most MOST_PADDING times as long as the shortest."""
    if lengths.max() <= MOST_PADDING * lengths.min():
        return [np.arange(len(lengths))]
    parts, order = [], np.argsort(lengths, kind="stable")
    while len(order):
        is_like = lengths[order] <= MOST_PADDING * lengths[order[0]]
        parts.append(order[is_like])
        order = order[~is_like]
    return parts


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
