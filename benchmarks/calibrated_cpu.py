"""Steps of small models on this CPU beside what its calibration predicts, for one and two ranks.

    scalewright calibrate --device cpu
    PYTHONPATH=src python benchmarks/calibrated_cpu.py OUT.jsonl [--repeats 5] [--steps 12]
    PYTHONPATH=src python benchmarks/calibrated_cpu.py OUT.jsonl --again

Every configuration is run `--repeats` times, interleaved: all once, then all again, so that a change of the machine's
mood hits all of them. What counts is the median of the repeats' median steps; the spread is their range. None of the
shapes is among those of the calibrate study. The load of the machine is written down: a machine that others use gives
no fair answer, since threads that wait for each other lose most when they are not run at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scalewright.catalog.library import open_catalog
from scalewright.here.place import place_of
from scalewright.launch.prepare.outlook import language_outlook
from scalewright.workload import language_run
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_shape

SHAPES = (
    ("layers=4,hidden=192,heads=3,vocab=2048,seq=128", 4),
    ("layers=6,hidden=256,heads=8,vocab=8192,seq=256", 2),
    ("layers=2,hidden=640,heads=10,vocab=4096,seq=128", 4),
    ("layers=10,hidden=128,heads=4,vocab=1024,seq=128", 2),
    ("layers=3,hidden=448,heads=7,vocab=4096,seq=192", 4),
)
RANKS = (1, 2)


def configured(shape: str, batch: int, ranks: int, *, steps: int) -> LanguageRun:
    layout = Layout(dp=ranks, mbs=batch, gbs=batch * ranks)
    return language_run.resolve(from_shape(shape), layout, precision="fp32", steps=steps, device="cpu")


def measured(shape: str, batch: int, ranks: int, *, steps: int) -> float:
    """Median step of one run of `bench language`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "scalewright", "bench", "language", "--model", shape, "--ranks", str(ranks),
            "--layout", f"dp={ranks},mbs={batch},gbs={batch * ranks}", "--precision", "fp32", "--device", "cpu",
            "--steps", str(steps), "--budget", "1 h", "--run-dir", folder + "/run", "--json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    compared = json.loads(done.stdout)["comparisons"]
    return float(next(row for row in compared if row["name"] == "step_time")["measured"])


def predicted(row: dict[str, Any]) -> dict[str, Any]:
    catalog = open_catalog()
    place = place_of(catalog, "here", num_ranks=row["num_ranks"], device="cpu")
    run = configured(row["shape"], row["batch"], row["num_ranks"], steps=10)
    outlook = language_outlook(catalog, run, place.machine, start_s=0.0)
    low_s, high_s = outlook.prediction.as_document()["step_time_interval_s"]
    median_s = statistics.median(row["repeats_s"])
    return row | {
        "calibration": place.basis, "measured_s": median_s, "predicted_s": outlook.step_s,
        "interval_s": [low_s, high_s], "error_frac": outlook.step_s / median_s - 1.0,
        "inside": low_s <= median_s <= high_s,
        "spread_frac": (max(row["repeats_s"]) - min(row["repeats_s"])) / median_s,
    }  # fmt: skip


def repeated(num_repeats: int, steps: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"shape": shape, "batch": batch, "num_ranks": ranks, "repeats_s": [], "load": []}
        for shape, batch in SHAPES
        for ranks in RANKS
    ]
    for _ in range(num_repeats):
        for row in rows:
            row["load"].append(round(os.getloadavg()[0], 2))
            row["repeats_s"].append(measured(row["shape"], row["batch"], row["num_ranks"], steps=steps))
            print(row["shape"], row["num_ranks"], f"{row['repeats_s'][-1] * 1e3:.1f} ms", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--again", action="store_true", help="predict what OUT.jsonl has measured anew")
    given = parser.parse_args()
    place_of(open_catalog(), "here", device="cpu")  # refused before a minute is spent
    rows = (
        [json.loads(line) for line in given.out.read_text().splitlines()]
        if given.again
        else repeated(given.repeats, given.steps)
    )
    rows = [predicted(row) for row in rows]
    given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        print(f"{row['num_ranks']} ranks, {row['shape']:50} {row['measured_s'] * 1e3:8.1f} ms  "
              f"{row['error_frac']:+.1%}  spread {row['spread_frac']:.0%}")  # fmt: skip
    for ranks in RANKS:
        errors = [abs(row["error_frac"]) for row in rows if row["num_ranks"] == ranks]
        inside = sum(row["inside"] for row in rows if row["num_ranks"] == ranks)
        print(f"{ranks} ranks: mean error {statistics.mean(errors):.1%}, worst {max(errors):.1%}, "
              f"{inside} of {len(errors)} inside the 90 % interval")  # fmt: skip


if __name__ == "__main__":
    main()
