"""A data set as one HTML page that loads nothing: funnel, reasons with samples, clusters, lengths, rates, forecast."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from scalewright import __version__, units
from scalewright.data.text.execution.forecast import pipeline_cost
from scalewright.errors import MissingExtraError
from scalewright.observe.findings.words import counted
from scalewright.records.documents import write_text
from scalewright.report.data.terminal import duration_words, funnel_rows, rate_bytes_per_s
from scalewright.report.page_template import page_styles, page_template

STYLES = ("study.css", "data_set.css")
NODES = (1, 2, 4, 8, 16, 32, 64)
CORES_PER_NODE = 64
FORECAST_BYTES = {"1 TB": 1e12, "20 TB": 20e12}


def data_page(result: dict[str, Any], name: str) -> str:
    """The text of the page."""
    template = page_template("data_set.html")
    return template.render(
        title=f"Data set {name}", version=__version__, css=page_styles(STYLES), it=result,
        facts=_facts(result), funnel=_funnel(result), reasons=_reasons(result), kept=_kept(result),
        clusters=_clusters(result), lengths=_lengths(result), rates=_rates(result), forecast=_forecast(result),
        cores_per_node=CORES_PER_NODE, forecast_sizes=list(FORECAST_BYTES),
    )  # fmt: skip


def write_data_page(path: Path, result: dict[str, Any], name: str) -> None:
    write_text(path, data_page(result, name))


def write_report(path: Path, result: dict[str, Any], name: str) -> None:
    """The page beside a new data set, where the extra for pages is installed."""
    with contextlib.suppress(MissingExtraError):
        write_data_page(path, result, name)


def _facts(result: dict[str, Any]) -> list[tuple[str, str]]:
    tokens = result["tokens"]
    given, shards = result["input"], counted(result["num_shards"], "shard")
    facts = [
        ("Input", f"{counted(given['num_files'], 'file')}, {units.format(given['num_bytes'], units.BYTES)}"),
        ("Result", f"{counted(result['num_documents'], 'document')} in {shards} of {result['format']}"),
    ]
    if tokens:
        packed = f", packed in sequences of {tokens['sequence']:,}" if tokens["sequence"] else ""
        facts.append(("Tokens", f"{result['num_tokens']:,} of a vocabulary of {tokens['vocab']:,}{packed}"))
    wall_s = sum(phase["wall_s"] for phase in result["phases"])
    facts.append(("Time", f"{duration_words(wall_s)} with {counted(result['num_workers'], 'worker')} in the last run"))
    return [*facts, ("Identity", str(result["id"]))]


def _funnel(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Bars of documents in front of each step, and after the last."""
    steps = funnel_rows(result)
    most = max((step["docs_in"] for step in steps), default=1)
    rows = []
    for step in steps:
        num_dropped = sum(step["reasons"].values())
        rows.append(
            {
                "name": step["name"], "num": f"{step['docs_in']:,}", "frac": step["docs_in"] / most,
                "dropped_frac": num_dropped / most, "dropped": f"{num_dropped:,}" if num_dropped else "",
                "bytes": units.format(step["bytes_in"], units.BYTES),
            }
        )  # fmt: skip
    kept = result["num_documents"]
    last = {"name": "kept", "num": f"{kept:,}", "frac": kept / most, "dropped_frac": 0.0, "dropped": "", "bytes": ""}
    return [*rows, last]


def _reasons(result: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, step in result["steps"].items():
        for reason, count in sorted(step["reasons"].items(), key=lambda one: (-one[1], one[0])):
            samples = step["examples"].get(reason, [])
            rows.append({"step": name, "reason": reason, "count": f"{count:,}", "samples": samples})
    return rows


def _kept(result: dict[str, Any]) -> list[dict[str, Any]]:
    for name in ("finish", "clean"):
        samples: list[dict[str, Any]] = result["steps"].get(name, {}).get("examples", {}).get("kept", [])
        if samples:
            return samples
    return []


def _bars(entries: list[dict[str, int]]) -> list[dict[str, Any]]:
    most = max((entry["num"] for entry in entries), default=0)
    rows = []
    for number, entry in enumerate(entries):
        last = entries[number + 1]["from"] - 1 if number + 1 < len(entries) else None
        first = entry["from"]
        words = f"{first:,} or more" if last is None else f"{first:,}" if last == first else f"{first:,} to {last:,}"
        rows.append({"words": words, "num": f"{entry['num']:,}", "frac": entry["num"] / most if most else 0.0})
    return rows


def _clusters(result: dict[str, Any]) -> dict[str, Any] | None:
    clusters = result["clusters"]
    if "sizes" not in clusters:
        return None
    return {
        "num": f"{clusters['num_clusters']:,}", "num_drops": f"{clusters['num_drops']:,}",
        "num_pairs": f"{clusters['num_pairs']:,}", "num_verified": f"{clusters['num_verified']:,}",
        "bars": _bars(clusters["sizes"]), "largest": clusters["largest"],
    }  # fmt: skip


def _lengths(result: dict[str, Any]) -> list[dict[str, Any]]:
    entries = result["lengths"]
    filled = [number for number, entry in enumerate(entries) if entry["num"]]
    return _bars(entries[filled[0] : filled[-1] + 2]) if filled else []


def _rates(result: dict[str, Any]) -> list[dict[str, str]]:
    rows = []
    for step in funnel_rows(result):
        rate = rate_bytes_per_s(step)
        per_s = step["docs_in"] / step["cpu_s"] if step["cpu_s"] else 0.0
        rows.append(
            {
                "name": step["name"], "seconds": duration_words(step["cpu_s"]),
                "rate": units.format(rate, units.BYTES_PER_S) if rate else "", "documents": f"{per_s:,.0f}",
            }
        )  # fmt: skip
    return rows


def _forecast(result: dict[str, Any]) -> list[dict[str, Any]]:
    cost = pipeline_cost(result)
    if cost is None:
        return []
    return [
        {
            "nodes": nodes,
            "hours": [
                f"{cost.hours(input_bytes=size, num_nodes=nodes, cores_per_node=CORES_PER_NODE):.3g}"
                for size in FORECAST_BYTES.values()
            ],
        }
        for nodes in NODES
    ]
