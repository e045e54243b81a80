"""Measure steps of the language benchmark on one GPU, as `scalewright bench language` runs them.

    PYTHONPATH=src python benchmarks/language_h200.py OUT.jsonl [--only large-graphs,small-graphs] [--profile NAME]
    PYTHONPATH=src python benchmarks/language_h200.py OUT.jsonl --checkpoints FOLDER [--device cpu]

Prints and stores TFLOP/s (model FLOP by narayanan2021), peak memory beside the predicted one, versions and mean power.
Needs torch with CUDA and pydantic; power needs nvidia-ml-py. A step is timed with the device synchronised.

With --checkpoints a run saves into FOLDER, once synchronously and once asynchronously. What a save costs training is
what it held up directly plus all time by which later steps were slower than the median, per save.
"""

from __future__ import annotations

import argparse
import contextlib
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
from scalewright.planner.answer import answer
from scalewright.planner.question import Question
from scalewright.records.run_directory import RunDirectory
from scalewright.run.device import allow_attention, choose_device, join_group
from scalewright.run.language.session import open_language_session
from scalewright.run.language.train import run as run_language
from scalewright.run.metrics import MetricWriter
from scalewright.run.rank_context import RankContext
from scalewright.run.signals import StopSignals
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World
from scalewright.workload.language_run import LanguageRun, resolve
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_shape
from scalewright.workload.precision import recipe

LARGE = "layers=24,hidden=2048,heads=16,vocab=50304,seq=2048"
SMALL = "layers=24,hidden=1024,heads=16,vocab=50304,seq=2048"
WARM_UP, TIMED = 6, 15


@dataclass(frozen=True)
class Variant:
    shape: str
    layout: str
    compile: str
    attention: str = "auto"
    precision: str = "bf16"


VARIANTS = {
    "large-graphs": Variant(LARGE, "mbs=8", "graphs"),
    "large-default": Variant(LARGE, "mbs=8", "default"),
    "large-autotune": Variant(LARGE, "mbs=8", "max-autotune"),
    "large-flash": Variant(LARGE, "mbs=8", "graphs", "flash"),
    "large-eager": Variant(LARGE, "mbs=8", "off"),
    "large-fp8": Variant(LARGE, "mbs=8", "graphs", precision="fp8"),
    "small-graphs": Variant(SMALL, "mbs=1", "graphs"),
    "small-flash": Variant(SMALL, "mbs=1", "graphs", "flash"),
    "small-default": Variant(SMALL, "mbs=1", "default"),
    "small-eager": Variant(SMALL, "mbs=1", "off"),
}


def language_run(variant: Variant) -> LanguageRun:
    return resolve(
        from_shape(variant.shape), parse_layout(variant.layout), precision=variant.precision, device="cuda",
        steps=WARM_UP + TIMED, compile=variant.compile, attention=variant.attention,
    )  # fmt: skip


def energy_j() -> float | None:
    """Joules the GPU has used since the driver was loaded; None without nvidia-ml-py."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    nvml.nvmlInit()
    return float(nvml.nvmlDeviceGetTotalEnergyConsumption(nvml.nvmlDeviceGetHandleByIndex(0))) / 1e3


def measure(name: str, variant: Variant, device: torch.device, *, profile: bool) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    run = language_run(variant)
    kernel = allow_attention(run.attention, device)
    started_s = time.perf_counter()
    session = open_language_session(run, device)
    loader, times_s, losses = session.loader(), [], []
    before_j, timed_from_s = None, 0.0
    for step in range(run.steps):
        if step == WARM_UP:
            before_j, timed_from_s = energy_j(), time.perf_counter()
        batch = loader.next()
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        result = session.step(batch.tokens_BL, batch.targets_BL)
        torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begun_s)
        losses.append(float(result.loss))
    after_j, elapsed_s = energy_j(), time.perf_counter() - timed_from_s
    step_s = statistics.median(times_s[WARM_UP:])
    power_w = None if before_j is None or after_j is None else (after_j - before_j) / elapsed_s
    if profile:
        print(top_kernels(session, batch.tokens_BL, batch.targets_BL))
    return {
        "name": name, "shape": variant.shape, "layout": str(run.layout), "precision": run.precision,
        "compile": run.compile, "attention": kernel, "step_time_s": step_s,
        "spread_s": [min(times_s[WARM_UP:]), max(times_s[WARM_UP:])],
        "flop_per_s": run.step_flop / step_s, "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "predicted_bytes": predicted_bytes(variant), "power_w": power_w, "setup_s": timed_from_s - started_s,
        "first_loss": losses[0], "last_loss": losses[-1], "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip


def predicted_bytes(variant: Variant) -> float:
    """Peak allocated bytes as `scalewright predict --system generic-h200` gives them."""
    catalog = open_catalog()
    prediction = answer(
        Question(
            spec=from_shape(variant.shape),
            machine=machine_from_system(catalog, "generic-h200"),
            layout=parse_layout(variant.layout),
            recipe=recipe(variant.precision),
            stack=catalog.stack_of_own_run(variant.compile),
        )
    )
    return prediction.memory_bytes


def top_kernels(session: Any, tokens: torch.Tensor, targets: torch.Tensor) -> str:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        session.step(tokens, targets)
        torch.cuda.synchronize()
    return profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=28, max_name_column_width=90)


CHECKPOINTED = {
    "cuda": (SMALL, "mbs=1", "bf16", "graphs", 600),
    "cpu": ("layers=8,hidden=512,heads=8,vocab=8192,seq=128", "mbs=2", "fp32", "off", 12),
}
"""Shape, layout, precision, compile mode and steps between two saves, by device; one save midway, one at the end."""
NUM_SAVES = 1


def measure_checkpoints(folder: Path, device: str) -> list[dict[str, Any]]:
    shape, layout, precision, compiled, every = CHECKPOINTED[device]
    world = World.from_environment({})
    rows = []
    for name, is_async in (("sync", False), ("async", True)):
        run = resolve(
            from_shape(shape), parse_layout(layout), precision=precision, device=device, compile=compiled,
            steps=(NUM_SAVES + 1) * every, checkpoint_every=every, checkpoint_async=is_async, profile_steps=0,
        )  # fmt: skip
        directory = RunDirectory.create_or_resume(folder / name, run.document())
        with (
            contextlib.closing(MetricWriter(directory, world)) as metrics,
            Watchdog(directory, world, metrics, factor=1000.0, minimum_s=600.0) as watchdog,
        ):
            run_language(
                RankContext(directory=directory, world=world, metrics=metrics, stop=StopSignals(), watchdog=watchdog)
            )
        events = [json.loads(line) for line in directory.rank_events(0).read_text().splitlines()]
        values = [(e["name"], e["step"], e["value"]) for e in events if "name" in e]
        # the last save waits for the disk in both modes: what counts are those between steps
        blocked_s = [v for n, step, v in values if n == "checkpoint_block" and step < run.steps - 1]
        times_s = [v for n, step, v in values if n == "step_time" and step >= every]
        usual_s = statistics.median(times_s)
        slower_s = sum(max(t - usual_s, 0.0) for t in times_s)
        manifest = json.loads((directory.checkpoint(run.steps) / "manifest.json").read_text())
        rows.append({
            "name": f"checkpoint-{name}", "shape": shape, "precision": precision, "device": device,
            "checkpoint_bytes": sum(f["bytes"] for f in manifest["files"].values()), "median_step_s": usual_s,
            "blocked_s_per_save": sum(blocked_s) / NUM_SAVES, "slower_steps_s_per_save": slower_s / NUM_SAVES,
            "torch": torch.__version__,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the language benchmark on one GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(VARIANTS))
    parser.add_argument("--profile", default="", help="variants whose kernels are listed")
    parser.add_argument("--checkpoints", type=Path, help="measure saves into this folder instead")
    parser.add_argument("--device", choices=tuple(CHECKPOINTED), default="cuda")
    args = parser.parse_args()
    if args.checkpoints is not None:
        with args.out.open("a", encoding="utf-8") as file:
            for row in measure_checkpoints(args.checkpoints, args.device):
                file.write(json.dumps(row) + "\n")
                print(row, flush=True)
        return
    world = World.from_environment({})
    device = choose_device("cuda", world)
    join_group(world, device)
    with args.out.open("a", encoding="utf-8") as file:
        for name in args.only.split(","):
            try:
                row = measure(name, VARIANTS[name], device, profile=name in args.profile.split(","))
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(f"{name}: {row['flop_per_s'] / 1e12:.1f} TFLOP/s, {row['step_time_s'] * 1e3:.2f} ms, "
                      f"{row['peak_allocated_bytes'] / 2**30:.2f} GiB, {row}", flush=True)  # fmt: skip
            except Exception:
                print(f"{name}: FAILED\n{traceback.format_exc()[-3000:]}", flush=True)
            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
