"""Published steps that no constant was fitted to, beside what `predict` says of them.

    python benchmarks/held_out.py [--rows]

`held_out/rows.jsonl` holds the rows with their sources; `held_out/systems` the machines that the catalogue lacks. A row
gives its layout with the recomputation that its source or that source's recipe states; where none does, the least that
fits is taken, as `scalewright validate` does. Error is predicted over published step time less one; groups count
equally in the balanced mean.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.costs.setting import Setting
from scalewright.costs.step import step_cost
from scalewright.planner.validation.validate import Part, least_recompute
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model
from scalewright.workload.precision import recipe

FOLDER = Path(__file__).parent / "held_out"


def predicted(catalog: Catalog, row: dict[str, Any]) -> dict[str, Any]:
    model = row["model"] if "=" in row["model"] or not row["model"].endswith(".json") else str(FOLDER / row["model"])
    is_stated = row["recompute"] != "unstated"
    layout = f"{row['layout']},recompute={row['recompute'] if is_stated else 'none'}"
    spec = resolve_model(catalog, model).with_seq(row["seq"])
    setting = Setting(
        shape=spec.transformer, machine=machine_from_system(catalog, row["system"]), layout=parse_layout(layout),
        recipe=recipe(row["precision"]), stack=catalog.stack(row["stack"]),
    )  # fmt: skip
    if is_stated:
        parts = (Part(setting=setting, cost=step_cost(spec=spec, setting=setting), share_frac=1.0),)
    else:
        parts = least_recompute(spec, setting)
    step_s = sum(part.share_frac * float(part.cost.time.total) for part in parts)
    low_s, high_s = (sum(part.share_frac * float(part.cost.interval_s[end]) for part in parts) for end in (0, 1))
    return row | {
        "predicted_s": step_s, "error_frac": step_s / row["published_s"] - 1.0,
        "inside": low_s <= row["published_s"] <= high_s,
    }  # fmt: skip


def show(title: str, rows: list[dict[str, Any]]) -> None:
    errors = [row["error_frac"] for row in rows]
    mean, median = statistics.mean(map(abs, errors)), statistics.median(map(abs, errors))
    inside = sum(row["inside"] for row in rows)
    print(
        f"{title:<26}{len(rows):>5}{mean:>8.1%}{median:>9.1%}{statistics.mean(errors):>+8.1%}{inside:>8} of {len(rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every row")
    given = parser.parse_args()
    catalog = Catalog((FOLDER, packaged_data()))
    rows = [predicted(catalog, json.loads(line)) for line in (FOLDER / "rows.jsonl").read_text().splitlines()]
    if given.rows:
        for row in rows:
            mark = "" if row["inside"] else "  outside the interval"
            print(f"{row['error_frac']:+7.1%}  {row['published_s']:9.3f} s  {row['id']}{mark}")
    groups = sorted({row["group"] for row in rows})
    print(f"{'source':<26}{'rows':>5}{'mean':>8}{'median':>9}{'bias':>8}{'inside 90 %':>14}")
    for group in groups:
        show(group, [row for row in rows if row["group"] == group])
    show("all", rows)
    each = [statistics.mean(abs(r["error_frac"]) for r in rows if r["group"] == group) for group in groups]
    print(f"mean of the sources' means: {statistics.mean(each):.1%}")


if __name__ == "__main__":
    main()
