"""Collectives predicted against measured: fitted to every other size, predicted at the sizes between.

    python benchmarks/collectives_predicted.py [--ranks 2,4] [--seconds 60] [--repeats 3] [--out FILE]

Sizes from 64 KiB to 64 MiB by factors of the square root of two. Runs of all numbers of ranks take turns, and inside a
run rounds go through all sizes, so that a disturbance of minutes or seconds meets fitted and predicted sizes alike. The
lines go into a machine as a calibration's would, and the cost models are asked. Exit 1: an operation's median error is
above 15 %.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scalewright import units
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.collectives import (
    all_reduce_time_s,
    all_to_all_time_s,
    gather_time_s,
    group_path,
    send_time_s,
)
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.costs.machine.collective_lines import lines_of, measured_time_s
from scalewright.observe.alpha_beta import fit_collectives
from scalewright.records.measurements import Measurements, read_measurements
from scalewright.study.execute import execute
from scalewright.study.execution import Execution
from scalewright.workload.collective import OPS
from scalewright.workload.collectives_run import CollectivesRun

LIMIT_FRAC = 0.15
MIN_BYTES, MAX_BYTES = 64 * 2**10, 64 * 2**20
BASE = "generic-h100"
"""Any machine: its own links are not asked where collectives were measured."""


def measure(folder: Path, *, num_ranks: int, seconds: float) -> Measurements:
    config = CollectivesRun(min_bytes=MIN_BYTES, max_bytes=MAX_BYTES, factor=2**0.5, budget_s=seconds, device="cpu")
    point = Execution(kind="collectives", config=config.document(), path=folder, num_ranks=num_ranks)
    if code := execute(point):
        sys.exit(f"{num_ranks} ranks ended with exit code {code}: {point.directory.read_exit_info()}")
    return read_measurements(point.directory)


def medians(rows: list[dict[str, Any]], op: str) -> dict[int, float]:
    """Median time of each size over the repeats."""
    times: dict[int, list[float]] = {}
    for row in rows:
        if row["op"] == op:
            times.setdefault(row["size_bytes"], []).append(row["time_s"])
    return {size: statistics.median(times_s) for size, times_s in sorted(times.items())}


def fitted_machine(rows: list[dict[str, Any]], num_ranks: int) -> Machine:
    """A machine with the lines of every other size."""
    kept: list[dict[str, Any]] = []
    for op in OPS:
        sizes = sorted({row["size_bytes"] for row in rows if row["op"] == op})
        kept += [row for row in rows if row["op"] == op and row["size_bytes"] in sizes[::2]]
    base = machine_from_system(Catalog((packaged_data(),)), BASE)
    lines = lines_of([fit.document() for fit in fit_collectives(kept)])
    return replace(base, gpus_per_node=num_ranks, library="gloo", measured_collectives=lines)


def predicted_s(machine: Machine, op: str, size: int, num_ranks: int) -> float:
    path = group_path(machine, num_ranks=num_ranks, stride=1)
    if op == "all-reduce":
        return float(all_reduce_time_s(size_bytes=size, path=path))
    if op == "all-to-all":
        return float(all_to_all_time_s(size_bytes=size, machine=machine, num_ranks=num_ranks))
    if op == "send-recv":
        return float(send_time_s(size_bytes=size, path=path))
    if op == "broadcast":
        lines = machine.measured_collectives
        return float(measured_time_s(lines, op=op, size_bytes=size, num_ranks=num_ranks, num_nodes=1))
    return float(gather_time_s(size_bytes=size, path=path, op=op))


def compare(rows: list[dict[str, Any]], num_ranks: int) -> list[dict[str, Any]]:
    machine, comparisons = fitted_machine(rows, num_ranks), []
    for op in OPS:
        measured = medians(rows, op)
        sizes = list(measured)[1::2]
        errors = {size: predicted_s(machine, op, size, num_ranks) / measured[size] - 1.0 for size in sizes}
        spread = [0.5 * (r["time_high_s"] - r["time_low_s"]) / r["time_s"] for r in rows if r["op"] == op]
        comparisons.append(
            {
                "op": op, "num_ranks": num_ranks, "errors_frac": {str(size): round(e, 4) for size, e in errors.items()},
                "median_error_frac": float(np.median(np.abs(list(errors.values())))),
                "worst_error_frac": float(np.max(np.abs(list(errors.values())))),
                "median_spread_frac": statistics.median(spread),
                "num_lines": sum(line.op == op for line in machine.measured_collectives),
            }
        )  # fmt: skip
    return comparisons


def show(comparisons: list[dict[str, Any]]) -> None:
    sizes = [int(size) for size in comparisons[0]["errors_frac"]]
    print("ranks operation      " + "".join(f"{units.format(size, units.BYTES).replace(' ', ''):>9}" for size in sizes))
    for row in comparisons:
        errors = "".join(f"{error:>+9.1%}" for error in row["errors_frac"].values())
        print(f"{row['num_ranks']:>5} {row['op']:<15}{errors}")
    print("ranks operation       median   worst   spread of the repeats  lines")
    for row in comparisons:
        print(
            f"{row['num_ranks']:>5} {row['op']:<15}{row['median_error_frac']:>7.1%}{row['worst_error_frac']:>8.1%}"
            f"{row['median_spread_frac']:>10.1%}{row['num_lines']:>18}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write one JSON object a line to this file")
    args = parser.parse_args()
    numbers = [int(word) for word in args.ranks.split(",")]
    rows: dict[int, list[dict[str, Any]]] = {num: [] for num in numbers}
    load, device = [os.getloadavg()[0]], ""
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):
            for num in numbers:
                measured = measure(Path(folder) / f"{repeat}-{num}", num_ranks=num, seconds=args.seconds)
                rows[num] += measured.rows
                load.append(os.getloadavg()[0])
                device = (
                    f"{measured.device['name']}, {measured.device['num_cores']} cores, {measured.versions['backend']}"
                )
    comparisons = [row for num in numbers for row in compare(rows[num], num)]
    about = {
        "device": device, "python": platform.python_version(), "repeats": args.repeats, "seconds": args.seconds,
        "load_low": min(load), "load_high": max(load),
    }  # fmt: skip
    print(f"{device}; load {min(load):.1f} to {max(load):.1f}; {args.repeats} repeats of {args.seconds:.0f} s")
    show(comparisons)
    if args.out is not None:
        args.out.write_text("".join(json.dumps(about | row) + "\n" for row in comparisons), encoding="utf-8")
    within = [error for row in comparisons for error in row["errors_frac"].values() if abs(error) <= LIMIT_FRAC]
    num_all = sum(len(row["errors_frac"]) for row in comparisons)
    print(f"within {LIMIT_FRAC:.0%}: {len(within)} of {num_all} predicted sizes")
    return int(max(row["median_error_frac"] for row in comparisons) > LIMIT_FRAC)


if __name__ == "__main__":
    sys.exit(main())
