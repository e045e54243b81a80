"""Fit the memory that a device shows beyond its tensors, and score it with each source left out.

    python benchmarks/fit_memory.py [--rows]

Two constants: fragments of PyTorch's allocator and the buffers of one communicator. Published peaks hardly tell them
apart, so a prior holds the second one. What a context takes is measured, not fitted. Rows are the published peaks of
kind reserved and device; each source of ten rows or more weighs the same. `memory_error` is the quantile of measured
over predicted memory of left-out sources. The table of `full_allocator_overhead` shows how well
runs out of memory are told from runs that ran. Prints what belongs into the catalogue; nothing is written.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalewright import units
from scalewright.catalog.library import Catalog, open_catalog
from scalewright.catalog.published import load_runs, packaged_memory_runs, packaged_runs
from scalewright.costs import room
from scalewright.costs.footprint import num_communicators, update_bytes
from scalewright.errors import ScalewrightError
from scalewright.planner.validation.scores import weighted_quantile
from scalewright.planner.validation.validate import NotInScopeError, Part, express, with_recompute

Floats = NDArray[np.float64]
Constants = tuple[float, float]
FRAGMENTS = np.arange(0.0, 0.2001, 0.005)
COMMUNICATOR_GIB = np.arange(0.0, 1.001, 0.05)
PRIOR_GIB, PRIOR_WIDTH_GIB, PRIOR_WEIGHT = 0.5, 0.3, 0.002
"""NCCL holds 4 MiB and more for each channel and neighbour: 0.2 to 0.8 GiB a communicator."""
QUANTILE_FRAC = 0.9
FULL_WEIGHT_ROWS = 10
"""Rows from which on a source has its full weight: a single row says little about a constant."""


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    source: str
    kind: str
    taken_bytes: float
    """Tensors, and what the update needs apart from them."""
    context_bytes: float
    num_communicators: float
    measured_bytes: float


def memory_rows(catalog: Catalog) -> list[Row]:
    """Published peaks that are not the allocated ones, each beside what the fitted constants multiply."""
    rows = []
    for run in (*load_runs(packaged_memory_runs()), *load_runs(packaged_runs())):
        if run.measured.memory_gib is None or run.measured.memory_kind == "allocated":
            continue
        try:
            case = express(catalog, run)
        except (NotInScopeError, ScalewrightError):
            continue
        parts = with_recompute(run, case)
        setting = parts[-1].setting
        shown = run.measured.memory_kind == "device"
        rows.append(
            Row(
                name=run.id, source=run.document.split("@")[0].split(",")[0], kind=run.measured.memory_kind,
                taken_bytes=sum(p.share_frac * taken_bytes(p) for p in parts),
                context_bytes=setting.constants.device_context.value * shown,
                num_communicators=float(num_communicators(setting)) * shown,
                measured_bytes=run.measured.memory_gib * units.GIB,
            )
        )  # fmt: skip
    return rows


def taken_bytes(part: Part) -> float:
    """Tensors of the peak, and what the update needs apart from them."""
    return float(part.cost.memory.total) + float(update_bytes(part.setting))


def errors(rows: list[Row], constants: Constants) -> Floats:
    """Predicted over measured memory, less one."""
    fragments, communicator_gib = constants
    taken, context, communicators, measured = (
        np.array([getattr(row, name) for row in rows], dtype=np.float64)
        for name in ("taken_bytes", "context_bytes", "num_communicators", "measured_bytes")
    )
    shown = taken * (1.0 + fragments) + context + communicators * communicator_gib * units.GIB
    return shown / measured - 1.0


def balanced(rows: list[Row], values: Floats) -> float:
    by_source = defaultdict(list)
    for row, value in zip(rows, values, strict=True):
        by_source[row.source, row.kind].append(abs(value))
    weights = [min(len(v), FULL_WEIGHT_ROWS) for v in by_source.values()]
    return float(np.average([np.mean(v) for v in by_source.values()], weights=weights))


def fitted(rows: list[Row]) -> Constants:
    """The constants of the smallest balanced error and distance from the prior."""

    def loss(constants: Constants) -> float:
        away = (constants[1] - PRIOR_GIB) / PRIOR_WIDTH_GIB
        return balanced(rows, errors(rows, constants)) + PRIOR_WEIGHT * away**2

    best = min(itertools.product(FRAGMENTS, COMMUNICATOR_GIB), key=loss)
    return float(best[0]), float(best[1])


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A published run that ran or ran out of memory, and what it needs of its device."""

    name: str
    is_out_of_memory: bool
    needed_frac: float
    """Tensors without fragments over what is left for them."""


def outcomes(catalog: Catalog) -> list[Outcome]:
    """Every published run that says whether it fitted, whatever it measured."""
    rows = []
    for run in (*load_runs(packaged_memory_runs()), *load_runs(packaged_runs())):
        try:
            part = with_recompute(run, express(catalog, run))[-1]
        except (NotInScopeError, ScalewrightError):
            continue
        setting, machine = part.setting, part.setting.machine
        outside = float(room.device_bytes(
            machine=machine, reserved_bytes=0.0, num_communicators=num_communicators(setting)
        ))  # fmt: skip
        fragments = float(room.least_reserved_bytes(
            machine=machine, allocated_bytes=1.0, num_gpus=setting.layout.num_gpus
        ))  # fmt: skip
        tensors = (float(part.cost.needed_bytes) - outside) / fragments
        rows.append(
            Outcome(
                name=run.id, is_out_of_memory=run.measured.oom, needed_frac=tensors / (machine.memory_bytes - outside)
            )
        )
    return rows


def print_limits(runs: list[Outcome]) -> None:
    """Wrong answers by the share of fragments that a full device still has."""
    out = np.array([run.needed_frac for run in runs if run.is_out_of_memory])
    ran = np.array([run.needed_frac for run in runs if not run.is_out_of_memory])
    print(f"full_allocator_overhead, missed of {len(out)} runs out of memory, false alarms about {len(ran)} that ran:")
    for share in np.arange(0.0, 0.1001, 0.01):
        missed, alarms = np.sum(out * (1.0 + share) <= 1.0), np.sum(ran * (1.0 + share) > 1.0)
        print(f"  {share:.2f} {missed:3d} {alarms:3d}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit what a device shows beyond its tensors.")
    parser.add_argument("--rows", action="store_true", help="print every row")
    args = parser.parse_args()
    rows = memory_rows(open_catalog())
    constants = fitted(rows)
    print(f"fitted to all: allocator_overhead {constants[0]:.3f}, communicator_memory {constants[1]:.2f} GiB")
    print(f"balanced error {balanced(rows, errors(rows, constants)):.1%} of {len(rows)} rows")
    left_out, ratios, weights = {}, [], []
    for source in sorted({row.source for row in rows}):
        others, own = [r for r in rows if r.source != source], [r for r in rows if r.source == source]
        values = errors(own, fitted(others))
        left_out |= dict(zip((row.name for row in own), values, strict=True))
        ratios += [1.0 / (1.0 + value) for value in values]
        weights += [1.0 / len(own)] * len(own)
        print(
            f"  {source:45s} {len(own):3d} rows, left out: {np.mean(np.abs(values)):.1%}, bias {np.mean(values):+.1%}"
        )
    for kind in ("reserved", "device"):
        values = np.array([left_out[row.name] for row in rows if row.kind == kind])
        print(f"{kind}: {np.mean(np.abs(values)):.1%} mean error left out, median {np.median(np.abs(values)):.1%}")
    high = weighted_quantile(np.array(ratios), np.array(weights), QUANTILE_FRAC)
    print(f"memory_error: {high - 1.0:.3f}, the {QUANTILE_FRAC:.0%} quantile of measured over predicted, left out")
    print_limits(outcomes(open_catalog()))
    if args.rows:
        for row in rows:
            print(f"{left_out[row.name]:+7.1%} {row.kind:9s} {row.measured_bytes / units.GIB:6.1f} GiB {row.name}")


if __name__ == "__main__":
    main()
