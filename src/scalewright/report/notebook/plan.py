"""A plan as HTML: the best layouts, why others lost, other node counts, and what the whole run costs."""

from __future__ import annotations

from typing import Any

from scalewright import units
from scalewright.report.notebook import html

MAX_LOSERS = 6


def plan_html(document: dict[str, Any]) -> str:
    """From a `plan/1` document."""
    request = document["request"]
    title = (
        f"{request['model']} on {document['num_gpus']} x {document['accelerator']} ({document['system']}, "
        f"{document['num_nodes']} nodes): {'fits' if document['fits'] else 'does not fit'}"
    )
    model = html.paragraph(document["model_words"], muted=True)
    if not document["fits"]:
        fixes = [(fix["sentence"],) for fix in document["fixes"]]
        reason = html.paragraph(f"The smallest layout {document['reason']}.")
        return html.block(html.paragraph(title, bold=True), model, reason, html.table(["what would fit"], fixes))
    losers = [(loser["sentence"],) for loser in document["why_others_lost"][:MAX_LOSERS]]
    return html.block(
        html.paragraph(title, bold=True),
        model,
        _layouts([document["best"], *document["alternatives"]]),
        html.table(["why others lost"], losers) if losers else "",
        _scaling(document["scaling"]),
        html.paragraph(document["recommended"]["sentence"]) if document["recommended"] else "",
        _whole_run(document["whole_run"]),
        *html.notes(document["warnings"]),
    )


def _layouts(predictions: list[dict[str, Any]]) -> str:
    rows = []
    for body in predictions:
        low, high = (units.format(end, units.SECONDS) for end in body["step_time_interval_s"])
        rows.append((
            body["layout_text"], units.format(body["step_time_s"], units.SECONDS), f"{low} to {high}",
            units.format(body["mfu_frac"], units.FRACTION), units.format(body["memory_bytes"], units.BYTES),
        ))  # fmt: skip
    headers = ["layout", "step time", "90 % interval", "MFU", "memory"]
    return html.table(headers, rows, caption="best layouts", right=headers[1:])


def _scaling(rows: list[dict[str, Any]]) -> str:
    if len(rows) < 2:
        return ""
    headers = ["nodes", "step time", "MFU", "efficiency", "layout"]
    cells = [
        (str(row["num_nodes"]), units.format(row["step_time_s"], units.SECONDS),
         units.format(row["mfu_frac"], units.FRACTION),
         "-" if row["strong_efficiency_frac"] is None else units.format(row["strong_efficiency_frac"], units.FRACTION),
         row["layout"])
        for row in rows
        if row["fits"]
    ]  # fmt: skip
    return html.table(headers, cells, caption="other node counts", right=headers[:-1])


def _hours(run: dict[str, Any]) -> str:
    low, high = (units.format(end, units.COUNT) for end in run["num_gpu_hours_interval"])
    return f"{units.format(run['num_gpu_hours'], units.COUNT)} ({low} to {high})"


def _whole_run(run: dict[str, Any] | None) -> str:
    if run is None:
        return ""
    rows = [
        ("tokens", units.format(run["num_tokens"], units.COUNT)),
        ("steps", f"{run['num_steps']:,}"),
        ("time", units.format(run["time_s"], units.SECONDS)),
        ("GPU-hours", _hours(run)),
    ]
    if run.get("energy_j") is not None:
        rows.append(("energy", units.format(run["energy_j"], units.JOULES)))
    if run.get("carbon_kgco2e") is not None:
        rows.append(("carbon", units.format(run["carbon_kgco2e"], units.KGCO2E)))
    return html.table(["whole run", ""], rows, right=("",))
