"""Measure on one GPU the kernels that 8-bit and expert layers consist of: products, grouped products, casts, moves.

    python benchmarks/gpu_kernels.py OUT.jsonl

Plain PyTorch. Cool products run for 20 ms after a second of rest, sustained ones for 2.5 s, so that power limits them
as in a job. A grouped product is that of 16 experts with equally many tokens; `weight` is its weight gradient and
`plain` one product of the same size. `passes` are the crossings of a 16-bit tensor that a cast or a permutation takes
the time of, at the rate of a copy.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
F8 = torch.float8_e4m3fn
LIMIT = 448.0
"""Largest value of that type."""
PRODUCTS = ((8192, 8192, 8192), (8192, 28672, 8192), (8192, 4096, 14336))
EXPERTS = 16
GROUPED = ((2048, 1536), (768, 2048), (2880, 5760), (4096, 3072), (7168, 4096), (5120, 16384))
"""Depth and columns of experts: Qwen3-30B up and down, gpt-oss, Qwen3-235B, DeepSeek-V3, Llama 4."""
ROWS = (64, 128, 256, 512, 1024, 2048, 4096)
MOVED = ((8192, 4096), (16384, 4096), (8192, 14336), (32768, 2048))


def seconds(work: Callable[[], object], for_s: float = 0.3) -> float:
    """Mean time of a call while it is repeated for so long."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    repeats = max(5, int(for_s / (time.perf_counter() - start)))
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def products() -> Iterator[Row]:
    one = torch.tensor(1.0, device="cuda")
    for m, n, k in PRODUCTS:
        a, b = tensor(m, k), tensor(n, k)
        a8, b8 = a.to(F8), b.to(F8).t()
        rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")

        def scaled(x: torch.Tensor, y: torch.Tensor, a8: torch.Tensor = a8, b8: torch.Tensor = b8) -> torch.Tensor:
            return torch._scaled_mm(a8, b8, x, y, out_dtype=torch.bfloat16, use_fast_accum=True)

        works: dict[str, Callable[[], object]] = {
            "bf16": lambda a=a, b=b: a @ b.t(),  # type: ignore[misc]
            "fp8 tensorwise": lambda scaled=scaled: scaled(one, one),  # type: ignore[misc]
            "fp8 rowwise": lambda scaled=scaled, x=rows, y=columns: scaled(x, y),  # type: ignore[misc]
        }
        for dtype, work in works.items():
            for state, for_s in (("cool", 0.02), ("sustained", 2.5)):
                time.sleep(1.0)
                rate = 2e-12 * m * n * k / seconds(work, for_s)
                yield {"kind": "product", "dtype": dtype, "state": state, "m": m, "n": n, "k": k, "tflops": rate}


def grouped() -> Iterator[Row]:
    for k, n in GROUPED:
        weight = tensor(EXPERTS, k, n)
        for count in ROWS:
            a, gradient = tensor(EXPERTS * count, k), tensor(EXPERTS * count, n)
            ends = torch.arange(count, EXPERTS * count + 1, count, device="cuda", dtype=torch.int32)
            work = 2e-12 * EXPERTS * count * n * k
            yield {
                "kind": "grouped", "experts": EXPERTS, "rows": count, "k": k, "n": n,
                "grouped": work / seconds(lambda a=a, e=ends, w=weight: torch._grouped_mm(a, w, offs=e)),
                "weight": work / seconds(lambda a=a, e=ends, g=gradient: torch._grouped_mm(a.t(), g, offs=e)),
                "plain": work / seconds(lambda a=a, w=weight: a @ w[0]),
            }  # fmt: skip


def tensorwise(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scale = LIMIT / x.abs().max().float()
    return (x.float() * scale).clamp(-LIMIT, LIMIT).to(F8), scale


def tensorwise_both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    cast, scale = tensorwise(x)
    return cast, cast.t().contiguous(), scale


def rowwise(x: torch.Tensor, dim: int = -1) -> tuple[torch.Tensor, ...]:
    scale = LIMIT / x.abs().amax(dim, True).float()
    return (x.float() * scale).clamp(-LIMIT, LIMIT).to(F8), scale


def rowwise_both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    other, scale = rowwise(x, 0)
    return *rowwise(x), other.t().contiguous(), scale


def blocks(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    value = x.float().view(x.shape[0], -1, 32)
    scale = LIMIT / value.abs().amax(-1, True)
    return (value * scale).to(F8).view(x.shape), scale


def blocks_both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return *blocks(x), *blocks(x.t().contiguous())


def moves() -> Iterator[Row]:
    casts = (tensorwise, tensorwise_both, rowwise, rowwise_both, blocks, blocks_both)
    compiled = {cast.__name__: torch.compile(cast, dynamic=False) for cast in casts}
    for tokens, width in MOVED:
        x = tensor(tokens, width)
        crossing_s = seconds(lambda x=x: x.clone()) / 2.0
        for name, cast in compiled.items():
            passes = seconds(lambda cast=cast, x=x: cast(x)) / crossing_s
            yield {"kind": "cast", "name": name, "tokens": tokens, "width": width, "passes": passes}
        order = torch.randperm(tokens, device="cuda")
        few, place = torch.zeros_like(x[: tokens // 4]), order % (tokens // 4)
        yield {
            "kind": "permute", "tokens": tokens, "width": width,
            "gather": seconds(lambda x=x, o=order: x[o]) / crossing_s,
            "index_add": seconds(lambda x=x, f=few, p=place: f.index_add_(0, p, x)) / crossing_s,
            "copy_tb": 2e-12 * tokens * width / crossing_s,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    print(torch.__version__, torch.cuda.get_device_name())
    with args.out.open("w") as file:
        for part in (products, grouped, moves):
            for row in part():
                shown = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
                print(json.dumps(shown), file=file, flush=True)


if __name__ == "__main__":
    main()
