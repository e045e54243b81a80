"""Weights from trainer ranks to engine ranks, each in a namespace of its own whose link is shaped: three ways compared.

    python benchmarks/weight_sync.py [--rate "1 Gbit/s"] [--model layers=12,hidden=768,heads=12] [--out FILE]

By file, two figures: through the disk of this machine, whose rates are measured in the same run and which no link
limits; and through a storage node behind a link like all others. For the second, three transfers are measured one after
the other, as a shared folder has them: trainer ranks send everything to one node, that node writes it to its disk
(plain write of the same bytes), and it sends everything to every engine. Needs root. Exit 1: peers below 80 % of a
plain stream's rate, or less than 3 times faster than through the storage node. The best of the repeats counts: other
work on the machine makes a sync slower and never faster than its link.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from scalewright import units
from scalewright.catalog.library import open_catalog
from scalewright.lab.network import ShapedNetwork
from scalewright.lab.ranks import run_on_network
from scalewright.records.measurements import Measurements, read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model
from scalewright.workload.sync_run import WAY_NAMES, SyncRun, SyncWayName

LEAST_LINK_FRAC, LEAST_GAIN = 0.8, 3.0
TIMEOUT_S = 600.0


def measured(args: argparse.Namespace, layout: str, sync_ways: tuple[SyncWayName, ...], **engines: int) -> Measurements:
    spec = resolve_model(open_catalog(None), args.model)
    with tempfile.TemporaryDirectory() as folder:
        config = SyncRun(
            model_id=spec.id, shape=spec.transformer, layout=parse_layout(layout), path=str(Path(folder) / "files"),
            sync_ways=sync_ways, repeats=args.repeats, device="cpu", budget_s=300.0, **engines,
        )  # fmt: skip
        names = [f"t{rank}" for rank in range(config.num_trainers)]
        names += [f"e{rank}" for rank in range(config.num_engine_ranks)]
        directory = RunDirectory.create_or_resume(Path(folder) / "run", config.document())
        with ShapedNetwork(names, rate_bytes_per_s=units.parse(args.rate, units.BYTES_PER_S)) as network:
            code = run_on_network(network, directory, kind="sync", timeout_s=TIMEOUT_S)
        if code:
            sys.exit(f"the ranks ended with exit code {code}: {directory.read_exit_info()}")
        return read_measurements(directory)


def best_s(measurements: Measurements, way: str) -> float:
    return next(float(row["time_low_s"]) for row in measurements.rows if row["way"] == way)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1 Gbit/s")
    parser.add_argument("--model", default="layers=12,hidden=768,heads=12")
    parser.add_argument("--layout", default="dp=2,zero=3")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--engine-tp", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="add one JSON object a line to this file")
    args = parser.parse_args()
    engines = {"num_engines": args.engines, "engine_tp": args.engine_tp}
    whole = measured(args, args.layout, WAY_NAMES, **engines)
    to_node = best_s(measured(args, args.layout, ("peers",), num_engines=1), "peers")
    from_node = best_s(measured(args, "dp=1", ("peers",), **engines), "peers")
    summary = whole.summary
    written = float(summary["weights_bytes"]) / float(summary["write_bytes_per_s"])
    node_s = to_node + written + from_node
    rows: list[dict[str, Any]] = []
    for row in whole.rows:
        rate = row["bytes"] / row["time_low_s"]
        rows.append(row | {"rate": args.rate, "best_link_frac": rate / row["link_bytes_per_s"], **common(args)})
    rows.append({"way": "storage node", "time_low_s": node_s, "to_node_s": to_node, "written_s": written,
                 "from_node_s": from_node, "rate": args.rate, **common(args)})  # fmt: skip
    peers_s, share = best_s(whole, "peers"), rows[0]["best_link_frac"]
    for one in rows:
        print(
            f"{one['way']:<13} {one['time_low_s']:8.2f} s   {one['time_low_s'] / peers_s:5.2f} times the time of peers"
        )
    print(
        f"peers: {share:.1%} of a plain stream ({units.format(summary['link_bytes_per_s'], units.BYTES_PER_S)}); "
        f"{node_s / peers_s:.2f} times faster than through the storage node; load {os.getloadavg()[0]:.1f}"
    )
    if args.out is not None:
        with args.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return int(share < LEAST_LINK_FRAC or node_s / peers_s < LEAST_GAIN or bool(summary["num_wrong"]))


def common(args: argparse.Namespace) -> dict[str, Any]:
    return {"layout": args.layout, "engines": args.engines, "engine_tp": args.engine_tp, "load": os.getloadavg()[0]}


if __name__ == "__main__":
    sys.exit(main())
