"""Decode-shaped layers and board power on one GPU: one JSON line per measurement on stdout.

    python benchmarks/decode_and_power.py > benchmarks/results/h200_decode_power.jsonl

Layers are captured in a CUDA graph, as serving engines do, and carry no attention over a cache: products, norms and
the activation only. Power is the board's own reading, sampled five times a second while one kind of work repeats.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

NUM_LAYERS = 8
SHAPES = {
    "llama3-8b": (4096, 6144, 14336),
    "llama3-70b tp=8": (8192, 1280, 3584),
    "llama3-70b tp=4": (8192, 2560, 7168),
}
POWER_S = 6.0


def emit(**row: Any) -> None:
    print(json.dumps(row), flush=True)


class Layer(torch.nn.Module):
    def __init__(self, hidden: int, qkv: int, ffn: int) -> None:
        super().__init__()

        def make(rows: int, columns: int) -> torch.nn.Parameter:
            values = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
            return torch.nn.Parameter(values * 0.01)

        queries = qkv * 2 // 3
        self.queries = queries
        self.qkv, self.out = make(qkv, hidden), make(hidden, queries)
        self.up, self.down = make(2 * ffn, hidden), make(hidden, ffn)
        self.norm = torch.nn.Parameter(torch.ones(hidden, device="cuda", dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(F.rms_norm(x, x.shape[-1:], self.norm), self.qkv)[:, : self.queries]
        x = x + F.linear(y, self.out)
        gate, up = F.linear(F.rms_norm(x, x.shape[-1:], self.norm), self.up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


def graph_time_s(work: Callable[[], Any], repeats: int = 50) -> float:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[repeats // 2]


def decode() -> None:
    for name, (hidden, qkv, ffn) in SHAPES.items():
        layers = torch.nn.Sequential(*(Layer(hidden, qkv, ffn) for _ in range(NUM_LAYERS)))
        weights = sum(p.numel() * 2 for p in layers.parameters())
        for batch in (1, 8, 32, 64, 128, 256, 512):
            x = torch.randn(batch, hidden, device="cuda", dtype=torch.bfloat16)
            seconds = graph_time_s(lambda layers=layers, x=x: layers(x)) / NUM_LAYERS
            emit(kind="decode_layer", shape=name, batch=batch, time_s=seconds, weight_bytes=weights / NUM_LAYERS)


def watts() -> float:
    query = ["nvidia-smi", "--query-gpu=power.draw.instant", "--format=csv,noheader,nounits"]
    return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def mean_w(work: Callable[[], Any] | None, busy: float = 1.0) -> float:
    """Mean board power while `work` repeats for the given share of each tenth of a second."""
    samples: list[float] = []
    stop = threading.Event()

    def sample() -> None:
        time.sleep(1.5)
        while not stop.is_set():
            samples.append(watts())
            time.sleep(0.2)

    thread = threading.Thread(target=sample)
    thread.start()
    end = time.monotonic() + POWER_S
    while time.monotonic() < end:
        slot = time.monotonic()
        while work is not None and time.monotonic() < slot + 0.1 * busy:
            work()
            torch.cuda.synchronize()
        time.sleep(max(slot + 0.1 - time.monotonic(), 0.0))
    stop.set()
    thread.join()
    return sum(samples) / len(samples)


def power() -> None:
    emit(kind="power", work="idle, context open", busy=0.0, power_w=mean_w(None))
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    big = torch.empty(2**31, device="cuda", dtype=torch.uint8)
    other = torch.empty_like(big)
    weights = [torch.randn(8192, 28672, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    x = torch.randn(64, 8192, device="cuda", dtype=torch.bfloat16)
    for busy in (0.1, 0.25, 0.5, 0.75, 1.0):
        emit(kind="power", work="product 8192^3", busy=busy, power_w=mean_w(lambda: [a @ a for _ in range(4)], busy))
    emit(kind="power", work="copy", busy=1.0, power_w=mean_w(lambda: [other.copy_(big) for _ in range(8)]))
    emit(kind="power", work="decode product, 64 rows", busy=1.0, power_w=mean_w(lambda: [x @ w for w in weights]))
    emit(kind="power", work="spin", busy=1.0, power_w=mean_w(lambda: torch.cuda._sleep(100_000_000)))
    loads = {"product": lambda: [a @ a for _ in range(20)], "copy": lambda: [other.copy_(big) for _ in range(20)]}
    for name, work in loads.items():
        seconds = graph_time_s(work, repeats=5) / 20
        emit(
            kind="rate",
            work=name,
            time_s=seconds,
            flop=2 * 8192**3 if name == "product" else 0,
            traffic_bytes=2 * 2**31,
        )


if __name__ == "__main__":
    emit(kind="device", name=torch.cuda.get_device_name(), torch=torch.__version__, idle_w=watts())
    decode()
    power()
