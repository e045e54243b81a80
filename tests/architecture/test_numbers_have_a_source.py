"""Numbers that steer predictions live in the catalogue, with kind and source. What stays in code has a reason here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

COSTS = Path(__file__).resolve().parents[2] / "src" / "scalewright" / "costs"
COUNTED = "crossings of memory or tensors, counted from the kernels that its docstring names"
WIDTH = "the width of an element: a definition"

# Module constants of costs/ that hold a number, as `module.NAME`, each with the reason it is not in the catalogue.
ALLOWED = {
    "campaign.LEAST_RANGE": "how wide advice on checkpoints is; its cost is computed",
    "campaign.NO_CAMPAIGN": "zero shares and a factor of one",
    "campaign.SAVE_COST_FRACS": "round figures that advice is given for; its cost is computed",
    "campaign.SAVE_EVERY_S": "round intervals that people set; their cost is computed",
    "campaign.MAX_SAVE_OVER_MTTF": "when a run is refused; no prediction depends on it",
    "attention.FLASH_BACKWARD_OVER_FORWARD": "five products over two, counted from the algorithm",
    "attention.TILE_QUERIES": "the tile of fused attention kernels, counted from the algorithm",
    "attention.REFERENCE_HEAD": "the head size that attention shares are stated for: a definition",
    "breakdown.NOTHING": "zero",
    "rollout_simulation.MOST_OPEN": "precision of a simulation",
    "rollout_simulation.NUM_CELLS": "precision of an integral",
    "rollout_simulation.NUM_LENGTHS": "how many lengths are drawn at a time",
    "rollout_simulation.NUM_MEASURED": "precision of a mean over random draws",
    "rollout_simulation.NUM_WAITING": "precision of a mean over random draws",
    "rollout_simulation.SEEDS": "the start of a random sequence: the same on every machine",
    "schedule.WAVES_FRAC": "how far equal answers end together: half way between even and whole turns",
    "schedule.NUM_ROUNDS": "rounds of a bisection that has converged by then",
    "serving.CACHE_BYTES": WIDTH,
    "serving.STORED_BYTES": WIDTH,
    "hostmem.SAMPLE_BYTES_PER_TOKEN": WIDTH,
    "interval.COVERAGE_FRAC": "what the interval is an interval of: a definition",
    "layer.NARROW_SUM_FRAC": "three bytes over four, counted from the two collectives",
    "measured_convolutions.FOLDED_CHANNELS": "the shape of the folded stem in run/vision",
    "measured_convolutions.FOLDED_KERNEL": "the shape of the folded stem in run/vision",
    "measured_convolutions.FOLD": "the shape of the folded stem in run/vision",
    "measured_convolutions.NOT_MEASURED": "an empty measurement",
    "network.HOPS_IN_GROUP": "switches on the way, counted from the topology",
    "network.NODE": "names of tiers",
    "network.RAIL": "names of tiers",
    "network.LEAF": "names of tiers",
    "network.GROUP": "names of tiers",
    "network.WHOLE": "names of tiers",
    "operations.ADAM_FLOP_PER_PARAM": "operations counted from the algorithm",
    "roofline.QUERY_TILE": "traffic of the drawn roofline only; no time depends on it",
    "roofline.TILE": "traffic of the drawn roofline only; no time depends on it",
    "setting.WIDE_UNIT_LANES": "lanes of a compute unit, counted from the makers' block diagrams",
    "stack_costs.FP32_BYTES": WIDTH,
    "step.BACKWARD_FRAC": "two products of three, counted from the algorithm",
    "step.TENSORS_AROUND": COUNTED,
    "step.TENSORS_PER_LAYER": COUNTED,
    "footprint.INDEX_BYTES": WIDTH,
    "step.NUM_PASSES": "forward and backward",
    "step.NUM_UPDATE_PASSES": COUNTED,
    "traffic.NUM_ADD_PASSES_COMPILED": COUNTED,
    "traffic.NUM_ADD_PASSES_EAGER": COUNTED,
    "traffic.NUM_LAYOUT_PASSES": COUNTED,
    "traffic.NUM_NORM_CROSSINGS": COUNTED,
    "traffic.NUM_NORM_PASSES_COMPILED": COUNTED,
    "traffic.NUM_NORM_PASSES_EAGER": COUNTED,
    "traffic.NUM_POOL_CROSSINGS": COUNTED,
    "traffic.NUM_POOL_PASSES": COUNTED,
    "traffic.NUM_RELU_CROSSINGS": COUNTED,
    "selection.NUM_DRAWS": "precision of a mean over random draws",
    "selection.SEED": "the start of a random sequence: the same on every machine",
}


def numbered(text: str, module: str) -> Iterator[str]:
    """Module constants whose value holds a number."""
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        if any(isinstance(n, ast.Constant) and type(n.value) in (int, float) for n in ast.walk(node.value)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (f"{module}.{n.id}" for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))


def in_costs() -> set[str]:
    return {name for path in COSTS.rglob("*.py") for name in numbered(path.read_text(encoding="utf-8"), path.stem)}


def test_a_number_in_code_is_found() -> None:
    text = 'SHARE = 0.4\nA, B = 1, 2\nTABLE: dict[str, float] = {"x": 1.5}\nNAME = "x"\nFLAG = True\n'
    assert list(numbered(text, "m")) == ["m.SHARE", "m.A", "m.B", "m.TABLE"]


def test_numbers_that_steer_predictions_live_in_the_catalogue() -> None:
    assert sorted(in_costs() - set(ALLOWED)) == [], "put it into catalog/data/constants with kind and source"


def test_every_listed_number_is_still_there() -> None:
    assert sorted(set(ALLOWED) - in_costs()) == []
