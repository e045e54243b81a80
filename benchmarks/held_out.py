"""Predict published steps that no constant was fitted to, and store how far off the predictions are.

    python benchmarks/held_out.py [--rows] [--write]

`held_out/rows.jsonl` holds the rows with their sources; `held_out/systems` holds the machines that the catalogue lacks.
A row gives its layout with the recomputation that its source, or that source's recipe, states. If none is stated, the
least recomputation that fits is used, as `scalewright validate` does. The error is predicted over published step time
minus one. In the balanced mean each source counts the same. `--write` stores the scores in `results/held_out.json`,
from which the documentation takes its figures.
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
from scalewright.planner.validation.validate import RULE_HFU_FRAC, Part, least_recompute, with_attention_of
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model
from scalewright.workload.precision import recipe

FOLDER = Path(__file__).parent / "held_out"
STORED = Path(__file__).parent / "results" / "held_out.json"


def predicted(catalog: Catalog, row: dict[str, Any]) -> dict[str, Any]:
    """The row with its prediction, its error and the error of the 50 % rule."""
    model = row["model"] if "=" in row["model"] or not row["model"].endswith(".json") else str(FOLDER / row["model"])
    is_stated = row["recompute"] != "unstated"
    layout = f"{row['layout']},recompute={row['recompute'] if is_stated else 'none'}"
    spec = resolve_model(catalog, model).with_seq(row["seq"])
    setting = Setting(
        shape=spec.transformer, machine=machine_from_system(catalog, row["system"]), layout=parse_layout(layout),
        recipe=recipe(row["precision"]), stack=with_attention_of(catalog.stack(row["stack"]), row.get("year")),
    )  # fmt: skip
    if is_stated:
        parts = (Part(setting=setting, cost=step_cost(spec=spec, setting=setting), share_frac=1.0),)
    else:
        parts = least_recompute(spec, setting)
    step_s = sum(part.share_frac * float(part.cost.time.total) for part in parts)
    rule_s = sum(part.share_frac * float(part.cost.time.total * part.cost.hfu_frac) for part in parts) / RULE_HFU_FRAC
    low_s, high_s = (sum(part.share_frac * float(part.cost.interval_s[end]) for part in parts) for end in (0, 1))
    return row | {
        "predicted_s": step_s, "error_frac": step_s / row["published_s"] - 1.0,
        "rule_error_frac": rule_s / row["published_s"] - 1.0, "is_inside": low_s <= row["published_s"] <= high_s,
    }  # fmt: skip


def predicted_rows() -> list[dict[str, Any]]:
    catalog = Catalog((FOLDER, packaged_data()))
    return [predicted(catalog, json.loads(line)) for line in (FOLDER / "rows.jsonl").read_text().splitlines()]


def scores(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [row["error_frac"] for row in rows]
    return {
        "num_rows": len(rows),
        "mean_ape_frac": statistics.mean(map(abs, errors)),
        "median_ape_frac": statistics.median(map(abs, errors)),
        "bias_frac": statistics.mean(errors),
        "rule_mean_ape_frac": statistics.mean(abs(row["rule_error_frac"]) for row in rows),
        "num_inside": sum(row["is_inside"] for row in rows),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores of each source, of all rows, and the balanced means; rounded to what another processor repeats."""
    names = sorted({row["group"] for row in rows})
    sources = {name: scores([row for row in rows if row["group"] == name]) for name in names}
    balanced = {
        f"balanced_{key}": statistics.mean(source[key] for source in sources.values())
        for key in ("mean_ape_frac", "rule_mean_ape_frac")
    }
    document = {"sources": sources, "all": scores(rows) | {"num_sources": len(sources)} | balanced}
    rounded: dict[str, Any] = json.loads(json.dumps(document), parse_float=lambda text: round(float(text), 6))
    return rounded


def table(document: dict[str, Any]) -> str:
    lines = [f"{'source':<26}{'rows':>5}{'mean':>8}{'median':>9}{'bias':>8}{'inside 90 %':>14}{'50 % rule':>12}"]
    for name, s in [*document["sources"].items(), ("all", document["all"])]:
        lines.append(
            f"{name:<26}{s['num_rows']:>5}{s['mean_ape_frac']:>8.1%}{s['median_ape_frac']:>9.1%}{s['bias_frac']:>+8.1%}"
            f"{s['num_inside']:>7} of {s['num_rows']:<3}{s['rule_mean_ape_frac']:>12.1%}"
        )
    balanced = document["all"]["balanced_mean_ape_frac"]
    return "\n".join([*lines, f"mean of the sources' means: {balanced:.1%}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--write", action="store_true", help=f"store the scores in {STORED.name}")
    options = parser.parse_args()
    rows = predicted_rows()
    if options.rows:
        for row in rows:
            mark = "" if row["is_inside"] else "  outside the interval"
            print(f"{row['error_frac']:+7.1%}  {row['published_s']:9.3f} s  {row['id']}{mark}")
    document = summary(rows)
    print(table(document))
    if options.write:
        STORED.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
