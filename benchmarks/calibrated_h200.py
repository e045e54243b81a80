"""Steps of one GPU that no residual was fitted to, beside what its calibration predicts.

    scalewright calibrate --as h200 --budget 120s
    PYTHONPATH=src python benchmarks/calibrated_h200.py OUT.jsonl --calibration h200 [--within SECONDS]
    PYTHONPATH=src python benchmarks/calibrated_h200.py OUT.jsonl --calibration h200 --again

Measures the configurations below as `bench language` and `bench vision` run them, in one process; `--again` predicts
anew what OUT.jsonl has measured. None of them is among the points of the calibrate study
(src/scalewright/study/calibration/points.py). Of those in SEEN the errors are known, and the model was changed since.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.catalog import calibration as calibrations
from scalewright.catalog.library import open_catalog
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.launch.prepare.outlook import Outlook, language_outlook, vision_outlook
from scalewright.workload import language_run
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_shape
from scalewright.workload.vision_run import VisionRun

WARM_UP, TIMED = 6, 16


@dataclass(frozen=True)
class Language:
    shape: str
    batch: int
    precision: str
    compile: str

    def run(self) -> LanguageRun:
        return language_run.resolve(
            from_shape(self.shape), parse_layout(f"mbs={self.batch}"), precision=self.precision, device="cuda",
            steps=WARM_UP + TIMED, compile=self.compile,
        )  # fmt: skip


@dataclass(frozen=True)
class Vision:
    precision: str
    batch: int
    channels_last: bool
    compile: str
    model: str = "resnet-50"

    def run(self) -> VisionRun:
        shape = open_catalog().model(self.model).conv
        assert shape is not None
        return VisionRun(
            model_id=self.model, blocks=shape.blocks, block=shape.block, width=shape.width,
            num_classes=shape.num_classes, image_size=shape.image_size, num_ranks=1, batch=self.batch, epochs=1,
            steps_per_epoch=WARM_UP + TIMED,
            precision=self.precision, channels_last=self.channels_last, compile=self.compile, device="cuda",
        )  # fmt: skip


HELD_OUT: dict[str, Language | Vision] = {
    "12x768-s1024-b16-eager": Language("layers=12,hidden=768,heads=12,vocab=50304,seq=1024", 16, "bf16", "off"),
    "10x2560-s2048-b2-eager": Language("layers=10,hidden=2560,heads=20,vocab=50304,seq=2048", 2, "bf16", "off"),
    "24x1024-s512-b16-eager": Language("layers=24,hidden=1024,heads=16,vocab=50304,seq=512", 16, "bf16", "off"),
    "12x1024-s1024-b4-tf32": Language("layers=12,hidden=1024,heads=16,vocab=32000,seq=1024", 4, "tf32", "off"),
    "12x1536-s1024-b8-fp16": Language("layers=12,hidden=1536,heads=16,vocab=50304,seq=1024", 8, "fp16", "off"),
    "resnet-50-b192-bf16-eager": Vision("bf16", 192, True, "off"),
    "resnet-50-b512-bf16-eager": Vision("bf16", 512, True, "off"),
    "resnet-50-b256-fp32": Vision("fp32", 256, False, "off"),
    "resnet-50-b256-tf32": Vision("tf32", 256, True, "off"),
    "resnet-50-b320-fp16": Vision("fp16", 320, True, "off"),
    "24x2048-s2048-b8-graphs": Language("layers=24,hidden=2048,heads=16,vocab=50304,seq=2048", 8, "bf16", "graphs"),
    "resnet-50-b512-bf16-graphs": Vision("bf16", 512, True, "graphs"),
    "24x1024-s2048-b1-graphs": Language("layers=24,hidden=1024,heads=16,vocab=50304,seq=2048", 1, "bf16", "graphs"),
    "12x768-s1024-b8-graphs": Language("layers=12,hidden=768,heads=12,vocab=50304,seq=1024", 8, "bf16", "graphs"),
    "resnet-50-b128-bf16-graphs": Vision("bf16", 128, True, "graphs"),
    "8x4096-s4096-b1-graphs": Language("layers=8,hidden=4096,heads=32,vocab=32000,seq=4096", 1, "bf16", "graphs"),
    "resnet-50-b384-bf16-eager": Vision("bf16", 384, True, "off"),
    "resnet-50-b96-fp16": Vision("fp16", 96, True, "off"),
    "resnet-50-b64-tf32": Vision("tf32", 64, True, "off"),
    "16x1536-s2048-b4-eager": Language("layers=16,hidden=1536,heads=12,vocab=32000,seq=2048", 4, "bf16", "off"),
    "6x5120-s2048-b1-eager": Language("layers=6,hidden=5120,heads=40,vocab=32000,seq=2048", 1, "bf16", "off"),
    "8x2048-s8192-b1-graphs": Language("layers=8,hidden=2048,heads=16,vocab=50304,seq=8192", 1, "bf16", "graphs"),
    "20x1280-s1024-b8-graphs": Language("layers=20,hidden=1280,heads=20,vocab=50304,seq=1024", 8, "bf16", "graphs"),
    "resnet-50-b320-bf16-graphs": Vision("bf16", 320, True, "graphs"),
    "14x896-s2048-b4-eager": Language("layers=14,hidden=896,heads=14,vocab=32000,seq=2048", 4, "bf16", "off"),
    "12x1024-s1024-b8-default": Language("layers=12,hidden=1024,heads=16,vocab=50304,seq=1024", 8, "bf16", "default"),
    "18x1152-s1024-b8-eager": Language("layers=18,hidden=1152,heads=18,vocab=50304,seq=1024", 8, "bf16", "off"),
    "10x2048-s1024-b6-eager": Language("layers=10,hidden=2048,heads=16,vocab=32000,seq=1024", 6, "bf16", "off"),
    "32x768-s512-b24-eager": Language("layers=32,hidden=768,heads=12,vocab=50304,seq=512", 24, "bf16", "off"),
    "6x4096-s2048-b2-eager": Language("layers=6,hidden=4096,heads=32,vocab=32000,seq=2048", 2, "bf16", "off"),
    "16x1280-s1024-b8-fp16": Language("layers=16,hidden=1280,heads=20,vocab=50304,seq=1024", 8, "fp16", "off"),
    "10x1536-s2048-b2-tf32": Language("layers=10,hidden=1536,heads=12,vocab=32000,seq=2048", 2, "tf32", "off"),
    "16x2048-s2048-b4-graphs": Language("layers=16,hidden=2048,heads=16,vocab=32000,seq=2048", 4, "bf16", "graphs"),
    "24x768-s2048-b4-graphs": Language("layers=24,hidden=768,heads=12,vocab=50304,seq=2048", 4, "bf16", "graphs"),
    "8x3072-s4096-b2-graphs": Language("layers=8,hidden=3072,heads=24,vocab=32000,seq=4096", 2, "bf16", "graphs"),
    "20x1024-s1024-b16-graphs": Language("layers=20,hidden=1024,heads=16,vocab=50304,seq=1024", 16, "bf16", "graphs"),
    "12x1280-s1024-b8-f16-graphs": Language("layers=12,hidden=1280,heads=20,vocab=32000,seq=1024", 8, "fp16", "graphs"),
    "resnet-50-b160-bf16-eager": Vision("bf16", 160, True, "off"),
    "resnet-50-b448-bf16-eager": Vision("bf16", 448, True, "off"),
    "resnet-50-b224-fp16": Vision("fp16", 224, True, "off"),
    "resnet-50-b128-tf32": Vision("tf32", 128, True, "off"),
    "resnet-50-b192-fp32-last": Vision("fp32", 192, True, "off"),
    "resnet-34-b384-bf16-eager": Vision("bf16", 384, True, "off", "resnet-34"),
    "resnet-50-b384-bf16-graphs": Vision("bf16", 384, True, "graphs"),
    "resnet-50-b192-bf16-graphs": Vision("bf16", 192, True, "graphs"),
}


FIRST_FRESH = "18x1152-s1024-b8-eager"
SEEN = tuple(HELD_OUT)[: list(HELD_OUT).index(FIRST_FRESH)]
"""Measured before operators of convolutions, cool products and the kernels of a layer were part of the model
(results/h200_calibrated*.jsonl, h200_kernels.jsonl), and looked at while it was changed."""


def measure(name: str, what: Language | Vision, device: Any) -> dict[str, Any]:
    """Median of synchronised steps, as the benchmarks themselves time them."""
    import torch

    run, started_s = what.run(), time.perf_counter()
    step = _language_step(run, device) if isinstance(run, LanguageRun) else _vision_step(run, device)
    times_s = []
    for _ in range(WARM_UP + TIMED):
        call = step()
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        float(call().loss)
        torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begun_s)
    kept = times_s[WARM_UP:]
    return {
        "name": name, "measured_s": statistics.median(kept), "low_s": min(kept), "high_s": max(kept),
        "setup_s": time.perf_counter() - started_s - sum(kept), "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__, "cuda": torch.version.cuda,
    }  # fmt: skip


def _language_step(run: LanguageRun, device: Any) -> Callable[[], Callable[[], Any]]:
    from scalewright.run.device import allow_attention
    from scalewright.run.language.session import open_language_session

    allow_attention(run.attention, device)
    session = open_language_session(run, device)
    loader = session.loader()

    def ready() -> Callable[[], Any]:
        batch = loader.next()
        return lambda: session.step(batch.tokens_BL, batch.targets_BL)

    return ready


def _vision_step(run: VisionRun, device: Any) -> Callable[[], Callable[[], Any]]:
    from scalewright.run.vision.loader import SyntheticBatches
    from scalewright.run.vision.session import open_vision_session

    session = open_vision_session(run, device)
    batches = SyntheticBatches(run, device, rank=0, first_step=0)

    def ready() -> Callable[[], Any]:
        batch = batches.next()
        return lambda: session.step(batch.images_BHWC, batch.labels_B)

    return ready


def outlook_of(what: Language | Vision, machine: Machine) -> Outlook:
    run, catalog = what.run(), open_catalog()
    if isinstance(run, LanguageRun):
        return language_outlook(catalog, run, machine, start_s=0.0)
    return vision_outlook(catalog, run, machine, start_s=0.0)


def predicted(row: dict[str, Any], calibration: calibrations.Calibration) -> dict[str, Any]:
    """The row with both predictions, the interval and whether it holds."""
    catalog, what = open_catalog(), HELD_OUT[row["name"]]
    here = outlook_of(what, machine_from_calibration(catalog, calibration))
    before = outlook_of(what, machine_from_system(catalog, calibration.base, partition_name=calibration.partition))
    low_s, high_s = here.prediction.interval_s
    return row | {
        "calibration": calibration.id, "predicted_s": here.step_s, "catalogue_s": before.step_s,
        "error_frac": here.step_s / row["measured_s"] - 1.0, "interval_s": [low_s, high_s],
        "inside": low_s <= row["measured_s"] <= high_s,
        "catalogue_error_frac": before.step_s / row["measured_s"] - 1.0,
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> str:
    lines = []
    for title, kept in (
        ("language", [r for r in rows if not r["name"].startswith("resnet")]),
        ("vision", [r for r in rows if r["name"].startswith("resnet")]),
        ("all", rows),
    ):
        if kept:
            errors = [abs(row["error_frac"]) for row in kept]
            known = [abs(row["catalogue_error_frac"]) for row in kept]
            inside = sum(bool(row["inside"]) for row in kept)
            lines.append(
                f"{title}: {len(kept)} configurations, mean error {statistics.mean(errors):.1%} (worst "
                f"{max(errors):.1%}), catalogue {statistics.mean(known):.1%}; {inside} inside the 90 % interval"
            )
    return "\n".join(lines)


def measured_rows(names: list[str], within_s: float, out: Path) -> list[dict[str, Any]]:
    import torch

    from scalewright.run.device import choose_device, join_group
    from scalewright.run.world import World

    world, began_s, rows = World.from_environment({}), time.monotonic(), []
    device = choose_device("cuda", world)
    join_group(world, device)
    for name, what in ((name, HELD_OUT[name]) for name in names):
        if time.monotonic() - began_s > within_s:
            print(f"{name}: no time left", flush=True)
            continue
        try:
            rows.append(measure(name, what, device))
            out.write_text("".join(json.dumps(row) + "\n" for row in rows))
            print(json.dumps(rows[-1]), flush=True)
        except Exception:
            traceback.print_exc()
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--calibration", default="", help="name of the calibration; none: measure only")
    parser.add_argument("--only", default="", help="names, separated by commas; default: all that nobody has seen")
    parser.add_argument("--within", type=float, default=600.0, help="seconds after which nothing more is begun")
    parser.add_argument("--again", action="store_true", help="predict what OUT.jsonl has measured anew")
    given = parser.parse_args()
    if given.again:
        rows = [json.loads(line) for line in given.out.read_text().splitlines()]
    else:
        fresh = [name for name in HELD_OUT if name not in SEEN]
        fresh.sort(key=lambda name: HELD_OUT[name].compile != "off")  # what compiles takes longest
        rows = measured_rows(given.only.split(",") if given.only else fresh, given.within, given.out)
    if not given.calibration:
        return
    calibration = calibrations.load(given.calibration)
    rows = [predicted(row, calibration) for row in rows]
    given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        print(f"{row['name']:32} {row['measured_s'] * 1e3:8.2f} ms  {row['error_frac']:+.1%}  "
              f"catalogue {row['catalogue_error_frac']:+.1%}")  # fmt: skip
    print(summary(rows))


if __name__ == "__main__":
    main()
