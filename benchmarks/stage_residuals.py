"""Measured over predicted time of generation: the quantiles behind its intervals.

    .venv/bin/python benchmarks/stage_residuals.py [--write]

Nothing of those models is fitted to these rows. Each source weighs the same; with fewer than three sources the
quantiles are taken to the power 1.5, because one source says little about the next.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from constants_file import write_constants

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.planner.validation.stage_rows import (
    StageRow,
    generation_rows,
    left_out_coverage_frac,
    quantiles,
)

MIN_SOURCES = 3


def interval(rows: Sequence[StageRow], widening: float) -> tuple[float, float]:
    low, high = quantiles(rows)
    power = 1.0 + widening if len({row.source for row in rows}) < MIN_SOURCES else 1.0
    return low**power, high**power


def main() -> None:
    parser = argparse.ArgumentParser(description="Intervals of generation.")
    parser.add_argument("--write", action="store_true", help="put them into the catalogue")
    args = parser.parse_args()
    catalog = Catalog((packaged_data(),))
    rates = [row for row in generation_rows(catalog) if row.is_rate]
    first = [row for row in generation_rows(catalog) if not row.is_rate]
    shown: dict[str, str] = {}
    for name, rows in (("generation", rates), ("first_token", first)):
        low, high = interval(rows, catalog.constants().unseen_widening.value)
        # a prediction that is always too fast still lies inside its own interval
        low, high = min(low, 1.0), max(high, 1.0)
        print(f"{name}: {len(rows)} rows, {low:.3f} to {high:.3f}")
        shown |= {f"{name}_interval_low": f"{low:.3g}", f"{name}_interval_high": f"{high:.3g}"}
    print(f"generation, each source by the others: {left_out_coverage_frac(rates):.0%} covered")
    if args.write:
        write_constants(shown)


if __name__ == "__main__":
    main()
