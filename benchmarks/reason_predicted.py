"""Measured updates, scoring passes and GRPO steps of `reason_speed.py` beside what a calibration predicts.

    PYTHONPATH=src python benchmarks/reason_predicted.py benchmarks/results/h200_reason.jsonl \
        [--calibration h200] [--system generic-h200]

One JSON line for each measured figure: measured over predicted time. Nothing is fitted to these rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalewright.catalog import calibration as calibrations
from scalewright.catalog.library import open_catalog
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.here.place import Place, place_of
from scalewright.planner.stages.reason_stage import RolloutLoad, StageLoad, UpdateLoad, predict_stage
from scalewright.workload.layout import parse_layout
from scalewright.workload.lengths import fixed
from scalewright.workload.model import from_catalog

VOCAB_MULTIPLE = 64


def load_of(row: dict[str, Any], *, seq: int) -> StageLoad:
    """What a row measured, without its numbers."""
    spec = from_catalog(open_catalog().model(row["model"]))
    vocab = -(-spec.transformer.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    shape = spec.transformer.model_copy(update={"seq": seq, "num_positions": seq, "vocab": vocab})
    return StageLoad(
        stage=row["figure"], spec=replace(spec, shape=shape), layout=parse_layout("dp=1"), precision="bf16",
        engine_precision="bf16", engine_tp=1, num_steps=1, num_updates=1, num_samples=1, num_tokens=1.0,
    )  # fmt: skip


def update_of(row: dict[str, Any], *, prompt: int, seq: int) -> StageLoad:
    """An update of rows that are as long as its sequences are on average: attention sees those alone."""
    num, width = row["num_sequences"], -(-row["num_tokens"] // row["num_sequences"])
    if row["packing"] == "padded":
        width = row["num_read"] // num
    num_rows = max(round(row["num_read"] / width / row["num_micro_batches"]), 1)
    scored = row["num_tokens"] - num * (prompt - 1)
    update = UpdateLoad(
        num_micro_batches=row["num_micro_batches"], num_rows=num_rows, row_len=width, num_tokens=float(row["num_read"]),
        num_sequences=num, scored_frac=scored / row["num_read"],
    )  # fmt: skip
    return replace(load_of(row, seq=seq), update=update)


def grpo_of(row: dict[str, Any]) -> StageLoad:
    prompt, response, num = row["prompt_len"], row["response_len"], row["num_prompts"] * row["group"]
    width = prompt + response - 1
    padded = -(-width // 8) * 8
    update = UpdateLoad(
        num_micro_batches=-(-num // 64), num_rows=min(num, 64), row_len=padded, num_tokens=float(num * padded),
        num_sequences=num, scored_frac=response / padded,
    )  # fmt: skip
    rollout = RolloutLoad(
        num_prompts=row["num_prompts"], num_answers=row["group"], prompts=fixed(prompt), answers=fixed(response),
        max_running=num,
    )  # fmt: skip
    return replace(
        load_of(row, seq=prompt + response + 1), update=update, rollout=rollout, num_scorings=1.0, has_sync=True
    )


def compared(rows: list[dict[str, Any]], place: Place) -> Iterator[dict[str, Any]]:
    trained: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["figure"] == "training":
            trained[row["model"], row["packing"], row["uneven"]] = row
            parts = predict_stage(open_catalog(), update_of(row, prompt=256, seq=2048), place).step_parts
            yield _line(row, "training", row["step_s"], parts["training"].time_s)
        elif row["figure"] == "log_probs" and (row["model"], row["packing"], row["uneven"]) in trained:
            update = trained[row["model"], row["packing"], row["uneven"]]
            load = replace(update_of(update, prompt=256, seq=2048), num_scorings=1.0)
            parts = predict_stage(open_catalog(), load, place).step_parts
            yield _line(row, "log_probs", row["score_s"], parts["log_probs"].time_s)
        elif row["figure"] == "grpo_step":
            prediction = predict_stage(open_catalog(), grpo_of(row), place)
            yield _line(row, "step", row["step_s"], prediction.step.time_s)
            for part, seconds in row["seconds"].items():
                yield _line(row, part, seconds, prediction.step_parts[part].time_s)


def _line(row: dict[str, Any], part: str, measured_s: float, predicted_s: float) -> dict[str, Any]:
    kept = {key: row[key] for key in ("figure", "model", "packing", "uneven", "loss") if key in row}
    return kept | {
        "part": part, "measured_s": measured_s, "predicted_s": predicted_s, "ratio": round(measured_s / predicted_s, 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--calibration", default="", help="name of a calibration; none: the catalogue")
    parser.add_argument("--system", default="generic-h200")
    given = parser.parse_args()
    catalog = open_catalog()
    place = place_of(catalog, given.system)
    if given.calibration:
        machine = machine_from_calibration(catalog, calibrations.load(given.calibration))
        place = Place(machine=machine, system="", basis=f"calibration {machine.name}")
    rows = [json.loads(line) for line in given.rows.read_text(encoding="utf-8").splitlines() if line.strip()]
    for line in compared([row for row in rows if "figure" in row], place):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
