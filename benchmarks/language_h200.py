"""Measure steps of the language benchmark on one GPU, as `scalewright bench language` runs them.

    PYTHONPATH=src python benchmarks/language_h200.py OUT.jsonl [--only large-graphs,small-graphs] [--profile NAME]
    PYTHONPATH=src python benchmarks/language_h200.py OUT.jsonl --accumulation
    PYTHONPATH=src python benchmarks/language_h200.py OUT.jsonl --checkpoints FOLDER [--device cpu]

Prints and stores TFLOP/s (model FLOP by narayanan2021), peak memory beside the predicted one, versions and mean power.
Needs torch with CUDA and pydantic; power needs nvidia-ml-py. A step is timed with the device synchronised.

With --accumulation the same samples are trained in micro-batches of several sizes, recomputed, compiled in each mode
and with an odd vocabulary; each row has the device time and the number of kernels by kind.

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


def _accumulation() -> dict[str, Variant]:
    """One global batch by the size of its micro-batches, and what else a setting may cost."""
    grid = {
        "24x1024": (SMALL, 8, (8, 4, 2, 1)),
        "24x2048": (LARGE, 8, (8, 2, 1)),
        "12x768": ("layers=12,hidden=768,heads=12,vocab=50304,seq=1024", 16, (16, 4, 1)),
        "8x4096-gated": (
            "layers=8,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,seq=4096,gated=1", 4, (4, 1),
        ),
    }  # fmt: skip
    variants = {
        f"{name}-{mbs}x{batch // mbs}-graphs": Variant(shape, f"mbs={mbs},gbs={batch}", "graphs")
        for name, (shape, batch, sizes) in grid.items()
        for mbs in sizes
    }
    for mode in ("default", "off"):
        for mbs in (8, 1):
            variants[f"24x1024-{mbs}x{8 // mbs}-{mode}"] = Variant(SMALL, f"mbs={mbs},gbs=8", mode)
    for mode, level in (
        ("default", "full"), ("off", "full"), ("graphs", "full"), ("default", "selective"), ("default", "operators"),
    ):  # fmt: skip
        variants[f"24x1024-8x1-{mode}-{level}"] = Variant(SMALL, f"mbs=8,gbs=8,recompute={level}", mode)
    variants["24x2048-4x2-default-full"] = Variant(LARGE, "mbs=4,gbs=8,recompute=full", "default")
    variants["24x1024-odd-8x1-graphs"] = Variant(SMALL.replace("50304", "50257"), "mbs=8,gbs=8", "graphs")
    return variants


ACCUMULATION = _accumulation()


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


def measure(
    name: str, variant: Variant, device: torch.device, *, profile: bool, by_kind: bool = False
) -> dict[str, Any]:
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
    kernels = {"kernels": kernels_by_kind(session, batch.tokens_BL, batch.targets_BL)} if by_kind else {}
    return kernels | {
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


KINDS = {
    "attention": ("flash", "fmha", "cudnn_generated", "sdpa"),
    "matmul": ("gemm", "nvjet", "cutlass", "xmma", "splitk"),
    "optimizer": ("adam", "multi_tensor", "optim"),
}
"""What a kernel belongs to, by what its name holds, the first that fits; the rest is memory traffic."""


def kernels_by_kind(session: Any, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, dict[str, float]]:
    """Device time and number of kernels of one step, by what they do."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        session.step(tokens, targets)
        torch.cuda.synchronize()
    sums: dict[str, dict[str, float]] = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            name = event.name.lower()
            kind = next((k for k, words in KINDS.items() if any(word in name for word in words)), "other")
            one = sums.setdefault(kind, {"time_s": 0.0, "num_kernels": 0})
            one["time_s"] += event.device_time / 1e6
            one["num_kernels"] += 1
    return sums


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
    parser.add_argument("--only", help="names of variants; default: all")
    parser.add_argument("--accumulation", action="store_true", help="the grid of micro-batches instead")
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
        variants = ACCUMULATION if args.accumulation else VARIANTS
        for name in args.only.split(",") if args.only else variants:
            try:
                row = measure(
                    name, variants[name], device, profile=name in args.profile.split(","), by_kind=args.accumulation
                )
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
