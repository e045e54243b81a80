"""Made-up measurements in the shape of the micro benchmarks', and calibrations that follow from them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from scalewright import __version__
from scalewright.catalog.calibration import SCHEMA, Calibration, EngineFit, Value
from scalewright.observe.calibrate import BenchmarkRun
from scalewright.records.measurements import Measurements

CPU = {"type": "cpu", "name": "Made-up CPU", "num_ranks": 1}
GPU = {"type": "cuda", "name": "NVIDIA H200", "num_ranks": 1}


def timed(amount: str, whole: float, time_s: float, **more: Any) -> dict[str, Any]:
    """A row with a rate and the interval of its median."""
    return {**more, "time_s": time_s, "time_low_s": 0.98 * time_s, "time_high_s": 1.03 * time_s, "repeats": 9,
            amount: whole / time_s}  # fmt: skip


def product_rows(rate: float, *, start_s: float = 0.0, precision: str = "fp32", series: str = "shapes") -> list[Any]:
    sides = ((64, 64, 64), (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 768, 256), (1024, 1024, 1024))
    rows = []
    for m, n, k in sides:
        flop = 2.0 * m * n * k
        rows.append(timed("flop_per_s", flop, start_s + flop / rate, precision=precision, m=m, n=n, k=k, batch=1,
                          series=series))  # fmt: skip
    return rows


def memory_rows(rate: float, *, place: str = "host") -> list[Any]:
    rows = []
    for size in (2**20, 2**26):
        for op, passes in (("copy", 2), ("add", 3), ("read", 1)):
            speed = 5.0 * rate if size == 2**20 else rate
            rows.append(timed("bytes_per_s", passes * size, passes * size / speed, op=op, place=place, is_pinned=None,
                               bytes=passes * size, size_bytes=size))  # fmt: skip
    return rows


def attention_rows(rate: float, ratio: float, *, half_at: float, precision: str = "bf16") -> list[Any]:
    """Two kernels, of which one is slower; heads of 128."""
    rows = []
    for seq in (256, 512, 1024, 2048, 4096, 8192):
        flop = 2.0 * 4 * 16 * float(seq) ** 2 * 128
        once = flop / (rate * seq / (seq + half_at))
        for kernel, slower in (("cudnn", 1.0), ("math", 5.0)):
            common = {"precision": precision, "batch": 4, "heads": 16, "kv_heads": 16, "seq": seq, "head_dim": 128,
                      "causal": True, "kernel": kernel}  # fmt: skip
            rows.append(timed("flop_per_s", flop, slower * once, direction="forward", **common))
            rows.append(timed("flop_per_s", 2.5 * flop, slower * once * ratio, direction="backward", **common))
    return rows


def source(kind: str, rows: list[Any], device: dict[str, Any], **more: Any) -> BenchmarkRun:
    return BenchmarkRun(
        run=kind, measurements=Measurements(kind=kind, device=device, versions={"torch": "2.0"}, rows=rows, **more)
    )


def value(name: str, number: float, *, of: str = "", num_ranks: int = 1) -> Value:
    return Value.model_validate({
        "name": name, "of": of, "num_ranks": num_ranks, "value": number, "low": number, "high": number, "num_rows": 1,
        "runs": ["made-up"],
    })  # fmt: skip


def calibration(*values: Value, device: str = "cpu", **more: Any) -> Calibration:
    on_cpu = device == "cpu"
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "name": "made-up",
        "base": "laptop" if on_cpu else "generic-h200",
        "partition": "local" if on_cpu else "gpu",
        "fingerprint": {
            "device": device, "name": "Made-up CPU" if on_cpu else "NVIDIA H200", "num_devices": 1,
            "processor": "Made-up CPU", "num_cores": 2, "memory_bytes": 2**34,
        },
        "versions": {"torch": "2.0", "scalewright": __version__},
        "created": datetime(2026, 11, 15, tzinfo=UTC),
        "budget_s": 60.0,
        "spent_s": 59.0,
        "values": values,
    }  # fmt: skip
    return Calibration.model_validate(body | more)


CPU_VALUES = (
    value("matmul_flop_per_s", 300e9, of="fp32"),
    value("matmul_flop_per_s", 150e9, of="fp32", num_ranks=2),
    value("matmul_start_s", 3e-6),
    value("memory_bytes_per_s", 20e9),
    value("memory_bytes_per_s", 11e9, num_ranks=2),
    value("dispatch_s", 2e-6, of="eager"),
    value("attention_flop_per_s", 80e9, of="fp32"),
)
GPU_VALUES = (
    value("best_matmul_flop_per_s", 740e12, of="bf16"),
    value("matmul_flop_per_s", 640e12, of="bf16"),
    value("matmul_flop_per_s", 50e12, of="fp32"),
    value("memory_bytes_per_s", 4.3e12),
    value("dispatch_s", 10e-6, of="eager"),
    value("dispatch_s", 30e-6, of="compiled"),
    value("dispatch_s", 1e-6, of="graph"),
    value("attention_flop_per_s", 600e12, of="bf16"),
    value("attention_backward_ratio", 3.0),
)


def engine_fit(engine: str = "deepspeed", stack: str = "eager", **factors: Any) -> EngineFit:
    """Factors of a training program, as if fitted to one run."""
    times = dict.fromkeys(("measured_s", "low_s", "high_s", "before_s", "after_s", "left_out_s"), 0.1)
    step = {"run": "a", "workload": "language", "label": "a", "num_ranks": 1, "num_steps": 9, "precision": "bf16",
            "size": 768.0, **times}  # fmt: skip
    return EngineFit.model_validate({
        "engine": engine, "stack": stack, "release": "0.19.8", "versions": {}, "created": datetime.now(UTC),
        "spent_s": 60.0, "steps": [step],
        "factors": [{"name": name, "factor": f, "low": f, "high": f} for name, f in factors.items()],
    })  # fmt: skip
