"""GPU-hours: before from the plan or the limits, after from the accounts; sweeps cut to what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.launch.graph import budget
from scalewright.launch.graph.file import GraphFile
from scalewright.launch.graph.graph import Graph, resolve


def graph_of(jobs: dict[str, dict[str, object]]) -> Graph:
    size = {"command": ["run"], "nodes": 2, "gpus_per_node": 4, "time": "01:30:00"}
    raw = {"schema": "scalewright.graph/1", "name": "g", "site": "generic"}
    return resolve(GraphFile.model_validate({**raw, "jobs": {n: size | s for n, s in jobs.items()}}), Path("/g.toml"))


def test_estimate_is_nodes_times_gpus_times_limit_times_items() -> None:
    estimated = budget.estimate(
        graph_of({"one": {}, "ten": {"items": [str(i) for i in range(10)], "after": {"one": "ok"}}})
    )
    assert estimated.num_gpu_hours == pytest.approx(2 * 4 * 1.5 * 11)
    assert [s.basis for s in estimated.jobs] == ["at most, by the time limit"] * 2


def test_over_the_limit_is_refused_and_over_the_threshold_warned_of() -> None:
    estimated = budget.estimate(graph_of({"one": {}}))
    assert budget.check_budget(estimated, warn_gpu_hours=12, limit_gpu_hours=12) == []
    (warning,) = budget.check_budget(estimated, warn_gpu_hours=11.9, limit_gpu_hours=None)
    assert "12 GPU-hours, over warn_gpu_hours = 11.9" in warning
    with pytest.raises(budget.OverBudgetError, match=r"12 GPU-hours, over the limit of 11: .* --force") as error:
        budget.check_budget(estimated, warn_gpu_hours=None, limit_gpu_hours=11)
    assert error.value.exit_code == 1


@given(limit=st.floats(36, 500), num_items=st.integers(1, 40))
def test_cut_sweep_fits_and_one_more_item_would_not(limit: float, num_items: int) -> None:
    items = [str(i) for i in range(num_items)]
    graph = graph_of({"fixed": {}, "a": {"items": items}, "b": {"items": items, "after": {"a": "corr"}}})
    cut, dropped = budget.cut_to(graph, limit)
    kept = len(cut.jobs["a"].items)
    assert cut.jobs["a"].items == cut.jobs["b"].items == tuple(items[:kept])
    assert budget.estimate(cut).num_gpu_hours <= limit * (1 + 1e-9)
    if kept < num_items:
        assert 12 + 24 * (kept + 1) > limit
        assert dropped == {"a": tuple(items[kept:]), "b": tuple(items[kept:])}
    else:
        assert dropped == {}


def test_nothing_fits_is_said() -> None:
    with pytest.raises(budget.OverBudgetError, match="not one item of job a fits into 10 GPU-hours"):
        budget.cut_to(graph_of({"a": {"items": ["x", "y"]}}), 10)


def test_usage_counts_every_attempt_and_typed_gpus_once() -> None:
    text = (
        "7|proj|NODE_FAIL|100|billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1|2000\n"
        "7|proj|COMPLETED|50|billing=8,cpu=8,gres/gpu=4,node=1|1000\n"
        "8|proj|COMPLETED|10|cpu=8,gres/gpu:a100=1,gres/gpu:h100=2,node=1|500\n"
        "9|proj|COMPLETED|999|cpu=8,node=1|0\n"
        "10|proj|PENDING||cpu=8|\n"
    )
    used = budget.parse_usage(text)
    assert (used.num_jobs, used.gpu_s, used.measured_j) == (3, 630.0, 3500.0)
    assert budget.parse_usage(text.replace("|500\n", "|0\n")).measured_j is None


def test_bill_follows_the_catalogue() -> None:
    catalog = Catalog((packaged_data(),))
    one = budget.bill(catalog, "leonardo", gpu_s=3600.0)
    many = budget.bill(catalog, "leonardo", gpu_s=3600.0 * 1000)
    assert many.energy_j == pytest.approx(1000 * one.energy_j)
    tdp_w = catalog.accelerator(catalog.system("leonardo").partitions[0].accelerator).tdp.value
    assert one.energy_j > 3600 * tdp_w * 0.9
    sensed = budget.bill(catalog, "leonardo", gpu_s=3600.0, measured_j=1000.0)
    assert 1000.0 <= sensed.energy_j < one.energy_j
    assert sensed.energy_basis.startswith("by the nodes' sensors")
