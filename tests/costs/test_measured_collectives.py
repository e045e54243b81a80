"""Where collectives were measured, predictions follow the measurement; elsewhere nothing changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.collectives import (
    all_reduce_algorithm,
    all_reduce_time_s,
    all_to_all_time_s,
    gather_time_s,
    group_path,
    send_time_s,
)
from scalewright.costs.machine import machine_from_system
from scalewright.costs.machine.collective_lines import lines_of, measured_time_s

PLAIN = machine_from_system(Catalog((packaged_data(),)), "generic-h100")


def fit(op: str, *, ranks: int = 2, nodes: int = 1, start: int = 0, alpha: float = 1e-3, rate: float = 1e9) -> Any:
    return {
        "op": op, "num_ranks": ranks, "num_nodes": nodes, "dtype": "fp32", "from_bytes": start, "alpha_s": alpha,
        "bytes_per_s": rate,
    }  # fmt: skip


def machine_with(*fits: Any) -> Any:
    return replace(PLAIN, measured_collectives=lines_of(fits))


def test_each_operation_takes_what_was_measured_of_it() -> None:
    ops = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv")
    machine = machine_with(*(fit(op, alpha=1e-3 * (1 + i)) for i, op in enumerate(ops)))
    path, size = group_path(machine, num_ranks=2, stride=1), 1e6
    assert all_reduce_time_s(size_bytes=size, path=path) == pytest.approx(1e-3 + size / 1e9)
    assert gather_time_s(size_bytes=size, path=path, op="all-gather") == pytest.approx(2e-3 + size / 2 / 1e9)
    assert gather_time_s(size_bytes=size, path=path, op="reduce-scatter") == pytest.approx(3e-3 + size / 2 / 1e9)
    assert gather_time_s(size_bytes=size, path=path) == pytest.approx(0.5 * (1e-3 + size / 1e9))
    assert all_to_all_time_s(size_bytes=size, machine=machine, num_ranks=2) == pytest.approx(4e-3 + size / 2 / 1e9)
    assert send_time_s(size_bytes=size, path=path) == pytest.approx(5e-3 + size / 1e9)
    pieces = all_reduce_time_s(size_bytes=size, path=path, in_pieces=True)
    assert pieces == pytest.approx(5e-3 + size / 1e9)
    assert all_reduce_algorithm(size_bytes=size, path=path) == "measured"


def test_calls_in_pieces_start_once_each() -> None:
    path = group_path(machine_with(fit("all-gather")), num_ranks=2, stride=1)
    whole = gather_time_s(size_bytes=8e6, path=path, num_calls=4, op="all-gather")
    assert whole == pytest.approx(4 * 1e-3 + 8e6 / 2 / 1e9)


def test_a_size_falls_to_the_line_that_begins_below_it() -> None:
    lines = lines_of([fit("broadcast", start=1000, alpha=1e-5), fit("broadcast", start=10**6, alpha=-1e-4, rate=2e8)])
    sizes = np.array([10.0, 1000.0, 999_999.0, 1e6, 1e8])
    times_s = measured_time_s(lines, op="broadcast", size_bytes=sizes, num_ranks=2, num_nodes=1)
    expected = [1e-5 + 1e-8, 1e-5 + 1e-6, 1e-5 + 999_999 / 1e9, -1e-4 + 1e6 / 2e8, -1e-4 + 1e8 / 2e8]
    assert times_s == pytest.approx(expected)


def test_of_two_runs_the_last_counts_and_of_two_element_types_the_first() -> None:
    first = [fit("broadcast", start=1000), fit("broadcast", start=10**6)]
    again = [fit("broadcast", start=1000, alpha=5e-3)]
    other = [fit("broadcast", start=1000, alpha=9e-3) | {"dtype": "bf16"}]
    assert [line.start_s for line in lines_of([*first, *again, *other])] == [5e-3]
    assert [line.from_bytes for line in lines_of(first)] == [1000, 10**6]


def test_a_group_that_was_not_measured_is_like_its_nearest_inside_a_node_only() -> None:
    lines = lines_of([fit("all-reduce", ranks=2), fit("all-reduce", ranks=4, alpha=3e-3, rate=5e8),
                      fit("all-reduce", ranks=8, nodes=2, alpha=7e-3)])  # fmt: skip
    ranks, nodes = np.array([1, 2, 3, 8, 8, 16]), np.array([1, 1, 1, 1, 2, 2])
    times_s = np.asarray(measured_time_s(lines, op="all-reduce", size_bytes=0.0, num_ranks=ranks, num_nodes=nodes))
    assert times_s[[1, 2, 3, 4]] == pytest.approx([1e-3, 2e-3, 7e-3, 7e-3])  # alpha grows with the steps of a ring
    assert np.isnan(times_s[[0, 5]]).all()
    large = measured_time_s(lines, op="all-reduce", size_bytes=1e9, num_ranks=8, num_nodes=1)
    assert large == pytest.approx(7e-3 + 1e9 * 2 * 7 / 8 / 5e8)


def test_what_was_not_measured_costs_what_it_did() -> None:
    machine = machine_with(fit("broadcast"))
    for ranks in (1, 4, 8, 64):
        plain, same = (group_path(m, num_ranks=ranks, stride=1) for m in (PLAIN, machine))
        for size in (1e3, 1e6, 1e9):
            assert all_reduce_time_s(size_bytes=size, path=same) == all_reduce_time_s(size_bytes=size, path=plain)
            assert gather_time_s(size_bytes=size, path=same, op="all-gather") == gather_time_s(
                size_bytes=size, path=plain
            )
            assert send_time_s(size_bytes=size, path=same) == send_time_s(size_bytes=size, path=plain)


def test_columns_of_groups_agree_with_one_at_a_time() -> None:
    machine = machine_with(fit("all-reduce", ranks=2), fit("all-reduce", ranks=8, alpha=2e-3, rate=3e8))
    ranks = np.array([1, 2, 4, 8, 16, 64])
    column = all_reduce_time_s(size_bytes=1e7, path=group_path(machine, num_ranks=ranks, stride=1))
    single = [all_reduce_time_s(size_bytes=1e7, path=group_path(machine, num_ranks=int(n), stride=1)) for n in ranks]
    assert np.asarray(column) == pytest.approx(single, rel=1e-12)
    assert single[0] == 0.0
