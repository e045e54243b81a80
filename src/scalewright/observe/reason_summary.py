"""Add to the record of a stage what follows from the machine that it ran on."""

from __future__ import annotations

from dataclasses import replace

from scalewright.records.reasoning import read_stage, write_stage
from scalewright.records.run_directory import RunDirectory


def add_cost(directory: RunDirectory) -> None:
    """Money for the time of a stage, evaluation and checkpoints included, at the price of its devices."""
    price = directory.read_machine().get("usd_per_s")
    if price is None:
        return
    record = read_stage(directory)
    write_stage(directory, replace(record, cost_usd=float(price) * sum(record.seconds_by_part.values())))
