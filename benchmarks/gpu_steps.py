"""Measure training steps of several shapes on one GPU, eager and compiled, as rows that `scalewright validate` reads.

    python benchmarks/gpu_steps.py OUT.jsonl [--only 0,3,5] [--mode eager]

Plain PyTorch: bf16 autocast over fp32 weights, scaled-dot-product attention, fused AdamW, random tokens. Needs torch
and a CUDA device, nothing else; prints device, versions and power limit. Times are medians of steps after warm-up,
synchronised; memory is the peak the allocator saw.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# layers, hidden, heads, kv_heads, ffn, vocab, seq, micro-batch, gated, recompute
SHAPES = (
    (12, 768, 12, 12, 3072, 50304, 1024, 16, False, "none"),
    (24, 1024, 16, 16, 4096, 50304, 1024, 8, False, "none"),
    (24, 2048, 16, 16, 8192, 50304, 2048, 4, False, "none"),
    (16, 4096, 32, 32, 16384, 50304, 2048, 2, False, "none"),
    (6, 8192, 64, 64, 32768, 50304, 2048, 1, False, "none"),
    (12, 2048, 16, 16, 8192, 50304, 8192, 1, False, "none"),
    (16, 2048, 32, 8, 8192, 128256, 4096, 2, True, "none"),
    (32, 2560, 20, 20, 10240, 50304, 1024, 8, False, "none"),
    (3, 12288, 96, 96, 49152, 50304, 2048, 1, False, "none"),
    (6, 512, 8, 8, 2048, 50304, 512, 4, False, "none"),
    (24, 1536, 16, 16, 6144, 50304, 1024, 16, False, "none"),
    (8, 5120, 40, 8, 13824, 32000, 4096, 1, True, "none"),
    (48, 1600, 25, 25, 6400, 50304, 1024, 4, False, "none"),
    (16, 4096, 32, 8, 14336, 128256, 4096, 1, True, "full"),
    (12, 2048, 16, 16, 8192, 50304, 32768, 1, False, "full"),
    (24, 1024, 16, 16, 4096, 50304, 256, 2, False, "none"),
    # from here on: never fitted to (results/h200_held_out.jsonl)
    (20, 1280, 20, 20, 5120, 50304, 1024, 12, False, "none"),
    (10, 4096, 32, 8, 14336, 128256, 8192, 1, True, "none"),
    (12, 3584, 28, 4, 18944, 152064, 4096, 1, True, "none"),
    (22, 2048, 32, 4, 5632, 32000, 2048, 8, True, "none"),
    (28, 1536, 12, 2, 8960, 151936, 4096, 2, True, "none"),
    (8, 4096, 32, 32, 11008, 32000, 4096, 2, True, "none"),
    (16, 2560, 32, 32, 10240, 50304, 2048, 4, False, "none"),
    (12, 3072, 32, 32, 8192, 32064, 4096, 2, True, "none"),
    (24, 1024, 16, 16, 4096, 50304, 512, 16, False, "none"),
    (6, 6144, 48, 48, 24576, 51200, 2048, 2, False, "none"),
    (8, 2048, 16, 16, 8192, 50304, 16384, 1, False, "none"),
    (16, 1024, 16, 16, 4096, 32000, 512, 1, False, "none"),
    (4, 8192, 64, 8, 28672, 128256, 4096, 1, True, "none"),
    (16, 2048, 16, 16, 8192, 50304, 2048, 8, False, "full"),
    (12, 2048, 8, 8, 16384, 65536, 2048, 4, True, "none"),
    (36, 1280, 20, 20, 5120, 50304, 2048, 2, False, "none"),
)
WARM_UP, TIMED = 5, 12
KINDS = {
    "attention": ("flash", "fmha", "cudnn_generated", "sdpa"),
    "matmul": ("gemm", "nvjet", "cutlass", "xmma"),
    "optimizer": ("adam", "multi_tensor"),
}
"""What a kernel belongs to, by what its name holds, the first that fits; the rest is memory traffic."""


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, ffn: int, *, gated: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.gated = heads, kv_heads, hidden // heads, gated
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.norm_1, self.norm_2 = norm(hidden), norm(hidden)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.head_dim, bias=not gated)
        self.out = nn.Linear(heads * self.head_dim, hidden, bias=not gated)
        self.up = nn.Linear(hidden, ffn * (2 if gated else 1), bias=not gated)
        self.down = nn.Linear(ffn, hidden, bias=not gated)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        b, length, _ = x_BLD.shape
        q, k, v = self.qkv(self.norm_1(x_BLD)).split(
            [self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim], dim=-1
        )
        q = q.view(b, length, self.heads, self.head_dim).transpose(1, 2)
        k = k.view(b, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = v.view(b, length, self.kv_heads, self.head_dim).transpose(1, 2)
        grouped = self.kv_heads != self.heads
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        x_BLD = x_BLD + self.out(attended.transpose(1, 2).reshape(b, length, -1))
        hidden = self.up(self.norm_2(x_BLD))
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            return x_BLD + self.down(functional.silu(gate) * value)
        return x_BLD + self.down(functional.gelu(hidden))


class Loss(nn.Module):
    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, x_BLD: torch.Tensor, targets_BL: torch.Tensor) -> torch.Tensor:
        logits = self.head(x_BLD)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets_BL.view(-1))


class Model(nn.Module):
    def __init__(self, shape: tuple[int, ...], *, gated: bool, recompute: bool) -> None:
        super().__init__()
        layers, hidden, heads, kv_heads, ffn, vocab, seq = shape
        self.recompute = recompute
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = None if gated else nn.Embedding(seq, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, kv_heads, ffn, gated=gated) for _ in range(layers))
        self.norm = (nn.RMSNorm if gated else nn.LayerNorm)(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        if not gated:
            self.head.weight = self.tokens.weight
        self.loss = Loss(self.head)

    def forward(self, tokens_BL: torch.Tensor, targets_BL: torch.Tensor) -> torch.Tensor:
        x_BLD = self.tokens(tokens_BL)
        if self.positions is not None:
            x_BLD = x_BLD + self.positions.weight[: tokens_BL.shape[1]]
        for block in self.blocks:
            x_BLD = checkpoint(block, x_BLD, use_reentrant=False) if self.recompute else block(x_BLD)
        return self.loss(self.norm(x_BLD), targets_BL)


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(tokens[:, :-1], tokens[:, 1:].contiguous())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def profiled_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor
) -> dict[str, dict[str, float]]:
    """Device time and number of kernels of one step, by what they do."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        training_step(model, optimizer, tokens)
        torch.cuda.synchronize()
    sums_of_kind: dict[str, dict[str, float]] = {}
    for event in trace.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        name = event.name.lower()
        kind = next((k for k, marks in KINDS.items() if any(m in name for m in marks)), "memory")
        sums = sums_of_kind.setdefault(kind, {"time_s": 0.0, "num_kernels": 0})
        sums["time_s"] += event.device_time / 1e6
        sums["num_kernels"] += 1
    return sums_of_kind


def measure(index: int, *, compiled: bool, profile: bool) -> dict[str, object]:
    layers, hidden, heads, kv_heads, ffn, vocab, seq, micro_batch, gated, recompute = SHAPES[index]
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Model((layers, hidden, heads, kv_heads, ffn, vocab, seq), gated=gated, recompute=recompute == "full").cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    if compiled:  # layer by layer, as torchtitan does: one compilation serves every layer
        for block in model.blocks:
            block.compile()
        model.loss.compile()
    tokens = torch.randint(vocab, (micro_batch, seq + 1), device="cuda")
    times = []
    for i in range(WARM_UP + TIMED):
        if i == WARM_UP:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        training_step(model, optimizer, tokens)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated()
    kernels = profiled_step(model, optimizer, tokens) if profile else {}
    name = f"{layers}x{hidden}-s{seq}-b{micro_batch}{'-gated' if gated else ''}{'-full' if recompute == 'full' else ''}"
    row = {
        "id": f"gpu-steps-{name}-{'compiled' if compiled else 'eager'}",
        "source": "scalewright benchmarks/gpu_steps.py",
        "year": time.gmtime().tm_year,
        "confidence": "measured",
        "model": {"name": name, "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
                  "ffn_hidden": ffn, "vocab": vocab, "seq": seq, "gated": gated},
        "hardware": {"gpu": torch.cuda.get_device_name(), "gpus": 1, "gpus_per_node": 1, "intra_bw_GBps": 450,
                     "inter_bw_GBps_per_gpu": None, "notes": versions()},
        "layout": {"dp": 1, "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "sp": False, "zero": 0,
                   "micro_batch": micro_batch, "global_batch": micro_batch, "recompute": recompute,
                   "compile": compiled},
        "dtype": "bf16",
        "measured": {"step_time_s": statistics.median(times[WARM_UP:]), "memory_gib": peak / 2**30},
        "spread_s": [min(times[WARM_UP:]), max(times[WARM_UP:])],
    }  # fmt: skip
    if profile:
        row["kernels"] = kernels
    del model, optimizer
    gc.collect()  # compiled modules sit in cycles: without this the next shape's peak would count their weights
    torch.cuda.empty_cache()
    return row


def versions() -> str:
    power = subprocess.run(
        ["nvidia-smi", "--query-gpu=power.limit,driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, {power}, total {torch.cuda.mem_get_info()[1]} bytes"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure training steps on one GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="indices of SHAPES, separated by commas")
    parser.add_argument("--mode", choices=("eager", "compiled", "both"), default="both")
    parser.add_argument("--profile", action="store_true", help="also the device time by kind of kernel")
    args = parser.parse_args()
    chosen = [int(i) for i in args.only.split(",")] if args.only else range(len(SHAPES))
    print(torch.cuda.get_device_name(), versions(), flush=True)
    with args.out.open("a", encoding="utf-8") as file:
        for compiled in {"eager": (False,), "compiled": (True,), "both": (False, True)}[args.mode]:
            for index in chosen:
                try:
                    row = measure(index, compiled=compiled, profile=args.profile)
                except torch.OutOfMemoryError as error:
                    print(f"shape {index}: out of memory: {error}", flush=True)
                    torch.cuda.empty_cache()
                    continue
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(f"{row['id']}: {row['measured']}", flush=True)


if __name__ == "__main__":
    main()
