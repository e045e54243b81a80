"""Release and restore of a trainer's and an engine's state: seconds of each part, one JSON line each.

    PYTHONPATH=src python benchmarks/state_release.py --device cuda    a model of 1.2 billion parameters
    PYTHONPATH=src python benchmarks/state_release.py --device cpu --layers 1 --vocab 4096 --kv-gib 0.1

Needs PyTorch, NumPy and pydantic. The state is that of the trainer of `reason`: bf16 weights with fp32 master weights,
two moments of Adam and fp32 sums of gradients. Every tensor is compared afterwards bit by bit (by sums of its bits).
Lines are printed as they are measured, so that a run that is cut off still shows what it did.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from scalewright.catalog.facts import Source
from scalewright.catalog.types import TransformerShape
from scalewright.run.generate.cache import PagedCache, cache_bytes
from scalewright.run.language.model import Transformer
from scalewright.run.language.optimizer import AdamW
from scalewright.run.state_release import CalledPart, StateRelease, StoredTensors
from scalewright.workload.language_run import OptimizerSettings

PAGE_TOKENS = 64
LIMIT_S = 50.0
"""No repeat begins after so many seconds."""


def line(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def shape_of(layers: int, vocab: int) -> TransformerShape:
    """Of the size of Llama 3.2 1B: 1.24 billion parameters with 16 layers."""
    return TransformerShape(
        source=Source(kind="assumed", text="a model of one billion parameters", checked=date(2026, 11, 16)),
        layers=layers, hidden=2048, heads=32, kv_heads=8, head_dim=64, ffn_hidden=8192, vocab=vocab, seq=4096,
        gated=True, positions="rotary", norm="rmsnorm", norm_bias=False, qkv_bias=False, out_bias=False, ffn_bias=False,
    )  # fmt: skip


def parameters(shape: TransformerShape, device: torch.device) -> dict[str, nn.Parameter]:
    with torch.device("meta"):
        model = Transformer(shape, layers=range(shape.layers), positions_L=torch.arange(1, device="cpu"))
    sizes = {name: param.shape for name, param in model.named_parameters()}
    return {name: nn.Parameter(torch.randn(size, device=device)) for name, size in sizes.items()}


def bits(tensors: Iterable[Tensor]) -> list[int]:
    """A sum over the bits of each tensor, and one with the place of each number."""
    sums = []
    for tensor in tensors:
        words = tensor.detach().reshape(-1).view(torch.int16).view(-1)
        for start in range(0, len(words), 2**26):
            part = words[start : start + 2**26].long()
            sums += [int(part.sum()), int((part * (torch.arange(len(part), device=part.device) % 8191)).sum())]
    return sums


class Communicators:
    """A group of this rank alone: making one opens a communicator and its buffers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.make()

    def make(self) -> int:
        self.group = dist.new_group([0])
        dist.all_reduce(torch.zeros(2**20, device=self._device), group=self.group)
        return 0

    def drop(self) -> int:
        dist.destroy_process_group(self.group)
        return 0


class Graphs:
    """A recorded product, as an engine has one for each size of batch."""

    def __init__(self) -> None:
        self._weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self.make()

    def make(self) -> int:
        self._graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            self._weight @ self._weight
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph):
            for _ in range(64):
                self._out = self._weight @ self._weight
        self._graph.replay()
        return 0

    def drop(self) -> int:
        del self._graph, self._out
        return 0


def trainer_state(
    shape: TransformerShape, device: torch.device
) -> tuple[StateRelease, list[StoredTensors], Callable[[], list[Tensor]]]:
    params = parameters(shape, device)
    optimizer = AdamW(params, OptimizerSettings(), weights=torch.bfloat16, skips=False)
    for moments in (optimizer.means, optimizer.squares):
        for tensor in moments.values():
            tensor.normal_()
    sums = {name: torch.zeros_like(param, dtype=torch.float32) for name, param in params.items()}
    num_params = sum(param.numel() for param in params.values())
    line(part="model", num_params=num_params, state_bytes_per_param=2 + 4 + 8 + 4)
    stored = [
        StoredTensors("moments", lambda: [*optimizer.means.values(), *optimizer.squares.values()]),
        StoredTensors("master_weights", optimizer.masters.values),
        StoredTensors("weights", lambda: list(params.values())),
        StoredTensors("gradients", sums.values, keeping="zeroed"),
    ]
    kept = lambda: [*optimizer.means.values(), *optimizer.squares.values(), *optimizer.masters.values(),  # noqa: E731
                    *params.values()]  # fmt: skip
    return StateRelease(stored, device=device), stored, kept


def engine_state(shape: TransformerShape, device: torch.device, kv_bytes: int) -> StateRelease:
    num_pages = max(kv_bytes // cache_bytes(shape, PAGE_TOKENS, torch.bfloat16) - 1, 1)
    cache = PagedCache(shape, num_pages=num_pages, page_tokens=PAGE_TOKENS, dtype=torch.bfloat16, device=device)
    parts: list[Any] = [StoredTensors("kv_cache", lambda: [cache.keys_LNPGE], keeping="zeroed")]
    if device.type == "cuda":
        graphs, communicators = Graphs(), Communicators(device)
        parts = [CalledPart("graphs", graphs.drop, graphs.make), *parts,
                 CalledPart("communicators", communicators.drop, communicators.make)]  # fmt: skip
    return StateRelease(parts, device=device)


def timed(owner: str, state: StateRelease, device: torch.device, repeat: int) -> None:
    for what, work in (("release", state.release), ("restore", state.restore)):
        before = torch.cuda.mem_get_info()[0] if device.type == "cuda" else 0
        moved = work()
        after = torch.cuda.mem_get_info()[0] if device.type == "cuda" else 0
        for one in moved:
            rate = one.num_bytes / one.seconds if one.num_bytes else None
            line(
                owner=owner, what=what, part=one.name, repeat=repeat, bytes=one.num_bytes, time_s=one.seconds,
                bytes_per_s=rate,
            )  # fmt: skip
        line(
            owner=owner, what=what, part="all", repeat=repeat, bytes=sum(one.num_bytes for one in moved),
            time_s=sum(one.seconds for one in moved), device_bytes_freed=after - before,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--kv-gib", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    begun_s = time.monotonic()
    device = torch.device(chosen.device, 0) if chosen.device == "cuda" else torch.device("cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    line(part="device", name=name, torch=torch.__version__)
    shape = shape_of(chosen.layers, chosen.vocab)
    trainer, stored, kept = trainer_state(shape, device)
    for part in stored:
        started_s = time.perf_counter()
        num_bytes = part.reserve()
        line(owner="trainer", what="reserve", part=part.name, bytes=num_bytes, time_s=time.perf_counter() - started_s)
    before = bits(kept())
    for repeat in range(chosen.repeats):
        if repeat and time.monotonic() - begun_s > LIMIT_S:
            line(part="note", text=f"stopped after {repeat} repeats: {LIMIT_S:.0f} s are over")
            break
        timed("trainer", trainer, device, repeat)
    line(owner="trainer", what="check", is_exact=bits(kept()) == before)
    try:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        engine = engine_state(shape, device, int(chosen.kv_gib * 2**30))
        for repeat in range(chosen.repeats):
            timed("engine", engine, device, repeat)
        dist.destroy_process_group()
    except Exception as error:  # the trainer's figures are printed already
        line(owner="engine", what="failed", error=f"{type(error).__name__}: {error}")
    line(part="done", wall_s=time.monotonic() - begun_s)


if __name__ == "__main__":
    main()
