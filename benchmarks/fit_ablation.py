"""What each fitted constant is worth: the left-out error of a full fit with the constant at its neutral value.

    python benchmarks/fit_ablation.py [--jobs N] [NAME ...]

Each constant (default: all) is removed alone and the others are fitted again. Then the cheapest two, three, ... are
removed together, in the order of their cost alone, and fitted again. Each source is left out in turn (see fit.py). The
cost of a removal is the growth of the balanced left-out error, in points.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterable
from dataclasses import dataclass

from fit import balanced_mape_frac, fit, leave_sources_out, summary
from fit_problem import FAMILIES, Problem, Values, build_problem, predict_all

from scalewright.catalog.library import open_catalog

NEUTRAL = {
    "throttle_exponent": 0.0, "narrow_throttle_exponent": 0.0, "expert_cast_host": 0.0, "latency_factor": 1.0,
}  # fmt: skip
"""The value with which a constant does nothing."""
LEAST_COST_POINTS = 0.2
"""A constant whose removal costs less than this is dropped."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A fit without some constants."""

    removed: tuple[str, ...]
    left_out_percent: float
    text: str


@dataclass(frozen=True, slots=True)
class Ablation:
    problem: Problem
    start: Values

    def trial(self, removed: tuple[str, ...]) -> Trial:
        neutral = {name: NEUTRAL[name] for name in removed}
        fitted = fit(self.problem, self.start, progress=_no_progress, removed=neutral)
        left_out = leave_sources_out(self.problem, fitted, progress=_no_progress)
        on_all = summary(self.problem, predict_all(self.problem, fitted.values))
        percent = 100 * balanced_mape_frac(self.problem, left_out)
        return Trial(removed, percent, f"left out: {summary(self.problem, left_out)}; fitted on all: {on_all}")


def _no_progress(text: str) -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="constants to remove; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="fits at once")
    args = parser.parse_args()
    catalog = open_catalog()
    problem = build_problem(catalog)
    shipped = Values(catalog.constants(), {s: catalog.stack(s) for family in FAMILIES for s in family})
    fitted = fit(problem, shipped, progress=lambda text: print(text, flush=True))
    ablation = Ablation(problem, fitted.values)
    names = args.names or list(NEUTRAL)

    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        base, *alone = _printed(pool.imap(ablation.trial, [(), *((name,) for name in names)]))
        cheapest = sorted(alone, key=lambda trial: trial.left_out_percent)
        drop = [t.removed[0] for t in cheapest if t.left_out_percent - base.left_out_percent < LEAST_COST_POINTS]
        print(f"cost less than {LEAST_COST_POINTS} points alone: {len(drop)} of {len(names)}; the cheapest together:")
        together = [base, *_printed(pool.imap(ablation.trial, [tuple(drop[:k]) for k in range(2, len(drop) + 1)]))]
    most = max(
        (t for t in together if t.left_out_percent - base.left_out_percent < LEAST_COST_POINTS),
        key=lambda trial: len(trial.removed),
    )
    print(f"drop: {', '.join(most.removed) or 'nothing'}")


def _printed(trials: Iterable[Trial]) -> list[Trial]:
    """The trials, each printed when it is there; costs are against the first of all, which removes nothing."""
    done = []
    for trial in trials:
        print(f"{' '.join(trial.removed) or 'nothing removed':28s} {trial.text}", flush=True)
        done.append(trial)
    return done


if __name__ == "__main__":
    main()
