"""Measure for a second or two how fast this machine multiplies and copies, so that a run can be predicted."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from scalewright.errors import EnvironmentFailedError, MissingExtraError
from scalewright.records.documents import document, to_json

PRODUCT_SIZE = {"cpu": 1024, "cuda": 8192}
COPY_BYTES = {"cpu": 1 << 27, "cuda": 1 << 31}
MEASURE_S = 0.6
DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def print_probe(*, device: str, precision: str) -> None:
    """Best matrix product, copy rate and start-up time of this machine as one JSON document on stdout."""
    started_s = time.monotonic()
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("run", "torch") from error
    import_s = time.monotonic() - started_s
    if device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentFailedError("no GPU is visible to PyTorch here: leave --device out, or run where there is one")
    torch.set_grad_enabled(False)

    def synchronise() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def best_s(work: Callable[[], object]) -> float:
        """Shortest time of repeated runs: other users of the machine only make it slower."""
        work()
        synchronise()
        best, until_s = float("inf"), time.monotonic() + MEASURE_S
        while time.monotonic() < until_s:
            run_started_s = time.perf_counter()
            work()
            synchronise()
            best = min(best, time.perf_counter() - run_started_s)
        return best

    n, dtype = PRODUCT_SIZE[device], getattr(torch, DTYPES[precision])
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    left = torch.randn(n, n, device=device).to(dtype)
    right = torch.randn(n, n, device=device).to(dtype)
    source = torch.zeros(COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product_s = best_s(lambda: torch.mm(left, right))
    copy_s = best_s(lambda: target.copy_(source))
    body = {
        "device": device,
        "name": torch.cuda.get_device_name() if device == "cuda" else processor_name(),
        "num_devices": torch.cuda.device_count() if device == "cuda" else 1,
        "num_cores": len(os.sched_getaffinity(0)),
        "precision": precision,
        "matmul_flop_per_s": 2.0 * n**3 / product_s,
        "memory_bytes_per_s": 2.0 * COPY_BYTES[device] / copy_s,
        "memory_bytes": _memory_bytes(torch, device),
        "import_s": import_s,
    }
    sys.stdout.write(to_json(document("probe", body)))


def _memory_bytes(torch: object, device: str) -> float:
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[1])  # type: ignore[attr-defined]
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def processor_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123  a line of it is enough
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "CPU")
    except OSError:
        return "CPU"
