"""Advice on the placement of data, for people: what was found, what an epoch costs, and what to change."""

from __future__ import annotations

import math
import textwrap

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.data.contents import SetContents
from scalewright.launch.placement.advice import PlacementAdvice
from scalewright.launch.placement.striping import ALL_TARGETS, StripeComponent, Striping
from scalewright.observe.findings.words import counted
from scalewright.records.types import Finding
from scalewright.report.console import plain_table

_STYLES = {"info": "cyan", "warning": "yellow", "error": "red"}


def print_placement(console: Console, advice: PlacementAdvice) -> None:
    scan, cost = advice.scan, advice.cost
    at_least = "" if scan.is_whole else "at least "
    console.print(
        f"[bold]{escape(str(scan.path))}[/]: {at_least}{counted(scan.num_files, 'file')} in "
        f"{counted(scan.num_folders + 1, 'folder')}, "
        f"{_bytes(scan.total_bytes)}, {_bytes(scan.mean_bytes)} on average", soft_wrap=True,
    )  # fmt: skip
    console.print(escape(_contents_words(advice.contents)), soft_wrap=True)
    console.print(escape(_striping_words(advice.striping)), soft_wrap=True)
    table = plain_table("", "", header=False)
    for name, value in _rows(advice):
        table.add_row(name, escape(value))
    console.print(table)
    console.print(
        f"{cost.num_ranks} ranks on {_nodes(cost.supply.num_nodes)} of {advice.site.name}; rates: {cost.supply.source}",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    if not scan.is_whole:
        console.print("the scan stopped at its limit: all figures are at least so large", soft_wrap=True)
    for number, what in ((scan.num_links, "links were not followed"), (scan.num_others, "pipes, sockets or devices"),
                         (scan.num_unreadable, "entries could not be read")):  # fmt: skip
        if number:
            console.print(f"left out: {number:,} {what}", soft_wrap=True)
    console.print()
    for finding in advice.findings:
        _print_finding(console, finding)
    if not advice.findings:
        console.print("nothing to change")


def _rows(advice: PlacementAdvice) -> list[tuple[str, str]]:
    cost, epochs = advice.cost, advice.request.num_epochs
    even = cost.break_even_epochs
    pays = "never pays" if math.isinf(even) else f"pays after {even:.1f} epochs"
    fits = {True: "fits", False: "does not fit", None: "room is not known"}[cost.fits]
    rows = [
        ("an epoch in place", f"{_time(cost.in_place_s)} ({_time(cost.stream_s)} of bytes, {_time(cost.metadata_s)} "
                              f"of files)"),
        ("metadata requests", f"{cost.num_operations:,} an epoch"),
        ("copy to the nodes", f"{_time(cost.copy_s)}, {pays}; {fits} in {cost.supply.local_path} "
                              f"({cost.supply.local_kind})"),
        ("an epoch from it", f"{_time(cost.local_s)}; {epochs} epochs {_time(cost.copy_s + epochs * cost.local_s)}, "
                             f"in place {_time(epochs * cost.in_place_s)}"),
        ("loaders a rank", f"{cost.num_loaders} to begin with"),
        ("largest rate", f"{cost.largest_rate:,.0f} samples/s a rank"),
    ]  # fmt: skip
    if cost.wait_frac is not None and cost.local_wait_frac is not None:
        rows.append(("data wait", f"{cost.wait_frac:.1%} in place, {cost.local_wait_frac:.1%} from a copy"))
    return rows


def _contents_words(contents: SetContents) -> str:
    about = "about " if contents.is_estimate else ""
    source = "" if contents.is_file_each and contents.kind == "files" else f" ({contents.source})"
    return (
        f"a sample: one of {about}{contents.num_samples:,.0f} {contents.kind}, {_bytes(contents.sample_bytes)}{source}"
    )


def _striping_words(striping: Striping) -> str:
    name = {"lustre": "Lustre", "gpfs": "GPFS", "beegfs": "BeeGFS", "other": "no parallel file system known"}
    parts = [f"{name[striping.technology]} ({striping.file_system or 'unknown'})"]
    if striping.num_targets:
        parts.append(f"{striping.num_targets} targets")
    parts += [_component_words(part) for part in striping.components]
    if striping.block_bytes and striping.technology == "gpfs":
        parts.append(f"blocks of {_bytes(striping.block_bytes)}")
    if not striping.tool and striping.technology != "other":
        parts.append("striping not known: its program is not installed here")
    return ", ".join(parts)


def _component_words(part: StripeComponent) -> str:
    count = "all targets" if part.stripe_count == ALL_TARGETS else f"{part.stripe_count} x {_bytes(part.stripe_bytes)}"
    return f"stripes {count}" + ("" if math.isinf(part.end_bytes) else f" up to {_bytes(part.end_bytes)}")


def _print_finding(console: Console, finding: Finding) -> None:
    style, width = _STYLES[finding.severity], max(console.width, 40)
    gain = "" if not finding.expected_gain_frac else f" (gain up to {finding.expected_gain_frac:.0%})"
    head = textwrap.wrap(f"{finding.severity}: {finding.message} [{finding.rule}]", width, subsequent_indent="    ")
    for number, line in enumerate(head):
        console.print(escape(line), style=style if number == 0 else None, soft_wrap=True)
    for label, text in (("do", finding.next_step + gain), ("source", finding.source)):
        lines = textwrap.wrap(text, width - 12, break_on_hyphens=False, break_long_words=False)
        for number, line in enumerate(lines):
            console.print(f"    {label if number == 0 else '':<8}{line}", soft_wrap=True, markup=False)


def _nodes(num: int) -> str:
    return f"{num} node{'s' if num != 1 else ''}"


def _bytes(size: float) -> str:
    return units.format(size, units.BYTES)


def _time(seconds: float) -> str:
    return units.format(seconds, units.SECONDS)
