"""What a smaller micro-batch costs on one H200: the same samples in one pass or in several.

Kind: measured. Kernel gaps, sums of gradients, the fill of attention and the padded product were set by these rows
(`benchmarks/language_h200.py --accumulation`), so the ratios say that four constants meet fourteen rows. How fast the
largest micro-batch runs is predicted from published runs; the interval must hold it. Tolerances: 7 % for a ratio (the
narrowest model, in micro-batches of 1,024 tokens, is 6.6 % off, all others 3.5 % at most); 3 points for the padded
vocabulary.

`h200_accumulation_held_out.jsonl` has four other shapes, predicted before they ran: ratios were met within 3.1 %, the
padded vocabulary within a point. Not met: an odd vocabulary in eager steps (45 % measured, 9 % predicted; the share of
odd products was set by it afterwards), and three eager steps, off by -23, 18 and 27 %, outside of their intervals.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import Question
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_shape
from scalewright.workload.precision import recipe

CATALOG = Catalog((packaged_data(),))
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
ROWS, HELD_OUT = (
    [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]
    for name in ("h200_accumulation", "h200_accumulation_held_out")
)
GRAPHS = [row for row in ROWS if row["compile"] == "graphs" and "recompute=none" in row["layout"]]
SHAPES = sorted({row["shape"] for row in GRAPHS if "50257" not in row["shape"]})
RATIO_FRAC, HELD_OUT_FRAC, PADDING_FRAC = 0.07, 0.04, 0.03


@cache
def predicted(shape: str, layout: str, compiled: str) -> Answer:
    return answer(
        Question(
            spec=from_shape(shape),
            machine=machine_from_system(CATALOG, "generic-h200"),
            layout=parse_layout(layout),
            recipe=recipe("bf16"),
            stack=CATALOG.stack_of_own_run(compiled),
        )
    )


def predicted_s(row: dict[str, Any]) -> float:
    return predicted(row["shape"], row["layout"], row["compile"]).time_s


def micro_batch(row: dict[str, Any]) -> int:
    return int(parse_layout(row["layout"]).mbs)


@pytest.mark.parametrize("shape", SHAPES)
def test_smaller_micro_batches_cost_what_was_measured(shape: str) -> None:
    rows = sorted((row for row in GRAPHS if row["shape"] == shape), key=micro_batch, reverse=True)
    assert len(rows) >= 2
    whole = rows[0]
    for row in rows[1:]:
        measured = row["step_time_s"] / whole["step_time_s"]
        assert predicted_s(row) / predicted_s(whole) == pytest.approx(measured, rel=RATIO_FRAC)
        assert measured > 1.05


@pytest.mark.parametrize(
    "row", [row for row in ROWS + HELD_OUT if row["compile"] == "graphs"], ids=lambda row: row["name"]
)
def test_the_interval_holds_the_measured_step(row: dict[str, Any]) -> None:
    low_s, high_s = predicted(row["shape"], row["layout"], row["compile"]).interval_s
    assert low_s <= row["step_time_s"] <= high_s


def test_an_odd_vocabulary_costs_little_where_a_compiler_pads_it() -> None:
    odd = next(row for row in GRAPHS if "50257" in row["shape"])
    shape = odd["shape"].replace("50257", "50304")
    even = next(row for row in GRAPHS if row["shape"] == shape and row["layout"] == odd["layout"])
    measured = odd["step_time_s"] / even["step_time_s"] - 1.0
    assert predicted_s(odd) / predicted_s(even) - 1.0 == pytest.approx(measured, abs=PADDING_FRAC)


def test_settings_of_other_shapes_cost_what_was_measured() -> None:
    """Smaller micro-batches and recomputation of steps in graphs, over the largest micro-batch without it."""
    graphs = [row for row in HELD_OUT if row["compile"] == "graphs" and "50257" not in row["shape"]]
    compared = 0
    for shape in {row["shape"] for row in graphs}:
        rows = [row for row in graphs if row["shape"] == shape]
        whole = max((row for row in rows if "recompute=none" in row["layout"]), key=micro_batch)
        for row in rows:
            measured = row["step_time_s"] / whole["step_time_s"]
            assert predicted_s(row) / predicted_s(whole) == pytest.approx(measured, rel=HELD_OUT_FRAC)
            compared += row is not whole
    assert compared >= 8


def test_an_odd_vocabulary_costs_an_eager_step_far_more() -> None:
    """Nothing pads it, and the fast products of the device cannot load it."""
    odd, even = (
        next(
            row for row in HELD_OUT if row["compile"] == "off" and vocab in row["shape"] and "layers=12" in row["shape"]
        )
        for vocab in ("50257", "50304")
    )
    assert odd["step_time_s"] / even["step_time_s"] > 1.3
    assert predicted_s(odd) / predicted_s(even) > 1.3


def test_counted_kernels_are_those_of_the_own_stacks() -> None:
    """A layer's kernels in a graph: what a micro-batch more adds, less the sums of gradients, over the layers."""
    deep = [row for row in GRAPHS if row["shape"].startswith("layers=24,hidden=1024") and "50304" in row["shape"]]
    few, many = (
        sum(kind["num_kernels"] for kind in row["kernels"].values()) / (8 / micro_batch(row))
        for row in (next(r for r in deep if micro_batch(r) == n) for n in (8, 1))
    )
    counts = CATALOG.stack_of_own_run("graphs").counts
    assert counts is not None
    assert counts.layer_kernels is not None
    num_sums = 292  # tensors of weights, each added once a micro-batch
    assert (many - num_sums) / 24 == pytest.approx(counts.layer_kernels.value, rel=0.1)
    assert few > many
