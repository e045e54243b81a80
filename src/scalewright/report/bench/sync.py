"""Table of the weight-sync benchmark: a line for each way, beside the rate of the link and what was predicted."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.records.measurements import Measurements
from scalewright.report.console import plain_table

COLUMNS = ("way", "bytes", "time", "trainer", "rate", "of link", "predicted", "checksum")


def print_sync(console: Console, measurements: Measurements) -> None:
    summary = measurements.summary
    first = measurements.rows[0]
    console.print(
        f"{escape(str(summary['model_id']))}, {units.format(summary['weights_bytes'], units.BYTES)}: trainer of "
        f"{_count(first['num_trainers'], 'rank')} ({escape(str(summary['layout']))}) to "
        f"{_count(first['num_engines'], 'engine')} with tp={first['tp']}"
    )
    table = plain_table(*COLUMNS, right=COLUMNS[1:])
    for row in measurements.rows:
        table.add_row(
            row["way"], units.format(row["bytes"], units.BYTES), units.format(row["time_s"], units.SECONDS),
            units.format(row["prepare_s"], units.SECONDS), units.format(row["bytes_per_s"], units.BYTES_PER_S),
            f"{row['link_frac']:.0%}", units.format(row["predicted_s"], units.SECONDS),
            f"{row['num_wrong']} wrong" if row["num_wrong"] else "ok",
        )  # fmt: skip
    console.print(table)
    console.print("bytes and rate: of one engine rank; trainer: the part of the time before anything can be pulled")
    rates = {
        "plain TCP stream to every engine rank at once": summary["link_bytes_per_s"],
        "to one alone": summary["link_alone_bytes_per_s"],
        "plain write": summary["write_bytes_per_s"],
        "plain read": summary["read_bytes_per_s"],
    }
    console.print("; ".join(f"{name} {units.format(rate, units.BYTES_PER_S)}" for name, rate in rates.items()))
    console.print(f"fastest here: {summary['chosen']}; by the formulas with these rates: {summary['predicted_choice']}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
