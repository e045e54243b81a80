"""Keys and values of all layers in pages, within a stated number of bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from scalewright import units
from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError, EnvironmentFailedError


class PagedCache:
    """Tensors of shape (pages, P tokens, G heads, E) for each layer, indexed that way on every device.

    In memory, a page on a GPU goes head by head, so that one head's part of it is one piece; elsewhere token by token,
    so that consecutive pages are one sequence. One page more than sequences get is written by rows that only pad a
    batch.
    """

    def __init__(
        self, shape: TransformerShape, *, num_pages: int, page_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_pages, self.page_tokens = num_pages, page_tokens
        self.padding_page = num_pages
        sizes = (2, shape.layers, num_pages + 1)
        try:
            if device.type == "cuda":
                whole = torch.zeros(*sizes, shape.kv_heads, page_tokens, shape.head_dim, dtype=dtype, device=device)
                whole = whole.transpose(3, 4)
            else:
                whole = torch.zeros(*sizes, page_tokens, shape.kv_heads, shape.head_dim, dtype=dtype, device=device)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            size = units.format(float(cache_bytes(shape, (num_pages + 1) * page_tokens, dtype)), units.BYTES)
            raise EnvironmentFailedError(f"a cache of {size} does not fit on {device}: lower cache_bytes") from error
        self.keys_LNPGE, self.values_LNPGE = whole[0], whole[1]

    def write(self, layer: int, k_TGE: Tensor, v_TGE: Tensor, pages_T: Tensor, offsets_T: Tensor) -> None:
        self.keys_LNPGE[layer][pages_T, offsets_T] = k_TGE
        self.values_LNPGE[layer][pages_T, offsets_T] = v_TGE

    def read(self, layer: int, pages_N: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values (tokens, G, E) of one sequence."""
        keys = self.keys_LNPGE[layer].index_select(0, pages_N).flatten(0, 1)
        values = self.values_LNPGE[layer].index_select(0, pages_N).flatten(0, 1)
        return keys[:num_tokens], values[:num_tokens]

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Copy pages (from, to) in every layer."""
        if copies:
            origin, target = torch.tensor(copies, device=self.keys_LNPGE.device).unbind(1)
            for whole in (self.keys_LNPGE, self.values_LNPGE):
                whole[:, target] = whole[:, origin]


def cache_bytes(shape: TransformerShape, num_tokens: int, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of so many tokens, on a rank with this shape."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize * num_tokens


def num_pages_within(
    budget_bytes: int, shape: TransformerShape, *, max_context: int, page_tokens: int, dtype: torch.dtype
) -> int:
    """Pages for sequences within a budget, which must hold one sequence of the whole context."""
    page_bytes = cache_bytes(shape, page_tokens, dtype)
    num_pages = budget_bytes // page_bytes - 1  # one pads batches
    num_least = -(-max_context // page_tokens)
    if num_pages < num_least:
        least = units.format(float((num_least + 1) * page_bytes), units.BYTES)
        given = units.format(float(budget_bytes), units.BYTES)
        raise ConfigError(
            f"a cache of {given} is too small: one sequence of {max_context} tokens needs {least}; give more (--cache) "
            "or a shorter context (--context)"
        )
    return num_pages
