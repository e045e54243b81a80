"""The error table for people, in 80 columns."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape

from scalewright.costs.room import MemoryKind
from scalewright.planner.validation.error_table import ErrorTable
from scalewright.planner.validation.scores import DIFFERENT_FRAC
from scalewright.report.console import plain_table

SOURCE_WIDTH = 25
SHOWN_REGRETS = 5
MEMORY_KIND_WORDS: dict[MemoryKind, str] = {
    "allocated": "allocated",
    "reserved": "reserved",
    "device": "on the device",
}


def percent(value: float | int | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f}" if signed else f"{100 * value:.1f}"


def print_error_table(console: Console, table: ErrorTable) -> None:
    shown = plain_table(
        "source",
        "GPU",
        "dtype",
        "rows",
        "done",
        "MAPE",
        "med",
        "bias",
        "rule",
        title="error of predicted step time, % (rule: every job runs at 50 % of peak)",
        right=("rows", "done", "MAPE", "med", "bias", "rule"),
        gap=1,
    )
    for (source, gpu, dtype), group in table.groups.items():
        shown.add_row(escape(_short(source)), _short_gpu(gpu), dtype, *_row(group))
    shown.add_row("[bold]all rows[/]", "", "", *_row(table.overall))
    console.print(shown)
    console.print()
    _print_overall(console, table.overall)
    _print_coverage(console, table)
    _print_regrets(console, table)
    print_reasons(console, table.reasons)


def print_reasons(console: Console, reasons: Mapping[str, int], *, what: str = "rows") -> None:
    """How many rows have no prediction, by reason; nothing where all have one."""
    if reasons:
        console.print(f"[bold]{what} not predicted, and why[/]")
    for reason, count in reasons.items():
        console.print(f"{count:5d}  {escape(reason)}")


def _print_coverage(console: Console, table: ErrorTable) -> None:
    shown = plain_table(
        "source", "GPU", "dtype", "done", "shipped", "left out",
        title="measured times inside the 90 % interval, %, and inside quantiles of the other sources",
        right=("done", "shipped", "left out"), gap=1,
    )  # fmt: skip
    for (source, gpu, dtype), group in table.groups.items():
        if group["num_timed"]:
            shown.add_row(
                escape(_short(source)), _short_gpu(gpu), dtype, str(group["num_timed"]),
                percent(group["coverage_frac"]), percent(group["left_out_coverage_frac"]),
            )  # fmt: skip
    console.print(shown)


def _print_regrets(console: Console, table: ErrorTable) -> None:
    lost = [problem for problem in table.problems if problem.regret_frac > DIFFERENT_FRAC]
    if not lost:
        return
    console.print(
        f"[bold]our choice ran over {DIFFERENT_FRAC:.0%} slower than the best in {len(lost)} problems; worst:[/]"
    )
    for p in lost[:SHOWN_REGRETS]:
        console.print(
            f"{100 * p.regret_frac:5.1f} %  {escape(p.model)} on {p.num_gpus}, batch {p.global_batch}, "
            f"predicted {100 * p.gap_frac:.1f} % apart:\n         chose {p.chosen}, best {p.best}"
        )


def _row(group: Mapping[str, float | int | None]) -> tuple[str, ...]:
    return (
        str(group["num_rows"]),
        str(group["num_timed"]),
        percent(group["mape_frac"]),
        percent(group["median_ape_frac"]),
        percent(group["bias_frac"], signed=True),
        percent(group["rule_mape_frac"]),
    )


def _print_overall(console: Console, o: Mapping[str, float | int | None]) -> None:
    lines = plain_table("", "ours", "rule")
    lines.add_row(
        f"balanced MAPE over {o['num_groups']} (source, GPU, dtype)",
        f"[bold]{percent(o['balanced_mape_frac'])} %[/]",
        f"{percent(o['rule_balanced_mape_frac'])} %",
    )
    lines.add_row(
        "MAPE / median APE over all rows",
        f"{percent(o['mape_frac'])} / {percent(o['median_ape_frac'])} %",
        f"{percent(o['rule_mape_frac'])} / {percent(o['rule_median_ape_frac'])} %",
    )
    if o["num_problems"]:
        lines.add_row(f"layouts within {o['num_problems']} problems: Spearman", _number(o["spearman"]), "")
        lines.add_row("  top-1 regret", f"{percent(o['regret_frac'])} %", "")
        lines.add_row("  pairwise accuracy", _number(o["pairwise_accuracy_frac"]), "")
    for kind, words in MEMORY_KIND_WORDS.items():
        if num := o[f"num_memory_{kind}"]:
            error = f"{percent(o[f'memory_{kind}_mape_frac'])} %"
            lines.add_row(f"memory {words}: MAPE of {num} peaks", error, "")
    caught = f"{o['num_oom_caught']} of {o['num_oom']}" if o["num_oom"] else "none among the rows"
    lines.add_row("out-of-memory runs caught", caught, "")
    if o["num_oom_tight"]:
        lines.add_row("  called tight", f"{o['num_oom_tight']}", "")
    lines.add_row("runs that ran and are called impossible", f"{o['num_false_alarms']} of {o['num_ran']}", "")
    lines.add_row(
        f"coverage of the {percent(o['interval_frac'])[:-2]} % interval", f"{percent(o['coverage_frac'])} %", ""
    )
    lines.add_row("  its mean width, of the prediction", f"{percent(o['width_frac'])} %", "")
    lines.add_row("  its Winkler score, of the prediction", f"{percent(o['winkler_frac'])} %", "")
    lines.add_row("  by quantiles of the other sources", f"{percent(o['left_out_coverage_frac'])} %", "")
    console.print(lines)


def _number(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _short(source: str) -> str:
    """A source's name in the width of a column: repository and file, or authors and table."""
    head, _, tail = source.partition(" ")
    if "@" in head:
        repository = head.split("@")[0].split("/")[-1]
        file = tail.split(" ")[0].split("/")[-1].rpartition(".")[0].replace("performance", "perf")
        return f"{repository} {file}"[:SOURCE_WIDTH]
    plain = re.sub(r"\(arXiv[^)]*\)|et al\. ?", "", source).partition(", via")[0]
    return " ".join(plain.replace("Table ", "T").split())[:SOURCE_WIDTH]


def _short_gpu(gpu: str) -> str:
    return gpu.replace("-SXM", "").replace("-NVL72", "")[:14]
