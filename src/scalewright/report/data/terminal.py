"""A finished data set in the terminal: the funnel of documents, and what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalewright import units
from scalewright.observe.findings.words import counted
from scalewright.report.console import answer_console, plain_table


def funnel_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps that let documents through or drop them, in order."""
    return [{"name": name, **step} for name, step in result["steps"].items() if step["docs_in"]]


def rate_bytes_per_s(step: dict[str, Any]) -> float:
    """Of one core."""
    return step["bytes_in"] / step["cpu_s"] if step["cpu_s"] > 0 else 0.0


def duration_words(seconds: float) -> str:
    return units.format(seconds, units.SECONDS) if seconds else "0 s"


def print_data_set(result: dict[str, Any], out: Path) -> None:
    console = answer_console()
    table = plain_table(
        "step", "documents in", "dropped", "text in", "core time", "rate/core",
        right=("documents in", "dropped", "text in", "core time", "rate/core"),
    )  # fmt: skip
    for step in funnel_rows(result):
        dropped = sum(step["reasons"].values())
        rate = rate_bytes_per_s(step)
        table.add_row(
            step["name"], f"{step['docs_in']:,}", f"{dropped:,}" if dropped else "",
            units.format(step["bytes_in"], units.BYTES), duration_words(step["cpu_s"]),
            units.format(rate, units.BYTES_PER_S) if rate else "",
        )  # fmt: skip
    console.print(table)
    tokens = f", {result['num_tokens']:,} tokens" if result["num_tokens"] else ""
    num_bytes = units.format(sum(file["bytes"] for file in result["files"]), units.BYTES)
    documents, shards = counted(result["num_documents"], "document"), counted(result["num_shards"], "shard")
    console.print(
        f"{out}: {documents}{tokens} in {shards} of {result['format']} ({num_bytes})", markup=False,
    )  # fmt: skip
    for problem in result["problems"]:
        console.print(f"{problem['count']:,} x {problem['problem']}; first: {problem['places'][0]}", markup=False)
    if result["num_aside"]:
        console.print(
            f"kept aside with place and reason: {result['num_aside']:,} in {out / 'aside.jsonl'}", markup=False
        )
