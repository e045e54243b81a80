"""Rows of tokens that hold sequences of uneven length: padded at the end, or several sequences packed one after the
other, each with positions of its own and attention that stays inside it."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

_kernel: dict[str, Any] = {}
"""PyTorch's attention over packed sequences and its arguments; imported when a GPU needs it, for it takes seconds."""


class Segments(NamedTuple):
    """Sequences that are packed into rows, as kernels for uneven lengths take them."""

    offsets_S: Tensor
    """Where each sequence starts in the tokens of all rows, and the end of the last; int32."""
    longest: int
    """No sequence has more tokens. A bound that is the same in every batch spares compilations."""


class TokenRows(NamedTuple):
    """Positions of a batch's tokens, and which keys each of them sees."""

    positions_BL: Tensor
    mask: Tensor | Segments | None
    """(B, 1, L, L), true where a query sees a key; segments on GPUs; None: everything before it in its row."""

    def rotary(self, table_2LE: Tensor | None) -> Tensor | None:
        """The part of the model's table that these tokens need."""
        return None if table_2LE is None else table_2LE[:, self.positions_BL]


def segment_mask(sequence_BL: Tensor) -> Tensor:
    """(B, 1, L, L) from the number of each token's sequence in its row: a token sees its own sequence up to itself."""
    same_BLK = sequence_BL[:, :, None] == sequence_BL[:, None, :]
    return same_BLK.tril()[:, None]


def attend_inside(q_BLHE: Tensor, k_BLGE: Tensor, v_BLGE: Tensor, segments: Segments) -> Tensor:
    """Causal attention inside each packed sequence, heads joined. `has_uneven_attention` must have said yes before."""
    q_THE, k_TGE, v_TGE = (x.flatten(0, 1).contiguous() for x in (q_BLHE, k_BLGE, v_BLGE))
    options, per_key = dict(_kernel["options"]), q_THE.shape[1] // k_TGE.shape[1]
    if per_key > 1 and _kernel["has_groups"]:
        options["enable_gqa"] = True
    elif per_key > 1:
        k_TGE, v_TGE = (x.repeat_interleave(per_key, dim=1) for x in (k_TGE, v_TGE))
    offsets_S, longest = segments
    out_THE: Tensor = _kernel["attention"](q_THE, k_TGE, v_TGE, offsets_S, offsets_S, longest, longest, **options)
    return out_THE.view(q_BLHE.shape).flatten(2)


def has_uneven_attention(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packed sequences go to a kernel of their own; elsewhere a mask keeps them apart."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return False
    if not _kernel:
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:  # before PyTorch 2.10
            return False
        known = inspect.signature(varlen_attn).parameters
        causal = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
        _kernel.update(attention=varlen_attn, options=causal, has_groups="enable_gqa" in known)
    return True
