"""Max pooling of 3x3 with stride 2, written so that a compiler makes fast kernels of it; channels are last in memory.

For every pixel of the gradient, the kernel of PyTorch's compiler reads all four windows that may contain the pixel.
With stride 2, a pixel of an even row is in one row of windows and a pixel of an odd row in two. Treating the four kinds
of pixels separately needs nine reads for four pixels instead of sixteen, and no conditions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

KERNEL, STRIDE = 3, 2


class _FoldedPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BHWC: Tensor) -> Tensor:
        """The largest value of each window; of equal values the first, as PyTorch does it."""
        height, width = (side // STRIDE for side in x_BHWC.shape[1:3])
        padded = functional.pad(x_BHWC, (0, 0, 1, 0, 1, 0), value=float("-inf"))
        best: Tensor | None = None
        index = torch.zeros((), dtype=torch.uint8, device=x_BHWC.device)
        for number in range(KERNEL * KERNEL):
            down, across = divmod(number, KERNEL)
            candidate = padded[:, down : down + STRIDE * height : STRIDE, across : across + STRIDE * width : STRIDE]
            if best is None:
                best = candidate
                continue
            is_larger = candidate > best
            best = torch.where(is_larger, candidate, best)
            index = torch.where(is_larger, torch.full_like(index, number), index)
        assert best is not None
        ctx.save_for_backward(index)
        return best

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Each pixel gets the gradients of the windows in which it was the largest."""
        (index_BHWC,), (grad_BHWC,) = ctx.saved_tensors, grads
        batch, height, width, channels = grad_BHWC.shape
        zero = torch.zeros((), dtype=grad_BHWC.dtype, device=grad_BHWC.device)

        def pixel_gradients(down: int, across: int) -> Tensor:
            """Gradients of the pixels at this position of a window, whose first row and column are the pixel before."""
            share = torch.where(index_BHWC == KERNEL * down + across, grad_BHWC, zero)
            early_row, early_column = int(down == 0), int(across == 0)
            return functional.pad(share, (0, 0, 0, early_column, 0, early_row))[:, early_row:, early_column:]

        even_even = pixel_gradients(1, 1)
        even_odd = pixel_gradients(1, 2) + pixel_gradients(1, 0)
        odd_even = pixel_gradients(2, 1) + pixel_gradients(0, 1)
        odd_odd = (pixel_gradients(2, 2) + pixel_gradients(2, 0)) + (pixel_gradients(0, 2) + pixel_gradients(0, 0))
        pairs = (torch.stack((even_even, even_odd), 3), torch.stack((odd_even, odd_odd), 3))
        return torch.stack(pairs, 2).reshape(batch, STRIDE * height, STRIDE * width, channels)


def folded_pool(x_BCHW: Tensor) -> Tensor:
    """`max_pool2d(x, 3, stride=2, padding=1)` for images with even sides."""
    pooled: Tensor = _FoldedPool.apply(x_BCHW.permute(0, 2, 3, 1))  # type: ignore[no-untyped-call]
    return pooled.permute(0, 3, 1, 2)
