"""Add to the figures of a generation benchmark what follows from the machine and from the prediction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scalewright import units
from scalewright.records.documents import read_document
from scalewright.records.measurements import read_measurements, write_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.records.unit_keys import whole_interval

COMPARED = {"tokens_per_s": "tokens_per_s", "ttft_s": "ttft_median_s", "itl_s": "itl_median_s"}
"""Predicted figures, and the measured ones beside which they stand."""
INTERVALS = {"tokens_per_s": "tokens_per_s_interval", "ttft_s": "ttft_interval_s", "itl_s": "itl_interval_s"}


def add_comparison(directory: RunDirectory) -> None:
    """Share of the memory roof, money for a million tokens, and the prediction of every load beside its figures."""
    measurements, machine = read_measurements(directory), directory.read_machine()
    prediction = read_document(directory.prediction, "prediction") if directory.prediction.exists() else {}
    rows = [_with_machine(row, machine) for row in measurements.rows]
    comparisons = [
        comparison for row in rows for load in prediction.get("loads", ()) if load["load"] == row["load"]
        for comparison in _comparisons(row, load)
    ]  # fmt: skip
    basis = {"basis": machine["basis"]} if machine.get("basis") else {}
    summary = {**measurements.summary, **basis, "comparisons": comparisons}
    write_measurements(directory, replace(measurements, rows=rows, summary=summary))


def _with_machine(row: dict[str, Any], machine: dict[str, Any]) -> dict[str, Any]:
    roof, price, read = machine.get("memory_bytes_per_s"), machine.get("usd_per_s"), row.get("decode_bytes_per_s")
    million = units.DECIMAL["M"]
    return {
        **row,
        "memory_roof_bytes_per_s": roof,
        "memory_roof_frac": read / roof if read and roof else None,
        "usd_per_million_tokens": price * row["time_s"] / row["num_tokens"] * million
        if price and row["num_tokens"]
        else None,
        "energy_j_per_million_tokens": row["energy_j_per_token"] * million if row.get("energy_j_per_token") else None,
    }


def _comparisons(row: dict[str, Any], load: dict[str, Any]) -> list[dict[str, Any]]:
    comparisons = []
    for name, key in COMPARED.items():
        measured, predicted = row.get(key), load.get(name)
        if measured is None or predicted is None:
            continue
        interval = whole_interval(load.get(INTERVALS[name]))
        comparisons.append(
            {
                "load": row["load"], "name": name, "measured": measured, "predicted": predicted, "interval": interval,
                "ratio_frac": measured / predicted,
                "inside": None if interval is None else interval[0] <= measured <= interval[1],
            }
        )  # fmt: skip
    return comparisons
