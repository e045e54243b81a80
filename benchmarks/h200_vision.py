"""Measure steps of the vision benchmark on one GPU, as `scalewright bench vision` runs them.

    PYTHONPATH=src python benchmarks/h200_vision.py OUT.jsonl [--only amp-graphs,fp32-graphs] [--within SECONDS]

Prints and stores images/s of ResNet-50 on synthetic images, peak memory, the predicted step, versions, power limit and
mean power. Needs torch with CUDA and pydantic; power needs nvidia-ml-py. A step is timed with the device synchronised.
`plain-pool` is what PyTorch's compiler makes of its own max pooling, for comparison.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scalewright.catalog.library import open_catalog
from scalewright.costs.machine import machine_from_system
from scalewright.launch.prepare.outlook import vision_outlook
from scalewright.run.device import choose_device, join_group
from scalewright.run.vision.loader import SyntheticBatches
from scalewright.run.vision.session import open_vision_session
from scalewright.run.world import World
from scalewright.workload.vision_run import VisionRun

WARM_UP = 5
LONG, SHORT = 60, 12


@dataclass(frozen=True)
class Variant:
    precision: str
    batch: int
    channels_last: bool
    compile: str = "off"
    steps: int = SHORT
    plain_pool: bool = False


VARIANTS = {
    "amp-graphs": Variant("bf16", 512, True, "graphs", LONG),
    "fp32-graphs": Variant("fp32", 512, True, "graphs", SHORT),
    "fp32-512-last": Variant("fp32", 512, True),
    "fp32-512": Variant("fp32", 512, False),
    "fp32-256": Variant("fp32", 256, False),
    "fp32-64": Variant("fp32", 64, False),
    "tf32-256-last": Variant("tf32", 256, True),
    "tf32-128": Variant("tf32", 128, False),
    "amp-512-last": Variant("bf16", 512, True),
    "amp-256-last": Variant("bf16", 256, True),
    "amp-128-last": Variant("bf16", 128, True),
    "amp-64-last": Variant("bf16", 64, True),
    "amp-512": Variant("bf16", 512, False),
    "amp-128": Variant("bf16", 128, False),
    "fp16-256-last": Variant("fp16", 256, True),
    "amp-graphs-plain-pool": Variant("bf16", 512, True, "graphs", LONG, plain_pool=True),
    "amp-graphs-128": Variant("bf16", 128, True, "graphs"),
    "tf32-graphs-256": Variant("tf32", 256, True, "graphs"),
    "amp-compiled-256": Variant("bf16", 256, True, "default"),
}


def vision_run(variant: Variant) -> VisionRun:
    shape = open_catalog().model("resnet-50").conv
    assert shape is not None
    return VisionRun(
        model_id="resnet-50", blocks=shape.blocks, width=shape.width, num_classes=shape.num_classes,
        image_size=shape.image_size, num_ranks=1, batch=variant.batch, epochs=1,
        steps_per_epoch=WARM_UP + variant.steps, precision=variant.precision, channels_last=variant.channels_last,
        compile=variant.compile, device="cuda",
    )  # fmt: skip


class Board:
    """Energy counter and power limit of the GPU; None without nvidia-ml-py."""

    def __init__(self) -> None:
        try:
            self._nvml = importlib.import_module("pynvml")
        except ImportError:
            self._nvml = None
            return
        self._nvml.nvmlInit()
        self._handle = self._nvml.nvmlDeviceGetHandleByIndex(0)

    def energy_j(self) -> float | None:
        return None if self._nvml is None else self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3

    def facts(self) -> dict[str, Any]:
        if self._nvml is None:
            return {}
        clock = self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM)
        return {
            "power_limit_w": self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1e3,
            "sm_clock_hz": clock * 1e6,
            "driver": self._nvml.nvmlSystemGetDriverVersion(),
        }


def measure(name: str, variant: Variant, device: torch.device, board: Board) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    run, started_s = vision_run(variant), time.perf_counter()
    session = open_vision_session(run, device)
    if variant.plain_pool:
        session.model.folds_pool = False
    batches, times_s, before_j, timed_from_s = SyntheticBatches(run, device, rank=0, first_step=0), [], None, 0.0
    for step in range(run.steps):
        if step == WARM_UP:
            before_j, timed_from_s = board.energy_j(), time.perf_counter()
        batch = batches.next()
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        loss = float(session.step(batch.images_BHWC, batch.labels_B).loss)
        times_s.append(time.perf_counter() - begun_s)
    after_j, elapsed_s, facts = board.energy_j(), time.perf_counter() - timed_from_s, board.facts()
    kept_s = times_s[WARM_UP + variant.steps // 3 :] if variant.steps == LONG else times_s[WARM_UP:]
    step_s = statistics.median(kept_s)
    catalog = open_catalog()
    ahead = vision_outlook(catalog, run, machine_from_system(catalog, "generic-h200"), start_s=0.0)
    return {
        "name": name, "model": "resnet-50", "image_size": run.image_size, "batch": run.batch,
        "precision": run.precision, "channels_last": run.channels_last, "compile": run.compile,
        "plain_pool": variant.plain_pool, "data": "synthetic", "step_time_s": step_s,
        "spread_s": [min(kept_s), max(kept_s)], "num_steps": len(kept_s), "images_per_s": run.batch / step_s,
        "flop_per_s": run.step_flop / step_s, "predicted_step_s": ahead.step_s,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "predicted_bytes": float(ahead.prediction.as_document()["memory_bytes"]),
        "power_w": None if before_j is None or after_j is None else (after_j - before_j) / elapsed_s, **facts,
        "setup_s": timed_from_s - started_s, "last_loss": loss, "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the vision benchmark on one GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(VARIANTS))
    parser.add_argument("--within", type=float, default=float("inf"), help="begin no variant after so many seconds")
    args = parser.parse_args()
    world, board, begun_s = World.from_environment({}), Board(), time.monotonic()
    device = choose_device("cuda", world)
    join_group(world, device)
    with args.out.open("a", encoding="utf-8") as file:
        for name in args.only.split(","):
            if time.monotonic() - begun_s > args.within:
                print(f"{name}: no time left", flush=True)
                continue
            try:
                row = measure(name, VARIANTS[name], device, board)
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(f"{name}: {row['images_per_s']:,.0f} images/s, {row['step_time_s'] * 1e3:.2f} ms (predicted "
                      f"{row['predicted_step_s'] * 1e3:.2f}), {row['peak_allocated_bytes'] / 2**30:.1f} GiB, "
                      f"{row['power_w'] or 0:.0f} W, set up in {row['setup_s']:.0f} s", flush=True)  # fmt: skip
            except Exception:
                print(f"{name}: FAILED\n{traceback.format_exc()[-2000:]}", flush=True)
            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
