"""Answered prompts as micro-batches: padded and sorted by length, or packed several to a row.

Tensors carry their dimensions in capitals: B rows of L tokens as the model reads them; T response tokens of the batch;
N sequences with R tokens in the longest response, the form in which losses are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.run.language.rows import Segments, TokenRows, has_uneven_attention, segment_mask
from scalewright.workload.reasoning.rows import longest_first, packed_rows, padded_groups, padded_width

Packing = Literal["packed", "padded"]
SEGMENT_MULTIPLE = 64
"""Packed sequences of a batch are counted up to a multiple of this, so that few sizes exist."""


class TokenSequence(NamedTuple):
    """A prompt and a response. Only tokens of the response have a loss."""

    prompt: Sequence[int]
    response: Sequence[int]
    is_counted: bool = True
    """False: the response takes part in no loss, as an answer that was cut off may be treated."""
    num_skipped: int = 0
    """First tokens of the response that take part in no loss, such as those that older weights drew."""

    @property
    def num_counted(self) -> int:
        return max(len(self.response) - self.num_skipped, 0) if self.is_counted else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatch:
    """One micro-batch of one rank."""

    tokens_BL: Tensor
    rows: TokenRows
    slots_T: Tensor
    """Where in the tokens of all rows a response token is predicted: the place of the token before it."""
    targets_T: Tensor
    places_NR: Tensor
    """Where in T each token of each response is."""
    exists_NR: Tensor
    """True up to the end of each response."""
    mask_NR: Tensor
    """True for tokens that count in the loss."""
    indices: tuple[int, ...]
    """Which of the sequences that were packed these are, row by row of N."""
    num_counted: tuple[int, ...]
    """Tokens of each sequence that count."""
    num_tokens: int
    """Read by the model, without padding."""
    longest: int
    """Tokens of the longest sequence, as the model reads it."""
    num_pairs: int = 0
    """Of a query and a key of the same sequence, the whole square."""

    def aligned(self, values_T: Tensor) -> Tensor:
        """(N, R) from one number for each response token; 0 where a response is shorter."""
        return values_T[self.places_NR].masked_fill(~self.exists_NR, 0.0)

    def per_token(self, values: Sequence[Sequence[float]]) -> Tensor:
        """(N, R) from numbers of the tokens of every packed sequence, such as an engine's log-probabilities."""
        out_NR = torch.zeros(self.mask_NR.shape, dtype=torch.float32)
        for row, (index, length) in enumerate(zip(self.indices, self.exists_NR.sum(dim=-1).tolist(), strict=True)):
            if len(values[index]) != length:
                raise ConfigError(
                    f"sequence {index} has {len(values[index])} numbers for {length} response tokens: give one for each"
                )
            out_NR[row, :length] = torch.tensor(values[index], dtype=torch.float32)
        return out_NR.to(self.mask_NR.device)

    def per_sequence(self, values: Sequence[float]) -> Tensor:
        """(N,) from one number for every sequence that was packed."""
        chosen = torch.tensor([values[index] for index in self.indices], dtype=torch.float32)
        return chosen.to(self.mask_NR.device)


def pack_sequences(
    sequences: Sequence[TokenSequence],
    *,
    row_tokens: int,
    num_rows: int = 1,
    packing: Packing = "packed",
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    pad_token: int = 0,
) -> list[SequenceBatch]:
    """Micro-batches that hold every sequence once.

    packed: rows of `row_tokens`, `num_rows` in a batch, longest sequence first into the fullest row with room.
    padded: one sequence a row, sorted by length, as many as fit into `num_rows` x `row_tokens` when all are as long as
    the longest of them.
    """
    lengths = [_checked(number, sequence, row_tokens) for number, sequence in enumerate(sequences)]
    order = longest_first(lengths)
    batches = []
    if packing == "padded":
        widths = [padded_width(length, row_tokens=row_tokens) for length in lengths]
        for group in padded_groups(order, widths, num_rows * row_tokens):
            rows = [[index] for index in group]
            batches.append(_batch(sequences, rows, widths[group[0]], device, dtype, pad_token))
        return batches
    rows = packed_rows(order, lengths, row_tokens)
    for start in range(0, len(rows), num_rows):
        batches.append(_batch(sequences, rows[start : start + num_rows], row_tokens, device, dtype, pad_token))
    return batches


def empty_batch(like: SequenceBatch) -> SequenceBatch:
    """A batch that counts nothing, for a rank that has fewer batches than the others."""
    mask_NR, num_counted = torch.zeros_like(like.mask_NR), (0,) * len(like.num_counted)
    return replace(like, mask_NR=mask_NR, num_counted=num_counted, num_tokens=0)


def _checked(number: int, sequence: TokenSequence, row_tokens: int) -> int:
    """Tokens that the model reads: all but the last, which is only a target."""
    if not sequence.prompt or not sequence.response:
        part = "response" if sequence.prompt else "prompt"
        raise ConfigError(f"sequence {number} has an empty {part}: give at least one token")
    length = len(sequence.prompt) + len(sequence.response) - 1
    if length > row_tokens:
        raise ConfigError(
            f"sequence {number} has {length + 1} tokens, and a row holds {row_tokens + 1}: shorten it or raise the "
            "tokens of a row"
        )
    return length


def _batch(
    sequences: Sequence[TokenSequence], rows: list[list[int]], width: int, device: torch.device, dtype: torch.dtype,
    pad_token: int,
) -> SequenceBatch:  # fmt: skip
    size = (len(rows), width)
    tokens_BL = torch.full(size, pad_token, dtype=torch.int64)
    positions_BL, sequence_BL = torch.zeros(size, dtype=torch.int64), torch.full(size, -1, dtype=torch.int64)
    slots, targets, indices, offsets, num_tokens, num_pairs = [], [], [], [0], 0, 0
    for row, members in enumerate(rows):
        start = 0
        for member, index in enumerate(members):
            prompt, response = sequences[index][:2]
            whole = torch.tensor([*prompt, *response], dtype=torch.int64)
            end = start + len(whole) - 1
            tokens_BL[row, start:end] = whole[:-1]
            positions_BL[row, start:end] = torch.arange(end - start)
            sequence_BL[row, start:end] = member
            slots.append(torch.arange(start + len(prompt) - 1, end) + row * width)
            targets.append(whole[len(prompt) :])
            indices.append(index)
            num_tokens, num_pairs = num_tokens + end - start, num_pairs + (end - start) ** 2
            start = end
            offsets.append(row * width + end)
        if start < width:
            offsets.append((row + 1) * width)
    is_packed = any(len(members) > 1 for members in rows)
    mask = _mask(sequence_BL, offsets, device, dtype) if is_packed else None
    responses = [sequences[index] for index in indices]
    places_NR, exists_NR, mask_NR = _places(responses)
    return SequenceBatch(
        tokens_BL=tokens_BL.to(device),
        rows=TokenRows(positions_BL.to(device), mask),
        slots_T=torch.cat(slots).to(device),
        targets_T=torch.cat(targets).to(device),
        places_NR=places_NR.to(device),
        exists_NR=exists_NR.to(device),
        mask_NR=mask_NR.to(device),
        indices=tuple(indices),
        num_counted=tuple(s.num_counted for s in responses),
        num_tokens=num_tokens,
        longest=int(positions_BL.max()) + 1,
        num_pairs=num_pairs,
    )


def _mask(sequence_BL: Tensor, offsets: list[int], device: torch.device, dtype: torch.dtype) -> Tensor | Segments:
    """Sequences of a row apart from each other. Padding forms a sequence of its own, which nobody reads."""
    if not has_uneven_attention(device, dtype):
        return segment_mask(sequence_BL.to(device))
    num_offsets = -(-len(offsets) // SEGMENT_MULTIPLE) * SEGMENT_MULTIPLE
    filled = offsets + [offsets[-1]] * (num_offsets - len(offsets))  # sequences without tokens
    return Segments(torch.tensor(filled, dtype=torch.int32, device=device), sequence_BL.shape[1])


def _places(responses: Sequence[TokenSequence]) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.tensor([len(sequence.response) for sequence in responses])
    num_counted = torch.tensor([sequence.num_counted for sequence in responses])
    columns_R = torch.arange(int(lengths.max()))
    exists_NR = columns_R[None, :] < lengths[:, None]
    first_N = lengths.cumsum(0) - lengths
    places_NR = torch.where(exists_NR, first_N[:, None] + columns_R[None, :], 0)
    return places_NR, exists_NR, exists_NR & (columns_R[None, :] >= (lengths - num_counted)[:, None])
