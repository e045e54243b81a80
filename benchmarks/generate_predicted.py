"""Decode steps of our engine predicted and measured: a table, and one JSON line for each step.

    python benchmarks/generate_predicted.py --rows benchmarks/results/h200_generate_first_kernels.jsonl
    python benchmarks/generate_predicted.py --calibration NAME >> benchmarks/results/h200_generate_predicted.jsonl

With `--rows`, rates are fitted to stored steps as a calibration fits them, and each step is predicted by a fit without
it: no GPU is needed. With `--calibration` (of `scalewright calibrate`), the steps in CASES are measured here; none of
them is one that a calibration measures (batches of 1, 4, 16 and 64 at 256, 1,024 and 4,096 tokens). The exit code is 1
if a step is more than 10 % off.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from scalewright.catalog import calibration as calibrations
from scalewright.catalog.library import open_catalog
from scalewright.costs.generation import STORED_BYTES, Serving, iteration
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.observe.calibrate import BenchmarkRun
from scalewright.observe.generation_fit import fit_generation
from scalewright.records.measurements import Measurements
from scalewright.workload.language_run import shape_document
from scalewright.workload.precision import recipe

CATALOG = open_catalog()
MODEL = "gpt3-1.3b"
CASES = [
    ("bf16", 8, 2048), ("bf16", 1, 2048), ("bf16", 64, 2048), ("bf16", 4, 1536), ("bf16", 48, 512),
    ("fp8", 8, 2048), ("fp8", 1, 2048), ("fp8", 64, 2048), ("fp8", 4, 512), ("fp8", 48, 1536),
    ("fp32", 1, 2048), ("fp32", 8, 512), ("fp32", 4, 1536),
]  # fmt: skip
ALLOWED_FRAC = 0.10


def predicted_s(machine: Machine, row: dict[str, Any]) -> float:
    shape, chosen = CATALOG.model(MODEL).transformer, recipe(row["precision"])
    assert shape is not None
    serving = Serving(
        shape=shape, machine=machine, stack=CATALOG.stack("eager"), recipe=chosen, tp=1,
        weight_bytes=STORED_BYTES[row["precision"]], cache_bytes=chosen.activation_bytes,
    )  # fmt: skip
    return float(iteration(serving, num_sequences=row["batch"], num_context=row["mean_context"]).total)


def left_out_s(rows: list[dict[str, Any]]) -> list[float]:
    """The time of each step, predicted by rates that were fitted to the others."""
    shape = CATALOG.model(MODEL).transformer
    assert shape is not None
    steps = [
        {"phase": "decode", "precision": row["precision"], "batch": row["batch"], "context": row["mean_context"],
         "layers": shape.layers, "hidden": shape.hidden, "time_s": row["step_s"]}
        for row in rows
    ]  # fmt: skip
    measured = Measurements(
        kind="decode", device={"type": "cuda"}, versions={}, rows=steps, summary={"shape": shape_document(shape)}
    )
    source = BenchmarkRun(run="stored rows", measurements=measured)
    machine = machine_from_system(CATALOG, "generic-h200")
    fit = fit_generation(lambda _: machine, CATALOG.stack("eager"), [source])
    return [step.left_out_s for step in fit.steps]


def measured_rows() -> list[dict[str, Any]]:
    import generate_speed

    rows: list[dict[str, Any]] = []
    roof = generate_speed.copy_bytes_per_s()
    for precision in dict.fromkeys(precision for precision, _, _ in CASES):
        engine = generate_speed.engine_for(precision, generate_speed.gpt_1b())
        for _, batch, context in (one for one in CASES if one[0] == precision):
            rows.append(generate_speed.measure(engine, precision, batch, context, roof))
        del engine
    return rows


def stored_rows(path: Path) -> list[dict[str, Any]]:
    """Steps of batches and precisions of which there are two or more: the others have no rate without themselves."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "decode" and row["temperature"] == 0.0]
    counts = Counter((row["precision"], row["batch"]) for row in rows)
    return [row for row in rows if counts[row["precision"], row["batch"]] > 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--rows", type=Path, help="measured steps")
    source.add_argument("--calibration", help="name of a calibration of this machine")
    arguments = parser.parse_args()
    if arguments.rows is not None:
        rows = stored_rows(arguments.rows)
        times_s = left_out_s(rows)
    else:
        machine = machine_from_calibration(CATALOG, calibrations.load(arguments.calibration))
        rows = measured_rows()
        times_s = [predicted_s(machine, row) for row in rows]
    errors = [time_s / row["step_s"] - 1.0 for time_s, row in zip(times_s, rows, strict=True)]
    print("precision  batch  context  measured  predicted   error", file=sys.stderr)
    for row, time_s, error in zip(rows, times_s, errors, strict=True):
        print(json.dumps(row | {"kind": "predicted", "predicted_s": time_s, "error_frac": error}))
        print(f"{row['precision']:9}  {row['batch']:5}  {row['context']:7}  {row['step_s'] * 1e3:5.2f} ms  "
              f"{time_s * 1e3:6.2f} ms  {error:+6.1%}", file=sys.stderr)  # fmt: skip
    num_outside = sum(abs(error) > ALLOWED_FRAC for error in errors)
    print(f"{len(rows) - num_outside} of {len(rows)} within {ALLOWED_FRAC:.0%}", file=sys.stderr)
    return int(num_outside > 0)


if __name__ == "__main__":
    sys.exit(main())
