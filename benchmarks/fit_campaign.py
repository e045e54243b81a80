"""Published over planned GPU-hours of whole runs: the constants of a campaign.

    .venv/bin/python benchmarks/fit_campaign.py [--write]

Each family of runs weighs the same. Run it again after the constants of the step were fitted: what a campaign costs
beside its plan depends on the plan.
"""

from __future__ import annotations

import argparse

from constants_file import write_constants

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.planner.validation.campaign_rows import campaign_table


def main() -> None:
    parser = argparse.ArgumentParser(description="Constants of a campaign.")
    parser.add_argument("--write", action="store_true", help="put them into the catalogue")
    args = parser.parse_args()
    table = campaign_table(Catalog((packaged_data(),)))
    fit = table.fit
    assert fit is not None
    shown = {
        "layout_gap_share": f"{fit.layout_gap_frac:.3g}",
        "campaign_factor": f"{fit.factor_frac:.3g}",
        "campaign_factor_low": f"{fit.factor_low_frac:.3g}",
        "campaign_factor_high": f"{fit.factor_high_frac:.3g}",
    }
    for name, value in shown.items():
        print(f"{name}: {value}")
    inside = f"{table.num_inside_left_out} of {len(table.planned)}"
    print(f"published hours inside the interval, each family left out: {inside}")
    if args.write:
        write_constants(shown)


if __name__ == "__main__":
    main()
