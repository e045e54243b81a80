"""From the run directories of micro benchmarks to the values of a calibration. Fits only; starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.catalog.calibration import Value, ValueName
from scalewright.costs.attention import REFERENCE_HEAD
from scalewright.costs.machine import Machine
from scalewright.costs.machine.calibrated import COOL
from scalewright.errors import ConfigError
from scalewright.records.measurements import Measurements, read_measurements
from scalewright.records.run_directory import RunDirectory

Row = dict[str, Any]
Floats = NDArray[np.float64]
MIN_FIT_ROWS = 6
"""Rows that a fit of two or three numbers needs to be worth more than the catalogue's."""
MIN_PRODUCTS = 4
"""Shapes of which a CPU's rate is the median: fewer are the smallest ones of a run that others held up."""
JOLTED = 2.0
"""A median so much above the low end of its own interval is that of repeats which others interrupted."""
LONGEST_START_S = 1e-3
"""No library takes so long to start a product: others held the core meanwhile, and nothing is known of the start."""
LARGE_QUANTILE, SMALL_QUANTILE = 0.5, 0.3
"""Products whose rate is a CPU's rate, and products that show what starting one takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRun:
    """A finished micro benchmark and the name of its run."""

    run: str
    measurements: Measurements

    @property
    def num_ranks(self) -> int:
        return int(self.measurements.device.get("num_ranks", 1))

    @property
    def on_cpu(self) -> bool:
        return self.measurements.device.get("type") == "cpu"


def read_sources(directories: Iterable[RunDirectory]) -> list[BenchmarkRun]:
    """Measurements of the runs that have any; a run without is one that did not finish."""
    return [
        BenchmarkRun(run=directory.path.name, measurements=read_measurements(directory))
        for directory in directories
        if directory.measurements.exists()
    ]


def values_from(sources: Sequence[BenchmarkRun], base: Machine) -> tuple[Value, ...]:
    """Everything that the cost models can use of the measurements, with what the base machine has in its place."""
    values: list[Value] = []
    for source in sources:
        fit = FITS.get(source.measurements.kind)
        if fit is not None:
            values += fit(source, base)
    kept: dict[tuple[str, str, int], Value] = {}
    for value in values:  # a later run of the same benchmark takes the place of an earlier one
        kept[value.name, value.of, value.num_ranks] = value
    return tuple(kept.values())


def _value(
    source: BenchmarkRun, name: ValueName, samples: Sequence[float], *, of: str = "", catalogue: float | None = None,
    value: float | None = None,
) -> Value:  # fmt: skip
    """The median of the samples, or the given value of a fit, between the smallest and the largest of them."""
    middle = float(np.median(samples)) if value is None else value
    return Value(
        name=name, of=of, num_ranks=source.num_ranks, value=middle, low=min(middle, *samples),
        high=max(middle, *samples), num_rows=len(samples), runs=(source.run,), catalogue=catalogue or None,
    )  # fmt: skip


def _rates(rows: Iterable[Row], amount: str) -> list[float]:
    """Rates at the median and at both ends of its interval."""
    rates: list[float] = []
    for row in rows:
        whole = float(row[amount]) * float(row["time_s"])
        rates += [whole / float(row.get(key) or row["time_s"]) for key in ("time_s", "time_low_s", "time_high_s")]
    return rates


def gemm_values(source: BenchmarkRun, base: Machine) -> list[Value]:
    """Large products held for seconds, the best product of all, and what starting one costs a CPU.

    How tiles fill a GPU stays as catalogued; the rate of full tiles is what they leave of the measured ones.
    """
    values: list[Value] = []
    precisions = [name for name, num in num_products(source).items() if num >= MIN_PRODUCTS or not source.on_cpu]
    for precision in precisions:
        rows = [row for row in source.measurements.rows if row["precision"] == precision]
        best = max((row for row in rows if row.get("series") != "cool"), key=lambda row: float(row["flop_per_s"]))
        held = [row for row in rows if row.get("series") == "sustained"] or [best]
        known = _catalogued_rates(base, precision)
        values.append(_value(source, "best_matmul_flop_per_s", _rates([best], "flop_per_s"), of=precision,
                            catalogue=known[0]))  # fmt: skip
        if not source.on_cpu:
            values.append(_value(source, "matmul_flop_per_s", _rates(held, "flop_per_s"), of=precision,
                                catalogue=known[1]))  # fmt: skip
            values += _full_rates(source, base, precision, rows)
    return values + (_started_products(source, base, precisions) if source.on_cpu else [])


def _full_rates(source: BenchmarkRun, base: Machine, precision: str, rows: list[Row]) -> list[Value]:
    """What products of full tiles reach on a cool board, and how much less of it is left without a pause."""
    cool = [row for row in rows if row.get("series") == "cool"]
    rates = [full_tile_flop_per_s(base, row) for row in cool if row["name"] == "cool"]
    if not rates:
        return []
    values = [_value(source, "full_matmul_flop_per_s", rates, of=f"{precision} {COOL}")]
    alone = [row for row in cool if row["name"] != "cool"]
    held = [row for row in rows if row.get("series") == "sustained"]
    if alone and held:
        share = min(float(held[0]["flop_per_s"]) / float(alone[0]["flop_per_s"]), 1.0)
        values.append(_value(source, "full_matmul_flop_per_s", [share * rate for rate in rates], of=precision))
    return values


def full_tile_flop_per_s(base: Machine, row: Row) -> float:
    """The rate at which the tile model gives a product the time that it took.

    Equation  F = min over tiles of W U r c 2 (k + k0) / (e (t - W w)),  the inverse of compute.tiled_product_time_s
    Source    nvidia2023 (Matrix Multiplication Background User's Guide), tile and wave quantisation
    Assumes   the product is not bound by memory
    Checked   tests/observe/test_calibrate_fits.py: gives back the rate that a time was made from
    """
    units = base.accelerator.num_compute_units
    m, n, k, time_s = (float(row[key]) for key in ("m", "n", "k", "time_s"))
    if units is None:
        return 2.0 * m * n * k / time_s
    c, rates = base.constants, []
    for name, share in c.tile_share.items():
        tile_rows, columns = (float(side) for side in name.split("x"))
        waves = np.ceil(np.ceil(m / tile_rows) * np.ceil(n / columns) / units.value)
        work = waves * units.value * tile_rows * columns * 2.0 * (k + c.depth_overhead.value) / share.value
        rates.append(work / time_s)
    return float(min(rates))


def num_products(source: BenchmarkRun) -> dict[str, int]:
    """Shapes that were measured, by precision."""
    shapes_by_precision: dict[str, set[tuple[int, int, int]]] = {}
    for row in source.measurements.rows:
        if row.get("series") not in ("sustained", "cool"):
            shapes_by_precision.setdefault(str(row["precision"]), set()).add((row["m"], row["n"], row["k"]))
    return {precision: len(shapes) for precision, shapes in shapes_by_precision.items()}


def unmeasured_words(sources: Sequence[BenchmarkRun]) -> list[str]:
    """What a benchmark began to measure and could not, for people."""
    return [
        f"{source.run}: {num} products in {precision} were measured in its time, and {MIN_PRODUCTS} are needed: the "
        "catalogue's rate is used; calibrate again when this machine is quiet, or with a longer --budget"
        for source in sources
        if source.measurements.kind == "gemm" and source.on_cpu
        for precision, num in num_products(source).items()
        if num < MIN_PRODUCTS
    ]


def _catalogued_rates(base: Machine, precision: str) -> tuple[float | None, float | None]:
    try:
        return base.matmul_flop_per_s(precision), base.sustained_flop_per_s(precision)  # type: ignore[arg-type]
    except ConfigError:
        return None, None


def _started_products(source: BenchmarkRun, base: Machine, precisions: list[str]) -> list[Value]:
    """On a device without units to fill: t = t0 + 2 m n k / F; the rate of large products, the start of small ones.

    Medians, not least squares: other processes make single products many times slower, never faster.
    """
    values: list[Value] = []
    starts: list[float] = []
    for precision in precisions:
        rows = [r for r in source.measurements.rows if r["precision"] == precision and r.get("series") != "sustained"]
        work, times = _column(rows, lambda r: 2.0 * r["m"] * r["n"] * r["k"]), _column(rows, lambda r: r["time_s"])
        least = _column(rows, lambda r: r.get("time_low_s") or r["time_s"])
        quick = np.where(times > JOLTED * least, least, times)
        large, small = work >= np.quantile(work, LARGE_QUANTILE), work <= np.quantile(work, SMALL_QUANTILE)
        rates = [float(rate) for rate in work[large] / times[large]]
        rate = float(np.median(rates))
        start = float(np.median(np.maximum(quick[small] - work[small] / rate, 0.0)))
        values.append(_value(source, "matmul_flop_per_s", rates, of=precision,
                            catalogue=_catalogued_rates(base, precision)[1]))  # fmt: skip
        starts.append(start)
    if starts and 0.0 < min(starts) < LONGEST_START_S:
        values.append(_value(source, "matmul_start_s", starts))
    return values


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Intercept and slope with the least relative error; no intercept for few points, or where it is below zero."""
    weighted = np.stack([1.0 / y, x / y], axis=1)
    (start, slope), *_ = np.linalg.lstsq(weighted, np.ones_like(y), rcond=None)
    if len(x) < MIN_FIT_ROWS or start <= 0.0 or slope <= 0.0:
        return 0.0, float(np.median(y / x))
    return float(start), float(slope)


def memory_values(source: BenchmarkRun, base: Machine) -> list[Value]:
    """Copy and add at the largest size, which no cache helps; the link to the host with pinned buffers."""
    place = "host" if source.on_cpu else "device"
    values: list[Value] = []
    streams = _largest([r for r in source.measurements.rows if r["place"] == place and r["op"] in ("copy", "add")])
    if streams:
        values.append(_value(source, "memory_bytes_per_s", _rates(streams, "bytes_per_s"),
                            value=float(np.mean([r["bytes_per_s"] for r in streams])),
                            catalogue=base.hbm_bytes_per_s))  # fmt: skip
    links = _largest([r for r in source.measurements.rows if r["place"] == "link" and r.get("is_pinned")])
    if links:
        slowest = min(links, key=lambda row: float(row["bytes_per_s"]))
        values.append(_value(source, "host_link_bytes_per_s", _rates([slowest], "bytes_per_s"),
                            catalogue=base.host_link_bytes_per_s))  # fmt: skip
    return values


def _largest(rows: list[Row]) -> list[Row]:
    most = max((float(row["bytes"]) / (3 if row["op"] == "add" else 2) for row in rows), default=0.0)
    return [row for row in rows if float(row["bytes"]) / (3 if row["op"] == "add" else 2) >= 0.99 * most]


def attention_values(source: BenchmarkRun, base: Machine) -> list[Value]:
    """Rate of the fastest kernel for long sequences and heads of 128, by the ramp that the cost model has."""
    values: list[Value] = []
    d0 = base.constants.attention_head_ramp.value
    for precision in dict.fromkeys(str(row["precision"]) for row in source.measurements.rows):
        pairs = _fastest_kernels([row for row in source.measurements.rows if row["precision"] == precision])
        if not pairs:
            continue
        ahead = [pair[0] for pair in pairs]
        ratios = [float(backward["time_s"]) / float(forward["time_s"]) for forward, backward in pairs]
        values.append(_value(source, "attention_backward_ratio", ratios, of=precision))
        seq, rate = _column(ahead, lambda r: r["seq"]), _column(ahead, lambda r: r["flop_per_s"])
        heads = _column(ahead, lambda r: r["head_dim"])
        s0 = 0.0
        if not source.on_cpu:
            rate = rate / (heads / (heads + d0) * (REFERENCE_HEAD + d0) / REFERENCE_HEAD)
            start, slope = _line(1.0 / seq, 1.0 / rate)
            s0 = slope / start if start > 0.0 else base.constants.attention_seq_ramp.value
            has_ramp = any(v.name == "attention_seq_ramp" for v in values)
            if start > 0.0 and precision in ("bf16", "fp16") and not has_ramp:
                values.append(_value(source, "attention_seq_ramp", [s0],
                                    catalogue=base.constants.attention_seq_ramp.value))  # fmt: skip
        values.append(_value(source, "attention_flop_per_s", [float(x) for x in rate * (seq + s0) / seq], of=precision))
    return values


def _fastest_kernels(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Forward and backward of the kernel that is faster over both, for each causal case."""
    cases: dict[tuple[Any, ...], dict[str, dict[str, Row]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("batch", "heads", "kv_heads", "seq", "head_dim", "causal"))
        cases.setdefault(key, {}).setdefault(str(row["kernel"]), {})[str(row["direction"])] = row
    fastest: list[tuple[Row, Row]] = []
    for key, kernels in cases.items():
        both = [k for k in kernels.values() if {"forward", "backward"} <= set(k)]
        if both and key[-1]:
            best = min(both, key=lambda k: float(k["forward"]["time_s"]) + float(k["backward"]["time_s"]))
            fastest.append((best["forward"], best["backward"]))
    return fastest


def dispatch_values(source: BenchmarkRun, _base: Machine) -> list[Value]:
    """Host time of one launch, by how it is issued: a plain addition, a compiled kernel, a kernel in a graph."""
    values: list[Value] = []
    for mode, op in (("eager", "add"), ("compiled", "fused"), ("graph", "add")):
        rows = [row for row in source.measurements.rows if row["mode"] == mode and row["op"] == op]
        if rows:
            samples = [float(rows[0].get(key, rows[0]["time_s"])) for key in ("time_s", "time_low_s", "time_high_s")]
            values.append(_value(source, "dispatch_s", samples, of=mode, value=samples[0]))
    return values


def collective_values(source: BenchmarkRun, base: Machine) -> list[Value]:
    """The line that holds for the largest sizes of each operation: what one costs to start, and its bandwidth."""
    values: list[Value] = []
    last: dict[str, Row] = {}
    for fit in source.measurements.fits:
        if fit["op"] not in last or fit["from_bytes"] > last[fit["op"]]["from_bytes"]:
            last[fit["op"]] = fit
    for op, fit in last.items():
        rate = [float(fit[key]) for key in ("bytes_per_s", "bytes_per_s_low", "bytes_per_s_high") if fit.get(key)]
        values.append(_value(source, "collective_bytes_per_s", rate, of=op, value=float(fit["bytes_per_s"]),
                            catalogue=base.scale_up_bytes_per_s))  # fmt: skip
    firsts = {fit["op"]: fit for fit in sorted(source.measurements.fits, key=lambda f: f["from_bytes"], reverse=True)}
    for op, fit in firsts.items():
        if float(fit["alpha_s"]) > 0.0:
            samples = [float(fit[key]) for key in ("alpha_s", "alpha_low_s", "alpha_high_s") if float(fit[key]) > 0.0]
            values.append(_value(source, "collective_start_s", samples, of=op, value=float(fit["alpha_s"])))
    return values


def storage_values(source: BenchmarkRun, _base: Machine) -> list[Value]:
    """Reads that no cache helped, the fastest number of workers of each format; small files a second."""
    values: list[Value] = []
    for form in dict.fromkeys(str(row["format"]) for row in source.measurements.rows):
        rows = [row for row in source.measurements.rows if row["format"] == form]
        cold = [row for row in rows if row.get("cache") == "cold"] or rows
        best = max(cold, key=lambda row: float(row["bytes_per_s"]))
        values.append(_value(source, "storage_read_bytes_per_s", [float(best["bytes_per_s"])], of=form))
        if form == "files":
            values.append(_value(source, "storage_files_per_s", [float(best["samples_per_s"])]))
    return values


def checkpoint_values(source: BenchmarkRun, _base: Machine) -> list[Value]:
    """Saves to the disk by mode, and the copy that training waits for where they are written beside it."""
    values: list[Value] = []
    for mode in dict.fromkeys(str(row["mode"]) for row in source.measurements.rows):
        rows = [row for row in source.measurements.rows if row["mode"] == mode and float(row["bytes_per_s"]) > 0.0]
        if rows:
            largest = max(float(row["size_bytes"]) for row in rows)
            rates = [float(row["bytes_per_s"]) for row in rows if float(row["size_bytes"]) == largest]
            values.append(_value(source, "checkpoint_bytes_per_s", rates, of=mode))
            stalls = [float(row["stall_s"]) for row in rows if float(row["size_bytes"]) == largest]
            if mode == "async" and min(stalls) > 0.0:
                copied = [largest / source.num_ranks / stall_s for stall_s in stalls]
                values.append(_value(source, "checkpoint_copy_bytes_per_s", copied))
    return values


CONVOLUTION_KEYS = (
    "op", "precision", "layout", "batch", "channels_in", "channels_out", "kernel", "in_size", "out_size", "count",
    "direction", "bytes", "time_s",
)  # fmt: skip


def convolution_rows(sources: Sequence[BenchmarkRun]) -> list[Row]:
    """What a calibration keeps of `bench convolution`: operators by shape, of the last run that measured each."""
    kept: dict[tuple[Any, ...], Row] = {}
    for source in sources:
        if source.measurements.kind == "convolution" and not source.on_cpu:
            for row in source.measurements.rows:
                short = {key: row[key] for key in CONVOLUTION_KEYS if key in row}
                kept[tuple(v for k, v in short.items() if k not in ("time_s", "bytes", "count", "batch"))] = short
    return list(kept.values())


def _column(rows: Sequence[Row], pick: Any) -> Floats:
    return np.array([float(pick(row)) for row in rows])


FITS = {
    "gemm": gemm_values,
    "memory": memory_values,
    "attention": attention_values,
    "dispatch": dispatch_values,
    "collectives": collective_values,
    "storage": storage_values,
    "checkpoint": checkpoint_values,
}
"""What each benchmark's measurements become."""
