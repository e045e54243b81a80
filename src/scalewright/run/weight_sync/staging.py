"""Staging: memory for the weights that arrive, beside those in use, and what of them is here."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from scalewright.run.weight_sync.checksums import checksum_of, digest, joined
from scalewright.run.weight_sync.plan import Box, num_elements, slices_in
from scalewright.run.weight_sync.wire import SILENCE_S, WeightSyncError


class Staging:
    """Kept from sync to sync, so that it is allocated once. `wait` lets a relay pass on what has arrived."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.boxes: dict[str, Box] = {}
        self._changed = threading.Condition()
        self._arrived: dict[str, np.ndarray] = {}
        """Elements that are here, of each row."""
        self._sums: dict[str, dict[int, tuple[int, int]]] = {}
        """Checksum and bytes of pieces of whole rows, by their first row."""
        self._failure = ""

    def begin(self, boxes: Mapping[str, Box], dtypes: Mapping[str, torch.dtype]) -> None:
        """Make room for these parts. What was here before is overwritten from now on."""
        sizes = {name: tuple(map(len, box)) for name, box in boxes.items()}
        old = self.tensors
        with self._changed:
            self.boxes = dict(boxes)
            self.tensors = {
                name: old[name] if name in old and (tuple(old[name].shape), old[name].dtype) == (size, dtypes[name])
                else torch.empty(size, dtype=dtypes[name])
                for name, size in sizes.items()
            }  # fmt: skip
            self._arrived = {name: np.zeros(size[0], dtype=np.int64) for name, size in sizes.items()}
            self._sums, self._failure = {}, ""

    def target(self, name: str, box: Box) -> Tensor:
        """The place of a piece."""
        return self.tensors[name][slices_in(box, self.boxes[name])]

    def add(self, name: str, box: Box, *, value: int | None) -> None:
        """Note that a piece is here and has this checksum, if it is known."""
        rows, *_ = slices_in(box, self.boxes[name])
        tensor = self.tensors[name]
        with self._changed:
            self._arrived[name][rows] += num_elements(box[1:])
            if value is not None and num_elements(box[1:]) == num_elements(self.boxes[name][1:]):
                num_bytes = num_elements(box) * tensor.element_size()
                self._sums.setdefault(name, {})[rows.start] = (value, num_bytes)
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
        with self._changed:
            self._failure = reason
            self._changed.notify_all()

    def wait(self, name: str, box: Box, timeout_s: float = SILENCE_S) -> None:
        """Until a piece is here."""
        rows, *_ = slices_in(box, self.boxes[name])
        needed = num_elements(self.boxes[name][1:])

        def is_here() -> bool:
            return bool(self._failure) or bool((self._arrived[name][rows] >= needed).all())

        with self._changed:
            if not self._changed.wait_for(is_here, timeout=timeout_s) or self._failure:
                raise WeightSyncError(self._failure or f"{name} did not arrive within {timeout_s:.0f} s")

    @property
    def checksum(self) -> str:
        """Of all parts, from their pieces where these are whole rows."""
        sums = {}
        for name, tensor in self.tensors.items():
            pieces = self._sums.get(name, {})
            is_covered = sum(num_bytes for _, num_bytes in pieces.values()) == tensor.nbytes
            sums[name] = joined(pieces[row] for row in sorted(pieces)) if is_covered else checksum_of(tensor)
        return digest(sums)
