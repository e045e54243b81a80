"""All-reduce against published tables: 2 to 8 A100 in a node, and 8 H100 on two nodes of MareNostrum 5.

Kind: measured. The tables ship with the package, each with its source; sizes from 1 MiB on. A start, a latency and a
bandwidth cannot follow the library's change of protocol and algorithm between 2 and 16 MiB, hence up to 25 % on one
row; on the mean and on the largest size they must do better. Two A100 reach 197 of 300 GB/s where eight reach 229, from
which the shared `scale_up_share` is taken, hence the wider tolerance on small groups.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.collectives import all_reduce_algorithm, all_reduce_time_s, group_path
from scalewright.costs.machine import Machine, machine_from_hardware, machine_from_system

CATALOG = Catalog((packaged_data(),))
TABLES = [
    row
    for row in json.loads((packaged_data() / "published" / "microbenchmarks.json").read_text(encoding="utf-8"))
    if row["kind"] == "all_reduce_table"
]
NVLINK_START_S = 33e-6
"""What 1 MiB on two A100 leaves after its wire time and latency."""
TWO_NODE_START_S = 18.18e-6
"""The table's first row: 8 bytes. Latency is in it too, so small sizes are not asked for."""
LEAST_BYTES = 2**20
# Ranks and nodes: largest mean and largest single error, and that of the largest size. Measured on 2026-11-15:
# mean 13.4, 11.4, 8.6, 8.4, 4.9, 6.9, 5.4 % and 6.0 %; worst row 23.2 %; largest size -13.9 % on two, then within 8 %,
# and +9.1 % on two nodes, whose table ends at 8 MiB.
TOLERANCE = {
    (2, 1): (0.15, 0.20, 0.15),
    (3, 1): (0.15, 0.20, 0.10),
    (4, 1): (0.10, 0.20, 0.05),
    (5, 1): (0.10, 0.25, 0.05),
    (6, 1): (0.10, 0.20, 0.05),
    (7, 1): (0.10, 0.25, 0.05),
    (8, 1): (0.10, 0.20, 0.05),
    (8, 2): (0.10, 0.15, 0.10),
}


def num_nodes(table: dict[str, Any]) -> int:
    return 2 if "2 nodes" in table["span"] else 1


def quiet(machine: Machine, start_s: float) -> Machine:
    """The same machine with nothing else running: latencies as measured alone, and the start the table implies."""
    c = machine.constants
    update = {
        "latency_factor": c.latency_factor.model_copy(update={"value": 1.0}),
        "collective_offset": c.collective_offset.model_copy(update={"value": start_s}),
    }
    return replace(machine, constants=c.model_copy(update=update))


def machine_of(table: dict[str, Any]) -> Machine:
    if num_nodes(table) == 2:
        return quiet(machine_from_system(CATALOG, "marenostrum5"), TWO_NODE_START_S)
    node = machine_from_hardware(
        CATALOG, gpu="a100-sxm-80gb", gpus_per_node=8, scale_up_bytes_per_s=300e9, network_bytes_per_s_per_gpu=None
    )
    return quiet(node, NVLINK_START_S)


def errors(table: dict[str, Any]) -> np.ndarray:
    """Predicted over measured, less one, by size."""
    assert table["columns"][:2] == ["payload_bytes", "time_s"]
    rows = np.array([row[:2] for row in table["rows"] if row[0] >= LEAST_BYTES])
    path = group_path(machine_of(table), num_ranks=table["gpus"], stride=1)
    return np.asarray(all_reduce_time_s(size_bytes=rows[:, 0], path=path)) / rows[:, 1] - 1.0


def test_there_are_seven_tables_of_a_node_and_one_of_two() -> None:
    assert sorted((table["gpus"], num_nodes(table)) for table in TABLES) == sorted(TOLERANCE)


@pytest.mark.parametrize("table", TABLES, ids=lambda t: f"{t['gpus']} on {num_nodes(t)}")
def test_all_reduce_takes_what_the_table_says(table: dict[str, Any]) -> None:
    errors_frac = errors(table)
    mean, worst, largest = TOLERANCE[table["gpus"], num_nodes(table)]
    assert len(errors_frac) >= 4
    assert np.abs(errors_frac).mean() <= mean, errors_frac.round(3)
    assert np.abs(errors_frac).max() <= worst, errors_frac.round(3)
    assert abs(errors_frac[-1]) <= largest, errors_frac.round(3)


@pytest.mark.parametrize("table", TABLES, ids=lambda t: f"{t['gpus']} on {num_nodes(t)}")
def test_bus_bandwidth_is_size_over_time_times_two_n_less_one_over_n(table: dict[str, Any]) -> None:
    """How the tables count: 32 KiB in 24.57 us are 1.33 GB/s, and 2.33 GB/s on the bus of eight."""
    n = table["gpus"]
    for size, time_s, bus_gb_per_s in table["rows"]:
        assert size / time_s * 2 * (n - 1) / n / 1e9 == pytest.approx(bus_gb_per_s, rel=0.01, abs=0.01)


def test_two_nodes_reach_what_their_adapters_reach() -> None:
    """Eight devices on two nodes of MareNostrum 5 stay under one leaf: no congestion, and one hop."""
    machine = machine_from_system(CATALOG, "marenostrum5")
    path = group_path(machine, num_ranks=8, stride=1)
    assert path.span == "leaf"
    assert path.slowdown == 1.0
    assert all_reduce_algorithm(size_bytes=2.0**33, path=path) == "tree"
    assert path.bytes_per_s == pytest.approx(4 * 25e9 * 0.92)
