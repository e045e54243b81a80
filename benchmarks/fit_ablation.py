"""What each fitted constant is worth: the left-out error with the constant set to its neutral value.

    python benchmarks/fit_ablation.py [NAME ...]             each of these (default: all) removed alone
    python benchmarks/fit_ablation.py --together NAME ...    all of these removed at once, fitted again in full

Alone: the other constants are fitted again along the derivatives of the fit with everything, and each source is left
out in turn (see fit.py). The cost of a removal is the growth of the balanced left-out error, in points.
"""

from __future__ import annotations

import argparse

import numpy as np
from fit import Fitted, balanced_mape_frac, fit, leave_sources_out
from fit_problem import (
    FAMILIES,
    Problem,
    Removed,
    Values,
    build_problem,
    origin_and_ceiling,
    parameter_names,
    with_parameters,
)

from scalewright.catalog.library import open_catalog

NEUTRAL = {
    "throttle_exponent": 0.0, "device_spread": 0.0, "misaligned_matmul_share": 1.0,
    "narrow_matmul_gain": 1.0, "depth_overhead": 0.0, "wave_overhead": 0.0, "grouped_matmul_share": 1.0,
    "grouped_rows_ramp": 0.0, "permute_passes": 0.0, "narrow_cast_passes": 0.0, "expert_host_factor": 1.0,
    "expert_cast_host": 0.0, "softmax_fallback_host": 0.0, "host_spread": 0.0, "host_blend": 50.0,
    "collective_offset": 0.0, "latency_factor": 1.0, "tensor_exposure": 1.0, "transfer_exposure": 1.0,
    "all_to_all_exposure": 1.0, "gradient_overlap": 1.0, "overlap_cost": 0.0,
    "straggler_growth": 0.0, "step_overhead": 0.0, "unfused_attention_passes": 0.0, "logits_passes": 0.0,
}  # fmt: skip
"""The value with which a constant does nothing; a blend of 50 is the larger of host and device time."""
LEAST_COST_POINTS = 0.2
"""A constant whose removal costs less than this is dropped."""


def left_out_percent(problem: Problem, fitted: Fitted) -> float:
    """Balanced error of sources left out."""
    return 100 * balanced_mape_frac(problem, leave_sources_out(problem, fitted, progress=lambda _: None))


def without(fitted: Fitted, removed: Removed) -> Fitted:
    """The fit with constants at their neutral value, before the others are fitted again."""
    origin, _ = origin_and_ceiling()
    is_free = np.array([name not in removed for name in parameter_names()])
    logs = np.where(is_free, fitted.logs, origin)
    values = with_parameters(fitted.values, np.exp(logs), removed)
    return Fitted(values, logs, fitted.jacobian * is_free, removed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="constants to remove; default: all")
    parser.add_argument("--together", action="store_true", help="remove all of them at once")
    args = parser.parse_args()
    names = args.names or list(NEUTRAL)
    catalog = open_catalog()
    problem = build_problem(catalog)
    start = Values(catalog.constants(), {s: catalog.stack(s) for family in FAMILIES for s in family})
    fitted = fit(problem, start, progress=lambda _: None)
    base = left_out_percent(problem, fitted)
    print(f"{'nothing removed':28s} left out {base:5.2f} %", flush=True)
    for group in [names] if args.together else [[name] for name in names]:
        removed = {name: NEUTRAL[name] for name in group}
        fewer = without(fitted, removed)
        if args.together:
            fewer = fit(problem, fitted.values, progress=lambda _: None, removed=removed)
        error = left_out_percent(problem, fewer)
        word = "  drop" if error - base < LEAST_COST_POINTS else ""
        print(f"{' '.join(group):28s} left out {error:5.2f} %   cost {error - base:+5.2f} points{word}", flush=True)


if __name__ == "__main__":
    main()
