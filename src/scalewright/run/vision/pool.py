"""Max pooling of 3x3 with stride 2 in pieces that a compiler makes fast kernels of; channels lie last in memory.

PyTorch's compiler looks, for every pixel of the gradient, at all four windows that a pixel may lie in. With stride 2 a
pixel of an even row lies in one row of windows and one of an odd row in two; handling the four kinds of pixels apart
leaves nine looks for four pixels instead of sixteen, and no conditions.
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
        """The largest of each window; of equal ones the first, as PyTorch has it."""
        height, width = (side // STRIDE for side in x_BHWC.shape[1:3])
        padded = functional.pad(x_BHWC, (0, 0, 1, 0, 1, 0), value=float("-inf"))
        best: Tensor | None = None
        place = torch.zeros((), dtype=torch.uint8, device=x_BHWC.device)
        for number in range(KERNEL * KERNEL):
            down, across = divmod(number, KERNEL)
            seen = padded[:, down : down + STRIDE * height : STRIDE, across : across + STRIDE * width : STRIDE]
            if best is None:
                best = seen
                continue
            is_larger = seen > best
            best = torch.where(is_larger, seen, best)
            place = torch.where(is_larger, torch.full_like(place, number), place)
        assert best is not None
        ctx.save_for_backward(place)
        return best

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Each pixel gets the gradient of the windows whose largest it was."""
        (place_BHWC,), (grad_BHWC,) = ctx.saved_tensors, grads
        batch, height, width, channels = grad_BHWC.shape
        zero = torch.zeros((), dtype=grad_BHWC.dtype, device=grad_BHWC.device)

        def of(down: int, across: int) -> Tensor:
            """What pixels in this place of their window get; the first row and column are the last of pixels before."""
            got = torch.where(place_BHWC == KERNEL * down + across, grad_BHWC, zero)
            early_row, early_column = int(down == 0), int(across == 0)
            return functional.pad(got, (0, 0, 0, early_column, 0, early_row))[:, early_row:, early_column:]

        even_even = of(1, 1)
        even_odd = of(1, 2) + of(1, 0)
        odd_even = of(2, 1) + of(0, 1)
        odd_odd = (of(2, 2) + of(2, 0)) + (of(0, 2) + of(0, 0))
        pairs = (torch.stack((even_even, even_odd), 3), torch.stack((odd_even, odd_odd), 3))
        return torch.stack(pairs, 2).reshape(batch, STRIDE * height, STRIDE * width, channels)


def folded_pool(x_BCHW: Tensor) -> Tensor:
    """`max_pool2d(x, 3, stride=2, padding=1)` for images with even sides."""
    found: Tensor = _FoldedPool.apply(x_BCHW.permute(0, 2, 3, 1))  # type: ignore[no-untyped-call]
    return found.permute(0, 3, 1, 2)
