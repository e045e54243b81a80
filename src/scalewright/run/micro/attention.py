"""`bench attention`: scaled-dot-product attention forward and backward, by kernel, length and head size.

Rows: precision, batch, heads, kv_heads, seq, head_dim, causal, kernel, direction (forward, backward), time_s,
time_low_s, time_high_s, repeats, flop_per_s.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from scalewright.errors import ConfigError
from scalewright.records.types import ExitCode
from scalewright.run.micro.free_memory import free_bytes
from scalewright.run.micro.session import BenchSession, run_micro
from scalewright.run.micro.timing import CacheFlush
from scalewright.run.rank_context import RankContext
from scalewright.workload.micro_run import AttentionCase, AttentionRun

KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
OF_DEVICE = {"cuda": ("cudnn", "flash", "efficient", "math"), "cpu": ("flash", "math")}
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MEMORY_FRAC = 0.25
SCORE_COPIES = 6
"""Matrices of scores that the unfused kernel holds, forward and backward, in fp32 at most."""


def run(rank: RankContext) -> ExitCode:
    return run_micro("attention", AttentionRun, measure_attention, rank)


def measure_attention(config: AttentionRun, session: BenchSession) -> None:
    session.prepare_cpu(config.precisions)
    flush = CacheFlush(session.device) if session.device.type == "cuda" else None
    ordered = sorted(config.cases, key=lambda case: case.forward_flop)
    tries = [
        (case, precision, kernel)
        for case in ordered
        for precision in config.precisions
        for kernel in OF_DEVICE[session.device.type]
    ]
    rates: dict[tuple[str, str], float] = {}
    for index, (case, precision, kernel) in enumerate(tries):
        words = f"{kernel} in {precision}, length {case.seq}, head size {case.head_dim}"
        share_s = session.budget.left_s / (len(tries) - index)
        rate_before = rates.get((precision, kernel))
        if rate_before and not session.has_time_for(8.0 * case.forward_flop / rate_before):
            session.leave_out(words, "the budget is too short")
            continue
        session.part(words)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns about every reason why a kernel refuses
            rate = _measure(case, precision, kernel, session, flush, share_s=share_s)
        if rate is not None:
            rates[precision, kernel] = rate
    if not session.rows:
        raise ConfigError("no kernel of this device computes any of the cases: choose another head size or precision")
    _summarise(session)


def _measure(
    case: AttentionCase, precision: str, kernel: str, session: BenchSession, flush: CacheFlush | None, *, share_s: float
) -> float | None:
    """Measure both passes of one kernel. Returns the rate of the forward pass; None if the kernel refuses this case."""
    if kernel == "math" and _score_bytes(case) > MEMORY_FRAC * free_bytes(session.device):
        session.leave_out(f"math at length {case.seq}", "its scores need more than a quarter of the free memory")
        return None
    device, dtype = session.device, DTYPES[precision]
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    q, k, v = (
        torch.randn(case.batch, heads, case.seq, case.head_dim, device=device, dtype=dtype).requires_grad_()
        for heads in (case.heads, case.kv_heads, case.kv_heads)
    )
    forward = _call(q, k, v, case)
    with sdpa_kernel(KERNELS[kernel]):
        try:
            out = forward()
            grad = torch.randn_like(out)
            torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            heads = f"{case.heads} heads over {case.kv_heads} of {case.head_dim}"
            session.leave_out(f"{kernel} in {precision} with {heads}", "PyTorch has no such kernel here")
            return None
        forward_timing = session.time(forward, share_s=0.4 * share_s, before=flush)
        backward_timing = session.time(
            lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), share_s=0.6 * share_s, before=flush
        )
    passes = (
        ("forward", forward_timing, case.forward_flop),
        ("backward", backward_timing, case.backward_flop),
    )
    for direction, timing, flop in passes:
        row: dict[str, Any] = {
            "precision": precision, "batch": case.batch, "heads": case.heads, "kv_heads": case.kv_heads,
            "seq": case.seq, "head_dim": case.head_dim, "causal": case.causal, "kernel": kernel,
            "direction": direction, **timing.row(), "flop_per_s": flop / timing.time_s,
        }  # fmt: skip
        session.rows.append(row)
    return case.forward_flop / forward_timing.time_s


def _call(q: Tensor, k: Tensor, v: Tensor, case: AttentionCase) -> Callable[[], Tensor]:
    grouped = case.kv_heads != case.heads
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=grouped)


def _score_bytes(case: AttentionCase) -> float:
    return 4.0 * SCORE_COPIES * case.batch * case.heads * float(case.seq) ** 2


def _summarise(session: BenchSession) -> None:
    """Add the fastest kernel of each case and direction to the summary: the one that SDPA should use."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in session.rows:
        key = tuple(row[name] for name in ("precision", "heads", "kv_heads", "seq", "head_dim", "causal", "direction"))
        if key not in best or row["flop_per_s"] > best[key]["flop_per_s"]:
            best[key] = row
    names = ("precision", "seq", "head_dim", "direction", "kernel", "flop_per_s")
    session.summary["fastest"] = [{name: row[name] for name in names} for row in best.values()]
