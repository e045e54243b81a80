"""Decodes with our kernels, a whole step as one CUDA graph for each size of batch. The host is one step behind.

The tokens of a step stay on the device, where the next step reads them; the host fetches them while that one runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalewright.run.generate.cache import PagedCache
from scalewright.run.generate.decode_batch import ON_DEVICE, DecodeBatch
from scalewright.run.generate.kept_choices import KeptChoices, choice_folder
from scalewright.run.generate.kernels.choice import KernelChoice
from scalewright.run.generate.kernels.greedy import greedy
from scalewright.run.generate.kernels.layers import DecodeLayers
from scalewright.run.generate.pages import CachedTokens
from scalewright.run.generate.runner import Decoded, PlainRunner
from scalewright.run.generate.sampler import SamplerKind, SamplerRows, sample
from scalewright.run.generate.scheduler import Chunk
from scalewright.run.generate.served_model import ServedModel

NUM_STAGED = 3
"""Host buffers for inputs and results: one is filled while the device may still read the one before."""
INT64, INT32, FLOAT32 = torch.int64, torch.int32, torch.float32
COLUMNS = {
    "tokens": INT64, "slots": INT64, "top_k": INT64, "positions": INT32, "temperature": FLOAT32, "top_p": FLOAT32,
    "uniform": FLOAT32,
}  # fmt: skip


def batch_sizes(max_running: int) -> list[int]:
    """Sizes that steps are recorded for; a batch runs as the next larger one."""
    sizes = [size for size in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128) if size < max_running]
    return [*sizes, *range(192, max_running, 64), max_running]


class StagedInputs:
    """The arrays of a step in one piece of memory, so that one copy takes them to the device."""

    def __init__(self, num_rows: int, num_pages: int, device: torch.device) -> None:
        num_bytes = sum(num_rows * dtype.itemsize for dtype in COLUMNS.values()) + num_rows * num_pages * 4
        self.device_bytes = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self.device_views = self._views(self.device_bytes, num_rows, num_pages)
        self._host = [torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(NUM_STAGED)]
        self._arrays = [
            {name: view.numpy() for name, view in self._views(host, num_rows, num_pages).items()} for host in self._host
        ]
        self._turn = 0

    @staticmethod
    def _views(whole: Tensor, num_rows: int, num_pages: int) -> dict[str, Tensor]:
        views, start = {}, 0
        for name, dtype in COLUMNS.items():
            end = start + num_rows * dtype.itemsize
            views[name], start = whole[start:end].view(dtype), end
        views["pages"] = whole[start:].view(INT32).view(num_rows, num_pages)
        return views

    def send(self, fill: Callable[[dict[str, np.ndarray]], None]) -> None:
        """Fill the host's arrays and start their copy."""
        self._turn = (self._turn + 1) % NUM_STAGED
        fill(self._arrays[self._turn])
        self.device_bytes.copy_(self._host[self._turn], non_blocking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A decode step of one batch size and kind of sampling."""

    run: Callable[[], None]
    tokens_R: Tensor
    log_probs_R: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedLater(Decoded):
    """Results on their way to the host."""

    num_rows: int
    is_there: torch.cuda.Event

    def fetch(self) -> tuple[list[int], list[float]]:
        self.is_there.synchronize()
        return self.tokens_R[: self.num_rows].tolist(), self.log_probs_R[: self.num_rows].tolist()


class PageTable:
    """The pages of every slot on the host. Rows change only when a sequence gets a page or a slot changes hands."""

    def __init__(self, num_slots: int, num_pages: int, padding_page: int) -> None:
        self._table = np.full((num_slots + 1, num_pages), padding_page, dtype=np.int32)
        self._holders: list[CachedTokens | None] = [None] * num_slots
        self._num_known = [0] * num_slots

    def rows(self, slots: np.ndarray, cached: list[CachedTokens]) -> np.ndarray:
        for slot, holder in zip(slots.tolist(), cached, strict=True):
            known = self._num_known[slot] if self._holders[slot] is holder else 0
            if known != len(holder.pages):
                self._table[slot, known : len(holder.pages)] = holder.pages[known:]
                self._holders[slot], self._num_known[slot] = holder, len(holder.pages)
        rows: np.ndarray = self._table[slots]
        return rows


class GraphRunner(PlainRunner):
    """Reads prompts with PyTorch's operators, and decodes with kernels; `records` replays steps as graphs."""

    num_behind = 1

    def __init__(
        self, model: ServedModel, cache: PagedCache, *, max_running: int, max_context: int, records: bool
    ) -> None:
        super().__init__(model, cache, max_running=max_running)
        self._records, self._padding_slot = records, max_running
        self._num_pages = -(-max_context // cache.page_tokens)
        self.layers = DecodeLayers(model, cache, max_rows=max_running)
        self.kernels = KernelChoice(self.layers, is_timed=records, kept=KeptChoices(choice_folder()))
        self._table = PageTable(max_running, self._num_pages, cache.padding_page)
        self._sizes = batch_sizes(max_running)
        self._inputs: dict[int, StagedInputs] = {}
        self._steps: dict[tuple[int, SamplerKind], RecordedStep] = {}
        self._memory: Any = None
        self._results = [
            (
                torch.zeros(max_running, dtype=torch.int64, pin_memory=True),
                torch.zeros(max_running, pin_memory=True),
            )
            for _ in range(NUM_STAGED)
        ]
        self._turn = 0

    @torch.inference_mode()
    def prepare(self, kind: SamplerKind, on_size: Callable[[int, int], None]) -> None:
        for number, size in enumerate(self._sizes):
            on_size(number, len(self._sizes))
            self._step(size, kind)

    def forget_steps(self) -> None:
        self._steps.clear()
        self._memory = None

    def step(self, chunks: list[Chunk], batch: DecodeBatch | None) -> Decoded | None:
        """Chunks by operators, then rows by kernels."""
        super().step(chunks, None)
        return None if batch is None else self._decode(batch)

    @torch.inference_mode()
    def _decode(self, batch: DecodeBatch) -> Decoded:
        num_rows = len(batch.slots)
        size = next(size for size in self._sizes if size >= num_rows)
        step = self._step(size, batch.kind)
        self._inputs[size].send(lambda arrays: self._fill(arrays, batch))
        step.run()
        self._turn = (self._turn + 1) % NUM_STAGED
        tokens, log_probs = self._results[self._turn]
        tokens[:size].copy_(step.tokens_R, non_blocking=True)
        log_probs[:size].copy_(step.log_probs_R, non_blocking=True)
        is_there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        is_there.record()
        return DecodedLater(tokens_R=tokens, log_probs_R=log_probs, num_rows=num_rows, is_there=is_there)

    def _fill(self, arrays: dict[str, np.ndarray], batch: DecodeBatch) -> None:
        self._fill_padding(arrays)
        num_rows = len(batch.slots)
        for name in COLUMNS:
            arrays[name][:num_rows] = getattr(batch, name)
        arrays["pages"][:num_rows] = self._table.rows(batch.slots, batch.cached)

    def _fill_padding(self, arrays: dict[str, np.ndarray]) -> None:
        """Rows that only fill the batch: token 0 at position 0, on a page that nobody reads."""
        for name in COLUMNS:
            arrays[name][:] = {"slots": self._padding_slot, "top_p": 1, "uniform": 1}.get(name, 0)
        arrays["pages"][:] = self.cache.padding_page

    def _step(self, size: int, kind: SamplerKind) -> RecordedStep:
        if (size, kind) not in self._steps:
            if size not in self._inputs:
                self._inputs[size] = StagedInputs(size, self._num_pages, self.device)
                self.kernels.choose(size)
            self._inputs[size].send(self._fill_padding)  # nothing of a sequence changes while the step is recorded
            self._steps[size, kind] = self._record(size, kind)
        return self._steps[size, kind]

    def _record(self, size: int, kind: SamplerKind) -> RecordedStep:
        views = self._inputs[size].device_views
        tokens_R = torch.zeros(size, dtype=torch.int64, device=self.device)
        log_probs_R = torch.zeros(size, device=self.device)

        def work() -> None:
            tokens, log_probs = self._work(views, kind)
            tokens_R.copy_(tokens)
            log_probs_R.copy_(log_probs)

        work()
        torch.cuda.synchronize()
        if not self._records:
            return RecordedStep(run=work, tokens_R=tokens_R, log_probs_R=log_probs_R)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            work()
        self._memory = self._memory or graph.pool()
        return RecordedStep(run=graph.replay, tokens_R=tokens_R, log_probs_R=log_probs_R)

    def _work(self, views: dict[str, Tensor], kind: SamplerKind) -> tuple[Tensor, Tensor]:
        """One step, from and to memory that stays where it is."""
        model, slots_R = self.model.transformer, views["slots"]
        assert model.embedding is not None
        tokens_R = torch.where(views["tokens"] == ON_DEVICE, self.latest_S[slots_R], views["tokens"])
        x_RD = model.embedding(tokens_R[None], views["positions"][None])[0]
        inputs = self.layers.inputs(views["positions"], views["pages"])
        scores_RV = self.layers.scores(x_RD, inputs, self.kernels.of(len(x_RD)))
        scores_RV = self.model.ranks.all_scores(scores_RV, self.model.whole_shape.vocab)
        if kind == "greedy":
            tokens_R, log_probs_R = greedy(scores_RV.contiguous())
        else:
            rows = SamplerRows(views["temperature"], views["top_p"], views["top_k"], views["uniform"])
            tokens_R, log_probs_R = sample(scores_RV, rows, kind)
        self.latest_S[slots_R] = tokens_R
        return tokens_R, log_probs_R
