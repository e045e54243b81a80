"""Which kernels a decode step uses: by time, in the step itself, for each number of rows; kept between processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import triton
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from scalewright import units
from scalewright.run.generate.kept_choices import KeptChoices
from scalewright.run.generate.kernels import linear
from scalewright.run.generate.kernels.attention import AttentionInputs
from scalewright.run.generate.kernels.launch import compiling_only
from scalewright.run.generate.kernels.layers import DecodeLayers
from scalewright.run.generate.kernels.step_kernels import (
    PLACES,
    StepKernels,
    kept_kernels,
    padded_rows,
    possible_attention,
    possible_tiles,
)

TimedStep = Callable[[StepKernels, int | None], object]
"""Of some kernels, over so many layers (None: as many as are timed)."""
NUM_TIMED = 9
TIMED_BYTES = 10**9
"""Weights of the layers that are timed: far more than a cache holds."""


class KernelChoice:
    """The kernels for each number of rows. Without `is_timed`, the first that is worth a try."""

    def __init__(self, layers: DecodeLayers, *, is_timed: bool, kept: KeptChoices) -> None:
        self._layers, self._is_timed, self._kept = layers, is_timed, kept
        self._chosen: dict[int, StepKernels] = {}
        self.times_s: dict[str, dict[str, float]] = {}
        """What was timed: part of the step and rows, then how."""

    def of(self, num_rows: int) -> StepKernels:
        return self._chosen[num_rows]

    def choose(self, num_rows: int) -> None:
        """Choose for a batch of this size, on the weights and the cache themselves."""
        if num_rows in self._chosen:
            return
        possible = self._possible(num_rows)
        first = StepKernels(**{part: choices[0] for part, choices in possible.items()})
        key = self._key(num_rows)
        chosen = kept_kernels(self._kept.read(key), possible) if self._is_timed else first
        if chosen is None:
            chosen = self._fastest(num_rows, first, possible)
            self._kept.write(key, chosen.document())
        else:
            with compiling_only():
                self._timed_step(num_rows)(chosen, 1)
        self._chosen[num_rows] = chosen

    def _possible(self, num_rows: int) -> dict[str, list[Any]]:
        shape, products = self._layers.model.shape, self._layers.products
        is_fp32 = self._layers.model.dtype == torch.float32
        attention = possible_attention(
            num_rows, shape.kv_heads, is_fp32=is_fp32, is_single=shape.heads == shape.kv_heads
        )
        possible: dict[str, list[Any]] = {"attention": attention}
        for place in PLACES:
            can_split = place != "head" and products[place][0].activation != linear.SILU_GATE
            possible[place] = possible_tiles(num_rows, can_split=can_split, is_fp32=is_fp32)
        return possible

    def _fastest(self, num_rows: int, first: StepKernels, possible: dict[str, list[Any]]) -> StepKernels:
        """One part of the step after the other, each with the best of those before it."""
        step = self._timed_step(num_rows)
        chosen = first
        like = next((size for size in self._chosen if padded_rows(size) == padded_rows(num_rows)), None)
        if like is not None:  # its products have the same kernels
            chosen = replace(self._chosen[like], attention=first.attention)
            possible = {"attention": possible["attention"]}
        chosen = self._best_parts(num_rows, step, chosen, possible)
        others = {part: _other_starts(getattr(chosen, part)) for part in possible}
        return self._best_parts(num_rows, step, chosen, others)

    def _best_parts(
        self, num_rows: int, step: TimedStep, chosen: StepKernels, possible: dict[str, list[Any]]
    ) -> StepKernels:
        with compiling_only():
            for part, choices in possible.items():
                for choice in choices:
                    step(replace(chosen, **{part: choice}), 1)
        for part, choices in possible.items():
            times_s = {choice: _graph_time_s(_bound(step, replace(chosen, **{part: choice}))) for choice in choices}
            known = self.times_s.setdefault(f"{part}, {num_rows} rows", {})
            known.update({str(choice): time_s for choice, time_s in times_s.items()})
            chosen = replace(chosen, **{part: min(times_s, key=lambda choice: times_s[choice])})
        return chosen

    def _timed_step(self, num_rows: int) -> TimedStep:
        """A step over some layers, at half the longest context, without the sum over ranks."""
        layers, model = self._layers, self._layers.model
        inputs = self._inputs(num_rows)
        x_RD = torch.randn(num_rows, model.shape.hidden, dtype=model.dtype, device=model.device)
        layer_bytes = sum(layers.products[place][0].weight.nbytes for place in PLACES if place != "head")
        most = min(len(layers.blocks), max(2, -(-TIMED_BYTES // layer_bytes)))

        def step(kernels: StepKernels, num_layers: int | None = None) -> object:
            return layers.partial_scores(x_RD, inputs, kernels, num_layers=num_layers or most, total=lambda part: part)

        return step

    def _inputs(self, num_rows: int) -> AttentionInputs:
        """New keys go to the page that pads batches; pages in use are only read."""
        cache, device = self._layers.cache, self._layers.model.device
        num_pages = self._num_pages(num_rows)
        pages = torch.arange(num_rows * num_pages, dtype=torch.int32, device=device) % cache.num_pages
        pages_RN = pages.view(num_rows, num_pages).contiguous()
        pages_RN[:, -1] = cache.padding_page
        last = min(num_pages * cache.page_tokens, self._max_context) - 1
        return self._layers.inputs(torch.full((num_rows,), last, dtype=torch.int32, device=device), pages_RN)

    @property
    def _max_context(self) -> int:
        embedding = self._layers.model.transformer.embedding
        assert embedding is not None
        return int(embedding.positions_1L.shape[1])

    def _num_pages(self, num_rows: int) -> int:
        cache = self._layers.cache
        return max(min(-(-self._max_context // (2 * cache.page_tokens)), cache.num_pages // num_rows), 1)

    def _key(self, num_rows: int) -> dict[str, Any]:
        """All that a choice depends on."""
        layers, shape = self._layers, self._layers.model.shape
        return {
            "device": torch.cuda.get_device_name(layers.model.device), "torch": torch.__version__,
            "triton": triton.__version__, "kernels": _source_digest(), "rows": num_rows,
            "ranks": layers.model.ranks.size > 1, "layers": len(layers.blocks), "dtype": str(layers.model.dtype),
            "products": {
                place: [list(p.weight.shape), str(p.weight.dtype), p.activation, p.bias is not None]
                for place, (p, *_) in layers.products.items()
            },
            "heads": [shape.heads, shape.kv_heads, shape.head_dim],
            "page_tokens": layers.cache.page_tokens, "pages": self._num_pages(num_rows),
        }  # fmt: skip


def _other_starts(tiles: Any) -> list[Any]:
    """The same tiles, and those that let the next kernel start at the other time."""
    return [None] if tiles is None else [tiles, replace(tiles, is_early=not tiles.is_early)]


def _bound(step: TimedStep, kernels: StepKernels) -> Callable[[], object]:
    return lambda: step(kernels, None)


def _source_digest() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def _graph_time_s(work: Callable[[], object]) -> float:
    """Device time of the work as a graph; infinite for tiles that this device has no room for."""
    try:
        work()
    except (OutOfResources, CompilationError):
        return float("inf")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    times_s = []
    for _ in range(NUM_TIMED):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times_s.append(start.elapsed_time(end) * units.MILLI)
    return float(median(times_s))
