"""A graph without a GPU: what a function does to tensors is recorded once and done again, in the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOOKS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero", "aten::item"}
"""Operators whose answer the host must wait for."""


class NoLooks(TorchDispatchMode):
    """The host may issue work and may not look at results."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().partition(".")[0] in LOOKS:
            raise AssertionError(f"the host waits for the device in {func.name()}")
        return func(*args, **(kwargs or {}))


class Recorded(NoLooks):
    """Operators in the order in which they were called; `replay` knows nothing but their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        self._calls.append((func, args, kwargs or {}, made))
        return made

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, made in self._calls:
            given = {place.untyped_storage().data_ptr() for place in _tensors((args, kwargs))}
            for target, again in zip(_tensors(made), _tensors(func(*args, **kwargs)), strict=True):
                if target.untyped_storage().data_ptr() not in given:
                    target.copy_(again)


def _tensors(nested: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(nested) if isinstance(leaf, Tensor))
