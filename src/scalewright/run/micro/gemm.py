"""`bench gemm`: rates of matrix products by shape and precision, the best rate of any shape, and the sustained rate.

Rows: precision, m, n, k, batch, name, series (shapes, best, sustained, cool), layout (tn, nn, nt as in BLAS),
time_s, time_low_s, time_high_s, repeats, flop_per_s.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.records.types import ExitCode
from scalewright.run.language.float8 import VALUES
from scalewright.run.micro.best_shape import Shape, ShapeGrid, search
from scalewright.run.micro.free_memory import free_bytes
from scalewright.run.micro.precisions import available
from scalewright.run.micro.session import BenchSession, catalogued, run_micro
from scalewright.run.micro.timing import CacheFlush, measure, synchronise, timing_of
from scalewright.run.rank_context import RankContext
from scalewright.workload.micro_run import GemmPrecision, GemmRun
from scalewright.workload.products import Product

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": VALUES}
WIDE = DTYPES | {"fp8": torch.bfloat16}
"""Types in which random numbers are drawn and products are written."""
GRIDS = {
    "cuda": ShapeGrid(step=256, low=1024, high=20480),
    "cpu": ShapeGrid(step=64, low=256, high=4096),
}
SEEDS: dict[str, tuple[Shape, ...]] = {
    "cuda": ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 13312), (1024, 15360, 4096), (12288, 8192, 8192)),
    "cpu": ((1024, 1024, 1024), (2048, 2048, 2048), (1024, 4096, 1024)),
}
"""Where a search starts: squares, and shapes that others report as best (stas00/ml-engineering, MAMF tables)."""
EXPLORE_POINT_S = {"cuda": 0.04, "cpu": 0.25}
NUM_FINALISTS = 5
MIN_CALLS = 2
"""One call to warm up and one that counts: the least that measuring a product takes."""
SEARCH_FRAC, FINAL_FRAC, SUSTAINED_FRAC, COOL_FRAC = 0.3, 0.15, 0.3, 0.25
"""Shares of the search time: exploring, measuring the finalists again, sustaining the best one, and products between
pauses."""
LAYOUTS = ("tn", "nn", "nt")
"""Layouts of a linear layer: forward, the gradient of its input, the gradient of its weight."""
COOL_PRODUCTS = ((8192, 6144, 2048), (8192, 1536, 6144), (16384, 4096, 1024), (4096, 4096, 4096), (8192, 3072, 768))
"""Products of models that fit one GPU: large enough to fill it, finished before its power limit acts."""
PAUSE_S, NUM_COOL_CALLS, NUM_COOL_ROUNDS = 0.012, 3, 9
"""A pause between cool products, so that they take a few percent of the time; their first call only wakes the GPU."""
COOL, COOL_HELD = "cool", "cool, the one held"
LONGEST_SUSTAINED_S = 10.0
SUSTAINED_SAMPLE_S = 0.1
ALIGNED = 512
"""An operand starts at a multiple of this many elements."""
MEMORY_FRAC = 0.25
"""Share of the free memory that the operands of one product may take."""


def run(rank: RankContext) -> ExitCode:
    return run_micro("gemm", GemmRun, measure_products, rank)


def measure_products(config: GemmRun, session: BenchSession) -> None:
    precisions = available(config.precisions, session, skips_missing=config.skips_missing)
    session.prepare_cpu(precisions)
    flush = CacheFlush(session.device) if session.device.type == "cuda" else None
    share = 0.5 if config.products and config.finds_best else float(bool(config.products))
    session.part("products of the configured shapes")
    _measure_shapes(config.products, precisions, session, flush, until_s=session.budget.left_s * (1.0 - share))
    for number, precision in enumerate(precisions if config.finds_best else ()):
        time_s = session.budget.left_s / (len(precisions) - number)
        session.part(f"best rate in {precision}")
        _find_best(precision, session, flush, time_s=time_s)
    if not session.rows:
        raise ConfigError("no product could be measured: give smaller ones with --shapes, or a longer --budget")
    _compare_with_datasheet(session)


class GemmOperands:
    """Random numbers for all products of a precision: drawing new ones takes longer than multiplying."""

    def __init__(self, precision: GemmPrecision, device: torch.device) -> None:
        self._precision, self._device = precision, device
        self._pool = self._drawn(2**20)

    def _drawn(self, num: int) -> Tensor:
        generator = torch.Generator(self._device).manual_seed(0)
        drawn = torch.randn(num, device=self._device, dtype=WIDE[self._precision], generator=generator)
        return drawn.to(DTYPES[self._precision])

    def call(self, product: Product, layout: str = "tn") -> Callable[[], Tensor]:
        """A call of the product, with the second operand laid out as a linear layer's weight: `tn` in BLAS.

        `nn` and `nt` are the layouts of its two products in the backward pass.
        """
        torch.set_float32_matmul_precision("high" if self._precision == "tf32" else "highest")
        m, n, k = product.m, product.n, product.k
        second = -(-m * k // ALIGNED) * ALIGNED  # aligned like an allocation of its own
        if self._pool.numel() < second + n * k:
            self._pool = self._pool.new_empty(0)  # free the old numbers first
            self._pool = self._drawn(second + n * k)
        a_MK, b_NK = self._pool[: m * k].view(m, k), self._pool[second : second + n * k].view(n, k)
        if self._precision == "fp8":
            one = torch.ones((), device=self._device)
            return lambda: torch._scaled_mm(
                a_MK, b_NK.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        out_MN = torch.empty(m, n, device=self._device, dtype=self._pool.dtype)
        if layout == "nn":
            return lambda: torch.mm(a_MK, b_NK.view(k, n), out=out_MN)
        if layout == "nt":
            return lambda: torch.mm(a_MK.view(k, m).t(), b_NK.view(k, n), out=out_MN)
        return lambda: torch.mm(a_MK, b_NK.t(), out=out_MN)


def operand_bytes(product: Product, precision: GemmPrecision) -> float:
    drawn = WIDE[precision].itemsize + (DTYPES[precision].itemsize if precision == "fp8" else 0)
    return float(drawn * (product.m + product.n) * product.k + WIDE[precision].itemsize * product.m * product.n)


def _obstacle(product: Product, precision: GemmPrecision, device: torch.device) -> str:
    """Why a product cannot be measured; empty if it can."""
    if precision == "fp8" and (product.k % 16 or product.n % 16):
        return "8-bit products need N and K that are multiples of 16"
    if operand_bytes(product, precision) > MEMORY_FRAC * free_bytes(device):
        return "its operands need more than a quarter of the free memory"
    return ""


def _measure_shapes(
    products: tuple[Product, ...], precisions: list[GemmPrecision], session: BenchSession, flush: CacheFlush | None,
    *, until_s: float,
) -> None:  # fmt: skip
    """Each product in each precision, small ones first. A product that would take too long is left out and noted."""
    ordered = sorted(products, key=lambda product: product.flop)
    pairs = [(product, precision) for product in ordered for precision in precisions]
    rates: dict[str, float] = {}
    operands = {precision: GemmOperands(precision, session.device) for precision in precisions}
    for index, (product, precision) in enumerate(pairs):
        sides = f"{product.m},{product.n},{product.k} in {precision}"
        why = _obstacle(product, precision, session.device)
        share_s = (session.budget.left_s - until_s) / (len(pairs) - index)
        expected_s = 3.0 * product.flop / rates[precision] if precision in rates else 0.0
        if not why and not session.has_time_for(expected_s, until_s=until_s):
            why = "the budget is too short"
        if why:
            session.leave_out(sides, why)
            continue
        session.part(sides)
        timing = session.time(operands[precision].call(product), before=flush, share_s=share_s)
        rates[precision] = product.flop / timing.time_s
        session.rows.append(_row(product, precision, "shapes", timing.row()))


def _row(product: Product, precision: str, series: str, timed: dict[str, Any], *, layout: str = "tn") -> dict[str, Any]:
    return {
        "precision": precision, "m": product.m, "n": product.n, "k": product.k, "batch": 1, "name": product.name,
        "series": series, "layout": layout, **timed, "flop_per_s": product.flop / float(timed["time_s"]),
    }  # fmt: skip


def _find_best(precision: GemmPrecision, session: BenchSession, flush: CacheFlush | None, *, time_s: float) -> None:
    device = session.device
    point_s = EXPLORE_POINT_S[device.type]
    operands = GemmOperands(precision, device)
    begun_s = time.monotonic()
    ends_s = begun_s + SEARCH_FRAC * time_s
    fastest = max((float(row["flop_per_s"]) for row in _rows_in(precision, session)), default=math.inf)

    def rate_of(shape: Shape) -> float | None:
        product = Product(m=shape[0], n=shape[1], k=shape[2])
        if _obstacle(product, precision, device) or time.monotonic() + MIN_CALLS * product.flop / fastest > ends_s:
            return None
        timing = measure(operands.call(product), device=device, budget_s=point_s, before=flush)
        session.beat(point_s)
        return product.flop / timing.time_s

    def goes_on() -> bool:
        return time.monotonic() < ends_s and session.stop.requested is None

    tried = search(rate_of, grid=GRIDS[device.type], seeds=_seeds(precision, session), goes_on=goes_on)
    finalists = sorted(tried, key=lambda shape: tried[shape], reverse=True)[:NUM_FINALISTS]
    final_s, ends_s = FINAL_FRAC * time_s / max(len(finalists), 1), begun_s + (SEARCH_FRAC + FINAL_FRAC) * time_s
    for shape in finalists:  # measured again: the best of many noisy rates is partly luck
        product = Product(m=shape[0], n=shape[1], k=shape[2], name="search")
        if shape != finalists[0] and time.monotonic() + MIN_CALLS * product.flop / tried[shape] > ends_s:
            continue
        timing = session.time(operands.call(product), before=flush, share_s=final_s)
        session.rows.append(_row(product, precision, "best", timing.row()))
    of_precision = _rows_in(precision, session)
    if not of_precision:
        session.note(f"no shape could be measured in {precision}: the budget or the memory is too small")
        return
    best = max(of_precision, key=lambda row: float(row["flop_per_s"]))
    session.summary.setdefault("best", {})[precision] = {key: best[key] for key in ("m", "n", "k", "flop_per_s")} | {
        "num_tried": len(tried)
    }
    held = Product(m=best["m"], n=best["n"], k=best["k"], name="sustained")
    if device.type == "cuda":
        _cool(held, precision, operands, session, time_s=COOL_FRAC * time_s)
    _sustain(held, operands.call(held), precision, session, time_s=time_s)


def _cool(
    held: Product, precision: GemmPrecision, operands: GemmOperands, session: BenchSession, *, time_s: float
) -> None:
    """Time products as they occur in a step: in all three layouts, with pauses, so that the board stays below its power
    limit. Back to back they run slower, and a step is seldom all products. The product to be sustained comes first."""
    layouts = LAYOUTS[:1] if precision == "fp8" else LAYOUTS  # 8-bit units need the second operand transposed
    layers = [Product(m=m, n=n, k=k, name=COOL) for m, n, k in COOL_PRODUCTS]
    pairs = [(replace(held, name=COOL_HELD), LAYOUTS[0]), *((layer, layout) for layer in layers for layout in layouts)]
    fitting = [pair for pair in pairs if not _obstacle(pair[0], precision, session.device)]
    samples_s: list[list[float]] = [[] for _ in fitting]
    ends_s = time.monotonic() + time_s
    for number in range(NUM_COOL_ROUNDS):
        for (product, layout), times_s in zip(fitting, samples_s, strict=True):
            if session.stop.requested is None and (number == 0 or time.monotonic() < ends_s):
                times_s.append(_after_pause_s(operands.call(product, layout)))
    for (product, layout), times_s in zip(fitting, samples_s, strict=True):
        if times_s:
            session.rows.append(_row(product, precision, "cool", timing_of(times_s).row(), layout=layout))
    session.beat(time_s)


def _after_pause_s(call: Callable[[], Tensor]) -> float:
    """Time of one call on a board that was idle for a while."""
    time.sleep(PAUSE_S)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
    call()
    marks[0].record()
    for _ in range(NUM_COOL_CALLS - 1):
        call()
    marks[1].record()
    marks[1].synchronize()
    return float(marks[0].elapsed_time(marks[1])) / units.KILO / (NUM_COOL_CALLS - 1)


def _rows_in(precision: GemmPrecision, session: BenchSession) -> list[dict[str, Any]]:
    return [row for row in session.rows if row["precision"] == precision]


def _seeds(precision: GemmPrecision, session: BenchSession) -> list[Shape]:
    """The three best of the measured shapes, then the usual starting points."""
    measured = [row for row in _rows_in(precision, session) if row["series"] == "shapes"]
    measured.sort(key=lambda row: float(row["flop_per_s"]), reverse=True)
    return [*((row["m"], row["n"], row["k"]) for row in measured[:3]), *SEEDS[session.device.type]]


def _sustain(
    product: Product, call: Callable[[], Tensor], precision: GemmPrecision, session: BenchSession, *, time_s: float
) -> None:
    """Run a product back to back. The second half gives the rate of a warm board at its power cap."""
    duration_s = min(LONGEST_SUSTAINED_S, SUSTAINED_FRAC * time_s)

    def back_to_back() -> list[float]:
        synchronise(session.device)
        samples_s, ends_s, num = [], time.monotonic() + duration_s, 1
        while True:
            begun_s = time.perf_counter()
            for _ in range(num):
                call()
            synchronise(session.device)
            once_s = (time.perf_counter() - begun_s) / num
            samples_s.append(once_s)
            num = max(1, math.ceil(SUSTAINED_SAMPLE_S / max(once_s, 1e-7)))
            if time.monotonic() >= ends_s:
                return samples_s

    samples_s = session.watch.steadily(back_to_back)
    timing = timing_of(samples_s[len(samples_s) // 2 :])
    row = _row(product, precision, "sustained", timing.row())
    session.rows.append(row)
    session.summary.setdefault("sustained", {})[precision] = {
        "m": product.m, "n": product.n, "k": product.k, "flop_per_s": row["flop_per_s"], "duration_s": duration_s,
    }  # fmt: skip


def _compare_with_datasheet(session: BenchSession) -> None:
    """Add the catalogued peak and the share of it to the summary, if the device is in the catalogue."""
    entry = catalogued(session.device)
    for figures in (session.summary.get("best", {}), session.summary.get("sustained", {})):
        for precision, figure in figures.items():
            peak = None if entry is None else entry.peak.get(precision)
            figure["peak_flop_per_s"] = None if peak is None else peak.value
            figure["peak_frac"] = None if peak is None else figure["flop_per_s"] / peak.value
    if entry is None and session.summary:
        session.note("the catalogue has no entry for this device, so no share of a datasheet's peak is reported")
