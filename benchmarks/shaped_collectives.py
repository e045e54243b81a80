"""What the alpha-beta fit finds of links whose rate is known: collectives between namespaces, shaped to several rates.

    python benchmarks/shaped_collectives.py [--rates "80 Mbit/s,200 Mbit/s,..."] [--seconds 12] [--out FILE]

One rank in each of two namespaces, messages of 1 to 8 MiB. What must come out is the configured rate x the share of it
that is payload of TCP. A last network of three has one link at a quarter of the others' rate: a ring goes as fast as
its slowest link. Needs root. Exit 1: a fit is more than 5 % off.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from scalewright import units
from scalewright.lab.network import ShapedNetwork, payload_frac
from scalewright.lab.ranks import run_on_network
from scalewright.observe.alpha_beta import Fit, fit_collectives
from scalewright.records.measurements import read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.collective import CollectiveOp
from scalewright.workload.collectives_run import CollectivesRun

LIMIT_FRAC = 0.05
RATES = "80 Mbit/s, 200 Mbit/s, 400 Mbit/s, 800 Mbit/s, 2 Gbit/s"
OPS: tuple[CollectiveOp, ...] = ("broadcast", "send-recv", "all-reduce")
TIMEOUT_S = 300.0
ROUNDS_BYTES = 600e6
"""What five rounds of all operations send."""


def fits_over(network: ShapedNetwork, ops: tuple[CollectiveOp, ...], *, seconds: float) -> list[Fit]:
    config = CollectivesRun(ops=ops, min_bytes=2**20, max_bytes=8 * 2**20, factor=2.0, budget_s=seconds, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create_or_resume(Path(folder) / "run", config.document())
        code = run_on_network(network, directory, kind="collectives", timeout_s=TIMEOUT_S)
        if code:
            sys.exit(f"the ranks ended with exit code {code}: {directory.read_exit_info()}")
        return fit_collectives(read_measurements(directory).rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default=RATES)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="for the collectives at each rate; slow links get more"
    )
    parser.add_argument("--out", type=Path, help="add one JSON object a line to this file")
    args = parser.parse_args()
    rows = []
    print(f"payload share {payload_frac():.4f}; {'link':>12} {'operation':<10} {'must be':>11} {'found':>11}  95 %")
    for text in args.rates.split(","):
        rate = units.parse(text, units.BYTES_PER_S)
        with ShapedNetwork(("a", "b"), rate_bytes_per_s=rate) as network:
            seconds = max(args.seconds, ROUNDS_BYTES / rate)
            rows += [show(text.strip(), rate, fit) for fit in fits_over(network, OPS, seconds=seconds)]
    rate = 200e6
    with ShapedNetwork(("a", "b", "c"), rate_bytes_per_s=rate) as network:
        network.shape("c", rate / 4)
        fits = fits_over(network, ("all-reduce",), seconds=args.seconds)
        rows += [show("3 ranks, c/4", rate / 4, fit) for fit in fits]
    if args.out is not None:
        with args.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    worst = max(abs(row["error_frac"]) for row in rows)
    print(f"worst error {worst:.1%} (limit {LIMIT_FRAC:.0%}), load {os.getloadavg()[0]:.1f}")
    return int(worst > LIMIT_FRAC)


def show(link: str, rate_bytes_per_s: float, fit: Fit) -> dict[str, float | str | None]:
    expected = rate_bytes_per_s * payload_frac()
    error = fit.bytes_per_s / expected - 1.0
    high = float("nan") if fit.bytes_per_s_high is None else fit.bytes_per_s_high
    print(
        f"{'':22}{link:>12} {fit.op:<10} {expected * 1e-6:>6.2f} MB/s {fit.bytes_per_s * 1e-6:>6.2f} MB/s"
        f"  {fit.bytes_per_s_low * 1e-6:.2f} to {high * 1e-6:.2f}  {error:+.1%}",
        flush=True,
    )
    return {
        "link": link, "op": fit.op, "num_ranks": fit.num_ranks, "rate_bytes_per_s": rate_bytes_per_s,
        "payload_frac": payload_frac(), "expected_bytes_per_s": expected, "bytes_per_s": fit.bytes_per_s,
        "bytes_per_s_low": fit.bytes_per_s_low, "bytes_per_s_high": fit.bytes_per_s_high, "alpha_s": fit.alpha_s,
        "from_bytes": fit.from_bytes, "error_frac": error, "load": os.getloadavg()[0],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
