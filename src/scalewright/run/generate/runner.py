"""Reads and decodes with PyTorch's operators, on any device. Tokens of all sequences form one row of tokens.

Tensors carry their dimensions in capitals, as in the model: T tokens of a step, R sequences that decode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

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
    def step(self, chunks: list[Chunk], batch: DecodeBatch | None) -> Decoded | None:
        """Put the keys and values of the chunks into the cache, and compute the next token of every row of the batch.

        Both go through the layers together: with few tokens, a layer takes as long for one kind as for both.
        """
        if not chunks and batch is None:
            return None
        tokens, positions = [np.array(c.tokens) for c in chunks], [c.positions for c in chunks]
        if batch is not None:
            batch, places = batch.by_length()
            tokens, positions = [*tokens, batch.tokens], [*positions, batch.positions]
        tokens_T, positions_T = (_on(self.device, np.concatenate(parts)) for parts in (tokens, positions))
        rows = _StepRows.of(chunks, batch, self.cache, self.device)
        if batch is None:
            self._layers(tokens_T, positions_T, rows)
            return None
        slots_R = _on(self.device, batch.slots)
        known_R = tokens_T[rows.num_read :]
        tokens_T[rows.num_read :] = torch.where(known_R == ON_DEVICE, self.latest_S[slots_R], known_R)
        scores_RV = self.scores(self._layers(tokens_T, positions_T, rows))
        tokens_R, log_probs_R = sample(scores_RV, self._sampler_rows(batch), batch.kind)
        self.latest_S[slots_R] = tokens_R
        places_R = _on(self.device, places)
        return Decoded(tokens_R=tokens_R[places_R], log_probs_R=log_probs_R[places_R])

    def scores(self, x_RD: Tensor) -> Tensor:
        """Scores of the whole vocabulary."""
        head = self.model.transformer.head
        assert head is not None
        return self.model.ranks.all_scores(head(x_RD).float(), self.model.whole_shape.vocab)

    def _sampler_rows(self, batch: DecodeBatch) -> SamplerRows:
        columns = (batch.temperature, batch.top_p, batch.top_k, batch.uniform)
        return SamplerRows(*(_on(self.device, column) for column in columns))

    def _layers(self, tokens_T: Tensor, positions_T: Tensor, rows: _StepRows) -> Tensor:
        """The output of the last layer for the rows that decode."""
        model, size, total = self.model.transformer, self.cache.page_tokens, self.model.ranks.sum
        assert model.embedding is not None
        x_1TD: Tensor = model.embedding(tokens_T[None], positions_T[None])
        rotary_2TE = None if model.rotary_2LE is None else model.rotary_2LE[:, positions_T]
        offsets_T, blocks = positions_T % size, model.blocks()
        with attention_of_any_length(self.device):
            for layer, block in enumerate(blocks):
                q_1THE, k_1TGE, v_1TGE = block.attention.project(block.norm_1(x_1TD), rotary_2TE)
                self.cache.write(layer, k_1TGE[0], v_1TGE[0], rows.pages_T, offsets_T)
                if layer < len(blocks) - 1:
                    attended_TD = rows.attend(layer, q_1THE[0], k_1TGE[0], v_1TGE[0])
                else:  # of tokens that are only read, the cache has all it needs
                    x_1TD = x_1TD[:, rows.num_read :]
                    if rows.decoded is None:
                        break
                    attended_TD = rows.decoded.attend(layer, q_1THE[0, rows.num_read :])
                x_1TD = x_1TD + total(block.attention.out(attended_TD[None]))
                x_1TD = x_1TD + total(block.feed_forward(block.norm_2(x_1TD)))
        return x_1TD[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepRows:
    """The tokens of a step: first those of chunks that are read, then one of each sequence that decodes."""

    read: _ReadChunks | None
    decoded: _DecodedRows | None
    num_read: int
    pages_T: Tensor
    """The page that each token goes to."""

    @classmethod
    def of(cls, chunks: list[Chunk], batch: DecodeBatch | None, cache: PagedCache, device: torch.device) -> _StepRows:
        pages = [np.array(c.pages)[c.positions // cache.page_tokens] for c in chunks]
        if batch is not None:
            numbers = (batch.positions // cache.page_tokens).tolist()
            pages.append(np.array([one.pages[number] for one, number in zip(batch.cached, numbers, strict=True)]))
        return cls(
            read=_ReadChunks.of(chunks, cache, device) if chunks else None,
            decoded=None if batch is None else _DecodedRows.of(batch, cache, device),
            num_read=sum(len(c.tokens) for c in chunks),
            pages_T=_on(device, np.concatenate(pages)),
        )

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        num = self.num_read
        if self.read is None:
            assert self.decoded is not None
            return self.decoded.attend(layer, q_THE)
        read_TD = self.read.attend(layer, q_THE[:num], k_TGE[:num], v_TGE[:num])
        return read_TD if self.decoded is None else torch.cat([read_TD, self.decoded.attend(layer, q_THE[num:])])


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
    batches: list[_WholeChunks]
    later: list[_LaterChunk]

    @classmethod
    def of(cls, chunks: list[Chunk], cache: PagedCache, device: torch.device) -> _ReadChunks:
        lengths = np.array([len(c.tokens) for c in chunks])
        begins = np.cumsum(lengths) - lengths
        whole = np.array([index for index, c in enumerate(chunks) if c.start == 0], dtype=np.int64)
        batches = [whole[part] for part in _of_like_length(lengths[whole])] if len(whole) else []
        return cls(
            cache=cache,
            batches=[_WholeChunks.of(begins[part], lengths[part], device) for part in batches],
            later=[
                _LaterChunk(
                    rows=slice(begin, begin + length), pages_N=_on(device, np.array(c.pages)), end=c.start + length
                )
                for c, begin, length in zip(chunks, begins.tolist(), lengths.tolist(), strict=True)
                if c.start
            ],
        )

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
    """Consecutive rows of like length, padded to the longest of them."""

    rows: slice
    pages_BN: Tensor
    visible_B11K: Tensor
    """Which keys each row sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodedRows:
    """One token of each sequence, shorter ones first. Sequences of like length are attended to in one call."""

    cache: PagedCache
    batches: list[_LikeRows]

    @classmethod
    def of(cls, batch: DecodeBatch, cache: PagedCache, device: torch.device) -> _DecodedRows:
        num_pages = np.array([len(cached.pages) for cached in batch.cached])
        pages = np.zeros((len(num_pages), num_pages.max()), dtype=np.int64)
        for row, cached in enumerate(batch.cached):
            pages[row, : num_pages[row]] = cached.pages
        batches = []
        for start, stop in pairwise([*_starts_of_like_length(num_pages.tolist()), len(num_pages)]):
            rows = slice(start, stop)
            width = int(num_pages[rows].max())
            visible = np.arange(width * cache.page_tokens) <= batch.positions[rows][:, None]
            batches.append(
                _LikeRows(
                    rows=rows,
                    pages_BN=_on(device, pages[rows, :width]),
                    visible_B11K=_on(device, visible)[:, None, None],
                )
            )
        return cls(cache=cache, batches=batches)

    def attend(self, layer: int, q_RHE: Tensor) -> Tensor:
        """Their keys and values are in the cache."""
        if len(self.batches) == 1:
            return self._attend(layer, q_RHE, self.batches[0])
        return torch.cat([self._attend(layer, q_RHE[like.rows], like) for like in self.batches])

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


def _starts_of_like_length(lengths: list[int]) -> list[int]:
    """Where parts of ascending lengths begin: in each, the longest is at most MOST_PADDING times the shortest."""
    starts = [0]
    for place, length in enumerate(lengths):
        if length > MOST_PADDING * lengths[starts[-1]]:
            starts.append(place)
    return starts


def _of_like_length(lengths: np.ndarray) -> list[np.ndarray]:
    """Rows in parts of like length."""
    order = np.argsort(lengths, kind="stable")
    return np.split(order, _starts_of_like_length(lengths[order].tolist())[1:])


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
